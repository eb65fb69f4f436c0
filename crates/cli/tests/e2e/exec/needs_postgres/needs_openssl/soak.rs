//! Random events on PostgreSQL, without and with TLS.

use super::*;
use crate::exec::soak::{Encrypted, Subject, soak};
use std::process::Child;

impl Subject for Database {
    const WORK: &'static [&'static str] = &[
        "select count(*) from t; select b from t; select a from t; select count(*) from u",
        "begin; update t set b = b + 1 where a = 1; select pg_sleep(0.2); commit",
        "begin; update t set b = b + 1 where a = 2; select pg_sleep(0.1); commit",
        "select pg_advisory_lock(1); select pg_sleep(0.1); select 1",
        "begin; insert into u values (2); select pg_sleep(0.05); commit",
        "set statement_timeout = '50ms'; select pg_sleep(1); select 1",
    ];

    fn start_client(&self, sql: &str, is_encrypted: bool) -> Child {
        let mut psql = self.psql();
        // Each statement is a query of its own.
        psql.args(sql.split("; ").flat_map(|one| ["-c", one]));
        psql.env("PGSSLMODE", if is_encrypted { "require" } else { "disable" });
        psql.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn kill_one(&self) {
        let which = "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = \
                     'client backend' and pid <> pg_backend_pid() order by random() limit 1";
        self.sql(which);
    }

    fn maintain(&self) {
        self.sql("create table w (a int); create index on w (a); drop table w");
        self.sql("checkpoint");
        let copy = tempfile::tempdir().unwrap();
        let mut backup = Command::new(program("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port, "--checkpoint=fast"]);
        text(&backup.arg("-D").arg(copy.path().join("data")).output().unwrap());
    }

    fn rows(&self) -> u32 {
        self.sql("select count(*) from u where a = 1").trim().parse().unwrap()
    }

    fn into_server(self) -> Server {
        self.server
    }
}

#[test]
#[ignore = "slow: random events on a database, plain and under TLS"]
fn random_events_lose_no_answer_of_processes_behind_one_gate() {
    let (database, _scene) = Database::start_with_tls(&["--concurrency", "2"]);
    database.sql("create table t (a int primary key, b int); create table u (a int)");
    database.sql("insert into t values (1, 0), (2, 0)");
    soak(database, Encrypted::Some);
}
