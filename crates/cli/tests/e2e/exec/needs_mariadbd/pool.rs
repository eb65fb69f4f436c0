//! A pool of threads, of which none serves one connection only: what is seen of it, and how its
//! connections wait.

use super::frames::{Client, number, packet};
use super::*;
use std::time::Duration;

fn start(scene: &Scene, options: &[&str], more: &[&str]) -> Database {
    let pool = ["--thread-handling=pool-of-threads", "--thread-pool-size=1"];
    Database::start_with(scene, options, &[&pool, more].concat())
}

#[test]
fn the_pause_of_a_client_is_no_part_of_its_latency() {
    const PAUSE: Duration = Duration::from_millis(200);
    let scene = Scene::new();
    let database = start(&scene, &[], &[]);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&database)).collect();
    for _ in 0..6 {
        clients.iter_mut().for_each(|client| client.query("select 1"));
        std::thread::sleep(PAUSE);
    }
    // The gate recognises the end of an answer although the client sends nothing more.
    wait_for("the ends of all answers", || number(&scene, &database, "under_way") == 0);
    let seen = database.server.seen();
    let all = seen["by_connection"].as_array().unwrap().iter();
    let paused: Vec<&Value> = all.filter(|one| one["queries"] == 6).collect();
    assert_eq!(paused.len(), 4, "{seen}");
    for one in paused {
        // Half of the queries, since a busy machine may delay some.
        let p50 = one["latency"]["p50_seconds"].as_f64().unwrap();
        assert!(p50 < PAUSE.as_secs_f64() / 2.0, "{one}");
    }
    let p50 = seen["transaction_latency"]["p50_seconds"].as_f64().unwrap();
    assert!(p50 < PAUSE.as_secs_f64() / 2.0, "{seen}");
}

#[test]
fn connections_wait_for_a_slot_and_no_thread_of_the_pool_with_them() {
    const WAITERS: usize = 16;
    let scene = Scene::new();
    let gate = ["--concurrency", "1", "--slot-lease", "1s"];
    // Two parked threads would be all of the pool.
    let database = start(&scene, &gate, &["--thread-pool-max-threads=2"]);
    let mut holder = Client::connect(&database);
    let mut waiters: Vec<Client> = (0..WAITERS).map(|_| Client::connect(&database)).collect();
    holder.query("begin");
    holder.query("update sbtest.t set b = b + 1 where a = 1");
    waiters.iter_mut().for_each(|one| one.ask("update sbtest.t set b = b + 1 where a = 2"));
    wait_for("waiting connections", || number(&scene, &database, "waiting") >= 2);
    // A connection that a rule exempts, and the one that holds the slot, are served meanwhile.
    assert_eq!(database.admin("select 7").trim(), "7");
    assert!(number(&scene, &database, "waiting") >= 2);
    holder.query("commit");
    waiters.iter_mut().for_each(Client::answer);
    assert_eq!(database.admin("select sum(b) from sbtest.t").trim(), "17");
    let seen = database.server.seen();
    assert!(seen["gate"]["admissions_after_a_wait"].as_u64() >= Some(2), "{seen}");
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    let parks = seen["by_connection"].as_array().unwrap().iter();
    assert!(parks.filter_map(|one| one["parks"].as_u64()).sum::<u64>() >= 2, "{seen}");
}

#[test]
fn when_the_agent_is_killed_hidden_queries_are_answered() {
    let scene = Scene::new();
    let database = start(&scene, &["--concurrency", "1", "--slot-lease", "1s"], &[]);
    let mut holder = Client::connect(&database);
    let mut waiters: Vec<Client> = (0..8).map(|_| Client::connect(&database)).collect();
    holder.query("begin");
    waiters.iter_mut().for_each(|one| one.ask("update sbtest.t set b = b + 1 where a = 2"));
    wait_for("waiting connections", || number(&scene, &database, "waiting") >= 2);
    database.server.signal(Signal::KILL);
    // The transaction that holds the slot stays open.
    waiters.iter_mut().for_each(Client::answer);
    holder.query("commit");
    let pid = database.pid();
    send(pid, Signal::TERM);
    wait_for("the server's end", || !database.pid_file.exists());
}

#[test]
fn pipelined_queries_a_change_of_user_and_vanished_clients_leave_it_well() {
    let scene = Scene::new();
    let database = start(&scene, &["--concurrency", "1", "--slot-lease", "1s"], &[]);
    let mut client = Client::connect(&database);
    let one = packet(0, b"\x03select 1");
    client.write(&one.repeat(3));
    (0..3).for_each(|_| client.answer());
    // The query is sent in pieces, of which the first is not a whole header.
    for piece in [&one[..3], &one[3..6], &one[6..]] {
        client.write(piece);
        std::thread::yield_now();
    }
    client.answer();
    // It ends the transaction and gives the slot back.
    client.query("begin");
    client.query("update sbtest.t set b = b + 1 where a = 1");
    client.change_user();
    wait_for("the end of the transaction", || number(&scene, &database, "under_way") == 0);
    for _ in 0..4 {
        // The first client holds the slot, and the others disconnect while they wait.
        Client::connect(&database).ask("select sleep(0.1)");
    }
    client.query("update sbtest.t set b = b + 1 where a = 2");
    wait_for("the ends of all", || number(&scene, &database, "waiting") == 0);
    assert_eq!(database.admin("select group_concat(b order by a) from sbtest.t").trim(), "0,1");
    let seen = database.server.seen();
    assert!(of_class(&seen, "gated").contains(&7), "{seen}");
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
}
