//! `lull advise` at a database that knows nothing of Lull.

use super::*;
use crate::support::{has_ebpf, is_root, skip};

/// Starts a database without library and page.
fn unmodified(scene: &Scene) -> Database {
    let (command, port) = installed(scene);
    let mut server = Command::new(&command[0]);
    server.args(&command[1..]);
    Database::from_server(scene, Server::from_agent(scene.start(server), port))
}

fn advise(scene: &Scene, pid: i32, more: &[&str]) -> Agent {
    let pid = pid.to_string();
    scene.start(scene.lull(&[&["advise", &pid, "--seconds", "2"], more].concat()))
}

#[test]
fn queries_that_wait_for_a_row_are_seen_under_way_and_the_server_is_left_as_it_was() {
    let scene = Scene::new();
    if !is_root() || !has_ebpf(&scene) {
        return skip("needs root and eBPF");
    }
    let database = unmodified(&scene);
    let pid = database.pid();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    // Twelve connections update one row repeatedly until the watch has ended.
    let sql = "update t set b = b + 1 where a = 1;".repeat(200_000);
    let mut clients: Vec<Child> = (0..12).map(|_| piped(&database, &sql)).collect();
    let advice = advise(&scene, pid, &["--json"]).wait().well().json();
    clients.iter_mut().for_each(|client| client.kill().unwrap());
    for mut client in clients {
        client.wait().unwrap();
    }
    assert_eq!((&advice["source"], &advice["protocol"]), (&"ebpf".into(), &"mysql".into()));
    assert_eq!((&advice["pid"], &advice["connections"]), (&pid.into(), &12.into()), "{advice}");
    let number = |value: &Value| value.as_f64().unwrap();
    let queries = &advice["queries"];
    assert!(number(&queries["answered"]) > 0.0, "{advice}");
    assert!(number(&advice["under_way"]) > 1.0 && number(&advice["under_way"]) <= 13.0);
    assert!(number(&queries["blocked_seconds"]) > number(&queries["disk_seconds"]), "{advice}");
    assert!(number(&queries["cpu_seconds"]) > 0.0, "{advice}");
    assert!(!maps().contains("liblull") && database.pid() == pid, "nothing was loaded into it");
    // Idle: too little for an answer, and the command that gives one.
    let idle = advise(&scene, pid, &[]).wait().well().out;
    assert!(idle.contains("cannot tell") && idle.contains("watch it under its usual load"));
    assert!(idle.contains(&format!("lull advise {pid} --seconds 300")), "{idle}");
}

/// A client that sends statements one after the other.
fn piped(database: &Database, sql: &str) -> Child {
    use std::io::Write;
    let mut client = Command::new("mariadb");
    let port = format!("--port={}", database.server.port);
    client.args(["-N", "-uroot", "--host=127.0.0.1", &port, "--skip-ssl", "sbtest"]);
    client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = client.spawn().unwrap();
    let (mut input, sql) = (child.stdin.take().unwrap(), sql.to_owned());
    // The thread ends with the client, which closes the pipe.
    std::thread::spawn(move || input.write_all(sql.as_bytes()));
    child
}

#[test]
fn a_database_that_has_a_gate_is_referred_to_its_state() {
    let scene = Scene::new();
    let database = attach::free(&scene);
    let ended = advise(&scene, database.pid(), &[]).wait();
    ended.refused(1, "has a gate already: `lull gate status");
}
