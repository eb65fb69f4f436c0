//! The state of an app's processes between two observations.

use crate::apps::ProcessId;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// The state of an app's processes between two observations.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Whether a process ran at the last check.
    pub(super) is_present: bool,
    /// The oldest process, which becomes readable when it ends.
    pub(super) leader: Option<(ProcessId, OwnedFd)>,
    /// Whether its end makes the descriptor of all leaders readable.
    pub(super) is_watched: bool,
    /// The processes that ran at the last observation.
    observed: BTreeSet<ProcessId>,
    /// Whether none ran at the last observation, and some did at the one before.
    is_missed: bool,
}

impl Presence {
    /// Takes the processes that run at the end of an epoch; returns whether all differ from those
    /// at the end of the last one.
    pub(super) fn observe(&mut self, now: BTreeSet<ProcessId>) -> bool {
        let is_new = !now.is_empty() && !self.observed.is_empty();
        let restarted = is_new && now.is_disjoint(&self.observed);
        self.observed = now;
        restarted
    }

    /// Whether the app has departed, as far as that is known: without a process at this observation
    /// and at the last one, and with some before. One that restarts in between is the same app.
    /// Called once after each [`Presence::observe`], with whether a process ran before it.
    pub(super) fn has_departed(&mut self, was_observed: bool) -> bool {
        let is_observed = self.was_observed();
        let was_missed = std::mem::replace(&mut self.is_missed, was_observed && !is_observed);
        was_missed && !is_observed
    }

    /// Whether a process ran at the last observation.
    pub(super) fn was_observed(&self) -> bool {
        !self.observed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pids: &[i32]) -> BTreeSet<ProcessId> {
        pids.iter().map(|pid| ProcessId { pid: *pid, start_ticks: 1 }).collect()
    }

    #[test]
    fn an_app_is_restarted_when_none_of_its_processes_is_left_and_others_run() {
        let mut presence = Presence::default();
        assert!(!presence.observe(set(&[1, 2])), "an arrival is not a restart");
        assert!(!presence.observe(set(&[2, 3])));
        assert!(presence.observe(set(&[4])));
        assert!(!presence.observe(set(&[])), "a departure is not a restart");
        assert!(!presence.observe(set(&[5])));
    }

    #[test]
    fn an_app_has_departed_when_it_is_absent_twice_in_a_row() {
        let mut presence = Presence::default();
        let seen = |pids: &[i32]| {
            let was_observed = presence.was_observed();
            presence.observe(set(pids));
            presence.has_departed(was_observed)
        };
        let each: [&[i32]; 9] = [&[], &[], &[1], &[], &[2], &[], &[], &[], &[3]];
        let departed = each.map(seen);
        assert_eq!(departed, [false, false, false, false, false, false, true, false, false]);
    }
}
