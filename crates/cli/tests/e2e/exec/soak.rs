//! Random events on a database behind a gate, one after the other, with maintenance between them,
//! and the invariants after all of them.
//!
//! `LULL_SOAK_EVENTS` is the number of events (a soak has 1,000), `LULL_SOAK_SEED` the seed.

use super::{Server, of_class};
use lull_control::Rng;
use rand::{RngExt, SeedableRng};
use std::process::Child;

/// The number of events that CI has time for.
const EVENTS: u32 = 25;
/// Events between two rounds of maintenance.
const MAINTENANCE_EVERY: u32 = 20;
/// A limit on the clients at a time keeps the test short.
const CLIENTS_MAX: usize = 24;

/// A database with the tables `t` (of the rows 1 and 2) and `u` (empty).
pub(super) trait Subject {
    /// SQL of clients that may be killed.
    const WORK: &'static [&'static str];

    /// Starts a client that sends SQL.
    fn start_client(&self, sql: &str, is_encrypted: bool) -> Child;

    /// Has the server end one of its connections, if there is one.
    fn kill_one(&self);

    /// Creates, changes and drops a table, has a checkpoint made or logs rotated, and copies the
    /// database, beside the clients. All of it must succeed.
    fn maintain(&self);

    /// Returns the number of rows of `u` with the value 1, which no work inserts.
    fn rows(&self) -> u32;

    /// Returns the server, whose results are then read.
    fn into_server(self) -> Server;
}

/// The clients that use TLS.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Encrypted {
    Some,
    All,
}

/// A database, its clients and the expected state.
struct Soak<'s, S> {
    subject: &'s S,
    encrypted: Encrypted,
    random: Rng,
    clients: Vec<Child>,
    /// Rows of insert statements that were answered.
    added: u32,
}

fn number(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// Waits for a client, which must succeed, and returns its output.
fn answer(client: Child) -> String {
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl<S: Subject> Soak<'_, S> {
    fn begin(&mut self, sql: &str) -> Child {
        let is_encrypted = self.encrypted == Encrypted::All || self.random.random_range(0..2) == 0;
        self.subject.start_client(sql, is_encrypted)
    }

    /// Removes a random client and returns it.
    fn any(&mut self) -> Option<Child> {
        let count = self.clients.len();
        (count > 0).then(|| self.clients.swap_remove(self.random.random_range(0..count)))
    }

    fn event(&mut self) {
        match self.random.random_range(0..10) {
            0..=5 => {
                let sql = S::WORK[self.random.random_range(0..S::WORK.len())];
                let client = self.begin(sql);
                self.clients.push(client);
            }
            6 | 7 => {
                self.added += 1;
                let client = self.begin("insert into u values (1)");
                answer(client);
            }
            8 => {
                if let Some(mut client) = self.any() {
                    client.kill().unwrap();
                    client.wait().unwrap();
                }
            }
            _ => self.subject.kill_one(),
        }
    }
}

/// Runs random events, and checks that no answer was lost, that the server serves on, and that
/// the gate has read every query.
pub(super) fn soak<S: Subject>(subject: S, encrypted: Encrypted) {
    let (seed, events) = (number("LULL_SOAK_SEED", 1), number("LULL_SOAK_EVENTS", EVENTS));
    let random = Rng::seed_from_u64(seed.into());
    let mut soak = Soak { subject: &subject, encrypted, random, clients: Vec::new(), added: 0 };
    for event in 1..=events {
        soak.event();
        if event % MAINTENANCE_EVERY == 0 {
            subject.maintain();
        }
        while soak.clients.len() > CLIENTS_MAX {
            soak.any().unwrap().wait().unwrap();
        }
    }
    for mut client in std::mem::take(&mut soak.clients) {
        client.wait().unwrap();
    }
    let (rows, added) = (subject.rows(), soak.added);
    assert!(rows == added && added > 0, "{rows} rows of {added}, seed {seed}");
    for is_encrypted in [true, encrypted == Encrypted::All] {
        let seven = answer(subject.start_client("select 7", is_encrypted));
        assert_eq!(seven.trim(), "7", "seed {seed}");
    }
    let seen = subject.into_server().seen();
    assert_eq!(seen["gate"]["waited_too_long"], 0, "seed {seed}: {seen}");
    assert!(!of_class(&seen, "gated").is_empty(), "seed {seed}: {seen}");
    let opaque: u64 = of_class(&seen, "opaque").iter().sum();
    assert_eq!(opaque, 0, "a query over TLS was not read, seed {seed}: {seen}");
}
