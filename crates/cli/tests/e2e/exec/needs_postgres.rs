//! PostgreSQL: a process for each connection, all behind one gate.

mod needs_openssl;
mod owner;
mod standby;
mod statements;

use super::needs_mariadbd::areas::{on_two_cores, two_cores};
use super::needs_mariadbd::classes::{WEB_AND_BATCH, assert_shares, of_client_class};
use super::{Server, of_class};
use crate::support::agent::Agent;
use crate::support::scene::Scene;
use crate::support::threads::cores_of;
use crate::support::{free_port, is_root, skip, wait_for};
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A server with pgbench's tables, under `lull exec`.
struct Database {
    server: Server,
    port: String,
}

/// Where Debian keeps its programs.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten();
    let mut places = versions.map(|version| version.path().join("bin").join(name));
    places.find(|place| place.is_file()).expect("PostgreSQL is installed")
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Words of a command that runs as the user `nobody`. Needs root.
const AS_NOBODY: [&str; 6] = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];

/// Returns the command of a program that runs as the server's user.
fn of_servers_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).arg("--").arg(program);
    command
}

/// Creates a directory of the server's user in the scene.
fn create_data(scene: &Scene, name: &str) -> PathBuf {
    let data = scene.path(name);
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        chown(&data, Some(65534), Some(65534)).unwrap();
    }
    data
}

/// Creates an empty database in the scene; returns the words that start its server, and its port.
fn installed(scene: &Scene, postgres: &Path, settings: &[String]) -> (Vec<String>, u16) {
    let data = create_data(scene, "data");
    let mut install = of_servers_user(&postgres.with_file_name("initdb"));
    install.arg("-D").arg(&data).args(["--auth", "trust", "--username", "postgres"]);
    text(&install.output().unwrap());
    serving(postgres, &data, settings)
}

/// Returns the words that start a server of this data, and its port.
fn serving(postgres: &Path, data: &Path, settings: &[String]) -> (Vec<String>, u16) {
    let port = free_port();
    let mut command = vec![postgres.display().to_string(), "-D".to_owned()];
    command.extend([data.display().to_string(), "-p".to_owned(), port.to_string()]);
    let own = ["fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories="];
    for setting in own.into_iter().chain(settings.iter().map(String::as_str)) {
        command.extend(["-c".to_owned(), setting.to_owned()]);
    }
    (command, port)
}

/// Starts a server as its user under `lull exec` with these options.
fn start_server(scene: &Scene, options: &[&str], command: &[String], port: u16) -> Server {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    match is_root() {
        true => Server::start_as_nobody(scene, options, &command, port),
        false => Server::start(scene, options, &command, port),
    }
}

impl Database {
    /// PostgreSQL refuses to run as root: a test that runs as root starts server and agent as
    /// the user `nobody`.
    fn start(options: &[&str]) -> (Self, Scene) {
        Self::start_with(options, |_| Vec::new())
    }

    fn start_with(options: &[&str], settings: impl Fn(&Scene) -> Vec<String>) -> (Self, Scene) {
        let scene = Scene::with_program_for_all();
        let settings = settings(&scene);
        (Self::start_in(&scene, &program("postgres"), options, &settings), scene)
    }

    /// Starts this program of a server on an empty directory of the scene.
    fn start_in(scene: &Scene, postgres: &Path, options: &[&str], settings: &[String]) -> Self {
        let (command, port) = installed(scene, postgres, settings);
        Self::from_server(start_server(scene, options, &command, port))
    }

    /// Creates pgbench's tables in a server that was started.
    fn from_server(server: Server) -> Self {
        let port = server.port.to_string();
        let database = Self { server, port };
        // The server listens before it can answer.
        wait_for("PostgreSQL", || database.pgbench(&["-i"]).status.success());
        database
    }

    /// Returns the command of a client that prints rows only.
    fn psql(&self) -> Command {
        let mut psql = Command::new(program("psql"));
        psql.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port, "-XqAt", "postgres"]);
        psql
    }

    /// Runs SQL and returns its rows.
    fn sql(&self, sql: &str) -> String {
        text(&self.psql().args(["-c", sql]).output().unwrap())
    }

    fn pgbench(&self, arguments: &[&str]) -> Output {
        self.client(arguments).output().unwrap()
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut pgbench = Command::new(program("pgbench"));
        pgbench.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port]);
        pgbench.args(arguments).arg("postgres");
        pgbench.stdout(Stdio::piped()).stderr(Stdio::piped());
        pgbench
    }
}

#[test]
fn processes_share_a_gate_and_every_transaction_is_done_and_counted() {
    let (database, _scene) = Database::start(&["--concurrency", "2"]);
    transactions_are_counted(database, &["disable"]);
}

/// Loads a server with clients whose connections are encrypted or not, by turns.
fn transactions_are_counted(database: Database, tls: &[&str]) {
    for tls in tls {
        run_transactions(&database, tls);
    }
    let seen = database.server.seen();
    assert_transactions_gated(&seen, 8 * tls.len());
    let all = seen["by_connection"].as_array().unwrap();
    let tids: std::collections::BTreeSet<_> = all.iter().map(|one| one["tid"].as_u64()).collect();
    assert!(tids.len() >= 8 * tls.len(), "a process for each connection: {seen}");
}

/// Runs 25 of the usual transactions of pgbench in each of 8 connections: BEGIN, five statements of
/// which some wait for row locks, END.
fn run_transactions(database: &Database, tls: &str) {
    let mut clients = database.client(&["-n", "-c", "8", "-t", "25"]);
    let done = text(&clients.env("PGSSLMODE", tls).output().unwrap());
    assert!(done.contains("200/200"), "{done}");
    assert!(done.contains("failed transactions: 0"), "{done}");
}

fn assert_transactions_gated(seen: &Value, connections: usize) {
    let gated = of_class(seen, "gated");
    let all = gated.iter().filter(|queries| **queries == 7 * 25).count();
    assert_eq!(all, connections, "{seen}");
    assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
}

#[test]
fn a_client_that_goes_away_in_mid_transaction_leaves_no_slot_behind() {
    let (database, _scene) = Database::start(&["--concurrency", "1"]);
    for _ in 0..3 {
        let mut clients = database.client(&["-n", "-c", "4", "-T", "60"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        clients.kill().unwrap();
        clients.wait().unwrap();
        assert!(text(&database.pgbench(&["-n", "-c", "4", "-t", "5"])).contains("20/20"));
    }
    assert_eq!(database.server.seen()["gate"]["waited_too_long"], 0);
}

/// The state of the gate of a server that `lull exec` has started.
fn gate(scene: &Scene, database: &Database) -> Value {
    let agent = database.server.agent.as_ref().map(Agent::pid).unwrap();
    let children = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"));
    let children = children.unwrap();
    let postmaster = children.split_whitespace().next().unwrap();
    scene.run(&["gate", "status", postmaster, "--json"]).well().json()
}

fn add_users(database: &Database) {
    for user in ["web", "batch"] {
        database.sql(&format!("create role {user} login superuser"));
    }
}

#[test]
fn two_users_share_a_saturated_gate_by_their_weights_and_neither_starves() {
    let options = [&["--concurrency", "2"][..], &WEB_AND_BATCH].concat();
    let (database, scene) = Database::start(&options);
    add_users(&database);
    let script = scene.path("sleep.sql");
    std::fs::write(&script, "select pg_sleep(0.001);\n").unwrap();
    let crowd = |user: &str| {
        let script = script.to_str().unwrap();
        let mut pgbench = database.client(&["-n", "-c", "8", "-T", "60", "-U", user, "-f", script]);
        pgbench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut crowds = [crowd("web"), crowd("batch")];
    assert_shares(|| gate(&scene, &database));
    for crowd in &mut crowds {
        crowd.kill().unwrap();
        crowd.wait().unwrap();
    }
}

#[test]
fn an_application_that_renames_itself_changes_its_class() {
    let report = r#"name = "report", match = [{ application = "report" }]"#;
    let [class, web, ..] = WEB_AND_BATCH;
    let options = ["--concurrency", "2", class, report, class, web];
    let (database, scene) = Database::start(&options);
    add_users(&database);
    let of = |name: &str| of_client_class(&gate(&scene, &database), name, "connections");
    let mut psql = Command::new(program("psql"));
    psql.args(["-h", "127.0.0.1", "-U", "web", "-p", &database.port, "postgres"]);
    let mut psql = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = psql.stdin.take().unwrap();
    let mut say = |sql: &str| writeln!(input, "{sql}").unwrap();
    say("select 1;");
    wait_for("a client of its user's class", || (of("web"), of("report")) == (1, 0));
    say("set application_name = 'report';");
    wait_for("a client of its application's class", || (of("web"), of("report")) == (0, 1));
    say("begin; set local application_name = 'shop'; rollback; select 1;");
    say("reset application_name;");
    wait_for("a client of its user's class again", || (of("web"), of("report")) == (1, 0));
    // These settings are reported behind a row, and behind an error.
    say("select set_config('application_name', 'report', false);");
    wait_for("a class that a function sets", || (of("web"), of("report")) == (0, 1));
    say("begin; set local application_name = 'shop'; select 1/0;");
    say("rollback; reset application_name; select 1;");
    wait_for("its user's class after an error", || (of("web"), of("report")) == (1, 0));
    drop(input);
    assert!(psql.wait().unwrap().success());
}

#[test]
fn a_process_runs_in_the_area_of_its_clients_class_until_its_client_is_gone() {
    let Some(cores) = two_cores() else { return skip("a machine with two cores") };
    let options = on_two_cores(&cores);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let (database, _scene) = Database::start(&options);
    add_users(&database);
    let mut psql = Command::new(program("psql"));
    psql.args(["-h", "127.0.0.1", "-U", "web", "-p", &database.port, "postgres"]);
    let mut psql = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = psql.stdin.take().unwrap();
    writeln!(input, "select 1;").unwrap();
    let mut backend = None;
    wait_for("its client", || {
        let pid = database.sql("select pid from pg_stat_activity where usename = 'web'");
        backend = pid.trim().parse().ok();
        backend.is_some()
    });
    let backend: i32 = backend.unwrap();
    wait_for("its process on the core of `web`", || cores_of(backend) == cores[0]);
    drop(input);
    assert!(psql.wait().unwrap().success());
    let seen = database.server.seen();
    let areas = &seen["areas"];
    assert!(areas["moves"].as_u64() >= Some(1) && areas["pools"] == 0, "{areas}");
}

#[test]
fn a_query_that_waits_at_the_gate_does_not_end_its_session_by_idle_session_timeout() {
    let (database, _scene) = Database::start(&["--concurrency", "1", "--slot-lease", "1s"]);
    let client = |_| {
        let mut psql = Command::new(program("psql"));
        psql.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &database.port, "-tA", "-c"]);
        // The timer runs from the login on: the server stops it when it has the query. Each
        // client holds the slot for its lease, so that the third and later ones would wait for
        // longer than the timer.
        psql.env("PGOPTIONS", "-c idle_session_timeout=2s");
        psql.arg("select 7 from pg_sleep(1.2)").arg("postgres");
        psql.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let clients: Vec<_> = (0..6).map(client).collect();
    for client in clients {
        assert_eq!(text(&client.wait_with_output().unwrap()).trim(), "7");
    }
    let seen = database.server.seen();
    let accounts = seen["waits_by_account"].as_array().unwrap();
    let waited = accounts.iter().find(|one| one["account"] == "postgres@postgres");
    let waited = waited.unwrap_or_else(|| panic!("no account that waited: {seen}"));
    assert!(waited["waits"].as_u64() >= Some(1), "{seen}");
}
