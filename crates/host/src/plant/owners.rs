//! Which app has which process: no process is managed for two apps.

use super::app::RunningApp;
use crate::apps::ProcessId;
use std::collections::{BTreeMap, BTreeSet};

/// The owner of every process, by index of the app, and the overlaps that were reported.
#[derive(Debug, Default)]
pub(super) struct Owners {
    of: BTreeMap<ProcessId, usize>,
    /// Whether apps claimed a process of others at the last check of all.
    has_overlaps: bool,
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
        self.has_overlaps = !overlaps.is_empty();
        overlaps.into_iter().filter(|one| self.reported.insert(one.apps)).collect()
    }

    /// The app that has a process, by index.
    pub(super) fn owner(&self, process: ProcessId) -> Option<usize> {
        self.of.get(&process).copied()
    }

    /// Takes in the claims of a few apps, by index, if no other app has those processes; else
    /// returns false, and all apps have to be checked.
    pub(super) fn take_in(&mut self, claims: &[(usize, Vec<ProcessId>)]) -> bool {
        let all = || {
            let each = claims.iter();
            each.flat_map(|(index, list)| list.iter().map(move |process| (*process, *index)))
        };
        let mut new = BTreeSet::new();
        let is_free = |(process, index): (ProcessId, usize)| {
            new.insert(process) && self.of.get(&process).is_none_or(|owner| *owner == index)
        };
        if self.has_overlaps || !all().all(is_free) {
            return false;
        }
        self.of.retain(|_, owner| claims.iter().all(|(index, _)| *index != *owner));
        self.of.extend(all());
        true
    }

    /// Forgets the processes of an id and the overlaps that were reported of it, because another
    /// app has the id from now on.
    pub(super) fn forget(&mut self, index: usize) {
        self.of.retain(|_, owner| *owner != index);
        self.reported.retain(|(first, second)| *first != index && *second != index);
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

    #[test]
    fn claims_of_a_few_apps_are_taken_in_unless_another_app_has_a_process_of_them() {
        let of = BTreeMap::from([(process(1), 0), (process(2), 1), (process(3), 2)]);
        let mut owners = Owners { of, ..Owners::default() };
        assert!(owners.take_in(&[(0, vec![process(4)]), (1, vec![process(2), process(5)])]));
        let of =
            BTreeMap::from([(process(2), 1), (process(3), 2), (process(4), 0), (process(5), 1)]);
        assert_eq!(owners.of, of);
        assert!(!owners.take_in(&[(0, vec![process(3)])]), "another app has it");
        assert!(!owners.take_in(&[(0, vec![process(6)]), (1, vec![process(6)])]), "both are new");
        assert_eq!(owners.of, of, "nothing of it is taken in");
        owners.has_overlaps = true;
        assert!(!owners.take_in(&[]));
    }

    #[test]
    fn processes_and_overlaps_of_an_app_are_forgotten_with_it() {
        let of = BTreeMap::from([(process(1), 0), (process(2), 1)]);
        let reported = BTreeSet::from([(0, 1), (0, 2), (1, 2)]);
        let mut owners = Owners { of, reported, ..Owners::default() };
        owners.forget(1);
        assert_eq!(owners.of, BTreeMap::from([(process(1), 0)]));
        assert_eq!(owners.reported, BTreeSet::from([(0, 2)]));
    }
}
