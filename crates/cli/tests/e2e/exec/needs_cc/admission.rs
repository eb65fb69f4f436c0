//! Admission controllers at a gate whose workers rest, and at one that distinguishes clients.

use super::*;

/// Starts the server under an admission controller in mode epoll, and waits for its decision.
fn under(scene: &Scene, admission: &[&str], decision: &str) -> Server {
    let gate = [&["--mode", "epoll", "--concurrency"], admission].concat();
    let mut server = start_with(scene, &gate, &[], "-1");
    server.agent.as_mut().unwrap().wait_until_printed(decision);
    server
}

#[test]
fn cap_batch_and_pause_of_an_admission_controller_are_those_of_the_rounds() {
    let cases: [(&[&str], &str, u64); 4] = [
        (
            &["manual", "--key", "cap=2", "--key", "batch=3", "--key", "delay=\"3ms\""],
            "workers rest, 2 at a time are called every 3ms at most, turns of 3",
            2,
        ),
        (&["gate-fifo", "--key", "cap=3"], "3 at a time are called every 1ms", 3),
        (&["apples", "--key", "cap=4"], "4 at a time are called every 1ms", 4),
        (
            &["reef", "--key", "cap=2", "--key", "least_pause=\"2ms\""],
            "2 at a time are called every 2ms",
            2,
        ),
    ];
    for (admission, decision, cap) in cases {
        let scene = Scene::new();
        let server = under(&scene, admission, decision);
        load(server.port, 8, 25);
        let seen = server.seen();
        assert_eq!((seen["mode"].as_str(), seen["cap"].as_u64()), (Some("epoll"), Some(cap)));
        let gated = of_class(&seen, "gated");
        assert_eq!(gated.iter().filter(|queries| **queries == 25).count(), 8, "{seen}");
        assert!(called(&seen) > 0, "{admission:?}: {seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    }
}

#[test]
fn an_admission_controller_and_signals_go_together() {
    let scene = Scene::new();
    let admission = ["manual", "--key", "cap=2", "--wake", "signal"];
    let server = under(&scene, &admission, "workers rest, 2 at a time");
    load(server.port, 8, 25);
    let seen = server.seen();
    assert!(seen["gate"]["woken_by_signal"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(of_class(&seen, "gated").iter().filter(|queries| **queries == 25).count(), 8);
}

/// The wait for the next round is the cost of a rest. The latency must include it, because a
/// controller that compares latencies would otherwise see a rest as free.
#[test]
fn a_query_that_ends_a_rest_counts_from_its_earliest_arrival() {
    let scene = Scene::new();
    let server = under(&scene, &["manual", "--key", "cap=4", "--key", "delay=\"80ms\""], "80ms");
    load(server.port, 4, 25);
    let seen = server.seen();
    let p50 = |of: &str| seen[of]["p50_seconds"].as_f64().unwrap();
    // A client sends its next request 2 ms after its answer, and the next round is 80 ms later.
    assert!(p50("latency") > 0.04, "{seen}");
    assert!(p50("transaction_latency") >= p50("latency"), "{seen}");
    assert!(seen["gate"]["rested_seconds"].as_f64().unwrap() > 0.1, "{seen}");
}

#[test]
fn promises_to_some_clients_leave_no_query_of_any_without_its_answer() {
    for admission in ["pslo", "utslo", "reef"] {
        let scene = Scene::new();
        let objective =
            if admission == "utslo" { "disengagement = 0.001" } else { "p95 = \"20ms\"" };
        let promise =
            format!("from = \"127.0.0.0/8\", connections = 2, objective = {{ {objective} }}");
        let policy: &[&str] = if admission == "reef" { &["--key", "policy=\"pslo\""] } else { &[] };
        let gate = ["--concurrency", admission, "--promise", &promise, "--key", "cap=2"];
        let mut server = start_with(&scene, &[&gate, policy].concat(), &[], "-1");
        server.agent.as_mut().unwrap().wait_until_printed("transactions at a time");
        load(server.port, 8, 40);
        let seen = server.seen();
        let gated = of_class(&seen, "gated");
        assert_eq!(
            gated.iter().filter(|queries| **queries == 40).count(),
            8,
            "{admission}: {seen}"
        );
        assert!(seen["gate"]["admissions"].as_u64().unwrap() > 0, "{admission}: {seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{admission}: {seen}");
    }
}
