//! When apps arrive at a machine, leave it and are restarted.
//!
//! When an app leaves, its threads end where they are: requests that it has not answered are
//! lost, and its lines in the cache are gone. Its processes of a later arrival begin with all
//! cores, the normal scheduling class, all ways and all bandwidth, as new processes on a host
//! do. The requests of an app are the same whenever it is present: those that are due while it
//! is absent are skipped.

use crate::model::{Checked, refuse_if};
use lull_control::RosterEvent;
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// When an app is on the machine, since the start. An app whose first change is an arrival is
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
            let refuse = |wrong, why| refuse_if(wrong, format!("{key}.presence.{which}"), why);
            refuse(
                time <= last,
                "each change of an app must be later than 0s and than the one before",
            )?;
            let (arrives, restarts) =
                (event == RosterEvent::Arrived, event == RosterEvent::Restarted);
            let leaves = event == RosterEvent::Departed;
            refuse(
                arrives && is_present,
                "the app arrives while it is present: let it leave before that",
            )?;
            refuse(
                leaves && !is_present,
                "the app leaves while it is absent: let it arrive before that",
            )?;
            let absent = "the app restarts while it is absent: let it arrive before that";
            refuse(restarts && !is_present, absent)?;
            is_present = !leaves;
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
