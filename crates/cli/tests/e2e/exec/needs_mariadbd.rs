//! MariaDB: a thread for each connection, transactions, locks.

mod advise;
pub(super) mod areas;
mod attach;
pub(super) mod classes;
mod dispatched;
mod faults;
mod frames;
mod gate;
mod needs_openssl;
mod own_tests;
mod pool;
mod replica;
mod statements;
mod valgrind;
mod waits;

use super::{Server, logs, of_class, sanitised};
use crate::support::agent::{Agent, Ended};
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::{free_port, send, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A server with an empty database, under `lull exec`.
struct Database {
    server: Server,
    socket: PathBuf,
    pid_file: PathBuf,
}

impl Database {
    fn start(scene: &Scene, options: &[&str]) -> Self {
        Self::start_with(scene, options, &[])
    }

    /// As [`Database::start`], with further options of the server.
    fn start_with(scene: &Scene, options: &[&str], more: &[&str]) -> Self {
        Self::start_behind(scene, options, &[], more)
    }

    /// As [`Database::start_with`], with words before its command line.
    fn start_behind(scene: &Scene, options: &[&str], before: &[&str], more: &[&str]) -> Self {
        let (command, port) = installed(scene);
        let command = command.iter().map(String::as_str);
        let command: Vec<&str> =
            before.iter().copied().chain(command).chain(more.iter().copied()).collect();
        Self::from_server(scene, Server::start(scene, options, &command, port))
    }

    /// Creates a table for the tests in a server that was started.
    fn from_server(scene: &Scene, server: Server) -> Self {
        let database = Self { server, socket: scene.path("socket"), pid_file: scene.path("pid") };
        database.admin("create database sbtest; create table sbtest.t (a int primary key, b int)");
        database.admin("insert into sbtest.t values (1, 0), (2, 0)");
        database
    }

    fn pid(&self) -> i32 {
        std::fs::read_to_string(&self.pid_file).unwrap().trim().parse().unwrap()
    }

    /// Runs SQL over the unix socket, which a rule exempts.
    fn admin(&self, sql: &str) -> String {
        text(&self.try_admin(sql))
    }

    fn try_admin(&self, sql: &str) -> Output {
        let socket = format!("--socket={}", self.socket.display());
        let mut admin = Command::new("mariadb");
        admin.args(["-N", "-uroot", &socket, "-e", sql]).output().unwrap()
    }

    fn client(&self, sql: &str) -> Child {
        client(self.server.port, "sbtest", sql)
    }

    fn sysbench(&self, threads: u32, seconds: u32, action: &str) -> Command {
        self.sysbench_with("oltp_read_write", threads, seconds, action)
    }

    fn sysbench_with(&self, script: &str, threads: u32, seconds: u32, action: &str) -> Command {
        let mut sysbench = Command::new("sysbench");
        let port = format!("--mysql-port={}", self.server.port);
        sysbench.args([script, "--db-driver=mysql", "--mysql-host=127.0.0.1", &port]);
        sysbench.args(["--mysql-user=root", "--tables=2", "--table-size=2000", "--mysql-ssl=off"]);
        sysbench.args([format!("--threads={threads}"), format!("--time={seconds}")]);
        sysbench.arg(action).stdout(Stdio::piped()).stderr(Stdio::piped());
        sysbench
    }

    fn prepare(&self) {
        text(&self.sysbench(1, 0, "prepare").output().unwrap());
    }

    fn waits_for_a_row(&self) -> bool {
        self.has_transactions("where trx_state='LOCK WAIT'")
    }

    /// InnoDB answers from a copy that it renews only if no query has read it for 100 ms:
    /// without a pause every query sees the first answer.
    fn has_transactions(&self, which: &str) -> bool {
        std::thread::sleep(std::time::Duration::from_millis(150));
        self.admin(&format!("select count(*) from information_schema.innodb_trx {which}")).trim()
            != "0"
    }
}

/// Installs a database; returns the command of its server and the port.
fn installed(scene: &Scene) -> (Vec<String>, u16) {
    let (data, port) = (scene.path("data"), free_port());
    let data = format!("--datadir={}", data.display());
    let mut install = Command::new("mariadb-install-db");
    install.args(["--no-defaults", &data, "--user=root"]);
    install.arg("--auth-root-authentication-method=normal").stdout(Stdio::null());
    // At its start a server deletes all files in its directory of temporary tables, also
    // those of other servers.
    let own = scene.path("tmp");
    std::fs::create_dir(&own).unwrap();
    install.env("TMPDIR", &own);
    assert!(install.status().unwrap().success());
    let at = |option: &str, path: &str| format!("--{option}={}", scene.path(path).display());
    let own = [at("tmpdir", "tmp"), at("socket", "socket"), at("pid-file", "pid")];
    let port_option = format!("--port={port}");
    let flags = ["mariadbd", "--no-defaults", &data, &port_option, "--user=root"];
    let limits = ["--max-connections=600", "--innodb-lock-wait-timeout=30"];
    let quick = ["--bind-address=127.0.0.1", "--skip-name-resolve"];
    let all = [&flags[..], &limits, &quick, &["--innodb-flush-log-at-trx-commit=0"]].concat();
    (all.into_iter().map(str::to_owned).chain(own).collect(), port)
}

/// Sends SQL over TCP, where it may have to wait.
fn client(port: u16, database: &str, sql: &str) -> Child {
    let port = format!("--port={port}");
    let mut client = Command::new("mariadb");
    client.args(["-N", "-uroot", "--host=127.0.0.1", &port, "--skip-ssl", database, "-e", sql]);
    client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ended(child: Child) -> String {
    text(&child.wait_with_output().unwrap())
}

#[test]
fn every_query_of_a_connection_is_counted() {
    let scene = Scene::new();
    let database = Database::start(&scene, &[]);
    let many = "select 1;".repeat(99) + "show session status like 'Questions'";
    let printed = ended(database.client(&many));
    let questions: u64 = printed.split_whitespace().last().unwrap().parse().unwrap();
    assert!(questions >= 100, "{questions}");
    let seen = database.server.seen();
    assert!(of_class(&seen, "gated").contains(&questions), "{questions}: {seen}");
    assert!(of_class(&seen, "exempt").len() >= 2, "connections of the unix socket: {seen}");
}

#[test]
fn a_last_query_is_counted_whose_reply_the_server_ends_by_closing() {
    let scene = Scene::new();
    let database = Database::start(&scene, &[]);
    let output = database.client("select 1; kill connection_id()").wait_with_output().unwrap();
    assert!(!output.status.success(), "the connection is killed");
    let seen = database.server.seen();
    assert!(of_class(&seen, "gated").contains(&2), "{seen}");
}

#[test]
fn an_admission_controller_moves_the_gate_of_a_live_server() {
    let scene = Scene::new();
    let options = ["--concurrency", "gate-fifo", "--key", "cap=2", "--key", "look=\"20ms\""];
    let database = Database::start(&scene, &options);
    let many = "begin; select 1; select 2; commit;".repeat(50);
    let clients: Vec<Child> = (0..8).map(|_| database.client(&many)).collect();
    clients.into_iter().map(ended).for_each(drop);
    let seen = database.server.seen();
    assert_eq!((seen["mode"].as_str(), seen["cap"].as_u64()), (Some("post"), Some(2)));
    assert!(seen["gate"]["admissions"].as_u64().unwrap() > 0, "{seen}");
    // A transaction of four statements takes longer than one of them.
    let p50 = |of: &str| seen[of]["p50_seconds"].as_f64().unwrap();
    assert!(p50("transaction_latency") >= p50("latency"), "{seen}");
}

/// Runs a database with the library and this key; returns the agent and the port.
fn run_with(scene: &Scene, key: &str) -> (Agent, u16) {
    run_for(scene, key, &[])
}

/// As [`run_with`], with further options of `lull run`.
fn run_for(scene: &Scene, key: &str, options: &[&str]) -> (Agent, u16) {
    let (command, port) = installed(scene);
    let app = format!(
        "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"db\"\nclass = \"latency-critical\"\n\
         objectives = [{{ p99 = \"1s\" }}]\nideal = \"1ms\"\nlatency = \"preload\"\n{key}\n\
         ready = \"127.0.0.1:{port}\"\nstart = {command:?}\n"
    );
    let config = scene.config("silence = \"1h\"", &app);
    let arguments = [&["run", config.to_str().unwrap()], options].concat();
    let mut agent = scene.start(scene.lull(&arguments));
    agent.wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    (agent, port)
}

#[test]
fn a_run_has_the_latency_that_the_server_itself_saw_under_a_gate() {
    let scene = Scene::new();
    let (agent, port) = run_with(&scene, "concurrency = 4");
    // More than one epoch's worth, so that the run has begun by the end of it.
    let answered = "SELECT CAST(total(completed_requests_per_second * 0.2) AS INTEGER) \
                    FROM app_epochs";
    wait_for("queries in the record", || {
        ended(client(port, "mysql", &"select 1;".repeat(50)));
        scene.records().first().is_some_and(|file| Record::open(file).number(answered) > 50)
    });
    agent.signal(Signal::INT);
    agent.wait().well();
    let record = Record::open(&scene.records()[0]);
    assert!(record.number("SELECT count(*) FROM latencies WHERE app = 'db'") > 0);
    scene.wait_until_quiet();
}

#[test]
fn an_admission_controller_of_a_run_acts_on_the_gate_and_is_recorded() {
    let scene = Scene::new();
    let admission = "concurrency = { name = \"gate-fifo\", cap = 2, look = \"20ms\" }";
    let (agent, port) = run_with(&scene, admission);
    wait_for("a decision in the record", || {
        let clients: Vec<Child> =
            (0..4).map(|_| client(port, "mysql", &"begin; select 1; commit;".repeat(20))).collect();
        clients.into_iter().map(ended).for_each(drop);
        scene.records().first().is_some_and(|file| {
            let record = Record::open(file);
            record.number("SELECT count(*) FROM journal WHERE event LIKE '%gate_changed%'") > 0
        })
    });
    agent.signal(Signal::INT);
    agent.wait().well();
    let decided = Record::open(&scene.records()[0]).events("gate_changed");
    assert_eq!((&decided[0]["app"], &decided[0]["admission"]), (&"db".into(), &"gate-fifo".into()));
    assert!(decided[0]["gate"].as_str().unwrap().starts_with("2 transactions"), "{decided:?}");
    scene.wait_until_quiet();
}

#[test]
fn a_proof_of_an_admission_controller_has_its_gate_open_in_every_other_block() {
    let scene = Scene::new();
    let admission = "concurrency = { name = \"gate-fifo\", cap = 2, look = \"20ms\" }";
    let proof = ["--prove", "12s", "--block", "1s", "--json"];
    let (agent, port) = run_for(&scene, admission, &proof);
    let ended = agent.wait_while(|| {
        // The last clients cannot connect to a server.
        client(port, "mysql", &"begin; select 1; commit;".repeat(20)).wait().unwrap();
    });
    let out = ended.well().out;
    let last: Value = serde_json::from_str(out.trim_end().lines().last().unwrap()).unwrap();
    let design = last["prove"].to_string();
    assert!(design.contains("gate-fifo") && design.contains("unmanaged"), "{design}");
    let record = Record::open(&scene.records()[0]);
    let closed = record.events("gate_changed").len();
    // One decision at the start and one in each block after a block without the controller,
    // except for blocks in which the machine stalled.
    assert!((2..=7).contains(&closed), "{closed}");
    assert!(record.number("SELECT count(*) FROM epochs WHERE phase LIKE 'gate-fifo-%'") > 0);
    scene.wait_until_quiet();
}

/// Writes the config of a database that Lull starts, and of a search over these knobs of its gate.
fn search_config(scene: &Scene, knobs: &[&str]) -> (PathBuf, u16) {
    let (command, port) = installed(scene);
    let app = format!(
        "[policy]\nname = \"bayop\"\nknobs = {knobs:?}\n\
         settle = \"600ms\"\nwindow = \"600ms\"\ntrials = 6\nload_change = 1.0\n\
         allow_modelled = true\n[[app]]\nname = \"db\"\nclass = \"latency-critical\"\n\
         objectives = [{{ p99 = \"1s\" }}]\nlatency = \"preload\"\nconcurrency = 4\n\
         ready = \"127.0.0.1:{port}\"\nstart = {command:?}\n"
    );
    (scene.config("silence = \"1h\"", &app), port)
}

/// Runs a command that starts the database, with six connections that have work at any time, so
/// that its trials have latencies to read.
fn under_clients(scene: &Scene, command: Command, port: u16) -> Ended {
    let mut agent = scene.start(command);
    agent.wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut clients: Vec<Child> = Vec::new();
    let ended = agent.wait_while(|| {
        clients.retain_mut(|client| client.try_wait().unwrap().is_none());
        if clients.len() < 6 {
            clients.push(client(port, "mysql", &"begin; select 1; commit;".repeat(2000)));
        }
    });
    for mut client in clients {
        // The server has ended.
        let _ = client.kill();
        client.wait().unwrap();
    }
    scene.wait_until_quiet();
    ended
}

#[test]
fn a_search_sets_the_three_numbers_of_the_gate_of_a_live_server() {
    let scene = Scene::new();
    let (config, port) = search_config(&scene, &["gate-cap", "gate-batch", "gate-delay"]);
    let (store, tune, at) = (scene.path("spots.sqlite"), "tune".as_ref(), "--store".as_ref());
    let tune = [tune, config.as_os_str(), at, store.as_os_str(), "--json".as_ref()];
    let found = &under_clients(&scene, scene.lull(&tune), port).well().json()[0];
    assert_eq!((&found["meets"], &found["trials"]), (&true.into(), &6.into()), "{found}");
    assert_eq!(found["values"].as_array().unwrap().len(), 3, "{found}");
    let decisions = Record::open(&scene.records()[0]).events("decision");
    for knob in ["gate_cap", "gate_batch", "gate_delay"] {
        let set = |one: &Value| {
            let outcome = &one["outcome"];
            outcome["wanted"].get(knob).is_some() && outcome["got"] == "done"
        };
        assert!(decisions.iter().any(set), "{knob} was never set: {decisions:?}");
    }
}

#[test]
fn a_sweep_tries_the_levels_of_the_gate_of_a_live_server_and_its_throughput_counts() {
    let scene = Scene::new();
    let (config, port) = search_config(&scene, &["gate-cap"]);
    let few = ["--settings", "3", "--blocks", "1", "--json"].map(AsRef::<OsStr>::as_ref);
    let sweep = [&["sweep".as_ref(), config.as_os_str()][..], &few].concat();
    let document = under_clients(&scene, scene.lull(&sweep), port).well().json();
    let settings = document["settings"].as_array().unwrap();
    let caps: Vec<_> = settings.iter().map(|it| it["values"]["gate-cap"].as_f64()).collect();
    assert_eq!(caps.len(), 3, "{document}");
    assert!(caps.windows(2).all(|pair| pair[0] < pair[1]) && caps[0] == Some(1.0), "{caps:?}");
    let answers = |it: &Value| it["completed_per_s"]["mean"].as_f64().unwrap() > 0.0;
    assert!(settings.iter().all(answers), "{document}");
}

#[test]
fn a_lock_holder_under_a_gate_of_one_neither_deadlocks_nor_times_out() {
    let scene = Scene::new();
    let database = Database::start(&scene, &["--concurrency", "1"]);
    // The first client holds the row. The second waits for the row and gets the only slot once
    // the lease of the first is over. The first must still be able to commit.
    let mut holder = database.client(
        "begin; update t set b = b + 1 where a = 1; select sleep(1); \
         update t set b = b + 1 where a = 2; commit",
    );
    // On a busy machine it may have ended before the check.
    let mut has_ended = || holder.try_wait().unwrap().is_some();
    wait_for("the holder", || database.has_transactions("") || has_ended());
    let waiter = database.client("update t set b = b + 1 where a = 1");
    wait_for("the waiter", || database.waits_for_a_row() || !database.has_transactions(""));
    let others: Vec<Child> = (0..4).map(|_| database.client("select b from t")).collect();
    ended(holder);
    ended(waiter);
    others.into_iter().for_each(|other| drop(ended(other)));
    assert_eq!(database.admin("select sum(b) from sbtest.t").trim(), "3");
    let seen = database.server.seen();
    assert!(seen["gate"]["slots_overdue"].as_u64().unwrap() > 0, "{seen}");
}

mod needs_sysbench {
    use super::*;

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn sixty_four_connections_under_a_gate_of_eight_finish_without_an_error() {
        let scene = Scene::new();
        let database = Database::start(&scene, &["--concurrency", "8"]);
        database.prepare();
        text(&database.sysbench(64, 5, "run").output().unwrap());
        let seen = database.server.seen();
        assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    }

    /// Each holds its slot for 30 ms in which it uses no core: 64 at a time do this, and behind a
    /// gate a quarter of them or fewer. No noise of a busy machine makes that look like a gain.
    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn auto_leaves_the_gate_open_where_it_cannot_help() {
        const SLEEPS: &str = "function thread_init()\n\
             connection = sysbench.sql.driver():connect()\nend\n\
             function event()\nconnection:query(\"select sleep(0.03)\")\nend\n";
        let scene = Scene::new();
        let keys = ["--concurrency", "auto", "--key", "most_cap=16"];
        let database = Database::start(&scene, &keys);
        let script = scene.write("sleeps.lua", SLEEPS);
        let load = database.sysbench_with(script.to_str().unwrap(), 64, 100, "run").spawn();
        let mut load = load.unwrap();
        // Gates of other tests may be surveyed first: one at a time is surveyed on a machine.
        let printed = || database.server.agent.as_ref().unwrap().err();
        wait_for("a decision after limits were tried", || {
            let printed = printed();
            let tried = printed.split_once("transactions at a time");
            tried.is_some_and(|(_, then)| then.contains("decided: open: "))
        });
        load.kill().unwrap();
        load.wait().unwrap();
        let seen = database.server.seen();
        assert_eq!(seen["mode"].as_str(), Some("stats"), "{seen}");
        assert!(seen["gate"]["admissions"].as_u64().unwrap() > 0, "{seen}");
    }

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn a_server_ends_in_order_while_workers_are_parked() {
        let scene = Scene::new();
        let database = Database::start(&scene, &["--concurrency", "1", "--slot-lease", "1s"]);
        database.prepare();
        let mut load = database.sysbench(64, 60, "run").spawn().unwrap();
        let running = "select count(*) > 60 from information_schema.processlist";
        wait_for("the load", || database.admin(running).trim() == "1");
        let seen = database.server.seen();
        // Its connections were closed while it ran.
        load.wait().unwrap();
        assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
    }

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn when_the_agent_is_killed_parked_workers_run_on_and_the_server_too() {
        let scene = Scene::new();
        let database = Database::start(&scene, &["--concurrency", "1", "--slot-lease", "1s"]);
        database.prepare();
        let load = database.sysbench(32, 6, "run").spawn().unwrap();
        let running = "select count(*) > 30 from information_schema.processlist";
        wait_for("the load", || database.admin(running).trim() == "1");
        database.server.signal(Signal::KILL);
        // Without the agent no worker waits: every query is answered, and the load ends
        // without an error.
        assert_eq!(ended(database.client("select 7")).trim(), "7");
        ended(load);
        let pid = database.pid();
        send(pid, Signal::TERM);
        wait_for("the server's end", || !database.pid_file.exists());
    }
}
