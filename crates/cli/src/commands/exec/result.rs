//! The results of `lull exec` and `lull attach`, as text and as JSON.

use super::dispatch::DispatchResult;
use crate::say;
use lull_agent::areas::AreasSummary;
use lull_host::Roots;
use lull_host::oncall::{
    AccountWaits, ClassSeen, ConnectionSeen, Counts, LongWaits, Runtime, Statistics,
    UnmappedServers,
};
use lull_measure::{Latency, Nanos, Percentile};
use lull_oncall::{Class, Id, Mode, Waking};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// How often statistics are read and entries of dead processes are freed.
const READING: Duration = Duration::from_secs(1);

/// The interval at which servers that do not use the page are searched.
const LOOKING: Duration = Duration::from_millis(500);

/// The sums of all statistics while the server runs.
pub(super) struct ServerStatistics {
    name: String,
    statistics: Statistics,
    connections: BTreeMap<(Id, u32), Connection>,
    unmapped: UnmappedServers,
    long_waits: LongWaits,
    roots: Roots,
    next_reading: Instant,
    next_look: Instant,
    /// Whether a connection was served by an event loop.
    has_shared: bool,
}

/// One connection, from its beginning to its end.
struct Connection {
    last: ConnectionSeen,
    latency: Counts,
}

/// The result in its printed form.
#[derive(Debug, Serialize)]
pub(super) struct ExecResult {
    name: String,
    mode: &'static str,
    cap: u32,
    /// How workers that waited were woken.
    wake: &'static str,
    seconds: f64,
    connections: usize,
    /// Connections without an entry in the full page: neither observed nor gated.
    connections_turned_away: u64,
    queries: u64,
    transactions: u64,
    latency: Quantiles,
    /// Latency from a transaction's first query to its end.
    transaction_latency: Quantiles,
    gate: GateResult,
    /// The classes of clients; empty without any.
    client_classes: Vec<ClassResult>,
    /// Waits at the gate by user and database, for those that had any.
    waits_by_account: Vec<AccountResult>,
    /// The counts of the dispatcher, if requests were dispatched.
    pub(super) dispatch: Option<DispatchResult>,
    /// The areas of cores of its clients' classes, if it has any.
    pub(super) areas: Option<AreasSummary>,
    by_connection: Vec<ConnectionResult>,
}

/// Latency on the server: from reading a query to its answer. `None` without queries.
#[derive(Debug, Serialize)]
pub(super) struct Quantiles {
    pub(super) p50_seconds: Option<f64>,
    pub(super) p95_seconds: Option<f64>,
    pub(super) p99_seconds: Option<f64>,
    pub(super) p999_seconds: Option<f64>,
}

/// Counters of the gate.
#[derive(Debug, Serialize)]
struct GateResult {
    admissions: u64,
    admissions_after_a_wait: u64,
    slots_overdue: u64,
    let_go_when_it_opened: u64,
    waited_too_long: u64,
    rounds: u64,
    /// Wake-ups of resting workers by a query that arrived (mode epoll).
    called: u64,
    /// Workers that a signal woke.
    woken_by_signal: u64,
    /// Time in which all workers rested (mode epoll), in stretches of a millisecond or longer.
    rested_seconds: f64,
}

/// How a class of clients fared.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct ClassResult {
    name: String,
    weight: u32,
    order: u32,
    connections: usize,
    under_way: usize,
    waiting: usize,
    turns: u64,
    /// Its turns over those of all classes; `None` without turns.
    share_of_turns: Option<f64>,
    /// Turns that waited, and how long.
    waits: u64,
    wait: Quantiles,
}

/// How long turns of a user with a database waited at the gate.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct AccountResult {
    /// `USER@DATABASE`.
    account: String,
    waits: u64,
    wait: Quantiles,
}

#[derive(Debug, Serialize)]
struct ConnectionResult {
    peer: String,
    pid: u32,
    tid: u32,
    class: &'static str,
    /// `None` without classes, and for a client that bypasses the gate.
    client_class: Option<String>,
    queries: u64,
    transactions: u64,
    parks: u64,
    parked_seconds: f64,
    latency: Quantiles,
}

impl ServerStatistics {
    pub(super) fn new(name: &str, runtime: &Runtime) -> std::io::Result<Self> {
        let (statistics, roots) = (runtime.statistics(), Roots::default());
        Ok(Self {
            name: name.to_owned(),
            statistics,
            connections: BTreeMap::new(),
            unmapped: runtime.unmapped_servers(&roots)?,
            long_waits: runtime.long_waits(),
            roots,
            next_reading: Instant::now() + READING,
            next_look: Instant::now(),
            has_shared: false,
        })
    }

    /// Whether a connection was served by an event loop, which is never gated.
    pub(super) fn has_shared(&self) -> bool {
        self.has_shared
    }

    /// Reads new statistics and frees entries of dead processes if that is due; returns the
    /// time of the next call.
    pub(super) fn poll(&mut self, runtime: &Runtime) -> Instant {
        if Instant::now() >= self.next_reading {
            runtime.reap(&self.roots);
            self.take_in();
            self.long_waits.report().into_iter().for_each(say::notice);
            self.next_reading = Instant::now() + READING;
        }
        if Instant::now() >= self.next_look {
            self.unmapped.look().into_iter().for_each(say::notice);
            self.next_look = Instant::now() + LOOKING;
        }
        self.next_reading.min(self.next_look)
    }

    fn take_in(&mut self) {
        for seen in self.statistics.connections() {
            let key = (seen.id, seen.generation);
            let latency = seen.latency.clone();
            self.has_shared |= seen.class == Class::Shared;
            match self.connections.get_mut(&key) {
                None => {
                    self.connections.insert(key, Connection { last: seen, latency });
                }
                Some(known) => {
                    known.latency.merge(&latency);
                    // A process that has ended has no number.
                    let pid = known.last.worker.0;
                    known.last = seen;
                    if known.last.worker.0 == 0 {
                        known.last.worker.0 = pid;
                    }
                }
            }
        }
    }

    pub(super) fn finish(mut self, runtime: &Runtime, time: Duration) -> ExecResult {
        self.take_in();
        let classes = runtime.client_classes();
        let settings = runtime.settings();
        let counters = runtime.counters();
        let mut latency = Counts::default();
        self.connections.values().for_each(|one| latency.merge(&one.latency));
        let all = || self.connections.values().map(|one| &one.last);
        ExecResult {
            mode: match settings.mode {
                Mode::Off => "off",
                Mode::Stats => "stats",
                Mode::Post => "post",
                Mode::Epoll => "epoll",
            },
            cap: settings.cap,
            wake: match settings.waking {
                Waking::Futex => "futex",
                Waking::Signal => "signal",
            },
            seconds: time.as_secs_f64(),
            connections: self.connections.len(),
            connections_turned_away: runtime.turned_away(),
            // Saturating: a server may write any number into its page.
            queries: all().map(|one| one.queries).fold(0, u64::saturating_add),
            transactions: all().map(|one| one.transactions).fold(0, u64::saturating_add),
            latency: Quantiles::from_counts(&latency),
            transaction_latency: Quantiles::from_counts(&self.statistics.transactions()),
            gate: GateResult {
                admissions: counters.admissions,
                admissions_after_a_wait: counters.parks,
                slots_overdue: counters.overruns,
                let_go_when_it_opened: counters.let_go,
                waited_too_long: counters.expired,
                rounds: counters.rounds,
                called: counters.calls,
                woken_by_signal: counters.signals,
                rested_seconds: Nanos(counters.rested_ns).as_secs_f64(),
            },
            by_connection: self
                .connections
                .values()
                .map(|connection| ConnectionResult::new(connection, &classes))
                .collect(),
            client_classes: ClassResult::all(&classes),
            waits_by_account: AccountResult::all(&runtime.account_waits()),
            dispatch: None,
            areas: None,
            name: self.name,
        }
    }
}

impl AccountResult {
    /// Returns the results of all accounts of a gate.
    pub(in crate::commands) fn all(accounts: &[AccountWaits]) -> Vec<Self> {
        let result = |account: &AccountWaits| Self {
            account: account.name.clone(),
            waits: account.waits.count(),
            wait: Quantiles::from_counts(&account.waits),
        };
        accounts.iter().map(result).collect()
    }
}

impl ClassResult {
    /// Returns the results of all classes of a gate.
    pub(in crate::commands) fn all(classes: &[ClassSeen]) -> Vec<Self> {
        let all = classes.iter().map(|class| class.turns).fold(0, u64::saturating_add);
        let result = |class: &ClassSeen| Self {
            name: class.name.clone(),
            weight: class.share.weight,
            order: class.share.order,
            connections: class.connections,
            under_way: class.under_way,
            waiting: class.waiting,
            turns: class.turns,
            share_of_turns: (all > 0).then(|| class.turns as f64 / all as f64),
            waits: class.waits.count(),
            wait: Quantiles::from_counts(&class.waits),
        };
        classes.iter().map(result).collect()
    }
}

impl fmt::Display for AccountResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantiles { p50_seconds, p99_seconds, .. } = &self.wait;
        let (p50, p99) = (in_ms(*p50_seconds), in_ms(*p99_seconds));
        write!(out, "{}: {} turns waited, p50 {p50}, p99 {p99}", self.account, self.waits)
    }
}

impl fmt::Display for ClassResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, weight, order, connections, under_way, waiting, turns, .. } = self;
        write!(out, "{name}: weight {weight}, order {order}; {connections} connections, ")?;
        write!(out, "{under_way} under way, {waiting} waiting; {turns} turns")?;
        if let Some(share) = self.share_of_turns {
            write!(out, " ({:.0} %)", 100.0 * share)?;
        }
        let Quantiles { p50_seconds, p99_seconds, .. } = &self.wait;
        write!(out, ", waits p50 {}, p99 {}", in_ms(*p50_seconds), in_ms(*p99_seconds))
    }
}

impl Quantiles {
    fn from_counts(counts: &Counts) -> Self {
        Self::by(|percentile| counts.quantile(percentile))
    }

    pub(super) fn of_latency(latency: &Latency) -> Self {
        Self::by(|percentile| latency.quantile(percentile))
    }

    fn by(quantile: impl Fn(Percentile) -> Option<Nanos>) -> Self {
        let at = |percentile| quantile(percentile).map(Nanos::as_secs_f64);
        Self {
            p50_seconds: at(Percentile::P50),
            p95_seconds: at(Percentile::P95),
            p99_seconds: at(Percentile::P99),
            p999_seconds: at(Percentile::P999),
        }
    }
}

/// Formats a time in milliseconds; `-` if it is not known.
pub(super) fn in_ms(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |it| format!("{:.2}", Nanos::from_secs_f64(it)))
}

impl ConnectionResult {
    fn new(connection: &Connection, classes: &[ClassSeen]) -> Self {
        let last = &connection.last;
        let peer = match (last.peer.ipv4, last.peer.port) {
            (0, 0) => "unix".to_owned(),
            (0, port) => format!("[ipv6]:{port}"),
            (ipv4, port) => format!("{}:{port}", Ipv4Addr::from(ipv4)),
        };
        Self {
            peer,
            pid: last.worker.0,
            tid: last.worker.1,
            class: match last.class {
                Class::New => "new",
                Class::Gated => "gated",
                Class::Opaque => "opaque",
                Class::Exempt => "exempt",
                Class::Shared => "shared",
            },
            client_class: classes.get(last.client_class).map(|class| class.name.clone()),
            queries: last.queries,
            transactions: last.transactions,
            parks: last.parked.0,
            parked_seconds: last.parked.1.as_secs_f64(),
            latency: Quantiles::from_counts(&connection.latency),
        }
    }
}

impl fmt::Display for ExecResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seconds, connections, queries, .. } = self;
        write!(out, "{name}: {connections} connections, {queries} queries in {seconds:.1} s")?;
        if self.connections == 0 {
            return write!(
                out,
                "\n{name}: no connection was seen; the library does not see those of a server that \
                 was started without it or that makes system calls by itself (io_uring): use \
                 --ebpf, with which the kernel watches its sockets"
            );
        }
        let Quantiles { p50_seconds, p95_seconds, p99_seconds, p999_seconds } = &self.latency;
        write!(out, "\n  on the server: p50 {}, p95 {}", in_ms(*p50_seconds), in_ms(*p95_seconds))?;
        write!(out, ", p99 {}, p99.9 {}", in_ms(*p99_seconds), in_ms(*p999_seconds))?;
        let Quantiles { p50_seconds, p99_seconds, .. } = &self.transaction_latency;
        if p50_seconds.is_some() {
            write!(
                out,
                "\n  transactions: p50 {}, p99 {}",
                in_ms(*p50_seconds),
                in_ms(*p99_seconds)
            )?;
        }
        if matches!(self.mode, "post" | "epoll") {
            let GateResult { admissions, admissions_after_a_wait, slots_overdue, .. } = &self.gate;
            write!(out, "\n  gate, cap {}: {admissions} admissions, ", self.cap)?;
            write!(out, "{admissions_after_a_wait} after a wait, {slots_overdue} slots overdue")?;
        }
        if self.mode == "epoll" {
            let share = 100.0 * self.gate.rested_seconds / self.seconds.max(1e-9);
            write!(out, ", {} of a worker that rested", self.gate.called)?;
            write!(out, "; all rested for {share:.0} % of the time, for 1 ms or longer each")?;
        }
        if self.wake == "signal" && matches!(self.mode, "post" | "epoll") {
            write!(out, ", {} woken by signal", self.gate.woken_by_signal)?;
        }
        for class in &self.client_classes {
            write!(out, "\n  class {class}")?;
        }
        for account in &self.waits_by_account {
            write!(out, "\n  account {account}")?;
        }
        if let Some(areas) = &self.areas {
            write!(out, "{areas}")?;
        }
        if self.connections_turned_away > 0 {
            write!(out, "\n  {} connections found no room", self.connections_turned_away)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_quantiles() -> Quantiles {
        Quantiles::from_counts(&Counts::default())
    }

    /// A server with an account that waited.
    fn result() -> ExecResult {
        let gate = GateResult {
            admissions: 5,
            admissions_after_a_wait: 3,
            slots_overdue: 0,
            let_go_when_it_opened: 0,
            waited_too_long: 0,
            rounds: 0,
            called: 0,
            woken_by_signal: 2,
            rested_seconds: 0.0,
        };
        let account =
            AccountResult { account: "shop@stock".to_owned(), waits: 3, wait: no_quantiles() };
        ExecResult {
            name: "db".to_owned(),
            mode: "post",
            cap: 1,
            wake: "signal",
            seconds: 1.0,
            connections: 1,
            connections_turned_away: 0,
            queries: 5,
            transactions: 5,
            latency: no_quantiles(),
            transaction_latency: no_quantiles(),
            gate,
            client_classes: Vec::new(),
            waits_by_account: vec![account],
            dispatch: None,
            areas: None,
            by_connection: Vec::new(),
        }
    }

    #[test]
    fn workers_that_a_signal_woke_are_in_the_line_of_the_gate() {
        let text = result().to_string();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let gate =
            "  gate, cap 1: 5 admissions, 3 after a wait, 0 slots overdue, 2 woken by signal";
        assert_eq!(lines, [gate, "  account shop@stock: 3 turns waited, p50 -, p99 -"]);
    }
}
