//! Clients that bypass the gate, waits by account, and `wait_timeout` while a worker waits.

use super::*;

/// One slot, whose holders hold it for a second.
const ONE_SLOT: [&str; 4] = ["--concurrency", "1", "--slot-lease", "1s"];

impl Database {
    /// Clients that each hold a slot until its lease ends, so that others wait for seconds.
    fn slow_clients(&self, count: usize) -> Vec<Child> {
        (0..count).map(|_| self.client("select sleep(1.2)")).collect()
    }

    fn waiting(&self, scene: &Scene) -> u64 {
        let state = gate::gate(scene, "status", &self.pid().to_string());
        state["waiting"].as_u64().unwrap()
    }

    fn client_of(&self, user: &str, sql: &str) -> Child {
        let (user, port) = (format!("--user={user}"), format!("--port={}", self.server.port));
        let mut client = Command::new("mariadb");
        client.args(["-N", &user, "--host=127.0.0.1", &port, "--skip-ssl", "-e", sql]);
        client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

#[test]
fn a_monitor_and_a_named_account_pass_a_gate_at_which_others_wait() {
    let scene = Scene::new();
    let options = [&ONE_SLOT[..], &["--bypass", r#"user = "ops""#]].concat();
    let database = Database::start(&scene, &options);
    database.admin("create user monitor; create user ops; create user web");
    let slow = database.slow_clients(4);
    wait_for("workers that wait", || database.waiting(&scene) >= 1);
    for user in ["monitor", "ops"] {
        let done = ended(database.client_of(user, "select 7; select 7; select 7"));
        assert_eq!(done.split_whitespace().count(), 3, "{user}: {done}");
    }
    slow.into_iter().for_each(|client| assert_eq!(ended(client).trim(), "0"));
    assert_eq!(ended(database.client_of("web", "select 7")).trim(), "7");
    let seen = database.server.seen();
    let all = seen["by_connection"].as_array().unwrap();
    let over_tcp = |class: &str| {
        let is_it = |one: &&Value| {
            one["class"] == class && one["peer"].as_str().unwrap().starts_with("127.0.0.1")
        };
        all.iter().filter(is_it).collect::<Vec<_>>()
    };
    let exempt = over_tcp("exempt");
    assert_eq!(exempt.len(), 2, "{seen}");
    assert!(exempt.iter().all(|one| one["parks"] == 0), "{seen}");
    assert_eq!(over_tcp("gated").len(), 5, "{seen}");
    let accounts = seen["waits_by_account"].as_array().unwrap();
    let root = accounts.iter().find(|one| one["account"] == "root@sbtest");
    let root = root.unwrap_or_else(|| panic!("no account that waited: {seen}"));
    assert!(root["waits"].as_u64() >= Some(2), "{seen}");
    assert!(root["wait"]["p99_seconds"].as_f64() > Some(0.0), "{seen}");
}

#[test]
fn a_query_that_waits_at_the_gate_for_longer_than_wait_timeout_is_answered() {
    let scene = Scene::new();
    let database = Database::start_with(&scene, &ONE_SLOT, &["--wait-timeout=2"]);
    let slow = database.slow_clients(5);
    slow.into_iter().for_each(|client| assert_eq!(ended(client).trim(), "0"));
    let seen = database.server.seen();
    let all = seen["by_connection"].as_array().unwrap();
    let waited = all.iter().filter_map(|one| one["parked_seconds"].as_f64());
    let longest = waited.fold(0.0, f64::max);
    assert!(longest > 2.0, "no worker waited for longer than wait_timeout: {seen}");
}
