//! A server that finds library and page by its environment, and agents that start and end.

mod container;

use super::*;
use crate::support::agent::Agent;
use crate::support::record::{Record, epochs_so_far};
use crate::support::{is_root, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Writes the output of `lull attach --environment` for this scene's page to a file.
fn environment(scene: &Scene, more: &[&str]) -> PathBuf {
    let place = page_directory(scene);
    let options = ["attach", &place, "--environment", "--protocol", "mysql"];
    let printed = scene.run(&[&options, more].concat()).well().out;
    scene.write("environment", &printed)
}

fn page_directory(scene: &Scene) -> String {
    scene.path("db").to_str().unwrap().to_owned()
}

fn page(scene: &Scene) -> PathBuf {
    scene.path("db/page")
}

/// Starts the server with that file's lines as its environment, after `before`. It has no
/// other connection with Lull.
fn start_free(scene: &Scene, environment: &PathBuf, before: &[&str]) -> (Agent, u16) {
    let (program, port) = (built(scene, "threads"), free_port());
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec env $(cat \"$0\") \"$@\""]).arg(environment).args(before);
    let mut server = scene.start({
        shell.args([&program, &port.to_string(), "-1"]);
        shell
    });
    server.wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    (server, port)
}

/// Starts a server without an agent.
fn free(scene: &Scene) -> (Agent, u16) {
    start_free(scene, &environment(scene, &[]), &[])
}

fn attached(scene: &Scene, options: &[&str]) -> Agent {
    let place = page_directory(scene);
    let arguments = [&["attach", &place, "--json"], options].concat();
    let mut agent = scene.start(scene.lull(&arguments));
    agent.wait_until_printed("attached to");
    agent
}

fn queries(client: &mut Client, count: usize) {
    (0..count).for_each(|_| assert!(client.query("work").is_some()));
}

const GATE_OF_ONE: [&str; 4] = ["--concurrency", "1", "--slot-lease", "1s"];

#[test]
fn a_server_that_was_there_before_its_agent_is_watched_from_then_on() {
    let scene = Scene::new();
    let (_server, port) = free(&scene);
    let mut early = Client::connect_to(port);
    queries(&mut early, 3);
    let agent = attached(&scene, &[]);
    queries(&mut early, 5);
    let mut late = Client::connect_to(port);
    queries(&mut late, 7);
    early.leave();
    late.leave();
    let seen = agent.interrupt().well().json();
    let mut gated = of_class(&seen, "gated");
    gated.sort_unstable();
    assert_eq!(gated, [5, 7], "{seen}");
    assert_eq!((seen["name"].as_str(), seen["mode"].as_str()), (Some("db"), Some("stats")));
    assert_eq!((&seen["queries"], &seen["transactions"]), (&12.into(), &12.into()), "{seen}");
}

#[test]
fn the_gate_of_an_agent_that_attaches_later_makes_workers_wait() {
    let scene = Scene::new();
    let (_server, port) = free(&scene);
    let (mut holder, mut waiter) = (Client::connect_to(port), Client::connect_to(port));
    let agent = attached(&scene, &GATE_OF_ONE);
    // Several rounds: on a machine that stalls the slot may be overdue first.
    for _ in 0..5 {
        holder.query("begin").unwrap();
        waiter.ask("work");
        std::thread::sleep(Duration::from_millis(100));
        holder.query("commit").unwrap();
        assert!(waiter.packet().is_some());
    }
    let seen = agent.interrupt().well().json();
    assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
    // The agent has left the gate open.
    holder.query("begin").unwrap();
    queries(&mut waiter, 5);
    holder.query("commit").unwrap();
}

/// Returns the number of workers in the page.
fn workers(scene: &Scene) -> u64 {
    let status = scene.run(&["gate", "status", &page_directory(scene), "--json"]).well().json();
    status["workers"].as_u64().unwrap_or_else(|| panic!("{status}"))
}

/// In its own namespace the server is process 1, which is another one outside.
#[test]
fn a_server_in_a_pid_namespace_keeps_its_records_until_it_ends_or_is_started_again() {
    let inside = ["unshare", "--pid", "--fork", "--kill-child"];
    let tried = Command::new(inside[0]).args(&inside[1..]).arg("true").status();
    if !is_root() || !tried.is_ok_and(|status| status.success()) {
        return skip("makes a PID namespace: run as root, with CAP_SYS_ADMIN");
    }
    let scene = Scene::new();
    let environment = environment(&scene, &[]);
    let (server, port) = start_free(&scene, &environment, &inside);
    let mut client = Client::connect_to(port);
    queries(&mut client, 3);
    // An agent searches for records of ended processes when it attaches.
    let agent = attached(&scene, &GATE_OF_ONE);
    // The record of the check for the server's port may exist for a moment.
    wait_for("the record of one worker", || workers(&scene) == 1);
    queries(&mut client, 5);
    client.leave();
    let seen = agent.interrupt().well().json();
    assert_eq!(of_class(&seen, "gated"), [5], "{seen}");
    let mut client = Client::connect_to(port);
    server.signal(Signal::KILL);
    drop(server);
    wait_for("the end of the server", || client.query("work").is_none());
    let (_again, port) = start_free(&scene, &environment, &inside);
    let _client = Client::connect_to(port);
    wait_for("free records of the former process 1", || workers(&scene) == 1);
}

#[test]
fn a_server_outlives_its_agents_and_each_counts_its_own() {
    for mode in MODES {
        let scene = Scene::new();
        let (_server, port) = free(&scene);
        let (mut holder, mut waiter) = (Client::connect_to(port), Client::connect_to(port));
        for _ in 0..3 {
            let killed = attached(&scene, &[&GATE_OF_ONE[..], &["--mode", mode]].concat());
            holder.query("begin").unwrap();
            waiter.ask("work");
            killed.signal(Signal::KILL);
            assert!(waiter.packet().is_some(), "{mode}");
            drop(killed);
            queries(&mut waiter, 5);
            holder.query("commit").unwrap();
        }
        let agent = attached(&scene, &[&GATE_OF_ONE[..], &["--mode", mode]].concat());
        queries(&mut holder, 4);
        waiter.leave();
        holder.leave();
        let seen = agent.interrupt().well().json();
        assert_eq!(of_class(&seen, "gated").iter().sum::<u64>(), 4, "{mode}: {seen}");
        assert!(seen["gate"]["admissions"].as_u64() >= Some(4), "{mode}: {seen}");
    }
}

#[test]
fn an_agent_finds_a_server_that_was_started_after_it_and_one_after_that() {
    let scene = Scene::new();
    let environment = environment(&scene, &[]);
    let agent = attached(&scene, &[]);
    for count in [3, 5] {
        let (server, port) = start_free(&scene, &environment, &[]);
        let mut client = Client::connect_to(port);
        queries(&mut client, count);
        client.leave();
        let stays = Client::connect_to(port);
        server.signal(Signal::KILL);
        drop((server, stays));
    }
    let seen = agent.interrupt().well().json();
    let counts = of_class(&seen, "gated");
    assert!(counts.contains(&3) && counts.contains(&5), "{seen}");
}

#[test]
fn a_second_agent_is_refused_with_the_process_to_stop() {
    let scene = Scene::new();
    let (_server, port) = free(&scene);
    let first = attached(&scene, &[]);
    let place = page_directory(&scene);
    let words = format!("page has an agent already, process {}: stop it first", first.pid());
    scene.run(&["attach", &place, "--concurrency", "1"]).refused(1, &words);
    // `--environment` still works while another agent runs.
    environment(&scene, &[]);
    let mut client = Client::connect_to(port);
    queries(&mut client, 2);
    client.leave();
    let seen = first.interrupt().well().json();
    assert_eq!((&seen["queries"], seen["mode"].as_str()), (&2.into(), Some("stats")), "{seen}");
    scene.run(&["attach", &place, "--for", "1ms"]).well();
}

/// Asserts that a server whose page was changed by `spoil` reports `server_says` and runs
/// without a gate, and that an agent fails with `agent_says`.
fn runs_without(spoil: impl Fn(&Scene), server_says: &str, agent_says: &str) {
    let scene = Scene::new();
    let environment = environment(&scene, &[]);
    spoil(&scene);
    let (server, port) = start_free(&scene, &environment, &[]);
    assert!(server.err().contains(server_says), "{}", server.err());
    queries(&mut Client::connect_to(port), 3);
    scene.run(&["attach", &page_directory(&scene)]).refused(1, agent_says);
}

#[test]
fn a_page_that_others_may_write_to_is_not_used() {
    let spoil = |scene: &Scene| {
        std::fs::set_permissions(page(scene), PermissionsExt::from_mode(0o660)).unwrap();
    };
    let message = "lull: LULL_PAGE is neither sealed memory nor a file of root or this user";
    runs_without(spoil, message, "can be written by other users (mode 660)");
}

#[test]
fn a_page_of_another_version_is_not_used() {
    let spoil = |scene: &Scene| {
        // The number of the layout follows the eight bytes at the start of every page.
        let file = File::options().write(true).open(page(scene)).unwrap();
        file.write_all_at(&5_u32.to_ne_bytes(), 8).unwrap();
    };
    let message = "lull: LULL_PAGE is not a page of this version";
    runs_without(spoil, message, "its layout is version 5, not");
}

#[test]
fn a_server_whose_page_directory_is_gone_runs_without() {
    let scene = Scene::new();
    let environment = environment(&scene, &[]);
    std::fs::remove_dir_all(scene.path("db")).unwrap();
    let (_server, port) = start_free(&scene, &environment, &[]);
    queries(&mut Client::connect_to(port), 3);
}

#[test]
fn the_library_may_lie_elsewhere() {
    let scene = Scene::new();
    let elsewhere = scene.path("lib");
    let environment = environment(&scene, &["--library", elsewhere.to_str().unwrap()]);
    assert!(elsewhere.join("liblull_preload.so").is_file());
    assert!(!scene.path("db/liblull_preload.so").exists());
    let (_server, port) = start_free(&scene, &environment, &[]);
    let agent = attached(&scene, &["--library", elsewhere.to_str().unwrap()]);
    let mut client = Client::connect_to(port);
    queries(&mut client, 3);
    client.leave();
    assert_eq!(agent.interrupt().well().json()["queries"], 3);
}

#[test]
fn a_server_that_is_executed_as_another_user_opens_the_page_that_was_given_to_it() {
    if !is_root() {
        return skip("gives a page to another user: run as root");
    }
    let scene = Scene::with_program_for_all();
    let environment = environment(&scene, &["--owner", "nobody"]);
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let (server, port) = start_free(&scene, &environment, &nobody);
    let agent = attached(&scene, &GATE_OF_ONE);
    let mut client = Client::connect_to(port);
    queries(&mut client, 3);
    client.leave();
    assert_eq!(agent.interrupt().well().json()["queries"], 3, "{}", server.err());
}

#[test]
fn the_agent_reports_a_server_that_has_the_page_and_not_the_library() {
    let scene = Scene::new();
    let mut agent = attached(&scene, &[]);
    let environment = scene.write("page-only", &format!("LULL_PAGE={}", page(&scene).display()));
    let (server, _port) = start_free(&scene, &environment, &[]);
    let words =
        format!("threads (process {}) does not use the page: its environment", server.pid());
    agent.wait_until_printed(&words);
    agent.interrupt().well();
}

#[test]
fn the_agent_reports_a_server_that_is_executed_as_another_user_than_owns_the_page() {
    if !is_root() {
        return skip("gives a page to another user: run as root");
    }
    let scene = Scene::with_program_for_all();
    let environment = environment(&scene, &["--owner", "nobody"]);
    let mut agent = attached(&scene, &[]);
    let (_server, _port) = start_free(&scene, &environment, &[]);
    agent.wait_until_printed("belongs to user 65534, and a server maps only a page of root");
    agent.interrupt().well();
}

#[test]
fn an_admission_controller_decides_while_it_is_attached_and_leaves_the_gate_open() {
    let scene = Scene::new();
    let (server, port) = free(&scene);
    for cap in [1, 2] {
        let key = format!("cap={cap}");
        let gate = ["--protocol", "mysql", "--concurrency", "manual", "--key", &key];
        let mut agent = attached(&scene, &gate);
        agent.wait_until_printed(&format!("manual: {cap} transactions at a time"));
        let mut client = Client::connect_to(port);
        queries(&mut client, 3);
        client.leave();
        let seen = agent.interrupt().well().json();
        assert_eq!((&seen["cap"], &seen["queries"]), (&cap.into(), &3.into()), "{}", server.err());
    }
}

#[test]
fn a_run_takes_the_latency_of_a_server_that_it_did_not_start() {
    let scene = Scene::new();
    let (server, port) = free(&scene);
    let app = format!(
        "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"db\"\nclass = \"latency-critical\"\n\
         objectives = [{{ p99 = \"1s\" }}]\nideal = \"1ms\"\nlatency = \"preload\"\n\
         page = {:?}\nconcurrency = 1\npid = {}\n",
        page_directory(&scene),
        server.pid()
    );
    let mut agent = scene.agent(&scene.config("silence = \"1h\"", &app));
    let mut client = Client::connect_to(port);
    agent.wait_for("epochs with queries", || {
        queries(&mut client, 5);
        epochs_so_far(scene.records().first()) > 3
    });
    scene
        .run(&["attach", &page_directory(&scene)])
        .refused(1, &format!("has an agent already, process {}", agent.pid()));
    agent.interrupt().well();
    let latencies = "SELECT count(*) FROM latencies WHERE app = 'db'";
    assert!(Record::open(&scene.records()[0]).number(latencies) > 0);
    // The run does not end a server that it did not start, and the page is free for the next.
    queries(&mut client, 3);
    let agent = attached(&scene, &[]);
    queries(&mut client, 3);
    client.leave();
    assert_eq!(agent.interrupt().well().json()["queries"], 3);
}

#[test]
fn an_option_that_an_agent_cannot_have_is_refused() {
    let scene = Scene::new();
    let place = page_directory(&scene);
    let odd = scene.path("a b");
    let odd = odd.to_str().unwrap();
    scene.run(&["attach", odd, "--environment"]).refused(2, "name a directory of letters");
    scene.run(&["attach", &place, "--delay", "1s"]).refused(2, "--delay is 1s, not in");
    scene.run(&["attach", &place, "--concurrency", "nobody"]).refused(2, "--concurrency nobody");
    scene.run(&["attach", "/proc/self/status"]).refused(1, "is not a directory");
    if is_root() {
        scene
            .run(&["attach", &place, "--owner", "nobody-here"])
            .refused(2, "no user `nobody-here`");
    }
}
