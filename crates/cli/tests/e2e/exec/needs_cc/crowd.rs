//! More connections than the page has entries, at once and one after the other, and
//! descriptors that are reused while other connections open and close.

use super::*;
use crate::support::skip;
use lull_oncall::CONNECTIONS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections beyond the number of entries.
const BEYOND: usize = 500;
/// Descriptors of this program and the server other than those of the connections.
const OTHERS: u64 = 300;

/// Starts a server that serves any number of connections in one thread (`crowd.c`).
///
fn crowd(scene: &Scene, options: &[&str]) -> Server {
    let (program, port) = (built(scene, "crowd"), free_port());
    let options = [&["--protocol", "mysql"], options].concat();
    Server::start(scene, &options, &[&program, &port.to_string()], port)
}

/// Raises the limit of open descriptors of this program and its children; returns `false`
/// if the hard limit is lower.
fn may_hold(descriptors: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < descriptors) {
        return false;
    }
    // Another test may have set a higher limit.
    let wanted = limit.current.map(|now| now.max(descriptors));
    setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum: limit.maximum }).is_ok()
}

fn turned_away(seen: &Value) -> u64 {
    seen["connections_turned_away"].as_u64().unwrap()
}

/// Returns the number of connections of an event loop with this many queries.
fn with_queries(seen: &Value, queries: u64) -> usize {
    of_class(seen, "shared").iter().filter(|found| **found == queries).count()
}

#[test]
fn an_event_loop_is_watched_without_the_pauses_of_its_clients_and_never_gated() {
    const PAUSE: Duration = Duration::from_millis(200);
    let scene = Scene::new();
    let mut server = crowd(&scene, &["--concurrency", "1", "--slot-lease", "1s"]);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
    for _ in 0..6 {
        clients.iter_mut().for_each(|client| assert!(client.query("work").is_some()));
        std::thread::sleep(PAUSE);
    }
    server.agent.as_mut().unwrap().wait_until_printed("by an event loop");
    let seen = server.seen();
    assert_eq!(with_queries(&seen, 6), 4, "{seen}");
    assert_eq!(seen["gate"]["admissions"], 0, "{seen}");
    // Half of the queries, since a busy machine may delay some.
    let p50 = seen["latency"]["p50_seconds"].as_f64().unwrap();
    assert!(p50 < PAUSE.as_secs_f64() / 2.0, "{seen}");
}

#[test]
#[ignore = "slow: ten thousand connections at once"]
fn connections_beyond_the_table_are_served_and_counted_and_a_free_entry_is_reused() {
    let most = CONNECTIONS + BEYOND;
    if !may_hold(most as u64 + OTHERS) {
        return skip("this user may not open 10,800 descriptors: see `ulimit -Hn`");
    }
    let scene = Scene::new();
    let server = crowd(&scene, &[]);
    let mut clients: Vec<Client> = (0..most).map(|_| Client::connect(&server)).collect();
    clients.iter_mut().for_each(|client| assert!(client.query("work").is_some()));
    // The first connections have entries, which are free once they have ended.
    clients.drain(..BEYOND);
    let mut later: Vec<Client> = (0..BEYOND).map(|_| Client::connect(&server)).collect();
    for _ in 0..2 {
        later.iter_mut().for_each(|client| assert!(client.query("work").is_some()));
    }
    // Connections without an entry are served to their end.
    clients.iter_mut().for_each(|client| assert!(client.query("work").is_some()));
    let mut last = later.pop().unwrap();
    drop((clients, later));
    // The server has read the end of the others when it answers this one again.
    (0..2).for_each(|_| assert!(last.query("work").is_some()));
    let seen = server.seen();
    assert_eq!(turned_away(&seen), BEYOND as u64);
    // Connections that stayed and the later ones have two each, except the last. The earlier ones
    // may have ended before the agent read their last query.
    assert_eq!(with_queries(&seen, 2), CONNECTIONS - 1);
}

#[test]
#[ignore = "slow: twenty thousand connections in turn"]
fn twenty_thousand_connections_in_turn_all_get_an_entry_and_none_is_missed() {
    let scene = Scene::new();
    let server = crowd(&scene, &["--concurrency", "4"]);
    for turn in 1..=2 * CONNECTIONS {
        let mut client = Client::connect(&server);
        assert!(client.query("work").is_some());
        client.leave();
        if turn % 4_000 == 0 {
            // The agent must read each entry before it is reused; it reads all
            // every second.
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
        let server = start_with(&scene, &["--mode", mode, "--concurrency", "2"], &[], "-1");
        let port = server.port;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let mut connection = Client::connect_to(port);
                        for _ in 0..queries_of(client, turn) {
                            assert!(connection.query("work").is_some());
                        }
                        connection.leave();
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
