//! Checks of a machine's model; errors name the key.

mod event_loops;
mod hardware;

use super::duty;
use super::model::{
    Activity, Cache, ClosedClients, LinuxScheduler, LocalClient, MachineApp, MachineModel, Memory,
    MemoryUse,
};
use super::parts::{
    Card, Contention, Device, DispatchPart, GateClass, GateModel, Query, RunQueues,
};
use super::polling;
use super::presence::Presence;
use super::source;
use crate::idle;
use crate::model::{
    Checked, ModelError, Problem, above_0, at_least_0, at_least_one, at_most, check_distribution,
    check_shape, conflict, fail, range, refuse_if, some, unique,
};
use lull_control::dispatcher::Dispatcher;
use lull_measure::Nanos;
use lull_oncall::CLIENT_CLASSES;
use lull_workload::arrivals::ScheduleError;

/// Cores and ways are bits of a word.
const MOST_CORES: u64 = 64;
const MOST_WAYS: u64 = 64;
/// Most threads of all apps: a timer's owner has this many bits for its connection.
const MOST_THREADS: u64 = 1 << super::INDEX_BITS;
/// Most memory traffic of a thread: sums over all threads stay finite.
const MOST_BYTES_PER_S: f64 = 1e15;
/// Most clients of an app that wait for answers.
const MOST_CLIENTS: u64 = 1 << 20;

impl MachineModel {
    /// Checks everything that can be checked without running the model.
    ///
    /// # Errors
    /// The first thing found that cannot be simulated, with its key.
    pub fn check(&self) -> Checked {
        at_least_one(u64::from(self.cores), "cores", "cores")?;
        at_most(u64::from(self.cores), MOST_CORES, "cores", "cores")?;
        above_0(self.frequency.0 as f64, "frequency")?;
        span_above_0(self.refresh, "refresh")?;
        check_scheduler(&self.scheduler)?;
        self.check_core_types()?;
        self.check_parts()?;
        self.cache.as_ref().map_or(Ok(()), check_cache)?;
        self.memory.as_ref().map_or(Ok(()), check_memory)?;
        some(&self.app, "app", "a machine needs at least one `[[app]]`")?;
        unique(self.app.iter().map(|app| app.name.as_str()), "app")?;
        for (at, app) in self.app.iter().enumerate() {
            let key = format!("app[{at}]");
            check_app(app, &key)?;
            self.check_client(app, &key)?;
            self.check_activity(app, &key)?;
            self.check_event_loops(app, &key)?;
            check_presence(app, &key)?;
        }
        self.check_dispatch()?;
        let threads = self.app.iter().map(|app| u64::from(app.threads)).sum();
        at_most(threads, MOST_THREADS, "threads of all apps", "app")
    }

    /// Core types are a ladder of as many cores as there are.
    fn check_core_types(&self) -> Checked {
        at_least_0(self.interference, "interference")?;
        let differ = self.core_types.is_some() || self.interference > 0.0;
        let alike = "cores are alike and do not interfere under `run-queues`: leave it out";
        refuse_if(self.run_queues.is_some() && differ, "run-queues", alike)?;
        let sum = "the numbers of cores of all types do not add up to `cores`";
        match self.ladder() {
            Err(error) => fail("core-types", Problem::Ladder(Box::new(error))),
            Ok(ladder) => {
                let is_other = ladder.all_cores() != usize::from(self.cores);
                refuse_if(is_other, "core-types.supply", sum)
            }
        }
    }

    /// A dispatched app serves requests, with a thread a core.
    fn check_dispatch(&self) -> Checked {
        let Some(part) = &self.dispatch else { return Ok(()) };
        let linux = "requests are dispatched under Linux's rules only: leave `run-queues` out";
        refuse_if(self.run_queues.is_some(), "dispatch", linux)?;
        let Some(number) = self.app_named(&part.app) else {
            return conflict("dispatch.app", "it names no app of this machine");
        };
        let app = &self.app[number];
        let serves = matches!(app.activity, Activity::Requests { .. });
        refuse_if(!serves, "dispatch.app", "the activity of the app is not `requests`")?;
        let few = app.threads < u32::from(self.cores);
        let wanted = "a dispatched app needs a thread for each core";
        refuse_if(few, format!("app[{number}].threads"), wanted)
    }

    /// Frequencies, idle states, power, other run queues and the gate.
    fn check_parts(&self) -> Checked {
        self.scaling.as_ref().map_or(Ok(()), |scaling| hardware::check_scaling(scaling, self))?;
        self.duty_cycle.as_ref().map_or(Ok(()), |cycle| duty::check(cycle, self))?;
        idle::check(&self.idle, self.frequency)?;
        if let Some(power) = &self.power {
            hardware::check_power(power)?;
            self.needs_idle("power")?;
        }
        if self.scaling.as_ref().is_some_and(|scaling| scaling.governor.period().is_some()) {
            self.needs_idle("scaling.governor.ondemand")?;
        }
        if let Some(rule) = &self.run_queues {
            self.needs_idle("run-queues")?;
            self.check_run_queues(rule)?;
        }
        self.card.as_ref().map_or(Ok(()), |card| self.check_card(card))?;
        self.gate.iter().enumerate().try_for_each(|(at, gate)| {
            let key = if self.gate.len() > 1 { format!("gate[{at}]") } else { "gate".to_owned() };
            self.check_gate(gate, &key)
        })
    }

    /// An app is behind one gate, and each gate has its own.
    fn check_gate(&self, gate: &GateModel, key: &str) -> Checked {
        let alone = self.gate.len() == 1;
        let all = "names no app, and the machine has several gates: write app = \"...\"";
        refuse_if(!alone && gate.app.is_none(), key, all)?;
        let same = self.gate.iter().filter(|other| other.app == gate.app).count();
        let other = "the app is behind another gate, too: keep one of both";
        refuse_if(same > 1, format!("{key}.app"), other)?;
        let behind = "nothing is behind it: give an app whose activity is `connections`";
        let mut apps = self.behind(gate);
        refuse_if(apps.next().is_none(), key, behind)?;
        let shared = "clients at a rate share the connections of one app: name it as `app`, and \
                      give the others a gate of their own";
        let is_open = !gate.load.is_empty();
        refuse_if(is_open && apps.next().is_some(), format!("{key}.load"), shared)?;
        if let Some(error) = source::schedule(&gate.load).err().filter(|_| is_open) {
            return fail(format!("{key}.load"), problem(error));
        }
        check_gate(gate)
            .map_err(|error| ModelError { key: format!("{key}{}", error.key), ..error })?;
        self.check_client_classes(gate, &format!("{key}.client-class"))
    }

    /// Whether the classes of clients are those of different apps, and fit the gate.
    fn check_client_classes(&self, gate: &GateModel, key: &str) -> Checked {
        let classes = &gate.client_class;
        let most = CLIENT_CLASSES as u64 - 1;
        at_most(classes.len() as u64, most, "classes of clients", key)?;
        for (at, GateClass { app, connections, share }) in classes.iter().enumerate() {
            let key = format!("{key}[{at}]");
            let is_known = self.behind(gate).any(|(_, one)| one.name == *app);
            let known = "names no app whose activity is `connections`";
            refuse_if(!is_known, format!("{key}.app"), known)?;
            at_least_one(u64::from(connections.unwrap_or(1)), "connections", &key)?;
            let has_all = |other: &GateClass| other.app == *app && other.connections.is_none();
            if classes[..at].iter().any(has_all) {
                return fail(format!("{key}.app"), Problem::Duplicate { name: app.clone() });
            }
            let limits = "has a weight from 1 to 1000, an order from 0 to 7, and a least share \
                         from 0.0001 to 1";
            refuse_if(share.in_gate().is_none(), format!("{key}.share"), limits)?;
        }
        let least: f64 = classes.iter().map(|class| class.share.least_share).sum();
        range(least, least <= 1.0, "at most 1 in all classes", &format!("{key}.least-share"))
    }

    fn needs_idle(&self, key: &str) -> Checked {
        let needs = "needs idle states, in which time without work is counted: give at least one \
                     `[[idle]]`";
        refuse_if(self.idle.is_empty(), key, needs)
    }

    fn check_run_queues(&self, rule: &RunQueues) -> Checked {
        let slice =
            |key, slice: Nanos| range(slice.0 as f64, slice.0 >= 1000, "at least 1 us", key);
        match *rule {
            RunQueues::Queues => {
                let endless = |app: &MachineApp| matches!(app.activity, Activity::Endless);
                let slices = "an app that never blocks needs time slices: write `fair`";
                refuse_if(self.app.iter().any(endless), "run-queues", slices)
            }
            RunQueues::Fair { slice: length, .. } => slice("run-queues.fair.slice", length),
            RunQueues::Central { slice: length, .. } => {
                slice("run-queues.central.slice", length)?;
                let wanted = "2 or more: the agent has one to itself";
                range(f64::from(self.cores), self.cores >= 2, wanted, "cores")
            }
        }
    }

    fn check_card(&self, card: &Card) -> Checked {
        above_0(card.delay_step.as_secs_f64(), "card.delay-step")?;
        above_0(card.delay_max.as_secs_f64(), "card.delay-max")?;
        at_least_one(u64::from(card.buckets), "buckets", "card.buckets")?;
        at_least_one(u64::from(card.connections), "connections", "card.connections")?;
        at_least_one(u64::from(card.budget), "packets", "card.budget")?;
        let linux = "polling preempts threads under Linux's rules only: leave `run-queues` out";
        refuse_if(self.run_queues.is_some(), "card", linux)
    }

    /// Checks that the machine has the parts that an app's activity needs.
    fn check_activity(&self, app: &MachineApp, key: &str) -> Checked {
        let connects = matches!(app.activity, Activity::Connections);
        let gate = "connections are served behind a gate: give the machine a `[gate]`";
        let is_behind = self.gate.iter().any(|gate| gate.serves(&app.name));
        refuse_if(connects && !is_behind, format!("{key}.activity"), gate)?;
        let comes_and_goes = !app.presence.changes().is_empty();
        let stays = "a server with connections is present for the whole run";
        refuse_if(connects && comes_and_goes, format!("{key}.presence"), stays)?;
        let is_called = matches!(app.activity, Activity::Called);
        let stays = "a server of a tier is present for the whole run";
        refuse_if(is_called && comes_and_goes, format!("{key}.presence"), stays)?;
        let blocks = !connects && !matches!(app.activity, Activity::Endless);
        let others = self.run_queues.is_some() && (blocks || comes_and_goes);
        let only = "only `connections` and `endless` apps, always present, run under \
                    `run-queues`: leave it out for Linux's rules";
        refuse_if(others, format!("{key}.activity"), only)
    }

    /// The client of an app's requests is one of the node's, and is a client.
    fn check_client(&self, app: &MachineApp, key: &str) -> Checked {
        let Activity::Requests { client: Some(LocalClient { app: name, .. }), .. } = &app.activity
        else {
            return Ok(());
        };
        let found = self.app_named(name).map(|at| &self.app[at].activity);
        let is_none = !matches!(found, Some(Activity::Clients));
        let problem = "it names no app of this node whose activity is `clients`";
        refuse_if(is_none, format!("{key}.activity.requests.client.app"), problem)
    }
}

fn check_scheduler(scheduler: &LinuxScheduler) -> Checked {
    span_above_0(scheduler.slice, "scheduler.slice")?;
    span_above_0(scheduler.real_time_slice, "scheduler.real-time-slice")?;
    span_above_0(scheduler.balance, "scheduler.balance")?;
    let chance = scheduler.wakeup_chance;
    range(chance, (0.0..=1.0).contains(&chance), "0 to 1", "scheduler.wakeup-chance")?;
    let cost = scheduler.switch_cost.saturating_add(scheduler.cold_cost);
    let whole = "a switch that costs a whole slice leaves no time for work: \
                 make `switch-cost` and `cold-cost` less than `slice`";
    refuse_if(cost >= scheduler.slice, "scheduler.switch-cost", whole)
}

/// Checks the parts of a gate; errors name the key below it.
fn check_gate(gate: &GateModel) -> Checked {
    let Device { channels, rate_per_s, burst, .. } = gate.device;
    at_least_one(u64::from(channels), "channels", ".device.channels")?;
    let rate = (1e-3..=1e9).contains(&rate_per_s);
    range(rate_per_s, rate, "from 0.001 to 1e9", ".device.rate_per_s")?;
    range(burst, burst >= 1.0 && burst.is_finite(), "1 or more", ".device.burst")?;
    gate.polling.as_ref().map_or(Ok(()), polling::check)?;
    let Contention { sigma, kappa, most, spins_on } = gate.contention;
    at_least_one(u64::from(spins_on.unwrap_or(1)), "cores", ".contention.spins_on")?;
    for (value, key) in [(sigma, ".contention.sigma"), (kappa, ".contention.kappa")] {
        range(value, (0.0..=1e3).contains(&value), "from 0 to 1000", key)?;
    }
    at_least_one(u64::from(most), "queries", ".contention.most")?;
    let Query { before, io, after, round_trip } = gate.query;
    for (part, key) in
        [(before, "before"), (io, "io"), (after, "after"), (round_trip, "round_trip")]
    {
        let key = format!(".query.{key}");
        match part.mean {
            Nanos::ZERO => check_shape(part.shape, &format!("{key}.shape"))?,
            _ => check_distribution(part, &key)?,
        }
    }
    // A query that takes no time at all would be answered for ever at one instant.
    let mean = (before.mean + io.mean + after.mean + round_trip.mean).0 as f64;
    range(mean, mean >= 1e3, "at least 1 us from answer to answer", ".query")
}

/// Refuses a gate without an admission controller, and one without a gate.
pub(super) fn check_controllers(model: &MachineModel, controllers: usize) -> Checked {
    let none = "the gate has no admission controller: give one, such as `open`";
    refuse_if(model.gate.len() > controllers, "gate", none)?;
    let gate = "an admission controller needs a gate before workers: give the machine a `[gate]` \
                and an app whose activity is `connections`";
    refuse_if(controllers > model.gate.len(), "gate", gate)
}

/// The app whose requests are dispatched, how, and the dispatcher.
type Dispatched<'a> = (usize, &'a DispatchPart, Box<dyn Dispatcher>);

/// The app whose requests are dispatched, and the dispatcher; `None` if there is neither.
pub(super) fn dispatched(
    model: &MachineModel,
    dispatcher: Option<Box<dyn Dispatcher>>,
) -> Result<Option<Dispatched<'_>>, ModelError> {
    let (has_part, has_dispatcher) = (model.dispatch.is_some(), dispatcher.is_some());
    let none = "there is no dispatcher: give one";
    refuse_if(has_part && !has_dispatcher, "dispatch", none)?;
    let app = "a dispatcher needs an app: give the machine a `[dispatch]`";
    refuse_if(has_dispatcher && !has_part, "dispatch", app)?;
    let (Some(part), Some(dispatcher)) = (&model.dispatch, dispatcher) else { return Ok(None) };
    let app = model.app_named(&part.app).expect("the model is checked");
    Ok(Some((app, part, dispatcher)))
}

fn check_cache(cache: &Cache) -> Checked {
    at_least_one(u64::from(cache.ways), "ways", "cache.ways")?;
    at_most(u64::from(cache.ways), MOST_WAYS, "ways", "cache.ways")?;
    at_least_one(u64::from(cache.reference_ways.unwrap_or(1)), "ways", "cache.reference-ways")
}

fn check_memory(memory: &Memory) -> Checked {
    above_0(memory.peak_bytes_per_s, "memory.peak-bytes-per-s")?;
    let queueing = memory.queueing;
    range(queueing, (0.0..=1e3).contains(&queueing), "0 to 1000", "memory.queueing")?;
    let Some(throttle) = memory.throttle else { return Ok(()) };
    let [min, step] = [throttle.min_percent, throttle.step_percent].map(f64::from);
    range(min, (1.0..=100.0).contains(&min), "1 to 100", "memory.throttle.min-percent")?;
    range(step, (1.0..=100.0).contains(&step), "1 to 100", "memory.throttle.step-percent")
}

/// Changes happen when they are due. Clients that come and go are refused, for they would leave
/// requests without a sender.
fn check_presence(app: &MachineApp, key: &str) -> Checked {
    let first = app.presence.changes().first().map(|(.., key)| *key);
    if let (Activity::Clients, Some(which)) = (&app.activity, first) {
        let problem = "an app of clients must be present for the whole run: let the app that \
                       serves its requests come and go instead";
        return conflict(format!("{key}.presence.{which}"), problem);
    }
    app.presence.check(key)
}

fn check_app(app: &MachineApp, key: &str) -> Checked {
    at_least_one(u64::from(app.threads), "threads", &format!("{key}.threads"))?;
    above_0(app.ipc, &format!("{key}.ipc"))?;
    check_use(&app.memory, &format!("{key}.memory"))?;
    match &app.activity {
        Activity::Endless | Activity::Called | Activity::Clients | Activity::Connections => Ok(()),
        Activity::EventLoops(loops) => {
            event_loops::check(loops, &format!("{key}.activity.event-loops."))
        }
        Activity::Phases { work } => {
            check_distribution(*work, &format!("{key}.activity.phases.work"))
        }
        Activity::Requests { work, load, closed, delay, client, .. } => {
            check_distribution(*work, &format!("{key}.activity.requests.work"))?;
            let client = client.as_ref().map(|client| &client.work);
            for (what, work) in [("delay", delay.as_ref()), ("client.work", client)] {
                work.map_or(Ok(()), |work| {
                    check_distribution(*work, &format!("{key}.activity.requests.{what}"))
                })?;
            }
            if let Some(closed) = closed {
                return check_closed(closed, app, &format!("{key}.activity.requests"));
            }
            match source::schedule(load) {
                Ok(_) => Ok(()),
                Err(error) => fail(format!("{key}.activity.requests.load"), problem(error)),
            }
        }
    }
}

/// Clients that wait have no rate, and continue for the whole run.
fn check_closed(closed: &ClosedClients, app: &MachineApp, key: &str) -> Checked {
    let clients = u64::from(closed.clients);
    at_least_one(clients, "clients", &format!("{key}.closed.clients"))?;
    at_most(clients, MOST_CLIENTS, "clients", &format!("{key}.closed.clients"))?;
    check_distribution(closed.think, &format!("{key}.closed.think"))?;
    let has_rate = matches!(&app.activity, Activity::Requests { load, .. } if !load.is_empty());
    let rate = "clients that wait for answers have no rate: leave one of both out";
    refuse_if(has_rate, format!("{key}.load"), rate)?;
    let departs = "clients that wait for answers would wait for ever where their app departs: \
                   give it a rate instead";
    refuse_if(app.presence != Presence::default(), format!("{key}.closed"), departs)
}

fn problem(error: ScheduleError) -> Problem {
    Problem::Conflict(match error {
        ScheduleError::Rate => "a rate must lie between 0 and 1e9 requests/s",
        ScheduleError::Time => "the first step begins at 0s, and each later than the one before",
        ScheduleError::Idle => "no request would ever come: give a rate above 0",
    })
}

fn check_use(memory: &MemoryUse, key: &str) -> Checked {
    let MemoryUse { share, bytes_per_s, floor, ways } = *memory;
    range(share, (0.0..=1.0).contains(&share), "0 to 1", &format!("{key}.share"))?;
    let traffic = (0.0..=MOST_BYTES_PER_S).contains(&bytes_per_s);
    range(bytes_per_s, traffic, "0 to 1e15", &format!("{key}.bytes-per-s"))?;
    range(floor, floor > 0.0 && floor <= 1.0, "above 0, at most 1", &format!("{key}.floor"))?;
    above_0(ways, &format!("{key}.ways"))?;
    let waits = "an app with memory traffic waits for it: give a `share` above 0";
    refuse_if(bytes_per_s > 0.0 && share == 0.0, format!("{key}.share"), waits)
}

fn span_above_0(span: Nanos, key: &str) -> Checked {
    above_0(span.as_secs_f64(), key)
}
