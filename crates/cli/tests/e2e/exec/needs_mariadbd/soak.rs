//! Random events, one after the other, and the invariants after all of them: in both modes,
//! with both ways of waking, with and without TLS.
//!
//! `LULL_SOAK_EVENTS` is the number of events (a soak has 1,000), `LULL_SOAK_SEED` the seed.

use super::*;
use lull_control::Rng;
use rand::{RngExt, SeedableRng};

/// The number of events that CI has time for.
const EVENTS: u32 = 40;

/// Modes of the gate, and how it wakes.
const WAYS: [[&str; 2]; 4] =
    [["post", "futex"], ["epoll", "futex"], ["post", "signal"], ["epoll", "signal"]];

fn number(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// The server, its clients and the expected state.
struct Soak {
    database: Database,
    random: Rng,
    clients: Vec<Child>,
    /// Rows of insert statements that were answered.
    added: u32,
}

impl Soak {
    fn begin(&mut self, sql: &str) {
        let client = self.database.client(sql);
        self.clients.push(client);
    }

    /// Removes a random client and returns it.
    fn any(&mut self) -> Option<Child> {
        let count = self.clients.len();
        (count > 0).then(|| self.clients.swap_remove(self.random.random_range(0..count)))
    }

    fn event(&mut self) {
        match self.random.random_range(0..10) {
            0 => self.begin(&"select count(*) from t;".repeat(20)),
            1 => self.begin("begin; update t set b = b + 1 where a = 1; select sleep(0.2); commit"),
            2 => self.begin("select get_lock('one', 5); select sleep(0.1); select 1"),
            3 => self.begin("begin; insert into u values (1); select sleep(0.05); commit"),
            4 => self.begin("set session wait_timeout = 1; select 1; select sleep(1.5); select 1"),
            5 => {
                self.added += 1;
                let added = self.database.client("insert into u values (1)");
                drop(ended(added));
            }
            6 => {
                let sql = "begin; update t set b = b + 1 where a = 2; select sleep(0.1); commit";
                let client = self.database.client_over_tls(sql);
                self.clients.push(client);
            }
            7 => {
                self.added += 1;
                let added = self.database.client_over_tls("insert into u values (1)");
                drop(ended(added));
            }
            8 => {
                if let Some(mut client) = self.any() {
                    client.kill().unwrap();
                    client.wait().unwrap();
                }
            }
            _ => self.kill_one(),
        }
    }

    /// The server ends one of its connections.
    fn kill_one(&mut self) {
        let which = "select id from information_schema.processlist \
                     where host <> 'localhost' order by rand() limit 1";
        let id = self.database.admin(which);
        if !id.trim().is_empty() {
            // The connection may have ended by itself meanwhile.
            self.database.try_admin(&format!("kill {}", id.trim()));
        }
    }
}

/// Runs random events on a server with these words before its command line.
fn soak(scene: &Scene, way: [&str; 2], before: &[String]) {
    soak_with(scene, way, before, &[]);
}

/// As [`soak`], with further options of the server.
fn soak_with(scene: &Scene, [mode, wake]: [&str; 2], before: &[String], more: &[&str]) {
    let (seed, events) = (number("LULL_SOAK_SEED", 1), number("LULL_SOAK_EVENTS", EVENTS));
    let tls = with_tls(scene);
    let options = ["--mode", mode, "--wake", wake, "--concurrency", "2", "--protocol", "mysql"];
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let more = [&tls.each_ref().map(String::as_str), more].concat();
    let database = Database::start_behind(scene, &options, &before, &more);
    database.admin("create table sbtest.u (a int)");
    let random = Rng::seed_from_u64(seed.into());
    let mut soak = Soak { database, random, clients: Vec::new(), added: 0 };
    for _ in 0..events {
        soak.event();
        // A limit on the clients at a time keeps the test short.
        while soak.clients.len() > 24 {
            soak.any().unwrap().wait().unwrap();
        }
    }
    for mut client in std::mem::take(&mut soak.clients) {
        client.wait().unwrap();
    }
    let rows: u32 = soak.database.admin("select count(*) from sbtest.u").trim().parse().unwrap();
    assert!(rows >= soak.added, "{rows} rows of {}, seed {seed}", soak.added);
    assert_eq!(ended(soak.database.client("select 7")).trim(), "7", "seed {seed}");
    let accepted = soak.database.admin("show global status like 'Ssl_finished_accepts'");
    let over_tls: u32 = accepted.split_whitespace().last().unwrap().parse().unwrap();
    let seen = soak.database.server.seen();
    assert_eq!(seen["gate"]["waited_too_long"], 0, "seed {seed}: {seen}");
    // Some were plain and some over TLS, of which the status has the number.
    assert!(over_tls > 0, "none came over TLS, seed {seed}: {seen}");
    assert!(!of_class(&seen, "gated").is_empty(), "seed {seed}: {seen}");
    let opaque: u64 = of_class(&seen, "opaque").iter().sum();
    assert_eq!(opaque, 0, "a query over TLS was not read, seed {seed}: {seen}");
}

#[test]
#[ignore = "slow: random events on a database, in both modes and ways of waking"]
fn random_events_lose_no_answer_and_leave_the_server_well() {
    WAYS.into_iter().for_each(|way| soak(&Scene::new(), way, &[]));
}

#[test]
#[ignore = "slow: random events on a database with a pool of threads"]
fn random_events_lose_no_answer_of_a_pool_of_threads() {
    let pool = ["--thread-handling=pool-of-threads", "--thread-pool-size=2"];
    // No thread of a pool rests, so that both modes and both ways of waking are one.
    soak_with(&Scene::new(), WAYS[0], &[], &pool);
}

#[test]
#[ignore = "slow: the same with each access of the library checked"]
fn the_sanitizer_finds_no_fault_in_the_library_under_random_events() {
    for way in WAYS {
        let scene = Scene::new();
        soak(&scene, way, &sanitised::before(&scene, ""));
        assert_eq!(sanitised::findings(&scene), [""; 0], "{way:?}");
    }
}
