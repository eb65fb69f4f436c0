//! `lull exec` on real servers: its results, and the servers' behaviour under it.

mod hostile;
mod leftovers;
mod needs_cc;
mod needs_mariadbd;
mod needs_memcached;
mod needs_postgres;
mod needs_redis_server;
mod sanitised;
mod soak;

use crate::support::agent::Agent;
use crate::support::scene::Scene;
use crate::support::send;
use rustix::process::Signal;
use serde_json::Value;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

/// A server under `lull exec --json`.
pub(super) struct Server {
    agent: Option<Agent>,
    port: u16,
}

impl Server {
    /// Starts a server that shall listen at `port`, and waits until it does.
    pub(super) fn start(scene: &Scene, options: &[&str], command: &[&str], port: u16) -> Self {
        let arguments = [&["exec", "--json"], options, &["--"], command].concat();
        Self::from_agent(scene.start(scene.lull(&arguments)), port)
    }

    /// As [`Server::start`], as the user `nobody`. Needs root.
    fn start_as_nobody(scene: &Scene, options: &[&str], command: &[&str], port: u16) -> Self {
        let arguments = [&["exec", "--json"], options, &["--"], command].concat();
        Self::from_agent(scene.start(scene.lull_as_nobody(&arguments)), port)
    }

    fn from_agent(agent: Agent, port: u16) -> Self {
        let mut server = Self { agent: Some(agent), port };
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        server.agent.as_mut().unwrap().wait_for("the server", listens);
        server
    }

    fn signal(&self, signal: Signal) {
        self.agent.as_ref().unwrap().signal(signal);
    }

    /// Ends the server by the signal that `lull exec` forwards, and returns what it observed.
    pub(super) fn seen(mut self) -> Value {
        self.signal(Signal::TERM);
        self.agent.take().unwrap().wait().well().json()
    }
}

impl Drop for Server {
    /// A server outlives its agent, so that after a failed test it is ended here.
    fn drop(&mut self) {
        let Some(pid) = self.agent.as_ref().map(Agent::pid) else { return };
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            send(child.parse().unwrap(), Signal::KILL);
        }
    }
}

/// Connections of a class, and their queries.
pub(super) fn of_class(seen: &Value, class: &str) -> Vec<u64> {
    let all = seen["by_connection"].as_array().unwrap();
    let those = all.iter().filter(|one| one["class"] == class);
    those.map(|one| one["queries"].as_u64().unwrap()).collect()
}

/// Creates a key and a certificate of its own; returns their paths.
fn certificate(scene: &Scene) -> (PathBuf, PathBuf) {
    let (key, certificate) = (scene.path("key.pem"), scene.path("cert.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl.args(["-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=localhost"]).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let output = openssl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (key, certificate)
}

/// Returns the contents of the files in a scene's directory whose names have this prefix.
fn logs(scene: &Scene, prefix: &str) -> Vec<String> {
    let all = std::fs::read_dir(scene.path("")).unwrap().flatten();
    let logs = all.filter(|one| one.file_name().to_string_lossy().starts_with(prefix));
    logs.map(|log| std::fs::read_to_string(log.path()).unwrap()).collect()
}
