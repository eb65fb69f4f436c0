//! The gates of a config's apps as the gates of the simulated machine.
//!
//! Each app with a `concurrency` whose `[[client]]` has `work` has a gate of its own. A client
//! that waits for answers has a connection with a worker of its own; clients at a rate share as
//! many connections as the app's `[[load]]` or `threads` state.

use super::Simulated;
use super::demand::Demand;
use super::load::OpenLoad;
use crate::admission::Promise;
use crate::config::{AppSection, ClientClassSection, ClientSection, Concurrency, GateMode};
use lull_control::{Capability, Objective};
use lull_lab::scenario::{ConnectionGroup, GateKeeper, LiveServer, Promised};
use lull_measure::Nanos;
use lull_oncall::Settings;
use lull_sim::machine::{Contention, Device, GateClass, GateModel, Order, Query, TurnShare};
use lull_sim::model::Distribution;
use std::ops::Range;

/// Core time with which the gate wakes a worker, and of all intercepted calls of a query: as
/// `examples/sim/machine.toml` has them.
const WAKE: Nanos = Nanos(2_350);
const INTERCEPT: Nanos = Nanos(300);
/// The highest rate of a simulated device, which no query then waits for.
const ENDLESS_PER_S: f64 = 1e9;
/// The least time, in the clock of the simulator.
pub(super) const NO_TIME: Nanos = Nanos(1);

/// Keys of the simulated gate, and those of `[[client]]` that they come from.
const KEYS: [(&str, &str); 7] = [
    ("load", "rate"),
    ("arrivals", "arrivals"),
    ("client-class", "classes"),
    ("query.before", "work"),
    ("query.io", "delay"),
    ("query.round_trip", "think"),
    ("contention", "contention"),
];

/// An app whose gate is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatedApp<'a> {
    /// Its number in the config.
    pub(super) number: usize,
    pub(super) app: &'a AppSection,
    client: &'a ClientSection,
    /// Connections, each with a worker.
    pub(super) connections: u32,
}

/// A class of clients at a simulated gate.
struct SimulatedClass<'a> {
    name: &'a str,
    /// Its connections at the gate.
    connections: Range<u32>,
    share: TurnShare,
    /// Whether it is the class of all clients that belong to no other.
    has_rest: bool,
}

impl<'a> GatedApp<'a> {
    /// The apps whose gates are simulated, in the order of the config.
    pub(super) fn find_all(simulated: &'a Simulated) -> Vec<Self> {
        let gated = |(number, app): (usize, &'a AppSection)| {
            app.concurrency.as_ref()?;
            let (_, client) = simulated.client_of(app)?;
            client.work.as_ref()?;
            let connections =
                client.clients.or_else(|| simulated.shared_connections(app, client))?;
            Some(Self { number, app, client, connections })
        };
        simulated.config.apps.iter().enumerate().filter_map(gated).collect()
    }

    /// Whether its clients wait for answers.
    pub(super) fn waits(&self) -> bool {
        self.client.clients.is_some()
    }

    /// The gate, for queries of this demand, and of clients at a rate with this load. A query that
    /// has a `delay` keeps its worker and its slot meanwhile, and then needs a core to be
    /// answered.
    pub(super) fn model(&self, demand: Demand, load: OpenLoad) -> GateModel {
        let nothing = Distribution::constant(Nanos::ZERO);
        let instant = Distribution::constant(NO_TIME);
        let after = demand.delay.map_or(nothing, |_| instant);
        let connections = self.connections.max(1);
        GateModel {
            app: Some(self.app.name.clone()),
            load: load.steps,
            arrivals: load.arrivals,
            query: Query {
                before: demand.work,
                io: demand.delay.unwrap_or(nothing),
                after,
                round_trip: self.client.think.unwrap_or(instant),
            },
            device: Device {
                channels: connections,
                rate_per_s: ENDLESS_PER_S,
                burst: f64::from(connections),
                order: Order::Fifo,
            },
            contention: self.client.contention.map_or_else(Contention::default, Into::into),
            wake: WAKE,
            intercept: INTERCEPT,
            // The turn of a worker that finds no further query ends.
            lease: NO_TIME,
            polling: None,
            client_class: self.classes().iter().map(|class| self.gate_class(class)).collect(),
        }
    }

    fn gate_class(&self, class: &SimulatedClass<'_>) -> GateClass {
        let connections =
            (!class.has_rest).then_some(class.connections.end - class.connections.start);
        GateClass { app: self.app.name.clone(), connections, share: class.share }
    }

    /// The classes that have clients, in the order of their connections; none where the client
    /// does not say which clients are of which class.
    fn classes(&self) -> Vec<SimulatedClass<'a>> {
        let mut next = 0;
        let mut class = |section: &'a ClientClassSection, count: u32| {
            let (weight, order, least_share) = (section.weight, section.order, section.least_share);
            let connections = next..next + count;
            next = connections.end;
            let share = TurnShare { weight, order, least_share };
            let has_rest = section.clients.is_empty();
            SimulatedClass { name: &section.name, connections, share, has_rest }
        };
        let all = || self.app.client_class.iter();
        let mut classes: Vec<_> = all()
            .filter_map(|section| Some((section, *self.client.classes.get(&section.name)?)))
            .map(|(section, count)| class(section, count))
            .collect();
        let rest = all().find(|section| section.clients.is_empty());
        let left = self.connections.saturating_sub(self.client.classes.values().sum());
        classes.extend(rest.filter(|_| !classes.is_empty()).map(|section| class(section, left)));
        classes
    }

    /// Refuses counts of clients of a class that the app does not have, and too many.
    ///
    /// # Errors
    /// The key of the client, and what to write.
    pub(super) fn check_classes(&self) -> Result<(), (String, String)> {
        for (name, count) in &self.client.classes {
            let section = self.app.client_class.iter().find(|section| section.name == *name);
            let why = match section {
                None => "is not a client_class of the app: add [[app.client_class]]",
                Some(section) if section.clients.is_empty() => {
                    "is the class of all other clients: leave it out"
                }
                Some(_) if *count == 0 => "has no clients: leave it out",
                Some(_) => continue,
            };
            return Err((format!("classes.{name}"), why.to_owned()));
        }
        let all: u64 = self.client.classes.values().map(|count| u64::from(*count)).sum();
        let has = self.connections;
        if all > u64::from(has) {
            return Err((
                "classes".to_owned(),
                format!("are of {all} clients, and there are {has}"),
            ));
        }
        Ok(())
    }

    /// The connections of each promise and of each class, where the first connection of the gate
    /// has this number.
    pub(super) fn groups(&self, keeper: &GateKeeper, first: usize) -> Vec<ConnectionGroup> {
        let name = &self.app.name;
        let group = |name: String, connections: Range<u32>, tail| ConnectionGroup {
            name,
            connections: first + connections.start as usize..first + connections.end as usize,
            tail,
        };
        let promises = keeper.server.iter().flat_map(|server| &server.promises).zip(1..);
        let promises = promises.map(|(promise, number): (&Promised, usize)| {
            let connections = promise.first..promise.first + promise.connections;
            let tail = match promise.objective {
                Objective::Tail { percentile, bound } => Some((percentile, bound)),
                Objective::Throughput { .. } | Objective::Disengagement { .. } => None,
            };
            group(format!("{name} promise {number}"), connections, tail)
        });
        let mut all: Vec<_> = promises.collect();
        let classes = self.classes();
        let rest = classes.last().map_or(self.connections, |class| class.connections.end);
        let others = (rest < self.connections).then_some(("others", rest..self.connections));
        let classes = classes.into_iter().map(|class| (class.name, class.connections));
        let tail = self.app.spec().tail();
        all.extend(
            classes.chain(others).map(|(class, connections)| {
                group(format!("{name} class {class}"), connections, tail)
            }),
        );
        all
    }

    /// The connections of each promise: the first ones of its class that have none, as many as
    /// there are.
    fn promised(&self, promises: &[Promise]) -> Vec<Promised> {
        let classes = self.classes();
        let mut all: Vec<Promised> = Vec::new();
        for promise in promises {
            let own = match promise.client_class().filter(|_| !classes.is_empty()) {
                None => 0..self.connections,
                Some(name) => classes
                    .iter()
                    .find(|class| class.name == name)
                    .map_or(0..0, |class| class.connections.clone()),
            };
            let (first, free) = free_of(&all, own);
            let connections = promise.connections().min(free);
            all.push(Promised { first, connections, objective: promise.objective() });
        }
        all
    }

    /// Returns the controller of the gate: the config's admission controller as an agent builds it,
    /// or its numbers, which a policy may set.
    ///
    /// # Errors
    /// The key of `gate` at fault, and the reason.
    pub(super) fn keeper(&self) -> Result<GateKeeper, (&'static str, String)> {
        if let Some(setup) = self.app.admission_setup()? {
            let promises = self.promised(&setup.promises);
            let server =
                LiveServer { objectives: setup.objectives, promises, workers: setup.workers };
            return Ok(GateKeeper { name: setup.name, config: setup.keys, server: Some(server) });
        }
        let Settings { cap, batch, isr_delay_ns, .. } =
            self.app.gate_settings()?.unwrap_or_default();
        let config = [
            ("cap", i64::from(cap).into()),
            ("batch", i64::from(batch).into()),
            ("delay", format!("{isr_delay_ns}ns").into()),
        ];
        let config = config.map(|(key, value): (&str, toml::Value)| (key.to_owned(), value));
        let config = config.into_iter().collect();
        Ok(GateKeeper { name: "manual".to_owned(), config, server: None })
    }

    /// Whether a policy may set this knob, which is one of gates.
    pub(super) fn has_knob(&self, knob: Capability) -> bool {
        let gates = [Capability::GateCap, Capability::GateBatch, Capability::GateDelay];
        matches!(self.app.concurrency, Some(Concurrency::Limit(_))) && gates.contains(&knob)
    }

    /// The key of its `[[client]]` from which a key of the simulated gate comes.
    pub(super) fn client_key(&self, rest: &str) -> String {
        let key = KEYS.iter().find_map(|(gate, client)| {
            rest.strip_prefix(gate).map(|rest| format!("{client}{rest}"))
        });
        key.unwrap_or_else(|| if self.waits() { "clients" } else { "rate" }.to_owned())
    }

    /// Returns the assumptions and omissions at the gate: keys of the app, and the reasons.
    pub(super) fn notes(&self) -> Vec<(&'static str, String)> {
        let connections = self.connections;
        let of = if self.waits() { "clients" } else { "connections, which all clients share" };
        let mut assumed = format!(
            "assumed: a worker for each of the {connections} {of}, {WAKE} of a core for a wake-up \
             at the gate and {INTERCEPT} for a query; one waits for its turn without end \
             (gate.longest_wait), and keeps its slot to its end (gate.slot_lease)"
        );
        if self.client.contention.is_none() {
            assumed += "; workers do not slow each other down (client.contention)";
        }
        let gate = self.app.gate.as_ref();
        let rests = gate.is_some_and(|gate| gate.mode == Some(GateMode::Epoll));
        let exempts = gate.is_some_and(|gate| !gate.exempt_ports.is_empty());
        let bypasses = gate.is_some_and(|gate| !gate.bypass.is_empty());
        let threads = self.client.threads.or(self.app.threads);
        let has_threads = threads.is_some_and(|threads| threads != connections);
        let has_classes = !self.app.client_class.is_empty();
        let stated = [
            (true, "concurrency", assumed.as_str()),
            (rests, "gate.mode", "is simulated as rounds of the queries that wait at the gate"),
            (exempts, "gate.exempt_ports", "is left out: all simulated clients wait at the gate"),
            (bypasses, "gate.bypass", "is left out: all simulated clients wait at the gate"),
            (
                has_classes && self.client.classes.is_empty(),
                "client_class",
                "is left out, so that turns go round all simulated clients: give the clients of \
                 each class, as classes = { NAME = 8 }, in the app's [[client]]",
            ),
            (
                !self.app.promise.is_empty(),
                "promise",
                "assumed: the first clients, of its class if it names one, are those that a \
                 promise is for, in their order",
            ),
            (
                has_threads,
                "threads",
                "is left out: the simulated gate has a worker for each connection",
            ),
        ];
        let given = stated.into_iter().filter(|(is_given, ..)| *is_given);
        given.map(|(_, key, why)| (key, why.to_owned())).collect()
    }
}

/// Keys of a gate that is not simulated, and why it is not.
pub(super) fn left_out(app: &AppSection) -> Vec<(&'static str, String)> {
    let why = "is left out: the simulated gate needs queries: write work, and clients and think or \
               a rate and threads, in the app's [[client]]";
    let has_gate = app.concurrency.is_some();
    let keys = [
        ("concurrency", has_gate),
        ("gate", app.gate.is_some()),
        ("promise", !app.promise.is_empty()),
        ("client_class", has_gate && !app.client_class.is_empty()),
    ];
    let given = keys.into_iter().filter(|(_, is_given)| *is_given);
    given.map(|(key, _)| (key, why.to_owned())).collect()
}

/// The first of some connections that has no promise, and how many after it have none either.
fn free_of(promised: &[Promised], own: Range<u32>) -> (u32, u32) {
    let is_promised = |connection: &u32| {
        promised.iter().any(|one| (one.first..one.first + one.connections).contains(connection))
    };
    let first = own.clone().find(|one| !is_promised(one)).unwrap_or(own.end);
    let free = (first..own.end).take_while(|one| !is_promised(one)).count();
    (first, u32::try_from(free).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Objective;
    use lull_measure::{Nanos, Percentile};

    #[test]
    fn a_promise_has_the_first_connections_that_none_has_as_many_as_there_are() {
        let objective =
            Objective::Tail { percentile: Percentile::P95, bound: Nanos::from_millis(1) };
        let promised = |first, connections| Promised { first, connections, objective };
        let all = [promised(0, 8), promised(12, 4)];
        assert_eq!(free_of(&[], 0..24), (0, 24));
        assert_eq!(free_of(&all, 0..24), (8, 4));
        assert_eq!(free_of(&all, 12..20), (16, 4));
        assert_eq!(free_of(&all, 0..8), (8, 0));
    }
}
