//! What is known of an app's processes between two observations.

use crate::apps::ProcessId;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// What is known of an app's processes between two observations.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Whether a process ran when it was looked at last.
    pub(super) is_present: bool,
    /// The oldest process, which becomes readable when it ends.
    pub(super) leader: Option<(ProcessId, OwnedFd)>,
    /// Whether its end makes the descriptor of all leaders readable.
    pub(super) is_watched: bool,
    /// The processes that ran at the last observation.
    observed: BTreeSet<ProcessId>,
}

impl Presence {
    /// Takes the processes that run at the end of an epoch; returns whether all are others
    /// than at the end of the last one.
    pub(super) fn observe(&mut self, now: BTreeSet<ProcessId>) -> bool {
        let is_new = !now.is_empty() && !self.observed.is_empty();
        let restarted = is_new && now.is_disjoint(&self.observed);
        self.observed = now;
        restarted
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
        assert!(!presence.observe(set(&[1, 2])), "an arrival is no restart");
        assert!(!presence.observe(set(&[2, 3])));
        assert!(presence.observe(set(&[4])));
        assert!(!presence.observe(set(&[])), "a departure is no restart");
        assert!(!presence.observe(set(&[5])));
    }
}
