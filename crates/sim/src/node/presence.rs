//! Apps that arrive at a node, leave it and are restarted.
//!
//! When an app leaves, its threads end where they are: requests that it has not answered are
//! lost, and its lines in the cache are gone. Its processes of a later arrival begin with all
//! cores, the normal scheduling class, all ways and all bandwidth, as new processes on a host
//! do. The requests of an app are the same whenever it is present: those that are due while it
//! is absent are skipped.

use super::queue::{NICE_0_WEIGHT, NO_TASK, NORMAL, State, ThreadScheduling};
use super::{NodeSimulation, Work};
use crate::model::{Checked, Problem, fail};
use crate::order::NEVER_NS;
use lull_control::RosterEvent;
use lull_measure::{Latency, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// When an app is on the node, since the start. An app whose first change is an arrival is
/// absent before; any other is present from the start. Arrivals and departures alternate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Presence {
    /// When it arrives.
    pub arrives: Vec<Nanos>,
    /// When it leaves.
    pub leaves: Vec<Nanos>,
    /// When all its processes are replaced by new ones at once; it is present then.
    pub restarts: Vec<Nanos>,
}

/// A change that is due.
pub(super) type DueChange = (u64, usize, RosterEvent);

impl Presence {
    /// Whether the app is present from the start.
    pub fn begins_present(&self) -> bool {
        match (self.arrives.first(), self.leaves.first()) {
            (Some(arrives), Some(leaves)) => leaves < arrives,
            (arrives, _) => arrives.is_none(),
        }
    }

    /// All changes in order of time, each with the name of its key.
    pub fn changes(&self) -> Vec<(Nanos, RosterEvent, &'static str)> {
        let of = |times: &[Nanos], event, key| {
            times.iter().map(move |time| (*time, event, key)).collect::<Vec<_>>()
        };
        let mut all = of(&self.arrives, RosterEvent::Arrived, "arrives");
        all.extend(of(&self.leaves, RosterEvent::Departed, "leaves"));
        all.extend(of(&self.restarts, RosterEvent::Restarted, "restarts"));
        all.sort_by_key(|(time, ..)| *time);
        all
    }

    /// Checks that every change can happen when it is due.
    pub(super) fn check(&self, key: &str) -> Checked {
        let mut is_present = self.begins_present();
        let mut last = Nanos::ZERO;
        for (time, event, which) in self.changes() {
            let conflict =
                |problem| fail(format!("{key}.presence.{which}"), Problem::Conflict(problem));
            if time <= last {
                return conflict(
                    "each change of an app must be later than 0s and than the one before",
                );
            }
            match (event, is_present) {
                (RosterEvent::Arrived, true) => {
                    return conflict("it arrives while it is present: let it leave before");
                }
                (RosterEvent::Departed, false) => {
                    return conflict("it leaves while it is absent: let it arrive before");
                }
                (RosterEvent::Restarted, false) => {
                    return conflict("it is restarted while it is absent: let it arrive before");
                }
                _ => is_present = event != RosterEvent::Departed,
            }
            last = time;
        }
        Ok(())
    }
}

/// The changes of all apps, whose presence was checked, in order.
pub(super) fn due_changes<'a>(apps: impl Iterator<Item = &'a Presence>) -> VecDeque<DueChange> {
    let of_app = |(at, presence): (usize, &Presence)| {
        let changes = presence.changes().into_iter();
        changes.map(move |(time, event, _)| (time.0, at, event)).collect::<Vec<_>>()
    };
    let mut all: Vec<DueChange> = apps.enumerate().flat_map(of_app).collect();
    all.sort_by_key(|(time_ns, at, _)| (*time_ns, *at));
    all.into()
}

/// How the threads of new processes are scheduled.
pub(super) fn neutral(cores: usize) -> ThreadScheduling {
    ThreadScheduling { mask: u64::MAX >> (64 - cores), rank: NORMAL, weight: NICE_0_WEIGHT }
}

impl NodeSimulation {
    /// Whether an app is on the node.
    pub fn is_present(&self, app: usize) -> bool {
        self.apps[app].present.value() > 0
    }

    /// Lets an app change now. One that is already as it would be stays so.
    pub fn change(&mut self, app: usize, event: RosterEvent) {
        if self.is_present(app) && event != RosterEvent::Arrived {
            self.depart(app);
        } else if event != RosterEvent::Arrived {
            return;
        }
        if event != RosterEvent::Departed && !self.is_present(app) {
            self.arrive_app(app);
        }
    }

    /// Lets the changes that are due happen, and waits for the next.
    pub(super) fn roster_event(&mut self) {
        while let Some((_, app, event)) =
            self.roster.pop_front_if(|(due_ns, ..)| *due_ns <= self.now_ns)
        {
            self.change(app, event);
        }
        self.expect_change();
    }

    pub(super) fn expect_change(&mut self) {
        let next_ns = self.roster.front().map_or(NEVER_NS, |(due_ns, ..)| *due_ns);
        self.set_clock(self.refresh_leaf() + 2, next_ns);
    }

    /// Makes an app absent that has not started.
    pub(super) fn withhold(&mut self, app: usize) {
        self.apps[app].present.set(self.now_ns, 0);
        self.contention.remove(app);
    }

    fn arrive_app(&mut self, app: usize) {
        self.apps[app].present.set(self.now_ns, 1);
        self.apps[app].treatment = neutral(self.cores.len());
        self.contention.admit(app);
        self.start_app(app);
    }

    fn depart(&mut self, app: usize) {
        let now_ns = self.now_ns;
        let of_app = |thread: &usize| self.threads[*thread].app == app;
        let mine: Vec<usize> = (0..self.threads.len()).filter(of_app).collect();
        for thread in mine.iter().copied() {
            let core = self.threads[thread].core;
            match self.threads[thread].state {
                State::Sleeping => {}
                State::Queued => self.dequeue(core, thread),
                State::Running => drop(self.halt(core)),
            }
            let clock_ns = self.cores[core].clock_ns;
            let ended = &mut self.threads[thread];
            (ended.state, ended.left_ns, ended.task) = (State::Sleeping, 0.0, NO_TASK);
            ended.virtual_ns = clock_ns;
        }
        let client = self.client_of(app);
        if let Some(desk) = client.and_then(|client| self.desk_mut(client)) {
            desk.queue.retain(|task| task.owner != app);
        }
        if let Some(desk) = self.desk_mut(app) {
            desk.queue.clear();
            desk.free = mine.into_iter().rev().collect();
        }
        let state = &mut self.apps[app];
        if let Work::Phases { threads, waiting, .. } = &mut state.work {
            *waiting = threads.len();
        }
        state.life += 1;
        state.present.set(now_ns, 0);
        state.lost += u64::from(state.outstanding.value());
        state.outstanding.set(now_ns, 0);
        state.window = Latency::default();
        self.set_clock(self.cores.len() + app, NEVER_NS);
        self.contention.remove(app);
        self.settle();
    }
}
