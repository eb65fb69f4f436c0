//! Areas of cores for the classes of clients of one live server: fixed ones, or those that the
//! policy `qos-wc` draws.
//!
//! `qos-wc` (REEF, SoCC'25, section 3.5) groups threads by their objectives and moves cores
//! between the groups. Between apps it does so under `lull run`; here each class of clients is an
//! app to it, with the latencies of the class's connections. The code of the policy is the same.
//! What it decides becomes the affinity of the threads that serve the connections
//! ([`ThreadAreas`]).

mod decider;

use decider::Decider;
use lull_control::{CoreSet, Objective, WrittenObjective};
use lull_host::oncall::{AreaTally, Runtime, ThreadAreas};
use lull_host::{Roots, monotonic, probe};
use lull_oncall::CONNECTIONS;
use serde::Deserialize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two readings of the page: a new connection's thread is in its area after it.
const PERIOD: Duration = Duration::from_millis(20);

/// Readings between two looks for threads that have inherited an area.
const READINGS_BETWEEN_LOOKS: u32 = 50;

/// The policy that draws areas by objectives.
const POLICY: &str = "qos-wc";

/// What an area has to have.
const NEEDS: &str = "needs cores = \"0-3\", or for qos-wc connections = 4 and \
                     objective = { p95 = \"20ms\" }";

/// The area of a class of clients, as it is written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Area {
    client_class: String,
    /// Its cores, if they are fixed.
    cores: Option<CoreSet>,
    /// How many of its connections have a query at a time, for `qos-wc`.
    connections: Option<u32>,
    /// What its connections are promised, for `qos-wc`.
    objective: Option<WrittenObjective>,
}

impl Area {
    /// Returns its cores, or its connections and what they are promised.
    fn wants(&self) -> Result<Wants, String> {
        match (&self.cores, self.connections, &self.objective) {
            (Some(cores), None, None) if !cores.is_empty() => Ok(Wants::Cores(cores.clone())),
            (None, Some(connections), Some(objective)) => {
                if !(1..=CONNECTIONS as u32).contains(&connections) {
                    return Err(format!("connections is {connections}, not in 1 to {CONNECTIONS}"));
                }
                Ok(Wants::Objective { connections, objective: objective.0 })
            }
            _ => Err(NEEDS.to_owned()),
        }
    }
}

/// What a class of clients has of the cores.
#[derive(Debug, Clone, PartialEq)]
enum Wants {
    /// These.
    Cores(CoreSet),
    /// As many as `qos-wc` gives it for this.
    Objective { connections: u32, objective: Objective },
}

/// The areas of the classes of a server.
#[derive(Debug, Clone)]
pub struct AreaPlan {
    areas: Vec<(String, Wants)>,
    keys: toml::Table,
}

impl AreaPlan {
    /// Checks areas, and the keys of `qos-wc`.
    ///
    /// # Errors
    /// What is wrong, with the index of the area.
    pub fn new(areas: &[Area], keys: toml::Table) -> Result<Self, (usize, String)> {
        let mut all: Vec<(String, Wants)> = Vec::new();
        for (at, area) in areas.iter().enumerate() {
            let wants = area.wants().map_err(|message| (at, message))?;
            if all.iter().any(|(class, _)| *class == area.client_class) {
                let message = format!("class `{}` has an area already", area.client_class);
                return Err((at, message));
            }
            let is_fixed = |wants: &Wants| matches!(wants, Wants::Cores(_));
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
        Ok(Self { areas: all, keys })
    }

    /// Returns the decider for the classes of a gate, by their names.
    fn decider(&self, classes: &[String]) -> Result<Decider, String> {
        let mut wants: Vec<Option<Wants>> = vec![None; classes.len()];
        for (class, wanted) in &self.areas {
            let Some(at) = classes.iter().position(|name| name == class) else {
                return Err(format!("class `{class}` is no class of the gate: add it first"));
            };
            wants[at] = Some(wanted.clone());
        }
        let machine = probe::machine(&Roots::default())
            .map_err(|error| format!("the cores are not known: {error}"))?;
        Decider::new(classes, &wants, &self.keys, machine)
    }
}

/// The area of one class of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassArea {
    /// The class.
    pub client_class: String,
    /// Its cores; `None` if its threads are on their own ones.
    pub cores: Option<CoreSet>,
    /// The most threads that were in it at a time.
    pub threads_most: usize,
}

/// The areas of a server and what they have counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AreasSeen {
    /// By the number of the class.
    pub classes: Vec<ClassArea>,
    /// What was counted since the beginning.
    pub tally: AreaTally,
}

/// Areas that are kept by a thread until this is dropped.
#[derive(Debug)]
pub struct LiveAreas {
    name: &'static str,
    stop: Option<Sender<()>>,
    changes: Receiver<String>,
    seen: Arc<Mutex<AreasSeen>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has.
struct Work {
    decider: Decider,
    areas: ThreadAreas,
    runtime: Arc<Runtime>,
    classes: Vec<String>,
    /// By class, the most threads that were in its area at a time.
    threads_most: Vec<usize>,
    changes: Sender<String>,
    seen: Arc<Mutex<AreasSeen>>,
}

impl LiveAreas {
    /// Starts to keep the threads of a server in their areas.
    ///
    /// # Errors
    /// If a class, a core or a key does not exist, or no thread can be started.
    pub fn start(plan: &AreaPlan, runtime: &Arc<Runtime>) -> Result<Self, String> {
        let classes: Vec<String> =
            runtime.client_classes().into_iter().map(|class| class.name).collect();
        let decider = plan.decider(&classes)?;
        let name = decider.name();
        let (stop, stopped) = channel();
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
            .spawn(move || work.run(&stopped))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { name, stop, changes: changes_out, seen, thread })
    }

    /// Returns what decides on them: `fixed`, or the policy.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the last change of areas since the last call, with the reason.
    pub fn take_change(&self) -> Option<String> {
        self.changes.try_iter().last()
    }

    /// Returns the areas and what they have counted so far.
    pub fn seen(&self) -> AreasSeen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives all threads their own cores back. Returns the areas before that.
    pub fn stop(mut self) -> AreasSeen {
        let seen = self.seen();
        self.join();
        seen
    }

    fn join(&mut self) {
        drop(self.stop.take());
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
    fn run(&mut self, stopped: &Receiver<()>) {
        let mut statistics = self.runtime.statistics();
        self.areas.set_areas(self.decider.areas().to_vec());
        let mut readings = 0_u32;
        while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            let (connections, now) = (statistics.connections(), monotonic());
            let is_bypassed = self.runtime.bypassed_since_s().is_some();
            if let Some(reason) = self.decider.look(now, &connections, is_bypassed) {
                self.areas.set_areas(self.decider.areas().to_vec());
                let change = format!("{} ({reason})", self.describe());
                // The receiver may be gone: the command ends.
                let _ = self.changes.send(change);
            }
            self.areas.step(now, &connections);
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

    fn report(&self) -> AreasSeen {
        let each = self.classes.iter().zip(self.decider.areas()).zip(&self.threads_most);
        let class = |((name, cores), most): ((&String, &Option<CoreSet>), &usize)| ClassArea {
            client_class: name.clone(),
            cores: cores.clone(),
            threads_most: *most,
        };
        AreasSeen { classes: each.map(class).collect(), tally: self.areas.tally() }
    }

    /// Returns the areas in words.
    fn describe(&self) -> String {
        let each = self.classes.iter().zip(self.decider.areas());
        let words = each.filter_map(|(name, cores)| {
            cores.as_ref().map(|cores| format!("{name} on cores {cores}"))
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests;
