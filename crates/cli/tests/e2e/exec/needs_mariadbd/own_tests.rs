//! MariaDB's own tests of its client protocol, on gated servers and a bare one.

use super::*;

mod needs_mariadb_client_test {
    use super::*;
    use std::collections::BTreeSet;
    use std::thread::scope;

    const PROGRAM: &str = "mariadb-client-test";

    /// A server without the library.
    fn bare(scene: &Scene) -> Server {
        let (command, port) = installed(scene);
        let mut server = Command::new(&command[0]);
        server.args(&command[1..]);
        Server::from_agent(scene.start(server), port)
    }

    fn names() -> Vec<String> {
        let output = Command::new(PROGRAM).arg("--show-tests").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().map(str::trim).filter(|line| line.starts_with("test_"));
        names.map(str::to_owned).collect()
    }

    /// Returns the tests that fail at a server. Each runs in its own process, because a failure
    /// ends the process.
    fn failing<'n>(names: &[&'n str], port: u16, scene: &Scene) -> BTreeSet<&'n str> {
        let vardir = format!("--vardir={}", scene.path("").display());
        let passes = |name: &str| {
            let mut test = Command::new(PROGRAM);
            test.args(["--host=127.0.0.1", &format!("--port={port}"), "--user=root", &vardir]);
            test.args(["--silent", name]).stdout(Stdio::null()).stderr(Stdio::null());
            test.status().unwrap().success()
        };
        names.iter().copied().filter(|name| !passes(name)).collect()
    }

    #[test]
    #[ignore = "slow: three hundred tests on three databases"]
    fn mariadbs_own_client_tests_say_the_same_of_a_gated_server() {
        let scenes = [Scene::new(), Scene::new(), Scene::new()];
        let bare = bare(&scenes[0]);
        let post = Database::start(&scenes[1], &["--concurrency", "2"]);
        let epoll = Database::start(&scenes[2], &["--mode", "epoll", "--concurrency", "2"]);
        let ports = [bare.port, post.server.port, epoll.server.port];
        let names = names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(names.len() > 250, "{names:?}");
        let failed = scope(|scope| {
            let one = |at: usize| {
                let (port, scene, names) = (ports[at], &scenes[at], &names);
                scope.spawn(move || failing(names, port, scene))
            };
            [0, 1, 2].map(one).map(|thread| thread.join().unwrap())
        });
        // Some tests need files and options of MariaDB's build.
        assert!(failed[0].len() < names.len() / 5, "{:?}", failed[0]);
        for at in [1, 2] {
            // Tests can disturb each other on a busy machine: those that differ run again.
            let other: Vec<&str> = failed[at].symmetric_difference(&failed[0]).copied().collect();
            let again = [0, at].map(|at| failing(&other, ports[at], &scenes[at]));
            assert_eq!(again[0], again[1], "bare, and gated server {at}");
        }
        for server in [post.server, epoll.server] {
            let gated: u64 = of_class(&server.seen(), "gated").iter().sum();
            assert!(gated > 10_000, "{gated} queries came to the gate");
        }
    }
}
