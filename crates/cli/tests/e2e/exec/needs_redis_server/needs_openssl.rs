//! Redis under TLS, and sessions that OpenSSL's client resumes.

use super::*;
use crate::exec::{certificate, of_class};
use std::io::Write;

#[test]
fn commands_under_tls_are_counted_also_in_resumed_sessions_and_none_waits() {
    let (scene, port) = (Scene::new(), free_port());
    let text = port.to_string();
    let (key, certificate) = certificate(&scene);
    let [key, certificate] = [key, certificate].map(|path| path.display().to_string());
    let plain = ["redis-server", "--port", "0", "--save", "", "--tls-port", &text];
    let tls = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
    let open = ["--tls-ca-cert-file", &certificate, "--tls-auth-clients", "no"];
    let command = [&plain[..], &tls, &open].concat();
    let server = Server::start(&scene, &["--concurrency", "1"], &command, port);
    let mut load = Command::new("redis-benchmark");
    load.args(["--tls", "--insecure", "-p", &text, "-n", "2000", "-c", "20", "-t", "ping_mbulk"]);
    assert!(load.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    let session = scene.path("session.pem").display().to_string();
    for (option, state) in [("-sess_out", "New, TLS"), ("-sess_in", "Reused, TLS")] {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-ign_eof", "-connect", &format!("127.0.0.1:{port}")]);
        client.args([option, &session]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = client.stderr(Stdio::null()).spawn().unwrap();
        client.stdin.take().unwrap().write_all(b"PING\r\nQUIT\r\n").unwrap();
        let output = client.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("+PONG") && printed.contains(state), "{option}: {printed}");
    }
    let seen = server.seen();
    // The flights of handshakes are counted, too.
    assert!(seen["queries"].as_u64().unwrap() >= 2002, "{seen}");
    assert!(of_class(&seen, "gated").is_empty(), "{seen}");
    assert_eq!(seen["gate"]["admissions"], 0, "{seen}");
}
