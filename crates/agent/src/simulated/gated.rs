//! The gate of a config's app as the gate of the simulated machine.
//!
//! Behind a simulated gate each client has a connection with a worker of its own, and waits for
//! an answer before it sends again. The machine has one gate: that of the first app with a
//! `concurrency` whose `[[client]]` has `clients` and `work`.

use super::Simulated;
use super::demand::Demand;
use crate::admission::Promise;
use crate::config::{AppSection, ClientSection, Concurrency, GateMode};
use lull_control::Capability;
use lull_lab::scenario::{GateKeeper, LiveServer, Promised};
use lull_measure::Nanos;
use lull_oncall::Settings;
use lull_sim::machine::{Contention, Device, GateModel, Order, Query};
use lull_sim::model::Distribution;

/// Core time with which the gate wakes a worker, and of all intercepted calls of a query: as
/// `examples/sim/machine.toml` has them.
const WAKE: Nanos = Nanos(2_350);
const INTERCEPT: Nanos = Nanos(300);
/// The highest rate of a simulated device, which no query then waits for.
const ENDLESS_PER_S: f64 = 1e9;
/// The least time, in the clock of the simulator.
pub(super) const NO_TIME: Nanos = Nanos(1);

/// Keys of the simulated gate, and those of `[[client]]` that they come from.
const KEYS: [(&str, &str); 4] = [
    ("query.before", "work"),
    ("query.io", "delay"),
    ("query.round_trip", "think"),
    ("contention", "contention"),
];

/// The app whose gate is simulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatedApp<'a> {
    /// Its number in the config.
    pub(super) number: usize,
    pub(super) app: &'a AppSection,
    client: &'a ClientSection,
    pub(super) clients: u32,
}

impl<'a> GatedApp<'a> {
    /// The app whose gate is simulated; `None` if the gate of none can be.
    pub(super) fn find(simulated: &'a Simulated) -> Option<Self> {
        let mut apps = simulated.config.apps.iter().enumerate();
        apps.find_map(|(number, app)| {
            app.concurrency.as_ref()?;
            let (_, client) = simulated.client_of(app)?;
            let clients = client.clients.filter(|_| client.work.is_some())?;
            Some(Self { number, app, client, clients })
        })
    }

    /// The gate, for queries of this demand. A query that has a `delay` keeps its worker and its
    /// slot meanwhile, and then needs a core to be answered.
    pub(super) fn model(&self, demand: Demand) -> GateModel {
        let nothing = Distribution::constant(Nanos::ZERO);
        let instant = Distribution::constant(NO_TIME);
        let after = demand.delay.map_or(nothing, |_| instant);
        let connections = self.clients.max(1);
        GateModel {
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
            client_class: Vec::new(),
        }
    }

    /// What decides at the gate: the config's admission controller as an agent builds it, or its
    /// numbers, which a policy may set.
    ///
    /// # Errors
    /// The key of `gate` at fault, and why.
    pub(super) fn keeper(&self) -> Result<GateKeeper, (&'static str, String)> {
        if let Some(post) = self.app.post()? {
            let promised = |promise: &Promise| Promised {
                connections: promise.connections(),
                objective: promise.objective(),
            };
            let promises = post.promises.iter().map(promised).collect();
            let server = LiveServer { objectives: post.asked, promises, workers: post.workers };
            return Ok(GateKeeper { name: post.name, config: post.keys, server: Some(server) });
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
    pub(super) fn client_key(rest: &str) -> String {
        let key = KEYS.iter().find_map(|(gate, client)| {
            rest.strip_prefix(gate).map(|rest| format!("{client}{rest}"))
        });
        key.unwrap_or_else(|| "clients".to_owned())
    }

    /// What is assumed or left out at the gate: keys of the app, and why.
    pub(super) fn notes(&self) -> Vec<(&'static str, String)> {
        let clients = self.clients;
        let mut assumed = format!(
            "assumed: a worker for each of the {clients} clients, {WAKE} of a core for a wake-up \
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
        let has_threads = self.client.threads.or(self.app.threads).is_some_and(|it| it != clients);
        let stated = [
            (true, "concurrency", assumed.as_str()),
            (rests, "gate.mode", "is simulated as rounds of the queries that wait at the gate"),
            (exempts, "gate.exempt_ports", "is left out: all simulated clients wait at the gate"),
            (bypasses, "gate.bypass", "is left out: all simulated clients wait at the gate"),
            (
                !self.app.client_class.is_empty(),
                "client_class",
                "is left out: turns go round all simulated clients",
            ),
            (
                !self.app.promise.is_empty(),
                "promise",
                "assumed: the first clients are those that the promises are for, in their order",
            ),
            (
                has_threads,
                "threads",
                "is left out: the simulated gate has a worker for each client",
            ),
        ];
        let given = stated.into_iter().filter(|(is_given, ..)| *is_given);
        given.map(|(_, key, why)| (key, why.to_owned())).collect()
    }
}

/// Keys of a gate that is not simulated, and why it is not. `gated` is the app whose gate is.
pub(super) fn left_out(
    app: &AppSection,
    gated: Option<&GatedApp<'_>>,
) -> Vec<(&'static str, String)> {
    let why = match gated {
        Some(gated) => format!("the simulated machine has one gate, that of `{}`", gated.app.name),
        None => "the simulated gate needs clients that wait for answers: write clients, think and \
                 work in the app's [[client]]"
            .to_owned(),
    };
    let has_gate = app.concurrency.is_some();
    let keys = [
        ("concurrency", has_gate),
        ("gate", app.gate.is_some()),
        ("promise", !app.promise.is_empty()),
        ("client_class", has_gate && !app.client_class.is_empty()),
    ];
    let given = keys.into_iter().filter(|(_, is_given)| *is_given);
    given.map(|(key, _)| (key, format!("is left out: {why}"))).collect()
}
