//! A database that another program starts, and agents that start and end under load.

use super::*;

/// Starts a database whose only connection with Lull is its environment.
pub(super) fn free(scene: &Scene) -> Database {
    let (command, port) = installed(scene);
    let printed = scene.run(&["attach", "page", "--environment"]).well().out;
    let mut server = Command::new("env");
    server.args(printed.lines()).args(&command);
    Database::from_server(scene, Server::from_agent(scene.start(server), port))
}

pub(super) fn attached(scene: &Scene, options: &[&str]) -> Agent {
    let arguments = [&["attach", "page", "--json"], options].concat();
    let mut agent = scene.start(scene.lull(&arguments));
    agent.wait_until_printed("attached to");
    agent
}

#[test]
fn a_database_that_was_started_before_its_agent_is_watched_by_each_that_comes() {
    let scene = Scene::new();
    let database = free(&scene);
    for _ in 0..2 {
        let agent = attached(&scene, &["--concurrency", "1"]);
        // The last answer may be counted after the client has it and has ended.
        ended(database.client(&"begin; select 1; commit;".repeat(21)));
        let seen = agent.interrupt().well().json();
        assert!(of_class(&seen, "gated").iter().any(|queries| *queries >= 60), "{seen}");
        assert!(seen["gate"]["admissions"].as_u64() >= Some(20), "{seen}");
    }
}

mod needs_sysbench {
    use super::*;

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn agents_that_come_and_go_under_load_lose_no_query() {
        let scene = Scene::new();
        let database = free(&scene);
        database.prepare();
        for mode in ["post", "epoll"] {
            let mut load = database.sysbench(32, 6, "run").spawn().unwrap();
            let mut admissions = 0;
            for round in 0.. {
                if load.try_wait().unwrap().is_some() {
                    break;
                }
                let agent = attached(&scene, &["--mode", mode, "--concurrency", "4"]);
                std::thread::sleep(std::time::Duration::from_millis(300));
                if round % 2 == 0 {
                    agent.signal(Signal::KILL);
                    continue;
                }
                let seen = agent.interrupt().well().json();
                admissions += seen["gate"]["admissions"].as_u64().unwrap();
                assert_eq!(seen["gate"]["waited_too_long"], 0, "{mode}: {seen}");
            }
            // The load ends with an error if a query got no answer or a wrong one.
            ended(load);
            assert!(admissions > 0, "{mode}");
        }
        assert_eq!(ended(database.client("select 7")).trim(), "7");
    }
}
