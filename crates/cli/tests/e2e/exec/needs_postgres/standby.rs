//! A standby of a server behind a gate: it is copied, follows, and takes over.

use super::*;

impl Database {
    /// Copies the server, and starts the copy as its standby behind its own gate.
    fn start_standby(&self, scene: &Scene) -> Self {
        let data = create_data(scene, "standby");
        let mut backup = of_servers_user(&program("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port]);
        backup.args(["--write-recovery-conf", "--checkpoint=fast", "-D"]).arg(&data);
        text(&backup.output().unwrap());
        let (command, port) = serving(&program("postgres"), &data, &[]);
        let server = start_server(scene, &["--concurrency", "2"], &command, port);
        let standby = Self { server, port: port.to_string() };
        let mut probe = standby.psql();
        probe.args(["-c", "select 1"]);
        wait_for("a standby that answers", || probe.output().unwrap().status.success());
        standby
    }
}

fn all_are_done(output: &Output, count: u32) {
    let done = text(output);
    assert!(done.contains(&format!("{count}/{count}")), "{done}");
    assert!(done.contains("failed transactions: 0"), "{done}");
}

#[test]
#[ignore = "slow: a second server copies the first, follows it and takes over"]
fn a_standby_of_a_gated_server_follows_it_and_takes_over_with_all_transactions() {
    let (database, scene) = Database::start(&["--concurrency", "2"]);
    let clients = database.client(&["-n", "-c", "8", "-t", "50"]).spawn().unwrap();
    let standby = database.start_standby(&scene);
    all_are_done(&clients.wait_with_output().unwrap(), 400);
    let written = database.sql("select pg_current_wal_lsn()");
    let follows = format!("select pg_last_wal_replay_lsn() >= '{}'", written.trim());
    wait_for("a standby that has all", || standby.sql(&follows).trim() == "t");
    assert_eq!(database.server.seen()["gate"]["waited_too_long"], 0);
    assert_eq!(standby.sql("select pg_promote()").trim(), "t");
    all_are_done(&standby.pgbench(&["-n", "-c", "8", "-t", "25"]), 200);
    assert_eq!(standby.sql("select count(*) from pgbench_history").trim(), "600");
    assert_eq!(standby.server.seen()["gate"]["waited_too_long"], 0);
}
