//! Areas of cores for the classes of clients of one live server: fixed ones, or those that the
//! policy `qos-wc` draws.
//!
//! `qos-wc` (REEF, SoCC'25, section 3.5) groups threads by their objectives and moves cores
//! between the groups. As the policy of a run it does so between apps; here each class of clients
//! is an app to it, with the latencies of the class's connections. The code of the policy is the
//! same. What it decides becomes the affinity of the threads that serve the connections
//! ([`ThreadAreas`]).

mod decider;

use crate::admission::Order;
use decider::Decider;
use lull_control::{CoreSet, Machine, Objective, PolicyError, WrittenObjective};
use lull_host::oncall::{AreaTally, ConnectionSeen, Runtime, ThreadAreas};
use lull_host::{Roots, monotonic, probe};
use lull_oncall::CONNECTIONS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two readings of the page: a new connection's thread is in its area after it.
const PERIOD: Duration = Duration::from_millis(20);

/// Readings between two checks for threads that have inherited an area.
const READINGS_BETWEEN_LOOKS: u32 = 50;

/// The policy that draws areas by objectives.
const POLICY: &str = "qos-wc";

/// The keys that an area requires, as messages state them.
const NEEDS: &str = "needs cores = \"0-3\", or for qos-wc connections = 4 and \
                     objective = { p95 = \"20ms\" }";

/// The notice for a server whose threads cannot be moved.
const SHARES_THREADS: &str = "threads of the server serve several connections each: moving one \
                              would move other connections with it, so that threads of that \
                              process are in no area";

/// The area of a class of clients, as it is written.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Area {
    /// The class; `others` is that of all clients that fit no other one.
    #[schemars(example = &"web")]
    client_class: String,
    /// Its cores, if they are fixed: those of all areas are, or those of none.
    #[schemars(with = "Option<String>", example = &"0-5")]
    cores: Option<CoreSet>,
    /// How many of its connections have a query at a time, for `qos-wc`, which divides all cores
    /// between the classes.
    #[schemars(example = 16, extend("x-unit" = "connections"))]
    connections: Option<u32>,
    /// The objective of its connections, for `qos-wc`.
    #[schemars(example = BTreeMap::from([("p99", "20ms")]))]
    objective: Option<WrittenObjective>,
}

/// Why a machine or a gate cannot have areas.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// The area with this index cannot be had.
    #[error("{1}")]
    Area(usize, String),
    /// The policy that divides the cores refuses its keys or the cores.
    #[error("qos-wc: {0}")]
    Policy(PolicyError),
    /// The areas cannot be kept.
    #[error("{0}")]
    Other(String),
}

impl Area {
    /// Returns its cores, or its connections and their objective.
    fn wants(&self) -> Result<CoreDemand, String> {
        match (&self.cores, self.connections, &self.objective) {
            (Some(cores), None, None) if !cores.is_empty() => Ok(CoreDemand::Cores(cores.clone())),
            (None, Some(connections), Some(objective)) => {
                if !(1..=CONNECTIONS as u32).contains(&connections) {
                    return Err(format!("connections is {connections}, not in 1 to {CONNECTIONS}"));
                }
                Ok(CoreDemand::Objective { connections, objective: objective.0 })
            }
            _ => Err(NEEDS.to_owned()),
        }
    }
}

/// The cores that a class of clients requires.
#[derive(Debug, Clone, PartialEq)]
enum CoreDemand {
    /// These.
    Cores(CoreSet),
    /// The cores that `qos-wc` assigns for this objective.
    Objective { connections: u32, objective: Objective },
}

/// The areas of the classes of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct AreaPlan {
    areas: Vec<(String, CoreDemand)>,
    keys: toml::Table,
    /// The cores that may be in an area; all if absent.
    within: Option<CoreSet>,
}

impl AreaPlan {
    /// Checks areas, and the keys of `qos-wc`.
    ///
    /// # Errors
    /// The fault, with the index of the area.
    pub fn new(areas: &[Area], keys: toml::Table) -> Result<Self, (usize, String)> {
        let mut all: Vec<(String, CoreDemand)> = Vec::new();
        for (at, area) in areas.iter().enumerate() {
            let wants = area.wants().map_err(|message| (at, message))?;
            if all.iter().any(|(class, _)| *class == area.client_class) {
                let message = format!("class `{}` has an area already", area.client_class);
                return Err((at, message));
            }
            let is_fixed = |wants: &CoreDemand| matches!(wants, CoreDemand::Cores(_));
            if all.first().is_some_and(|(_, first)| is_fixed(first) != is_fixed(&wants)) {
                let message = "cannot be fixed where others have objectives: qos-wc divides all \
                               cores between all classes";
                return Err((at, message.to_owned()));
            }
            if is_fixed(&wants) && !keys.is_empty() {
                return Err((at, "is fixed: keys are for areas with objectives".to_owned()));
            }
            all.push((area.client_class.clone(), wants));
        }
        Ok(Self { areas: all, keys, within: None })
    }

    /// Keeps all areas within these cores, if any are given.
    #[must_use]
    pub fn within(self, cores: Option<CoreSet>) -> Self {
        Self { within: cores, ..self }
    }

    /// Checks that the classes of a gate, by their names, are those of the areas.
    ///
    /// # Errors
    /// The index of the area whose class does not exist, and what to do.
    pub fn check_classes(&self, classes: &[String]) -> Result<(), (usize, String)> {
        let unknown = self.areas.iter().position(|(class, _)| !classes.contains(class));
        unknown.map_or(Ok(()), |at| {
            let class = &self.areas[at].0;
            Err((at, format!("class `{class}` is not a class of the gate: add it first")))
        })
    }

    /// Checks that a machine can have the areas, for these classes of a gate.
    ///
    /// # Errors
    /// A class, a core or a key that does not exist.
    pub fn check(&self, classes: &[String], machine: &Machine) -> Result<(), AreaError> {
        self.decider(classes, machine.clone()).map(drop)
    }

    /// Returns the decider for the classes of a gate, by their names.
    fn decider(&self, classes: &[String], machine: Machine) -> Result<Decider, AreaError> {
        self.check_classes(classes).map_err(|(at, message)| AreaError::Area(at, message))?;
        let all = machine.all_cores();
        for (at, (_, wants)) in self.areas.iter().enumerate() {
            let CoreDemand::Cores(cores) = wants else { continue };
            let message = match &self.within {
                _ if !cores.is_subset(&all) => format!("cores {cores}: this machine has {all}"),
                Some(within) if !cores.is_subset(within) => {
                    format!("cores {cores}: limits.cores allows {within}")
                }
                _ => continue,
            };
            return Err(AreaError::Area(at, message));
        }
        let machine = match &self.within {
            Some(cores) => machine.restricted_to(cores),
            None => machine,
        };
        let wants = |name: &String| {
            self.areas.iter().find(|(class, _)| class == name).map(|(_, wants)| wants.clone())
        };
        let wants: Vec<Option<CoreDemand>> = classes.iter().map(wants).collect();
        Decider::new(classes, &wants, &self.keys, machine)
    }
}

/// Returns why a thread of a server serves many connections, and so has no area, if its command
/// line shows that.
pub fn shared_threads<W: AsRef<OsStr>>(command: &[W]) -> Option<String> {
    let program = command.first()?.as_ref();
    let file = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let loops = ["redis-server", "valkey-server", "memcached", "nginx", "haproxy", "envoy"];
    if loops.contains(&&*file) {
        return Some(format!("a thread of {file} serves many connections by an event loop"));
    }
    let is_pool = |word: &W| {
        let word = word.as_ref().to_string_lossy().replace('_', "-");
        word.contains("thread-handling=pool-of-threads")
    };
    let is_pool = command.iter().any(is_pool);
    is_pool.then(|| "a thread of a pool serves many connections".to_owned())
}

/// The area of one class of clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassArea {
    /// The class.
    pub client_class: String,
    /// Its cores; `None` if its threads are on their own ones.
    pub cores: Option<CoreSet>,
    /// The most threads that were in it at a time.
    pub threads_most: usize,
}

/// The areas of a server and their counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct AreasSeen {
    /// Indexed by the number of the class.
    classes: Vec<ClassArea>,
    /// Counts since the beginning.
    tally: AreaTally,
}

/// The areas of a server: who decides on them, their cores, and counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AreasSummary {
    /// The source of the areas: `fixed`, or the name of the policy.
    by: &'static str,
    /// How often a thread was moved to an area.
    moves: u64,
    /// Moves that were refused, and threads that are not the server's.
    refused: u64,
    /// Processes whose threads serve several connections each, and were not moved.
    pools: u64,
    /// The last area of each class.
    classes: Vec<ClassArea>,
}

impl AreasSummary {
    /// Reports moves that were refused, if any were.
    pub fn refusals(&self) -> Option<String> {
        let refused = self.refused;
        (refused > 0).then(|| {
            format!("{refused} moves to areas were refused: those threads ran on their own cores")
        })
    }
}

impl fmt::Display for AreasSummary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ClassArea { client_class, cores, threads_most } in &self.classes {
            if let Some(cores) = cores {
                write!(out, "\n  area of {client_class} ({}): cores {cores}", self.by)?;
                write!(out, ", {threads_most} threads at most")?;
            }
        }
        Ok(())
    }
}

/// Areas that are kept by a thread until this is dropped.
#[derive(Debug)]
pub struct LiveAreas {
    name: &'static str,
    orders: Option<Sender<Order>>,
    changes: Receiver<String>,
    seen: Arc<Mutex<AreasSeen>>,
    thread: Option<JoinHandle<()>>,
    has_reported_pool: bool,
}

/// The work of the thread that keeps the areas.
struct Work {
    decider: Decider,
    areas: ThreadAreas,
    runtime: Arc<Runtime>,
    classes: Vec<String>,
    /// Indexed by class: the largest number of threads in its area at a time.
    threads_most: Vec<usize>,
    changes: Sender<String>,
    seen: Arc<Mutex<AreasSeen>>,
}

impl LiveAreas {
    /// Starts to keep the threads of a server in their areas.
    ///
    /// # Errors
    /// If a class, a core or a key does not exist, or no thread can be started.
    pub fn start(plan: &AreaPlan, runtime: &Arc<Runtime>) -> Result<Self, AreaError> {
        let classes: Vec<String> =
            runtime.client_classes().into_iter().map(|class| class.name).collect();
        let machine = probe::machine(&Roots::default())
            .map_err(|error| AreaError::Other(format!("the cores are not known: {error}")))?;
        let decider = plan.decider(&classes, machine)?;
        let name = decider.name();
        let (orders, orders_out) = channel();
        let (changes, changes_out) = channel();
        let seen = Arc::new(Mutex::new(AreasSeen::default()));
        let mut work = Work {
            decider,
            areas: ThreadAreas::new(Arc::clone(runtime), &Roots::default()),
            runtime: Arc::clone(runtime),
            threads_most: vec![0; classes.len()],
            classes,
            changes,
            seen: Arc::clone(&seen),
        };
        let thread = std::thread::Builder::new()
            .name("lull-areas".to_owned())
            .spawn(move || work.run(&orders_out))
            .map_err(|error| AreaError::Other(format!("cannot start a thread: {error}")))?;
        let (orders, thread) = (Some(orders), Some(thread));
        let has_reported_pool = false;
        Ok(Self { name, orders, changes: changes_out, seen, thread, has_reported_pool })
    }

    /// Returns what decides on them: `fixed`, or the policy.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Stops deciding, restores all threads' own cores, or continues.
    pub fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // Sending fails only if the thread panicked, and then all cores are given back.
            let _ = orders.send(order);
        }
    }

    /// Returns the last change of areas since the last call, with the reason.
    pub fn take_change(&self) -> Option<String> {
        self.changes.try_iter().last()
    }

    /// Reports, once, that threads of the server serve several connections each.
    pub fn take_pool_report(&mut self) -> Option<&'static str> {
        let is_new = !self.has_reported_pool && self.seen().tally.pools > 0;
        self.has_reported_pool |= is_new;
        is_new.then_some(SHARES_THREADS)
    }

    /// Describes the areas as they are now; empty without any.
    pub fn describe(&self) -> String {
        let classes = self.seen().classes;
        let areas = describe(classes.iter().map(|class| (&class.client_class, &class.cores)));
        if areas.is_empty() { areas } else { format!("{}: {areas}", self.name) }
    }

    fn seen(&self) -> AreasSeen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives all threads their own cores back. Returns what the areas have counted before that.
    pub fn finish(mut self) -> AreasSummary {
        let AreasSeen { classes, tally } = self.seen();
        self.join();
        let refused = tally.refused + tally.foreign;
        AreasSummary { by: self.name, moves: tally.moves, refused, pools: tally.pools, classes }
    }

    fn join(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed its message, and has given the cores back.
            let _ = thread.join();
        }
    }
}

impl Drop for LiveAreas {
    fn drop(&mut self) {
        self.join();
    }
}

impl Work {
    fn run(&mut self, orders: &Receiver<Order>) {
        let mut statistics = self.runtime.statistics();
        self.areas.set_areas(self.decider.areas().to_vec());
        let first = self.describe();
        if !first.is_empty() {
            self.report_change(first);
        }
        let (mut readings, mut order) = (0_u32, Order::Resume);
        loop {
            match orders.recv_timeout(PERIOD) {
                Ok(Order::MachineChanged) | Err(RecvTimeoutError::Timeout) => {}
                Ok(next) => order = next,
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let (connections, now) = (statistics.connections(), monotonic());
            let is_bypassed = self.runtime.bypassed_since_s().is_some();
            let rests = is_bypassed || order != Order::Resume;
            if let Some(reason) = self.decider.look(now, &connections, rests) {
                self.areas.set_areas(self.decider.areas().to_vec());
                self.report_change(format!("{} ({reason})", self.describe()));
            }
            // A thread without a connection has its own cores.
            let none: &[ConnectionSeen] = &[];
            self.areas.step(now, if order == Order::Open { none } else { &connections });
            readings = readings.wrapping_add(1);
            if readings.is_multiple_of(READINGS_BETWEEN_LOOKS) {
                self.areas.free_inherited();
            }
            for (class, most) in self.threads_most.iter_mut().enumerate() {
                *most = self.areas.threads_of(class).max(*most);
            }
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = self.report();
        }
        // All threads are in no area now, and those that they have started follow.
        self.areas.step(monotonic(), &[]);
        self.areas.free_inherited();
    }

    fn report_change(&self, change: String) {
        // The receiver may be gone: the command ends.
        let _ = self.changes.send(change);
    }

    fn report(&self) -> AreasSeen {
        let each = self.classes.iter().zip(self.decider.areas()).zip(&self.threads_most);
        let class = |((name, cores), most): ((&String, &Option<CoreSet>), &usize)| ClassArea {
            client_class: name.clone(),
            cores: cores.clone(),
            threads_most: *most,
        };
        AreasSeen { classes: each.map(class).collect(), tally: self.areas.tally() }
    }

    /// Describes the areas.
    fn describe(&self) -> String {
        describe(self.classes.iter().zip(self.decider.areas()))
    }
}

/// Describes the areas of classes.
fn describe<'a>(areas: impl Iterator<Item = (&'a String, &'a Option<CoreSet>)>) -> String {
    let words =
        areas.filter_map(|(name, cores)| Some(format!("{name} on cores {}", cores.as_ref()?)));
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
