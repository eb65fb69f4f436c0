//! More connections in turn than the page has room for, and descriptors that
//! are used again while others come and go.

use super::*;
use lull_oncall::CONNECTIONS;

/// A server that holds any number of connections in one thread (`crowd.c`).
fn crowd(scene: &Scene) -> Server {
    let (program, port) = (built(scene, "crowd"), free_port());
    let options = ["--cap", "4", "--protocol", "mysql"];
    Server::start(scene, &options, &[&program, &port.to_string()], port)
}

fn turned_away(seen: &Value) -> u64 {
    seen["connections_turned_away"].as_u64().unwrap()
}

/// Connections that had so many queries.
fn with_queries(seen: &Value, queries: u64) -> usize {
    of_class(seen, "gated").iter().filter(|found| **found == queries).count()
}

#[test]
#[ignore = "slow: twenty thousand connections in turn"]
fn twenty_thousand_connections_in_turn_all_find_a_place_and_none_is_missed() {
    let scene = Scene::new();
    let server = crowd(&scene);
    for turn in 1..=2 * CONNECTIONS {
        assert!(Client::connect(&server).query("work").is_some());
        if turn % 4_000 == 0 {
            // The agent is to read of each before its place has gone round: it does
            // so every second.
            std::thread::sleep(Duration::from_secs(2));
        }
    }
    let seen = server.seen();
    assert_eq!(turned_away(&seen), 0);
    assert_eq!(with_queries(&seen, 1), 2 * CONNECTIONS);
}

#[test]
fn descriptors_that_are_used_again_under_load_mix_no_connections_up() {
    const CLIENTS: usize = 8;
    const EACH: usize = 25;
    let queries_of = |client: usize, turn: usize| 1 + (client * 7 + turn * 3) % 5;
    for mode in MODES {
        let scene = Scene::new();
        let server = start_with(&scene, &["--mode", mode, "--cap", "2"], &[], "-1");
        let port = server.port;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let mut connection = Client::connect_to(port);
                        for _ in 0..queries_of(client, turn) {
                            assert!(connection.query("work").is_some());
                        }
                    }
                });
            }
        });
        let seen = server.seen();
        let all = (0..CLIENTS).flat_map(|client| (0..EACH).map(move |turn| (client, turn)));
        let mut wanted: Vec<u64> =
            all.map(|(client, turn)| queries_of(client, turn) as u64).collect();
        let mut found = of_class(&seen, "gated");
        found.retain(|queries| *queries > 0);
        wanted.sort_unstable();
        found.sort_unstable();
        let others = ["new", "opaque", "exempt"];
        let others: Vec<_> = others.iter().map(|class| (class, of_class(&seen, class))).collect();
        assert_eq!(found, wanted, "{mode} {others:?} {}", seen["by_connection"]);
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{mode}");
    }
}
