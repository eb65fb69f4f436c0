//! Servers that a preloaded library cannot observe: eBPF observes their sockets.

use super::{Client, built_with, load};
use crate::exec::Server;
use crate::support::scene::Scene;
use crate::support::{free_port, has_ebpf};
use std::time::{Duration, Instant};

#[test]
fn queries_of_a_static_server_are_seen_by_the_kernel() {
    let scene = Scene::new();
    if !has_ebpf(&scene) {
        return;
    }
    let (program, port) = (built_with(&scene, "threads", &["-static"]), free_port());
    let server = Server::start(&scene, &[], &[&program, &port.to_string(), "-1"], port);
    // Queries before the listening socket is found are not observed.
    let begun = Instant::now();
    let mut parks = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        load(server.port, 4, 20);
        // The login also counts as a query.
        parks += 4 * 21;
    }
    let seen = server.seen();
    let queries = seen["queries"].as_u64().unwrap();
    assert!((1..=parks).contains(&queries), "{parks}: {seen}");
    assert_eq!(seen["mode"], "ebpf");
    let [p50, p99] = ["p50_seconds", "p99_seconds"].map(|at| seen["latency"][at].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99, "{seen}");
}

#[test]
fn a_dynamic_server_is_observed_by_the_kernel_on_request() {
    let scene = Scene::new();
    if !has_ebpf(&scene) {
        return;
    }
    let (program, port) = (built_with(&scene, "threads", &[]), free_port());
    let server = Server::start(&scene, &["--ebpf"], &[&program, &port.to_string(), "-1"], port);
    let mut client = Client::connect(&server);
    assert!(client.query("work").is_some());
    client.leave();
    assert_eq!(server.seen()["mode"], "ebpf");
}

#[test]
fn a_server_that_the_kernel_cannot_observe_is_reported() {
    let scene = Scene::new();
    if !has_ebpf(&scene) {
        return;
    }
    let ended = scene.run(&["exec", "--ebpf", "--", "sleep", "0.3"]).well();
    assert!(ended.err.contains("listens at a TCP port"), "{}", ended.err);
    scene.run(&["exec", "--ebpf", "--concurrency", "4", "--", "true"]).refused(2, "--concurrency");
}
