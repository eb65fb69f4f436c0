//! Faults around a database whose workers rest or wait.

use super::*;
use crate::support::free_port;
use serde_json::Value;
use std::io::Read;

/// Number of connections over TCP, as the server reports it.
const BY_TCP: &str =
    "select count(*) from information_schema.processlist where host <> 'localhost'";

impl Database {
    /// Connections over TCP, over the unix socket.
    fn by_tcp(&self) -> u32 {
        self.admin(BY_TCP).trim().parse().unwrap()
    }

    /// Starts a client that runs this SQL and is then idle for a long time.
    fn idle_client(&self, sql: &str) -> Child {
        let mut client = client_to(self.server.port, "sbtest", &["--skip-ssl"]);
        use std::io::Write;
        writeln!(client.stdin.as_mut().unwrap(), "{sql};").unwrap();
        client
    }
}

/// A client that reads from a pipe which stays open.
pub(super) fn client_to(port: u16, database: &str, options: &[&str]) -> Child {
    let port = format!("--port={port}");
    let mut client = Command::new("mariadb");
    client.args(["-N", "-n", "-uroot", "--host=127.0.0.1", &port]).args(options).arg(database);
    let client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    client.spawn().unwrap()
}

fn gate(seen: &Value, what: &str) -> u64 {
    seen["gate"][what].as_u64().unwrap()
}

#[test]
fn workers_that_rest_are_called_and_every_query_is_counted() {
    let scene = Scene::new();
    let database = Database::start(&scene, &["--mode", "epoll", "--delay", "2ms"]);
    let many = "select 1;".repeat(99) + "show session status like 'Questions'";
    let clients: Vec<Child> = (0..4).map(|_| database.client(&many)).collect();
    let printed: Vec<String> = clients.into_iter().map(ended).collect();
    let seen = database.server.seen();
    let gated = of_class(&seen, "gated");
    for printed in printed {
        let questions: u64 = printed.split_whitespace().last().unwrap().parse().unwrap();
        assert!(questions >= 100 && gated.contains(&questions), "{questions}: {seen}");
    }
    // A worker whose next query has already arrived does not rest before it.
    assert!(gate(&seen, "called") > 0, "{seen}");
    assert_eq!(gate(&seen, "waited_too_long"), 0, "{seen}");
}

#[test]
fn workers_that_rest_end_by_kill_time_out_hang_up_and_shutdown() {
    for wake in ["futex", "signal"] {
        resting_workers_end(wake);
    }
}

fn resting_workers_end(wake: &str) {
    let scene = Scene::new();
    let database = Database::start(&scene, &["--mode", "epoll", "--wake", wake]);
    let mut hung_up = database.idle_client("select 1");
    let mut killed = database.idle_client("select 2");
    let timed_out = database.idle_client("set session wait_timeout = 1");
    let mut left = database.idle_client("select 3");
    for client in [&mut hung_up, &mut killed, &mut left] {
        // A client that has no answer yet may not even have connected.
        client.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    }
    wait_for("three connections", || database.by_tcp() <= 3 && database.by_tcp() > 0);
    hung_up.kill().unwrap();
    hung_up.wait().unwrap();
    let others = "select id from information_schema.processlist where host <> 'localhost'";
    for id in database.admin(others).split_whitespace().skip(1) {
        database.admin(&format!("kill {id}"));
    }
    wait_for("one connection at most", || database.by_tcp() <= 1);
    // The last one rests when the server receives the signal to end.
    let seen = database.server.seen();
    for mut client in [killed, timed_out, left] {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    assert!(gate(&seen, "called") > 0, "{seen}");
    assert_eq!(gate(&seen, "woken_by_signal") > 0, wake == "signal", "{seen}");
}

#[test]
fn administrators_come_through_a_closed_gate_by_socket_and_by_port() {
    let scene = Scene::new();
    let extra = free_port();
    let (port, option) = (extra.to_string(), format!("--extra-port={extra}"));
    let options = ["--concurrency", "1", "--slot-lease", "1s", "--exempt-port", &port];
    let more = [&option, "--extra-max-connections=5"];
    let database = Database::start_with(&scene, &options, &more);
    // Holds the slot, and takes it again when its lease is over.
    let holders: Vec<Child> =
        (0..3).map(|_| database.client("begin; select sleep(2); commit")).collect();
    wait_for("the holders", || database.by_tcp() == 3);
    assert_eq!(ended(client(extra, "sbtest", "select 7")).trim(), "7");
    assert_eq!(database.admin("select 8").trim(), "8");
    holders.into_iter().for_each(|holder| drop(ended(holder)));
    let seen = database.server.seen();
    let all = seen["by_connection"].as_array().unwrap();
    let exempt = all.iter().filter(|one| one["class"] == "exempt");
    let tcp = exempt.clone().filter(|one| one["peer"] != "unix").count();
    assert!(tcp >= 1 && exempt.count() > tcp, "{seen}");
}

mod needs_sysbench {
    use super::*;

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn clients_that_are_killed_leave_neither_slots_nor_connections_behind() {
        for mode in ["post", "epoll"] {
            let scene = Scene::new();
            let options = ["--mode", mode, "--concurrency", "2"];
            let database = Database::start(&scene, &options);
            database.prepare();
            for _ in 0..3 {
                let mut load = database.sysbench(48, 60, "run").spawn().unwrap();
                wait_for("the load", || database.by_tcp() == 48);
                load.kill().unwrap();
                load.wait().unwrap();
                wait_for("its end", || database.by_tcp() == 0);
            }
            assert_eq!(ended(database.client("select 7")).trim(), "7");
            assert_eq!(gate(&database.server.seen(), "waited_too_long"), 0, "{mode}");
        }
    }

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn when_the_agent_is_killed_resting_workers_are_called_all_the_same() {
        for wake in ["futex", "signal"] {
            workers_are_called_without_an_agent(wake);
        }
    }

    fn workers_are_called_without_an_agent(wake: &str) {
        let scene = Scene::new();
        let options = ["--mode", "epoll", "--concurrency", "1", "--wake", wake];
        let database = Database::start(&scene, &options);
        database.prepare();
        let mut idle = database.idle_client("select 1");
        let load = database.sysbench(32, 5, "run").spawn().unwrap();
        wait_for("the load", || database.by_tcp() > 30);
        database.server.signal(Signal::KILL);
        assert_eq!(ended(database.client("select 7")).trim(), "7");
        ended(load);
        // The worker that rested all the time ends when its client disconnects.
        drop(idle.stdin.take());
        idle.wait().unwrap();
        wait_for("its end", || database.by_tcp() == 0);
        send(database.pid(), Signal::TERM);
        wait_for("the server's end", || !database.pid_file.exists());
    }
}
