//! Random events on MariaDB: in both modes, with both ways of waking, with a pool of threads,
//! without and with TLS.

use super::*;
use crate::exec::soak::{Encrypted, Subject, soak};

/// Modes of the gate, and how it wakes.
const WAYS: [[&str; 2]; 4] =
    [["post", "futex"], ["epoll", "futex"], ["post", "signal"], ["epoll", "signal"]];

impl Subject for Database {
    const WORK: &'static [&'static str] = &[
        "select count(*) from t; select b from t; select a from t; select count(*) from u",
        "begin; update t set b = b + 1 where a = 1; select sleep(0.2); commit",
        "begin; update t set b = b + 1 where a = 2; select sleep(0.1); commit",
        "select get_lock('one', 5); select sleep(0.1); select 1",
        "begin; insert into u values (2); select sleep(0.05); commit",
        "set session wait_timeout = 1; select 1; select sleep(1.5); select 1",
    ];

    fn start_client(&self, sql: &str, is_encrypted: bool) -> Child {
        if is_encrypted { self.client_over_tls(sql) } else { self.client(sql) }
    }

    fn kill_one(&self) {
        let which = "select id from information_schema.processlist \
                     where host <> 'localhost' order by rand() limit 1";
        let id = self.admin(which);
        if !id.trim().is_empty() {
            // The connection may have ended by itself meanwhile.
            self.try_admin(&format!("kill {}", id.trim()));
        }
    }

    fn maintain(&self) {
        ended(self.client("create table w (a int); alter table w add b int; drop table w"));
        self.admin("flush logs");
        let mut dump = Command::new("mariadb-dump");
        dump.args(["-uroot", "--host=127.0.0.1", "--skip-ssl", "--single-transaction"]);
        let dump = dump.arg(format!("--port={}", self.server.port)).arg("sbtest").output();
        assert!(text(&dump.unwrap()).contains("Dump completed"));
    }

    fn rows(&self) -> u32 {
        self.admin("select count(*) from sbtest.u where a = 1").trim().parse().unwrap()
    }

    fn into_server(self) -> Server {
        // The client falls back to plain text where a server has no TLS.
        let accepted = self.admin("show global status like 'Ssl_finished_accepts'");
        let over_tls: u32 = accepted.split_whitespace().last().unwrap().parse().unwrap();
        assert!(over_tls > 0, "none came over TLS");
        self.server
    }
}

/// Starts a server with these words before its command line, and further options of its own.
fn start(scene: &Scene, [mode, wake]: [&str; 2], before: &[String], more: &[&str]) -> Database {
    let tls = with_tls(scene);
    let options = ["--mode", mode, "--wake", wake, "--concurrency", "2", "--protocol", "mysql"];
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let more = [&tls.each_ref().map(String::as_str), more].concat();
    let database = Database::start_behind(scene, &options, &before, &more);
    database.admin("create table sbtest.u (a int)");
    database
}

#[test]
#[ignore = "slow: random events on a database, in both modes and ways of waking"]
fn random_events_lose_no_answer_and_leave_the_server_well() {
    for way in WAYS {
        let scene = Scene::new();
        soak(start(&scene, way, &[], &[]), Encrypted::Some);
    }
}

#[test]
#[ignore = "slow: random events on a database under TLS"]
fn random_events_lose_no_answer_where_all_clients_use_tls() {
    let scene = Scene::new();
    // A worker that rests under TLS is woken by its socket.
    soak(start(&scene, WAYS[1], &[], &[]), Encrypted::All);
}

#[test]
#[ignore = "slow: random events on a database with a pool of threads"]
fn random_events_lose_no_answer_of_a_pool_of_threads() {
    let pool = ["--thread-handling=pool-of-threads", "--thread-pool-size=2"];
    let scene = Scene::new();
    // No thread of a pool rests, so that both modes and both ways of waking are the same.
    soak(start(&scene, WAYS[0], &[], &pool), Encrypted::Some);
}

#[test]
#[ignore = "slow: the same with each access of the library checked"]
fn the_sanitizer_finds_no_fault_in_the_library_under_random_events() {
    for way in WAYS {
        let scene = Scene::new();
        let before = sanitised::before(&scene, "");
        soak(start(&scene, way, &before, &[]), Encrypted::Some);
        assert_eq!(sanitised::findings(&scene), [""; 0], "{way:?}");
    }
}
