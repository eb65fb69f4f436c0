//! memcached under TLS, with OpenSSL's client.

use super::*;
use crate::exec::certificate;
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn memcached_is_watched_under_tls() {
    let (scene, port) = (Scene::new(), free_port());
    let text = port.to_string();
    let (key, certificate) = certificate(&scene);
    let files = format!("ssl_chain_cert={},ssl_key={}", certificate.display(), key.display());
    let plain = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", &text];
    let command = [&plain[..], &["-Z", "-o", &files]].concat();
    let server = Server::start(&scene, &[], &command, port);
    for _ in 0..4 {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]);
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        let commands = b"set a 0 0 1\r\nx\r\nget a\r\nquit\r\n";
        client.stdin.take().unwrap().write_all(commands).unwrap();
        let output = client.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("VALUE a 0 1"), "{printed}");
    }
    let seen = server.seen();
    assert!(seen["queries"].as_u64().unwrap() >= 4, "{seen}");
    assert!(of_class(&seen, "opaque").len() >= 4, "{seen}");
    assert_eq!(seen["gate"]["admissions"], 0);
}
