//! The same server with wolfSSL, by clients with OpenSSL.

use super::*;
use crate::support::skip;
use lull_testing::fetched;

/// Starts the server; records why the test is skipped without wolfSSL.
fn start(scene: &Scene, gate: &[&str], how: &str) -> Option<Tls> {
    let place = fetched::wolfssl().map_err(|why| skip(&why)).ok()?;
    let place = place.display();
    let place = [format!("-L{place}"), format!("-Wl,-rpath,{place}")];
    // Functions that wolfSSL lacks are OpenSSL's, and are never called in these ways to read.
    let libraries = [&place[..], &["-l:libwolfssl.so.35".to_owned()], &openssl_3()].concat();
    let server = compiled(scene, "wolf", &["-DWOLF"], &libraries);
    compiled(scene, "tls", &[], &openssl_3());
    Some(Tls::start_as(scene, gate, &[&server], how))
}

#[test]
fn queries_under_wolfssl_are_gated_and_counted() {
    let scene = Scene::new();
    for (mode, how) in [("post", "fd"), ("post", "poll"), ("epoll", "fd")] {
        let gate = ["--mode", mode, "--concurrency", "1"];
        let Some(tls) = start(&scene, &gate, how) else { return };
        assert_all_gated(&loaded(tls), &format!("{mode}, {how}"));
    }
}

#[test]
fn a_worker_under_wolfssl_rests_after_a_read_that_found_nothing() {
    let scene = Scene::new();
    if let Some(tls) = start(&scene, &["--mode", "epoll", "--concurrency", "1"], "fd") {
        assert_rests(tls, true, "fd");
    }
}

#[test]
fn a_transaction_under_wolfssl_keeps_its_slot() {
    let scene = Scene::new();
    if let Some(tls) = start(&scene, &GATE_WITH_LEASE, "fd") {
        assert_waits(tls);
    }
}
