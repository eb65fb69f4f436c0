//! Redis: one thread, and statistics only, even if a gate is requested.

mod needs_openssl;

use super::Server;
use crate::support::free_port;
use crate::support::scene::Scene;
use std::process::{Command, Stdio};

#[test]
fn every_command_of_redis_is_counted_and_none_waits() {
    let (scene, port) = (Scene::new(), free_port());
    let text = port.to_string();
    let command = ["redis-server", "--port", &text, "--save", ""];
    let server = Server::start(&scene, &["--concurrency", "1"], &command, port);
    let mut load = Command::new("redis-benchmark");
    load.args(["-p", &text, "-n", "2000", "-c", "20", "-t", "ping_mbulk", "-q"]);
    assert!(load.stdout(Stdio::null()).status().unwrap().success());
    let seen = server.seen();
    let queries = seen["queries"].as_u64().unwrap();
    // The benchmark also reads the server's settings.
    assert!((2000..2020).contains(&queries), "{queries}");
    assert_eq!((&seen["gate"]["admissions"], seen["mode"].as_str()), (&0.into(), Some("post")));
}
