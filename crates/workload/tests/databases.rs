//! Transactions against real databases, and against servers that stall, reset and lie.

mod database_programs;

use database_programs::{postgres_program, unprivileged};
use lull_measure::Nanos;
use lull_workload::arrivals::Rate;
use lull_workload::client::{self, LoadConfig, LoadError, LoadReport};
use lull_workload::target::{Address, Protocol, ScriptSource, Statements};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A server that ends with the test, with its data.
struct Server {
    process: Child,
    place: tempfile::TempDir,
    socket: PathBuf,
    protocol: Protocol,
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL's processes end with the first one only if it is not killed.
        let _ = Command::new("kill").arg("-QUIT").arg(self.process.id().to_string()).status();
        if self.protocol == Protocol::Mysql {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

impl Server {
    fn address(&self, user: &str, database: &str) -> Address {
        Address::database_on_socket(self.protocol, &self.socket, user, database)
    }

    /// Waits until the load client can log in as this user.
    fn ready(mut self, user: &str, database: &str) -> Self {
        let begun = Instant::now();
        let mut load = self.load(user, database, "SELECT 1;\n");
        load.duration = Some(Nanos::from_millis(1));
        while client::run(&load, &AtomicBool::new(false)).is_err() {
            assert!(self.process.try_wait().unwrap().is_none(), "the server ended");
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        self
    }

    fn load(&self, user: &str, database: &str, script: &str) -> LoadConfig {
        let file = self.place.path().join("script.sql");
        std::fs::write(&file, script).unwrap();
        let mut load = LoadConfig::closed(self.address(user, database));
        load.target.database.script = ScriptSource::File(file);
        load.connections = 4;
        load.duration = Some(Nanos::from_millis(300));
        load.drain = Nanos::from_secs(20);
        load
    }
}

/// A directory that the unprivileged user may enter.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
    place
}

fn run(load: &LoadConfig) -> LoadReport {
    client::run(load, &AtomicBool::new(false)).unwrap()
}

/// Both ways of sending statements, in open and in closed loop: every transaction is done.
fn assert_transactions_are_done(server: &Server, user: &str, database: &str) {
    let mut load = LoadConfig::closed(server.address(user, database));
    load.target.database.script = ScriptSource::HotRows;
    load.connections = 8;
    load.duration = Some(Nanos::from_millis(500));
    load.drain = Nanos::from_secs(20);
    for statements in [Statements::Prepared, Statements::Simple] {
        load.target.database.statements = statements;
        for rate in [None, Some(Rate::constant(100.0))] {
            let is_closed = rate.is_none();
            load.rate = rate;
            let report = run(&load);
            assert!(report.completed_requests > 0, "{report}");
            assert_eq!(report.completed_requests, report.due_requests, "{report}");
            assert_eq!((report.failed_requests, report.connection_losses), (0, 0), "{report}");
            assert_eq!(report.corrected.is_some(), is_closed);
            let corrected = report.corrected.map(|all| all.count);
            assert!(corrected.is_none_or(|count| count >= report.latency.count), "{report}");
        }
    }
    load.rate = None;
    load.target.database.script = ScriptSource::TpcbLike;
    let report = run(&load);
    assert!(report.completed_requests > 0 && report.failed_requests == 0, "{report}");
    assert!(report.kinds.is_empty(), "a script of one transaction: {report}");
    assert_the_transactions_of_tpcc_are_done(load);
}

/// All five, reported apart.
fn assert_the_transactions_of_tpcc_are_done(mut load: LoadConfig) {
    load.target.database.script = ScriptSource::TpccLike;
    load.target.database.tries = 100;
    load.duration = Some(Nanos::from_secs(2));
    for statements in [Statements::Prepared, Statements::Simple] {
        load.target.database.statements = statements;
        let report = run(&load);
        assert_eq!(report.completed_requests, report.due_requests, "{report}");
        assert_eq!((report.failed_requests, report.connection_losses), (0, 0), "{report}");
        let kinds: Vec<String> = report.kinds.iter().map(|it| it.kind.to_string()).collect();
        let wanted = ["delivery", "new-order", "order-status", "payment", "stock-level"];
        assert_eq!(kinds, wanted, "{report}");
        let all: u64 = report.kinds.iter().map(|it| it.completed_requests).sum();
        assert_eq!(all, report.completed_requests, "{report}");
    }
}

/// Two rows that connections update in opposite orders.
const DEADLOCKS: &str = "\\set a random(1, 2)\nBEGIN;\n\
    UPDATE lull_hot SET hbalance = hbalance + 1 WHERE hid = :a;\n\\sleep 2 ms\n\
    UPDATE lull_hot SET hbalance = hbalance + 1 WHERE hid = 3 - :a;\nCOMMIT;\n";

fn assert_deadlocks_are_counted_and_repeated(server: &Server, user: &str, database: &str) {
    let mut load = server.load(user, database, DEADLOCKS);
    load.duration = Some(Nanos::from_secs(3));
    let report = run(&load);
    let deadlock = report.server_errors.iter().find(|one| one.kind == "deadlock");
    let deadlock = deadlock.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(deadlock.failed_requests, report.failed_requests, "{report}");
    assert!(report.failed_requests > 0 && report.retried_requests == 0, "{report}");
    assert!(report.completed_requests > 0, "{report}");
    load.target.database.tries = 1_000;
    let report = run(&load);
    assert!(report.retried_requests > 0 && report.failed_requests == 0, "{report}");
    assert_eq!(report.completed_requests, report.due_requests, "{report}");
}

fn assert_errors_are_counted(server: &Server, user: &str, database: &str, code: &str) {
    let mut load = server.load(user, database, "BEGIN;\nSELECT b FROM missing;\nCOMMIT;\n");
    load.target.database.statements = Statements::Simple;
    let report = run(&load);
    assert_eq!((report.completed_requests, report.connection_losses), (0, 0), "{report}");
    assert_eq!(report.server_errors.len(), 1, "{report}");
    assert_eq!(report.server_errors[0].code, code, "{report}");
    assert!(report.server_errors[0].message.contains("missing"), "{report}");
    assert_eq!(report.server_errors[0].failed_requests, report.failed_requests);
    assert!(report.to_string().contains(&format!("error {code} (other)")), "{report}");
}

fn refusal(load: &LoadConfig) -> String {
    let error = client::run(load, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, LoadError::Setup(_)), "{error}");
    error.to_string()
}

mod needs_mariadbd {
    use super::*;

    fn server() -> Server {
        let place = place();
        let [data, socket, tmp] = ["data", "socket", "tmp"].map(|name| place.path().join(name));
        let datadir = format!("--datadir={}", data.display());
        for directory in [&data, &tmp] {
            std::fs::create_dir(directory).unwrap();
            std::fs::set_permissions(directory, PermissionsExt::from_mode(0o777)).unwrap();
        }
        let mut install = unprivileged(Path::new("mariadb-install-db"));
        install.args(["--no-defaults", &datadir, "--auth-root-authentication-method=normal"]);
        install.env("TMPDIR", &tmp).stdout(Stdio::null());
        assert!(install.status().unwrap().success());
        let mut server = unprivileged(Path::new("mariadbd"));
        server.args(["--no-defaults", &datadir, "--skip-networking"]);
        server.arg(format!("--socket={}", socket.display()));
        server.arg(format!("--tmpdir={}", tmp.display()));
        server.arg("--innodb-flush-log-at-trx-commit=0").stderr(Stdio::null());
        let process = server.spawn().unwrap();
        Server { process, place, socket, protocol: Protocol::Mysql }.ready("root", "mysql")
    }

    fn admin(server: &Server, sql: &str) {
        let socket = format!("--socket={}", server.socket.display());
        let done = Command::new("mariadb").args(["-uroot", &socket, "-e", sql]).status();
        assert!(done.unwrap().success());
    }

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn transactions_deadlocks_errors_and_passwords_are_as_documented() {
        let server = server();
        admin(
            &server,
            "create database lull; create user u@localhost identified by 'secret'; \
             grant all on lull.* to u@localhost",
        );
        assert_transactions_are_done(&server, "root", "lull");
        assert_deadlocks_are_counted_and_repeated(&server, "root", "lull");
        assert_errors_are_counted(&server, "root", "lull", "1146");
        let mut load = server.load("u", "lull", "SELECT 1;\n");
        let denied = refusal(&load);
        assert!(denied.contains("1045") && denied.contains("Access denied"), "{denied}");
        load.target.database.password = "secret".to_owned();
        let report = run(&load);
        assert!(report.completed_requests > 0 && report.failed_requests == 0, "{report}");
    }
}

mod needs_postgres {
    use super::*;

    fn server() -> Server {
        let place = place();
        let data = place.path().join("data");
        let mut install = unprivileged(&postgres_program("initdb"));
        install.arg("-D").arg(&data).args(["--auth=trust", "--username=postgres", "--no-sync"]);
        let installed = install.current_dir(place.path()).stdout(Stdio::null()).status();
        assert!(installed.unwrap().success());
        let mut server = unprivileged(&postgres_program("postgres"));
        server.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "fsync=off"]);
        server.arg("-c").arg(format!("unix_socket_directories={}", place.path().display()));
        let process = server.current_dir(place.path()).stderr(Stdio::null()).spawn().unwrap();
        let socket = place.path().join(".s.PGSQL.5432");
        Server { process, place, socket, protocol: Protocol::Postgres }
            .ready("postgres", "postgres")
    }

    fn admin(server: &Server, sql: &str) {
        let mut psql = Command::new(postgres_program("psql"));
        psql.arg("-h").arg(server.place.path()).args(["-U", "postgres", "-qc", sql, "postgres"]);
        assert!(psql.status().unwrap().success());
    }

    #[test]
    #[ignore = "slow: seconds of load on a database"]
    fn transactions_deadlocks_errors_and_passwords_are_as_documented() {
        let server = server();
        assert_transactions_are_done(&server, "postgres", "postgres");
        // The default waits a second before it looks for deadlocks.
        admin(&server, "alter system set deadlock_timeout = '10ms'");
        admin(&server, "select pg_reload_conf()");
        assert_deadlocks_are_counted_and_repeated(&server, "postgres", "postgres");
        assert_errors_are_counted(&server, "postgres", "postgres", "42P01");
        for method in ["md5", "scram-sha-256", "password"] {
            let encryption = if method == "md5" { "md5" } else { "scram-sha-256" };
            admin(&server, "drop role if exists u");
            admin(
                &server,
                &format!(
                    "set password_encryption = '{encryption}'; create role u login \
                          password 'secret'"
                ),
            );
            let rules = format!("local all u {method}\nlocal all postgres trust\n");
            std::fs::write(server.place.path().join("data/pg_hba.conf"), rules).unwrap();
            admin(&server, "select pg_reload_conf()");
            let mut load = server.load("u", "postgres", "SELECT 1;\n");
            let begun = Instant::now();
            // The server reads its rules again a moment later.
            while client::run(&load, &AtomicBool::new(false)).is_ok() {
                assert!(begun.elapsed() < Duration::from_secs(30), "{method}");
            }
            let denied = refusal(&load);
            assert!(denied.contains("PGPASSWORD"), "{method}: {denied}");
            load.target.database.password = "wrong".to_owned();
            let denied = refusal(&load);
            assert!(denied.contains("28P01"), "{method}: {denied}");
            load.target.database.password = "secret".to_owned();
            let report = run(&load);
            assert!(report.completed_requests > 0, "{method}: {report}");
            assert_eq!((report.failed_requests, report.connection_losses), (0, 0), "{report}");
        }
    }
}

/// Serves each connection by `serve`, until the test ends.
fn with_server(serve: fn(TcpStream), body: impl FnOnce(Address)) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The threads end with the test's process: some of them stall on purpose.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    body(format!("postgres://u@127.0.0.1:{port}/d").parse().unwrap());
}

const LOGGED_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

/// Takes a login in, and then a request.
fn log_in(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    let login = stream.read(&mut bytes);
    login.is_ok_and(|count| count > 0)
        && stream.write_all(LOGGED_IN).is_ok()
        && stream.read(&mut bytes).is_ok_and(|count| count > 0)
}

fn hostile_load(address: Address, script: &Path) -> LoadConfig {
    std::fs::write(script, "SELECT 1;\n").unwrap();
    let mut load = LoadConfig::new(address, Rate::constant(200.0));
    load.target.database.script = ScriptSource::File(script.to_owned());
    load.target.database.statements = Statements::Simple;
    load.connections = 2;
    load.duration = Some(Nanos::from_millis(500));
    load.timeout = Nanos::from_millis(200);
    load.drain = Nanos::from_millis(500);
    load
}

#[test]
fn servers_that_stall_reset_or_answer_garbage_are_counted() {
    let place = tempfile::tempdir().unwrap();
    let script = place.path().join("script.sql");
    let stall = |mut stream: TcpStream| {
        log_in(&mut stream);
        std::thread::sleep(Duration::from_secs(60));
    };
    with_server(stall, |address| {
        let report = run(&hostile_load(address, &script));
        assert_eq!(report.completed_requests, 0, "{report}");
        assert!(report.timed_out_requests > 0, "{report}");
        // Each is timed out, or not yet old enough for it.
        let counted = report.timed_out_requests + report.outstanding_requests;
        assert_eq!(counted, report.due_requests, "{report}");
    });
    let reset = |mut stream: TcpStream| {
        log_in(&mut stream);
    };
    with_server(reset, |address| {
        let report = run(&hostile_load(address, &script));
        assert!(report.failed_requests > 0 && report.connection_losses > 0, "{report}");
    });
    let garbage = |mut stream: TcpStream| {
        if log_in(&mut stream) {
            let _ = stream.write_all(b"HTTP/1.1 500 What\r\n\r\n");
            let _ = stream.read(&mut [0; 10]);
        }
    };
    with_server(garbage, |address| {
        let report = run(&hostile_load(address, &script));
        assert!(report.failed_requests > 0 && report.completed_requests == 0, "{report}");
        let loss = report.last_connection_loss.unwrap();
        assert!(loss.contains("is this a PostgreSQL server?"), "{loss}");
    });
}

#[test]
fn a_server_that_is_no_database_is_refused_before_the_run() {
    let place = tempfile::tempdir().unwrap();
    let script = place.path().join("script.sql");
    let http = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 100]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    };
    with_server(http, |address| {
        let refused = refusal(&hostile_load(address, &script));
        assert!(refused.contains("HTTP/1.1 400"), "{refused}");
    });
}
