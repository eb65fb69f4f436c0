//! Promises: objectives for single connections of a live server.
//!
//! An admission controller identifies connections by index and knows the objective of each
//! index beforehand, but the connections of a live server open and close. A promise therefore
//! reserves a number of indices and selects the clients that may take them: by
//! client address, by the server port that they connect to, or by their class. A matching
//! connection takes an index while it is open; if no index is free, the connection is best effort.
//! A connection whose class changes (a change of user, or other rules) frees its index and takes
//! one as a new connection does.

use lull_control::admission::{Allowance, Answered};
use lull_control::{Objective, WrittenObjective};
use lull_host::oncall::ConnectionSeen;
use lull_measure::Nanos;
use lull_oncall::{CONNECTIONS, Class, Id};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// `promise` of an app: objectives of single clients, for an admission controller that keeps
/// them (`pslo`, `utslo`, or one of them behind `reef`).
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// Clients with this IPv4 address or prefix; all if absent.
    #[schemars(with = "Option<String>", example = &"10.0.0.0/8")]
    from: Option<Prefix>,
    /// Clients that connect to this port of the server; to any if absent.
    #[schemars(example = 3307, extend("x-unit" = "none"))]
    port: Option<u16>,
    /// Clients of this class (`client_class`); of any if absent.
    #[schemars(example = &"web")]
    client_class: Option<String>,
    /// Connections that have the objective at a time; the others are best effort.
    #[schemars(example = 4, extend("x-unit" = "connections"))]
    connections: u32,
    /// The objective of each: a percentile of its queries' latency, or the share of users that
    /// waiting may drive away.
    #[schemars(example = BTreeMap::from([("p95", "20ms")]))]
    objective: WrittenObjective,
}

/// The first bits of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Prefix {
    address: u32,
    bits: u32,
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not an IPv4 address or prefix: write 10.0.0.7 or 10.0.0.0/8");
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let bits = bits.parse().ok().filter(|bits| *bits <= 32).ok_or_else(wrong)?;
        Ok(Self { address: address.into(), bits })
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Prefix {
    fn has(self, address: u32) -> bool {
        let differs = (self.address ^ address).checked_shr(32 - self.bits).unwrap_or(0);
        address != 0 && differs == 0
    }
}

impl Promise {
    /// Checks that the promise can be kept at all.
    ///
    /// # Errors
    /// The invalid key and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=CONNECTIONS as u32).contains(&self.connections) {
            let message = format!("is {}, not in 1 to {CONNECTIONS}", self.connections);
            return Err(("connections", message));
        }
        if !self.objective.0.bounds_latency() {
            let message = "promises latency to one connection: write { p95 = \"20ms\" } or \
                           { disengagement = 0.001 }";
            return Err(("objective", message.to_owned()));
        }
        Ok(())
    }

    /// Returns the number of connections that have the objective at a time.
    pub fn connections(&self) -> u32 {
        self.connections
    }

    /// Returns the objective of each of them.
    pub fn objective(&self) -> Objective {
        self.objective.0
    }

    /// Returns its class of clients.
    pub fn client_class(&self) -> Option<&str> {
        self.client_class.as_deref()
    }

    /// Whether the promise applies to a connection; `class` is the number of its class of clients.
    fn fits(&self, class: Option<usize>, connection: &ConnectionSeen) -> bool {
        class.is_none_or(|class| class == connection.client_class)
            && self.from.is_none_or(|prefix| prefix.has(connection.peer.ipv4))
            && self.port.is_none_or(|port| port == connection.local_port)
    }
}

/// A connection that has taken an index.
#[derive(Debug)]
struct IndexedConnection {
    generation: u32,
    index: u32,
    /// Index of its promise; that after the last is best effort.
    promise: usize,
    /// The class of its client when it took the index.
    client_class: usize,
    transactions: u64,
}

/// The mapping from the server's connections to the admission controller's indices.
#[derive(Debug)]
pub(super) struct ConnectionIndices {
    promises: Vec<Promise>,
    /// The number of the class of clients of each promise that is for one.
    classes: Vec<Option<usize>>,
    /// Indexed by promise, the lowest last.
    free: Vec<Vec<u32>>,
    taken: BTreeMap<Id, IndexedConnection>,
    pub(super) waiting: Vec<u32>,
    pub(super) answered: Vec<Answered>,
}

impl ConnectionIndices {
    /// As many as there are promises for, and best-effort ones for all others. `class_of` returns
    /// the number of a class of clients.
    ///
    /// # Errors
    /// The name of a class that the gate does not have.
    pub(super) fn new(
        promises: &[Promise],
        class_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<Self, String> {
        let class = |promise: &Promise| match promise.client_class() {
            None => Ok(None),
            Some(name) => class_of(name).map(Some).ok_or_else(|| name.to_owned()),
        };
        let classes = promises.iter().map(class).collect::<Result<_, _>>()?;
        let mut next = 0;
        let counts = promises.iter().map(|one| one.connections).chain([CONNECTIONS as u32]);
        let block = |count| {
            next += count;
            (next - count..next).rev().collect()
        };
        let free: Vec<Vec<u32>> = counts.map(block).collect();
        let waiting = vec![0; next as usize];
        let (promises, taken) = (promises.to_vec(), BTreeMap::new());
        Ok(Self { promises, classes, free, taken, waiting, answered: Vec::new() })
    }

    /// Returns the objective of each position.
    pub(super) fn objectives(promises: &[Promise]) -> Vec<Option<Objective>> {
        let kept = |one: &Promise| vec![Some(one.objective.0); one.connections as usize];
        let best_effort = std::iter::repeat_n(None, CONNECTIONS);
        promises.iter().flat_map(kept).chain(best_effort).collect()
    }

    /// Updates the open and the waiting connections and the queries that were answered.
    pub(super) fn update(&mut self, connections: &[ConnectionSeen]) {
        self.answered.clear();
        self.waiting.fill(0);
        let there = |one: &&ConnectionSeen| one.worker.0 != 0;
        let identity = |one: &ConnectionSeen| (one.id, (one.generation, one.client_class));
        let now: BTreeMap<Id, _> = connections.iter().filter(there).map(identity).collect();
        self.leave(&now);
        for one in connections.iter().filter(there).filter(|one| one.class == Class::Gated) {
            self.update_connection(one);
        }
    }

    /// Frees the indices of closed connections, and of those whose class has changed: `now` has
    /// generation and class of the open ones.
    fn leave(&mut self, now: &BTreeMap<Id, (u32, usize)>) {
        let free = &mut self.free;
        self.taken.retain(|id, indexed| {
            let stays = now.get(id) == Some(&(indexed.generation, indexed.client_class));
            if !stays {
                free[indexed.promise].push(indexed.index);
            }
            stays
        });
    }

    fn update_connection(&mut self, one: &ConnectionSeen) {
        if !self.taken.contains_key(&one.id) {
            let Some(indexed) = self.assign_index(one) else { return };
            self.taken.insert(one.id, indexed);
        }
        let Some(indexed) = self.taken.get_mut(&one.id) else { return };
        self.waiting[indexed.index as usize] = u32::from(one.waits);
        let answered =
            |(latency, queries)| Answered { connection: indexed.index, latency, queries };
        if indexed.promise < self.promises.len() {
            self.answered.extend(one.latency.buckets().map(answered));
            return;
        }
        // A share of the server is counted in transactions, the unit that the gate admits.
        let done = one.transactions.saturating_sub(indexed.transactions);
        indexed.transactions = one.transactions;
        let latency = one.latency.buckets().next().map_or(Nanos::ZERO, |(latency, _)| latency);
        if done > 0 {
            self.answered.push(answered((latency, u32::try_from(done).unwrap_or(u32::MAX))));
        }
    }

    /// Assigns an index to a connection that has none; `None` if the shared page is full.
    fn assign_index(&mut self, one: &ConnectionSeen) -> Option<IndexedConnection> {
        let all = self.promises.iter().zip(&self.classes).enumerate();
        let kept = all.filter(|(_, (promise, class))| promise.fits(**class, one));
        let fit = kept.map(|(at, _)| at).chain([self.promises.len()]);
        let free = &mut self.free;
        let (promise, index) = fit.filter_map(|at| Some((at, free[at].pop()?))).next()?;
        let ConnectionSeen { generation, client_class, transactions, .. } = *one;
        Some(IndexedConnection { generation, index, promise, client_class, transactions })
    }

    /// Returns the allowance of each connected connection.
    pub(super) fn allowances<'a>(
        &'a self,
        allow: &'a [Allowance],
    ) -> impl Iterator<Item = (Id, Allowance)> + 'a {
        let of = |(id, indexed): (&Id, &IndexedConnection)| {
            Some((*id, *allow.get(indexed.index as usize)?))
        };
        self.taken.iter().filter_map(of)
    }

    /// Returns the connections that have an index, and thus an allowance.
    pub(super) fn indexed(&self) -> impl Iterator<Item = Id> + '_ {
        self.taken.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_host::oncall::Counts;
    use lull_oncall::Peer;

    fn promise(text: &str) -> Promise {
        toml::from_str(text).unwrap()
    }

    fn two() -> Vec<Promise> {
        let strict = "from = \"10.0.0.0/8\"\nconnections = 2\nobjective = { p95 = \"20ms\" }";
        let users = "port = 3307\nconnections = 1\nobjective = { disengagement = 0.001 }";
        [strict, users].map(promise).into()
    }

    fn connection(id: u32, generation: u32, address: [u8; 4], local_port: u16) -> ConnectionSeen {
        ConnectionSeen {
            id: Id(id),
            generation,
            worker: (1, 1),
            peer: Peer { ipv4: u32::from_be_bytes(address), port: 40_000 },
            local_port,
            class: Class::Gated,
            client_class: 0,
            latency: Counts::default(),
            queries: 0,
            transactions: 0,
            parked: (0, Nanos::ZERO),
            waits: false,
            pending: None,
        }
    }

    fn indices(all: &ConnectionIndices) -> Vec<(u32, u32)> {
        all.taken.iter().map(|(id, indexed)| (id.0, indexed.index)).collect()
    }

    #[test]
    fn a_connection_that_fits_has_an_index_while_one_is_free_and_others_are_best_effort() {
        let mut all = ConnectionIndices::new(&two(), |_| None).unwrap();
        let at_work = [
            connection(0, 1, [10, 0, 0, 1], 3306),
            connection(1, 1, [192, 168, 0, 1], 3306),
            connection(2, 1, [10, 9, 9, 9], 3307),
            connection(3, 1, [10, 0, 0, 2], 3306),
            connection(4, 1, [127, 0, 0, 1], 3307),
        ];
        all.update(&at_work);
        assert_eq!(indices(&all), [(0, 0), (1, 3), (2, 1), (3, 4), (4, 2)]);
        // The first has gone, and another that fits has come in its stead.
        let later = connection(0, 2, [10, 0, 0, 3], 3306);
        all.update(&[later, at_work[3].clone()]);
        assert_eq!(indices(&all), [(0, 1), (3, 4)]);
        let objectives = ConnectionIndices::objectives(&two());
        assert_eq!(objectives.len(), all.waiting.len());
        assert_eq!(objectives.iter().flatten().count(), 3);
    }

    #[test]
    fn only_those_at_the_gate_are_seen_and_each_by_what_it_is_there_for() {
        let mut all = ConnectionIndices::new(&two(), |_| None).unwrap();
        let mut seen = [
            connection(0, 1, [10, 0, 0, 1], 3306),
            connection(1, 1, [127, 0, 0, 1], 3306),
            connection(2, 1, [10, 0, 0, 2], 3306),
        ];
        seen[2].class = Class::Exempt;
        all.update(&seen);
        assert!(all.answered.is_empty());
        (seen[0].waits, seen[1].waits) = (true, false);
        seen[1].transactions = 7;
        all.update(&seen);
        assert_eq!((all.waiting[0], all.waiting[3]), (1, 0));
        let answered: Vec<_> =
            all.answered.iter().map(|one| (one.connection, one.queries)).collect();
        assert_eq!(answered, [(3, 7)], "best effort by transactions");
        let allow = vec![Allowance::turns_of(5); all.waiting.len()];
        assert_eq!(all.allowances(&allow).map(|(id, _)| id).collect::<Vec<_>>(), [Id(0), Id(1)]);
    }

    #[test]
    fn a_promise_to_a_class_of_clients_is_for_its_connections_only() {
        let text = "client_class = \"web\"\nconnections = 2\nobjective = { p95 = \"20ms\" }";
        let promises = [promise(text)];
        let mut all =
            ConnectionIndices::new(&promises, |name| (name == "web").then_some(3)).unwrap();
        let of_class = |id, client_class| ConnectionSeen {
            client_class,
            ..connection(id, 1, [127, 0, 0, 1], 3306)
        };
        all.update(&[of_class(0, 0), of_class(1, 3), of_class(2, 3)]);
        assert_eq!(indices(&all), [(0, 2), (1, 0), (2, 1)]);
        assert_eq!(ConnectionIndices::new(&promises, |_| None).unwrap_err(), "web");
    }

    #[test]
    fn a_connection_has_the_promise_of_the_class_that_it_changes_to() {
        let text = "client_class = \"web\"\nconnections = 1\nobjective = { p95 = \"20ms\" }";
        let mut all = ConnectionIndices::new(&[promise(text)], |_| Some(3)).unwrap();
        let of_class = |id, client_class, transactions| ConnectionSeen {
            client_class,
            transactions,
            ..connection(id, 1, [127, 0, 0, 1], 3306)
        };
        all.update(&[of_class(0, 3, 0), of_class(1, 0, 5)]);
        assert_eq!(indices(&all), [(0, 0), (1, 1)]);
        // Both change their class between two readings.
        all.update(&[of_class(0, 0, 9), of_class(1, 3, 7)]);
        assert_eq!(indices(&all), [(0, 1), (1, 0)]);
        all.update(&[of_class(0, 0, 11), of_class(1, 3, 8)]);
        let answered: Vec<_> =
            all.answered.iter().map(|one| (one.connection, one.queries)).collect();
        assert_eq!(answered, [(1, 2)], "transactions before the change are not counted again");
    }

    #[test]
    fn a_promise_that_makes_no_sense_is_refused() {
        let strange = [
            ("from = \"10.0.0\"\nconnections = 1\nobjective = { p95 = \"20ms\" }", "not an IPv4"),
            (
                "from = \"10.0.0.0/33\"\nconnections = 1\nobjective = { p95 = \"20ms\" }",
                "not an IPv4",
            ),
            ("connections = 1", "objective"),
        ];
        for (text, why) in strange {
            let error = toml::from_str::<Promise>(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let nobody = promise("connections = 0\nobjective = { p95 = \"20ms\" }");
        assert_eq!(nobody.check().unwrap_err().0, "connections");
        let floor = promise("connections = 1\nobjective = { throughput = 100 }");
        assert_eq!(floor.check().unwrap_err().0, "objective");
        assert!(two().iter().all(|one| one.check().is_ok()));
        let all: Prefix = "0.0.0.0/0".parse().unwrap();
        assert!(all.has(1) && !all.has(0), "a unix socket has no address");
    }
}
