//! Servers that use OpenSSL in several ways (`tls.c`): their decrypted queries pass the gate.

mod version_1_1;
mod wolfssl;

use super::*;
use crate::exec::certificate;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// Modes, and ways in which the decrypted bytes are seen.
const WAYS: [(&str, &str); 5] =
    [("post", "fd"), ("post", "ex"), ("post", "poll"), ("post", "bio"), ("epoll", "fd")];
/// Ten queries: two in a record, one in three records and one of several, around a change of
/// keys, in and out of a transaction, and one whose client closes its half at once.
const STEPS: [&str; 10] =
    ["a", "+two", "+split", "+long", "+key", "b", "begin", "x", "commit", "+half"];

/// The compiler's arguments to link with a version of OpenSSL.
type OpenSsl = [String];

/// The version that Debian has.
fn openssl_3() -> Vec<String> {
    ["-l:libssl.so.3", "-l:libcrypto.so.3"].map(str::to_owned).to_vec()
}

/// Builds the program, or a part of it, unless the scene has it already.
fn compiled(scene: &Scene, to: &str, options: &[&str], openssl: &OpenSsl) -> String {
    let program = scene.path(to);
    if program.exists() {
        return program.to_str().unwrap().to_owned();
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/exec/tls.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", source, "-o"]).arg(&program);
    assert!(cc.args(options).args(openssl).status().unwrap().success());
    program.to_str().unwrap().to_owned()
}

/// A server, and the program of its clients.
struct Tls {
    server: Server,
    program: String,
}

impl Tls {
    fn start(scene: &Scene, openssl: &OpenSsl, gate: &[&str], how: &str) -> Self {
        let program = compiled(scene, "tls", &[], openssl);
        Self::start_as(scene, gate, &[&program], how)
    }

    /// As [`Tls::start`], by these words.
    fn start_as(scene: &Scene, gate: &[&str], words: &[&str], how: &str) -> Self {
        let (key, certificate) = certificate(scene);
        let [key, certificate] = [key, certificate].map(|path: PathBuf| path.display().to_string());
        let (port, options) = (free_port(), [gate, &["--protocol", "mysql"]].concat());
        let at = port.to_string();
        let command = [words, &["server", how, &at, &key, &certificate]].concat();
        let server = Server::start(scene, &options, &command, port);
        Self { server, program: scene.path("tls").display().to_string() }
    }

    fn client(&self, steps: &[&str]) -> Child {
        self.client_with(steps, &[])
    }

    /// As [`Tls::client`], with variables of its environment.
    fn client_with(&self, steps: &[&str], variables: &[(&str, &str)]) -> Child {
        let mut client = Command::new(&self.program);
        client.args(["client", &self.server.port.to_string()]).args(steps);
        client.envs(variables.iter().copied());
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }
}

/// Returns the numbers of the replies that a client received.
fn replies(client: Child) -> Vec<u32> {
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {text}", output.status);
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Loads a server with clients; each must get all its replies. Returns what was seen.
fn loaded(tls: Tls) -> Value {
    let clients: Vec<Child> = (0..4).map(|_| tls.client(&STEPS)).collect();
    for client in clients {
        assert_eq!(replies(client), (1..=10).collect::<Vec<u32>>());
    }
    tls.server.seen()
}

/// Asserts that every query of four clients was gated, and counted once.
fn assert_all_gated(seen: &Value, way: &str) {
    let gated = of_class(seen, "gated");
    assert_eq!(gated.iter().filter(|queries| **queries == 10).count(), 4, "{way}: {seen}");
    // One transaction has three queries.
    assert_eq!((&seen["queries"], &seen["transactions"]), (&40.into(), &32.into()), "{way}");
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{way}: {seen}");
}

#[test]
fn queries_under_tls_are_gated_and_counted_however_the_server_reads_them() {
    assert_gated_in_all_ways(&openssl_3());
}

fn assert_gated_in_all_ways(openssl: &OpenSsl) {
    let scene = Scene::new();
    for (mode, how) in WAYS {
        let tls = Tls::start(&scene, openssl, &["--mode", mode, "--concurrency", "1"], how);
        assert_all_gated(&loaded(tls), &format!("{mode}, {how}"));
    }
}

#[test]
fn a_worker_that_reads_until_openssl_wants_more_rests_and_one_that_polls_first_does_not() {
    assert_rests_only_after_all_is_read(&openssl_3());
}

fn assert_rests_only_after_all_is_read(openssl: &OpenSsl) {
    let scene = Scene::new();
    for (how, rests) in [("fd", true), ("poll", false)] {
        let gate = ["--mode", "epoll", "--concurrency", "1"];
        assert_rests(Tls::start(&scene, openssl, &gate, how), rests, how);
    }
}

fn assert_rests(tls: Tls, rests: bool, how: &str) {
    // Several rounds: on a machine that stalls the client may not have come to the first line yet.
    let mut client = tls.client(&["a", "+line", "b", "+line", "c", "+line", "d"]);
    let mut lines = client.stdin.take().unwrap();
    for _ in 0..3 {
        // The worker rests while its client waits for the line.
        std::thread::sleep(Duration::from_millis(200));
        lines.write_all(b"\n").unwrap();
    }
    drop(lines);
    assert_eq!(replies(client), [1, 2, 3, 4]);
    let seen = tls.server.seen();
    assert_eq!(called(&seen) > 0, rests, "{how}: {seen}");
}

#[test]
fn a_resumed_session_is_gated_and_counted_like_a_new_one() {
    assert_resumed_sessions_are_gated(&openssl_3());
}

fn assert_resumed_sessions_are_gated(openssl: &OpenSsl) {
    let scene = Scene::new();
    // The client fails if its second connection does not resume the session of the first.
    let steps = ["a", "b", "+again", "c", "begin", "commit"];
    for (mode, how) in [("post", "fd"), ("post", "bio"), ("epoll", "fd")] {
        let tls = Tls::start(&scene, openssl, &["--mode", mode, "--concurrency", "1"], how);
        for variables in [&[][..], &[("TLS_1_2", "1")]] {
            assert_eq!(replies(tls.client_with(&steps, variables)), [1, 2, 1, 2, 3]);
        }
        let seen = tls.server.seen();
        let mut gated = of_class(&seen, "gated");
        gated.sort_unstable();
        assert_eq!(gated, [2, 2, 3, 3], "{mode}, {how}: {seen}");
        assert_eq!((&seen["queries"], &seen["transactions"]), (&10.into(), &8.into()), "{seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{mode}, {how}: {seen}");
    }
}

#[test]
fn a_handshake_within_a_connection_is_no_query_and_ends_no_transaction() {
    assert_renewed_handshakes_are_no_queries(&openssl_3());
}

fn assert_renewed_handshakes_are_no_queries(openssl: &OpenSsl) {
    let scene = Scene::new();
    let steps = ["a", "+renew", "b", "begin", "+renew", "commit"];
    for (mode, how) in WAYS {
        let tls = Tls::start(&scene, openssl, &["--mode", mode, "--concurrency", "1"], how);
        assert_eq!(replies(tls.client_with(&steps, &[("TLS_1_2", "1")])), [1, 2, 3, 4]);
        let seen = tls.server.seen();
        assert_eq!(of_class(&seen, "gated"), [4], "{mode}, {how}: {seen}");
        assert_eq!((&seen["queries"], &seen["transactions"]), (&4.into(), &3.into()), "{seen}");
    }
}

#[test]
fn a_transaction_under_tls_keeps_its_slot_and_another_query_waits_for_it() {
    assert_a_query_waits_for_a_transaction(&openssl_3());
}

fn assert_a_query_waits_for_a_transaction(openssl: &OpenSsl) {
    let scene = Scene::new();
    assert_waits(Tls::start(&scene, openssl, &GATE_WITH_LEASE, "fd"));
}

const GATE_WITH_LEASE: [&str; 6] = ["--mode", "post", "--concurrency", "1", "--slot-lease", "1s"];

/// Asserts that a query waits for the only slot, which a transaction has until its lease is over.
fn assert_waits(tls: Tls) {
    let mut holder = tls.client(&["begin", "+line", "commit"]);
    let mut begun = [0; 2];
    holder.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"1\n");
    // It waits until the lease of the slot is over.
    assert_eq!(replies(tls.client(&["waits"])), [1]);
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(replies(holder), [2]);
    let seen = tls.server.seen();
    assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["gate"]["slots_overdue"].as_u64().unwrap() > 0, "{seen}");
}

#[test]
fn a_server_that_carries_the_bytes_itself_is_opaque_and_never_waits() {
    let scene = Scene::new();
    for mode in MODES {
        let gate = ["--mode", mode, "--concurrency", "1"];
        let tls = Tls::start(&scene, &openssl_3(), &gate, "memory");
        let seen = loaded(tls);
        assert!(of_class(&seen, "gated").is_empty(), "{mode}: {seen}");
        assert!(of_class(&seen, "opaque").len() >= 4, "{mode}: {seen}");
        assert_eq!(seen["gate"]["admissions"], 0, "{mode}: {seen}");
    }
}

#[test]
fn openssl_that_a_plug_in_brings_later_is_found() {
    assert_gated_in_a_plug_in(&openssl_3(), &[]);
}

/// Loads a plug-in that is linked with one OpenSSL into a program with these libraries.
fn assert_gated_in_a_plug_in(openssl: &OpenSsl, of_program: &OpenSsl) {
    let scene = Scene::new();
    let plugin = compiled(&scene, "plugin.so", &["-shared", "-fPIC", "-DPLUGIN"], openssl);
    let host = compiled(&scene, "host", &["-DHOST", "-Wl,--no-as-needed"], of_program);
    compiled(&scene, "tls", &[], openssl);
    let gate = ["--mode", "post", "--concurrency", "1"];
    let tls = Tls::start_as(&scene, &gate, &[&host, "plugin", &plugin], "fd");
    assert_all_gated(&loaded(tls), "plug-in");
}
