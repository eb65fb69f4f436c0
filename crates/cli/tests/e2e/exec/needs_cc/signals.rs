//! Workers that signals wake: every query is answered, and the server's own signal mask and
//! dispositions do not change.

use super::*;

fn by_signal(scene: &Scene, mode: &str) -> Server {
    start_with(scene, &["--mode", mode, "--concurrency", "1", "--wake", "signal"], &[], "-1")
}

fn signals(seen: &Value) -> u64 {
    seen["gate"]["woken_by_signal"].as_u64().unwrap()
}

/// Lets one client hold the only slot and another wait for it, then ends the first turn.
fn hand_over(holder: &mut Client, waiter: &mut Client) {
    holder.query("begin").unwrap();
    waiter.ask("work");
    std::thread::sleep(Duration::from_millis(5));
    holder.query("commit").unwrap();
    waiter.packet().unwrap();
}

#[test]
fn every_query_is_answered_and_the_server_keeps_mask_and_dispositions() {
    for mode in MODES {
        let scene = Scene::new();
        let server = by_signal(&scene, mode);
        let (mut holder, mut waiter) = (Client::connect(&server), Client::connect(&server));
        for _ in 0..20 {
            hand_over(&mut holder, &mut waiter);
            assert!(waiter.query("signals").is_some(), "{mode}");
        }
        load(server.port, 8, 50);
        assert!(holder.query("signals").is_some(), "{mode}");
        let seen = server.seen();
        let gated = of_class(&seen, "gated");
        assert_eq!(gated.iter().filter(|queries| **queries == 50).count(), 8, "{seen}");
        assert!(signals(&seen) > 0, "{seen}");
        assert_eq!(seen["wake"], "signal");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    }
}

#[test]
fn by_futex_no_signal_is_sent() {
    let scene = Scene::new();
    let server = start(&scene, "post", &[], "-1");
    let (mut holder, mut waiter) = (Client::connect(&server), Client::connect(&server));
    (0..5).for_each(|_| hand_over(&mut holder, &mut waiter));
    assert!(waiter.query("signals").is_some());
    let seen = server.seen();
    assert_eq!((seen["wake"].as_str(), signals(&seen)), (Some("futex"), 0), "{seen}");
}

#[test]
fn when_the_agent_is_killed_workers_asleep_run_on_and_have_their_masks() {
    for mode in MODES {
        let scene = Scene::new();
        let server = by_signal(&scene, mode);
        let mut holder = Client::connect(&server);
        holder.query("begin").unwrap();
        let (mut idle, mut waiter) = (Client::connect(&server), Client::connect(&server));
        waiter.ask("work");
        server.signal(Signal::KILL);
        assert!(waiter.packet().is_some() && idle.query("work").is_some(), "{mode}");
        assert!(holder.query("commit").is_some(), "{mode}");
        for client in [&mut holder, &mut idle, &mut waiter] {
            assert!(client.query("signals").is_some(), "{mode}");
        }
    }
}

#[test]
fn an_overdue_slot_is_taken_over_without_a_signal_of_the_agent() {
    let scene = Scene::new();
    let server = by_signal(&scene, "post");
    let (mut holder, mut waiter) = (Client::connect(&server), Client::connect(&server));
    holder.query("begin").unwrap();
    // No signal ends the turn: the waiter itself notices that the lease is over.
    assert!(waiter.query("work").is_some());
    assert!(holder.query("commit").is_some());
    let seen = server.seen();
    assert!(seen["gate"]["slots_overdue"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
}

#[test]
fn clients_that_go_and_connections_that_are_shut_end_workers_asleep() {
    for mode in MODES {
        let scene = Scene::new();
        let server = by_signal(&scene, mode);
        let mut holder = Client::connect(&server);
        holder.query("begin").unwrap();
        let (gone, mut shut) = (Client::connect(&server), Client::connect(&server));
        let mut waiter = Client::connect(&server);
        waiter.ask("work");
        drop(gone);
        holder.query("shutdown").unwrap();
        assert!(shut.is_over(), "{mode}");
        drop(waiter);
        wait_for("their end", || holder.query("work") == Some(1));
        assert!(holder.query("signals").is_some(), "{mode}");
        drop(server.seen());
    }
}

#[test]
fn a_child_and_a_program_that_is_executed_have_the_servers_signals() {
    for mode in MODES {
        let scene = Scene::new();
        let server = by_signal(&scene, mode);
        let (mut stays, mut leaves) = (Client::connect(&server), Client::connect(&server));
        hand_over(&mut stays, &mut leaves);
        assert!(leaves.query("exec").is_some() && leaves.query("fork").is_some(), "{mode}");
        for _ in 0..20 {
            assert!(leaves.query("signals").is_some() && stays.query("work").is_some(), "{mode}");
        }
        drop(leaves);
        assert!(stays.query("signals").is_some(), "{mode}");
        drop(server.seen());
    }
}

#[test]
fn random_bytes_in_the_page_send_no_signal_to_another_process() {
    for (seed, mode) in MODES.into_iter().enumerate() {
        let scene = Scene::new();
        let server = by_signal(&scene, mode);
        let mut random = Rng::seed_from_u64(100 + seed as u64);
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
        for from in [512, 512, 512, 0] {
            overwrite(&server, from, &mut random);
            clients.iter_mut().for_each(|client| client.ask("work"));
            clients.iter_mut().for_each(|client| assert!(client.packet().is_some(), "{mode}"));
        }
        // A signal for which no thread waits would have ended the server.
        assert!(clients[0].query("signals").is_some(), "{mode}");
        assert!(server.seen()["queries"].is_u64());
    }
}
