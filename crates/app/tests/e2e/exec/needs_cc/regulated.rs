//! Regulators at a gate whose workers rest.

use super::*;

/// Starts the server under a regulator in mode epoll, and waits for its decision.
fn under(scene: &Scene, regulator: &[&str], decision: &str) -> Server {
    let gate = [&["--mode", "epoll", "--regulator"], regulator].concat();
    let mut server = start_with(scene, &gate, &[], "-1");
    server.agent.as_mut().unwrap().wait_until_said(decision);
    server
}

#[test]
fn cap_batch_and_pause_of_a_regulator_are_those_of_the_rounds() {
    let cases: [(&[&str], &str, u64); 4] = [
        (
            &["manual", "--key", "cap=2", "--key", "batch=3", "--key", "delay=\"3ms\""],
            "2 transactions at a time, called every 3ms at most",
            2,
        ),
        (&["gate-fifo", "--key", "cap=3"], "3 transactions at a time, called every 1ms", 3),
        (&["apples", "--key", "cap=4"], "4 transactions at a time, called every 1ms", 4),
        (
            &["reef", "--key", "cap=2", "--key", "least_pause=\"2ms\""],
            "2 transactions at a time, called every 2ms",
            2,
        ),
    ];
    for (regulator, decision, cap) in cases {
        let scene = Scene::new();
        let server = under(&scene, regulator, decision);
        load(server.port, 8, 25);
        let seen = server.seen();
        assert_eq!((seen["mode"].as_str(), seen["cap"].as_u64()), (Some("epoll"), Some(cap)));
        let gated = of_class(&seen, "gated");
        assert_eq!(gated.iter().filter(|queries| **queries == 25).count(), 8, "{seen}");
        assert!(called(&seen) > 0, "{regulator:?}: {seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    }
}

#[test]
fn a_regulator_and_signals_go_together() {
    let scene = Scene::new();
    let regulator = ["manual", "--key", "cap=2", "--wake", "signal"];
    let server = under(&scene, &regulator, "2 transactions at a time");
    load(server.port, 8, 25);
    let seen = server.seen();
    assert!(seen["gate"]["woken_by_signal"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(of_class(&seen, "gated").iter().filter(|queries| **queries == 25).count(), 8);
}
