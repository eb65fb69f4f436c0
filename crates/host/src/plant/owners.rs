//! Which app has which process: no process is managed for two apps.

use super::app::RunningApp;
use crate::apps::ProcessId;
use std::collections::{BTreeMap, BTreeSet};

/// The owner of every process, by index of the app, and the overlaps that were reported.
#[derive(Debug, Default)]
pub(super) struct Owners {
    of: BTreeMap<ProcessId, usize>,
    reported: BTreeSet<(usize, usize)>,
}

/// A process that two apps claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) process: ProcessId,
    /// The apps, by index, lower first.
    pub(super) apps: (usize, usize),
    /// The app that had the process before and keeps it; `None` if neither app had it, so that it
    /// is left unmanaged.
    pub(super) owner: Option<usize>,
}

impl Owners {
    /// Removes every process that several apps claim from all apps but its former one.
    /// Returns the overlaps that were not reported yet, one a pair of apps.
    pub(super) fn settle(&mut self, apps: &mut [RunningApp]) -> Vec<Overlap> {
        let lists: Vec<Vec<ProcessId>> =
            apps.iter().map(|app| app.handle.claims().collect()).collect();
        let (overlaps, owners) = self.divide(&lists);
        for overlap in &overlaps {
            for index in [overlap.apps.0, overlap.apps.1] {
                if overlap.owner != Some(index) {
                    apps[index].handle.leave_out(overlap.process);
                }
            }
        }
        self.of = owners;
        overlaps.into_iter().filter(|one| self.reported.insert(one.apps)).collect()
    }

    fn divide(&self, lists: &[Vec<ProcessId>]) -> (Vec<Overlap>, BTreeMap<ProcessId, usize>) {
        let mut owners = BTreeMap::new();
        let mut overlaps = Vec::new();
        for (index, list) in lists.iter().enumerate() {
            for process in list {
                let Some(other) = owners.insert(*process, index) else { continue };
                let before = self.of.get(process).copied();
                let claims = |owner: &usize| *owner == other || *owner == index;
                let owner = before.filter(claims);
                overlaps.push(Overlap { process: *process, apps: (other, index), owner });
                owners.insert(*process, owner.unwrap_or(other));
            }
        }
        for overlap in overlaps.iter().filter(|one| one.owner.is_none()) {
            owners.remove(&overlap.process);
        }
        (overlaps, owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn process(pid: i32) -> ProcessId {
        ProcessId { pid, start_ticks: 7 }
    }

    #[test]
    fn a_process_stays_with_the_app_that_had_it_and_a_new_one_goes_to_none() {
        let mut owners = Owners::default();
        let (overlaps, of) = owners.divide(&[vec![process(1)], vec![process(2)]]);
        assert!(overlaps.is_empty());
        owners.of = of;
        let lists = [vec![process(1), process(3)], vec![process(1), process(2), process(3)]];
        let (overlaps, of) = owners.divide(&lists);
        let apps = (0, 1);
        let kept = Overlap { process: process(1), apps, owner: Some(0) };
        let lost = Overlap { process: process(3), apps, owner: None };
        assert_eq!(overlaps, [kept, lost]);
        assert_eq!(of, BTreeMap::from([(process(1), 0), (process(2), 1)]));
    }
}
