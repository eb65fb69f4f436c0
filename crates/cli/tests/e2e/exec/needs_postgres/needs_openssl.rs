//! PostgreSQL under TLS.

mod newer;
mod soak;

use super::*;
use crate::exec::certificate;

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
