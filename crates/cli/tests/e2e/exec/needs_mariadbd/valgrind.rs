//! MariaDB under valgrind, with the preloaded library.

use super::*;

mod needs_valgrind {
    use super::*;

    /// Returns valgrind's findings with the library among the callers. MariaDB and its
    /// libraries have findings of their own, which this test ignores.
    fn of_ours(scene: &Scene) -> Vec<String> {
        let printed = logs(scene, "valgrind-");
        assert!(!printed.is_empty(), "valgrind has written no log");
        // Lines that contain only the process number separate findings.
        let findings = printed.iter().flat_map(|log| {
            log.split("== \n").filter(|finding| finding.contains("liblull_preload"))
        });
        findings.map(str::to_owned).collect()
    }

    #[test]
    #[ignore = "slow: a database in valgrind, twice"]
    fn valgrind_finds_no_fault_of_the_library_in_a_database() {
        for wake in ["futex", "signal"] {
            let scene = Scene::new();
            let (command, port) = installed(&scene);
            let log = format!("--log-file={}", scene.path("valgrind-%p").display());
            // Invalid reads and writes only; the server itself passes unset bytes to calls that go
            // through the library.
            let before = ["valgrind", "--quiet", "--undef-value-errors=no", &log];
            // Valgrind knows nothing of io_uring, and has no room for the 8 TB that
            // later versions set aside for their pool to grow into.
            let after = [
                "--innodb-use-native-aio=0",
                "--innodb-buffer-pool-size=16M",
                "--loose-innodb-buffer-pool-size-max=64M",
            ];
            let command = command.iter().map(String::as_str);
            let command: Vec<&str> = before.into_iter().chain(command).chain(after).collect();
            let options = ["--concurrency", "2", "--wake", wake, "--protocol", "mysql"];
            let server = Server::start(&scene, &options, &command, port);
            let many = "begin; select 1; select 2; commit;".repeat(5) + "select 7";
            let clients: Vec<Child> = (0..6).map(|_| client(port, "mysql", &many)).collect();
            for client in clients {
                assert!(ended(client).ends_with("7\n"), "{wake}");
            }
            let seen = server.seen();
            let gated = of_class(&seen, "gated");
            assert!(gated.iter().filter(|queries| **queries >= 21).count() >= 6, "{seen}");
            let ours = of_ours(&scene);
            assert!(ours.is_empty(), "{wake}: {ours:#?}");
        }
    }
}
