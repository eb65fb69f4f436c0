//! PostgreSQL under TLS.

mod newer;
mod soak;

use super::*;
use crate::exec::certificate;
use std::io::Read;
use std::net::TcpStream;

impl Database {
    /// As [`Database::start`], with TLS, if the client wants it.
    fn start_with_tls(options: &[&str]) -> (Self, Scene) {
        Self::start_with(options, with_tls)
    }
}

/// Creates a key and a certificate; returns the settings of the server for them.
fn with_tls(scene: &Scene) -> Vec<String> {
    let (key, certificate) = certificate(scene);
    if is_root() {
        chown(&key, Some(65534), Some(65534)).unwrap();
    }
    let file = |name: &str, path: PathBuf| format!("ssl_{name}_file={}", path.display());
    vec!["ssl=on".to_owned(), file("key", key), file("cert", certificate)]
}

#[test]
fn processes_share_a_gate_under_tls_and_every_transaction_is_done_and_counted() {
    let (database, _scene) = Database::start_with_tls(&["--concurrency", "2"]);
    transactions_are_counted(database, &["require"]);
}

/// A request for TLS: its length, and a number in place of a version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

#[test]
fn a_refused_certificate_and_broken_handshakes_hold_no_slot() {
    let (database, scene) = Database::start_with_tls(&["--concurrency", "1"]);
    // The certificate of another server.
    let elsewhere = Scene::new();
    let (_, other) = certificate(&elsewhere);
    let mut psql = database.psql();
    psql.env("PGSSLMODE", "verify-ca").env("PGSSLROOTCERT", &other);
    let refused = psql.args(["-c", "select 1"]).output().unwrap();
    let reason = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && reason.contains("verify failed"), "{reason}");
    for bytes in [&b"\xff\xfe what is this?"[..], b"\x16\x03\x01\x00\x02\x01\x00", b""] {
        let mut stream = TcpStream::connect(("127.0.0.1", database.server.port)).unwrap();
        stream.write_all(&SSL_REQUEST).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"S", "it speaks TLS");
        stream.write_all(bytes).unwrap();
    }
    run_transactions(&database, "require");
    wait_for("the slots of all", || gate(&scene, &database)["under_way"] == 0);
    let seen = database.server.seen();
    assert_transactions_gated(&seen, 8);
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
}
