//! memcached: threads that share all connections. Statistics only.

mod needs_openssl;

use super::{Server, of_class};
use crate::support::free_port;
use crate::support::scene::Scene;
use serde_json::Value;

#[test]
fn memcached_is_watched_and_no_query_is_missed() {
    let (scene, port) = (Scene::new(), free_port());
    let text = port.to_string();
    let command = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", &text];
    let server = Server::start(&scene, &[], &command, port);
    let target = format!("memcached://127.0.0.1:{port}");
    let load = ["load", &target, "--rate", "500/s", "--for", "2s", "--connections", "4"];
    let ended = scene.run(&[&load[..], &["--json", "--records", "100"]].concat());
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    let seen = server.seen();
    let completed = report["completed_requests"].as_u64().unwrap();
    assert!(completed > 0);
    assert!(seen["queries"].as_u64().unwrap() >= completed, "{seen}");
    assert!(of_class(&seen, "opaque").len() >= 4, "{seen}");
    assert_eq!(seen["gate"]["admissions"], 0);
}
