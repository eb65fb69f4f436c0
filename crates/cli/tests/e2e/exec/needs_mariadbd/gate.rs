//! `lull gate` at a database: without an agent, with one, and after one was killed.

use super::attach::{attached, free};
use super::*;
use crate::support::threads::threads;

/// Returns the state of the gate of this server after an action.
pub(super) fn gate(scene: &Scene, action: &str, server: &str) -> Value {
    scene.run(&["gate", action, server, "--json"]).well().json()
}

#[test]
fn an_operator_bypasses_the_gate_with_and_without_an_agent_and_after_a_kill() {
    let scene = Scene::new();
    let database = free(&scene);
    let pid = database.pid().to_string();
    // Without an agent: by process number, and agents that attach later keep it.
    let state = gate(&scene, "off", &pid);
    assert_eq!((&state["gate"], &state["agent"]), (&"bypassed".into(), &Value::Null), "{state}");
    assert_eq!(state["protocol"], "mysql", "{state}");
    let options = ["--concurrency", "1", "--slot-lease", "1s"];
    let mut agent = attached(&scene, &options);
    agent.wait_until_printed("bypassed by the operator since");
    let state = gate(&scene, "status", "page/");
    assert_eq!(
        (&state["gate"], &state["limit"]["cap"]),
        (&"bypassed".into(), &1.into()),
        "{state}"
    );
    assert_eq!(state["agent"], agent.pid(), "{state}");
    ended(database.client(&"begin; select 1; commit;".repeat(20)));
    agent.signal(Signal::KILL);
    drop(agent);
    assert_eq!(gate(&scene, "status", &pid)["gate"], "bypassed", "an agent that is killed");
    let mut agent = attached(&scene, &options);
    agent.wait_until_printed("bypassed by the operator since");
    ended(database.client(&"begin; select 1; commit;".repeat(20)));
    let seen = agent.interrupt().well().json();
    assert_eq!(seen["gate"]["admissions"], 0, "{seen}");
    // The end of the bypass closes the gate again, and the next bypass releases the waiting
    // workers.
    assert_eq!(gate(&scene, "on", &pid)["gate"], "open");
    let agent = attached(&scene, &["--concurrency", "1", "--slot-lease", "1s"]);
    // Each holds the slot until its lease ends, so that others wait for seconds.
    let clients = (0..8).map(|_| database.client("begin; select sleep(2); commit;"));
    let clients: Vec<Child> = clients.collect();
    wait_for("workers that wait", || gate(&scene, "status", &pid)["waiting"].as_u64() >= Some(2));
    let state = gate(&scene, "off", "page/");
    assert_eq!((&state["gate"], &state["waiting"]), (&"bypassed".into(), &0.into()), "{state}");
    clients.into_iter().for_each(|client| assert_eq!(ended(client).trim(), "0"));
    let seen = agent.interrupt().well().json();
    assert!(seen["gate"]["let_go_when_it_opened"].as_u64() >= Some(2), "{seen}");
    let printed = scene.run(&["gate", "status", "page/"]).well().out;
    assert!(
        printed.contains("bypassed by the operator since") && printed.contains("none is attached")
    );
}

#[test]
fn the_thread_that_calls_workers_starts_only_in_mode_epoll() {
    for (mode, is_started) in [("post", false), ("epoll", true)] {
        let scene = Scene::new();
        let database = Database::start(&scene, &["--concurrency", "2", "--mode", mode]);
        let pid = database.pid();
        let name = |tid: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok();
        let has_it = || {
            ended(database.client(&"select 1;".repeat(20)));
            threads(pid).into_keys().filter_map(name).any(|name| name.trim() == "lull-calls")
        };
        match is_started {
            true => wait_for("the thread that calls workers", has_it),
            false => assert!(!has_it(), "a thread for a mode that is not set"),
        }
    }
}
