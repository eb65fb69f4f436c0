//! MariaDB under TLS.

mod soak;

use super::faults::client_to;
use super::frames::{number, packet};
use super::*;
use crate::exec::certificate;
use std::io::{Read, Write};

impl Database {
    /// As [`Database::client`], with TLS.
    fn client_over_tls(&self, sql: &str) -> Child {
        let port = format!("--port={}", self.server.port);
        let mut client = Command::new("mariadb");
        client.args(["-N", "-uroot", "--host=127.0.0.1", &port, "--ssl", "sbtest", "-e", sql]);
        client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Creates a key and a certificate; returns the options of the server for them.
fn with_tls(scene: &Scene) -> [String; 2] {
    let (key, certificate) = certificate(scene);
    [format!("--ssl-key={}", key.display()), format!("--ssl-cert={}", certificate.display())]
}

/// Starts a server with TLS behind a gate of one slot.
fn with_one_slot(scene: &Scene, mode: &str) -> Database {
    let tls = with_tls(scene);
    let options = ["--mode", mode, "--concurrency", "1", "--slot-lease", "1s"];
    Database::start_with(scene, &options, &tls.each_ref().map(String::as_str))
}

#[test]
fn connections_with_tls_wait_at_the_gate_and_every_query_is_counted() {
    for mode in ["post", "epoll"] {
        let scene = Scene::new();
        let database = with_one_slot(&scene, mode);
        // A transaction over TLS has the only slot until its lease is over.
        let holder = database.client_over_tls("begin; select * from t; select sleep(2); commit");
        wait_for("the holder", || database.has_transactions(""));
        let many = "show session status like 'Ssl_cipher'".to_owned()
            + &"; select 1".repeat(60)
            + "; show session status like 'Questions'";
        let printed = ended(database.client_over_tls(&many));
        let cipher = printed.lines().next().unwrap().split_whitespace().nth(1);
        let is_cipher = |name: &str| name.contains("AES") || name.contains("CHACHA");
        assert!(cipher.is_some_and(is_cipher), "{printed}");
        ended(holder);
        let questions: u64 = printed.split_whitespace().last().unwrap().parse().unwrap();
        let seen = database.server.seen();
        let all = seen["by_connection"].as_array().unwrap();
        let its_own = |one: &&Value| one["queries"] == questions && one["class"] == "gated";
        let its_own = all.iter().find(its_own).unwrap_or_else(|| panic!("{questions}: {seen}"));
        assert!(its_own["parks"].as_u64() >= Some(1), "{seen}");
        assert!(of_class(&seen, "opaque").is_empty(), "{mode}: {seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{mode}: {seen}");
    }
}

#[test]
fn compression_is_opaque_with_and_without_tls() {
    let scene = Scene::new();
    let tls = with_tls(&scene);
    let tls = tls.each_ref().map(String::as_str);
    let database = Database::start_with(&scene, &["--concurrency", "1"], &tls);
    for option in ["--skip-ssl", "--ssl"] {
        let mut client = client_to(database.server.port, "sbtest", &[option, "--compress"]);
        writeln!(client.stdin.take().unwrap(), "select 6 * 7;").unwrap();
        assert_eq!(ended(client).trim(), "42", "{option}");
    }
    let seen = database.server.seen();
    assert_eq!(of_class(&seen, "opaque").len(), 2, "{seen}");
    assert_eq!(seen["gate"]["admissions"], 0, "{seen}");
}

/// Requests TLS, sends these bytes in place of a handshake, and disconnects.
fn fail_a_handshake(port: u16, bytes: &[u8]) {
    const CAPABILITIES: u32 = 1 << 9 | 1 << 11 | 1 << 15;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The greeting, of which it has read a part.
    assert!(stream.read(&mut [0; 16]).unwrap() > 0);
    let request = [&CAPABILITIES.to_le_bytes()[..], &[0, 0, 0, 1, 33], &[0; 23]].concat();
    stream.write_all(&[&packet(1, &request)[..], bytes].concat()).unwrap();
}

#[test]
fn a_refused_certificate_and_broken_handshakes_hold_no_slot() {
    for mode in ["post", "epoll"] {
        let scene = Scene::new();
        let database = with_one_slot(&scene, mode);
        let port = format!("--port={}", database.server.port);
        let mut client = Command::new("mariadb");
        client.args(["-uroot", "--host=127.0.0.1", &port, "--ssl", "--ssl-verify-server-cert"]);
        // The certificate has no authority that the client knows.
        let refused = client.args(["-e", "select 1"]).output().unwrap();
        let reason = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && reason.contains("certificate"), "{reason}");
        let hello_of_nothing = b"\x16\x03\x01\x00\x02\x01\x00";
        for bytes in [&b"\xff\xfe what is this?"[..], hello_of_nothing, b""] {
            fail_a_handshake(database.server.port, bytes);
        }
        assert_eq!(ended(database.client_over_tls("select 7")).trim(), "7", "{mode}");
        wait_for("the ends of all", || {
            ["under_way", "waiting"].iter().all(|of| number(&scene, &database, of) == 0)
        });
        let seen = database.server.seen();
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{mode}: {seen}");
        assert!(!of_class(&seen, "gated").is_empty(), "{mode}: {seen}");
    }
}
