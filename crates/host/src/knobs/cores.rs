//! The cores of an app: affinity of each of its threads.
//!
//! Threads of one app may be bound differently before Lull comes; then the
//! app reads as the union. The kernel leaves out of a mask what is offline or
//! outside the cpuset of the app's cgroup. When a cpuset changes, its threads get what it has of
//! the cores that were set, and all of it if that is nothing. Before Linux 6.2 they always get all
//! of it (`set_cpus_allowed_ptr` in `kernel/cgroup/cpuset.c`).

use super::threads::{Deviation, Limits, ThreadValue, values};
use crate::Roots;
use crate::guard::{FieldValue, Original, cores_of_process, online};
use crate::sys::sched::{cores_of, mask_from, mask_of, set_mask};
use crate::threads::LiveThread;
use lull_control::CoreSet;
use rustix::thread::CpuSet;
use std::io;

/// The cores that a thread may run on, as the kernel has them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Affinity(CpuSet);

impl ThreadValue for Affinity {
    const WHAT: &'static str = "cores";
    type Wanted = CoreSet;
    /// The cores that are online and in the cpuset; `None` if they cannot be read.
    type Limit = Option<CoreSet>;

    fn get(tid: i32) -> io::Result<Self> {
        mask_of(tid).map(Self)
    }

    fn set(self, tid: i32) -> io::Result<()> {
        set_mask(tid, &self.0)
    }

    fn fields(self, found: Self) -> Vec<FieldValue> {
        if self == found { Vec::new() } else { vec![FieldValue::Cores(cores_of(&self.0))] }
    }

    fn aim(wanted: &CoreSet, _: Self) -> Self {
        Self(mask_from(wanted))
    }

    fn owners(original: &Original, _: Self) -> Option<Self> {
        let Original::Thread { affinity, .. } = original else { return None };
        Some(Self(mask_from(affinity)))
    }

    fn is_within(aim: Self, found: Self) -> bool {
        cores_of(&found.0).is_subset(&cores_of(&aim.0))
    }

    fn limit(roots: &Roots, pid: i32) -> Self::Limit {
        cores_of_process(roots, pid).or_else(|| online(roots))
    }

    fn deviation(
        wanted: &CoreSet,
        ours: Self,
        found: Self,
        limits: &Limits<'_, Self::Limit>,
    ) -> Deviation {
        let Some(now) = limits.now else { return Deviation::Foreign };
        let found = cores_of(&found.0);
        let is_cut = |cores: &CoreSet| found == cores.intersection(now);
        if is_cut(wanted) || is_cut(&cores_of(&ours.0)) {
            return Deviation::Limited;
        }
        let has_changed = limits.at_write.is_some_and(|before| before != limits.now);
        if found == *now && has_changed { Deviation::Replaced } else { Deviation::Foreign }
    }

    fn show(self) -> String {
        cores_of(&self.0).to_string()
    }
}

/// The cores on which any of these threads may run; `None` if none lives.
pub(crate) fn cores(threads: &[LiveThread]) -> Option<CoreSet> {
    let mut union: Option<CpuSet> = None;
    for (_, Affinity(mask)) in values(threads) {
        match &mut union {
            None => union = Some(mask),
            Some(union) if *union == mask => {}
            Some(union) => add(union, &mask),
        }
    }
    union.map(|mask| cores_of(&mask))
}

fn add(to: &mut CpuSet, mask: &CpuSet) {
    for core in (0..CpuSet::MAX_CPU).filter(|core| mask.is_set(*core)) {
        to.set(core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn affinity(cores: &str) -> Affinity {
        Affinity(mask_from(&cores.parse().unwrap()))
    }

    /// Returns what is made of `found` in a thread of process 7 that was set to `ours` when its
    /// limit was `at_write`.
    fn deviation(tree: &Tree, at_write: &str, ours: &str, found: &str) -> Deviation {
        let at_write = at_write.parse().ok();
        let now = Affinity::limit(&tree.roots(), 7);
        let limits = Limits { at_write: Some(&at_write), now: &now };
        Affinity::deviation(&"1-2".parse().unwrap(), affinity(ours), affinity(found), &limits)
    }

    #[test]
    fn a_core_that_goes_offline_is_no_foreign_change() {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-1,3\n");
        let deviates = |ours, found| deviation(&tree, "0-3", ours, found);
        assert_eq!(deviates("1-2", "1"), Deviation::Limited, "core 2 went offline");
        assert_eq!(deviates("1-2", "3"), Deviation::Foreign);
        assert_eq!(deviates("1-2", "1,3"), Deviation::Foreign);
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        assert_eq!(deviates("1", "1-2"), Deviation::Limited, "core 2 is online again");
        assert_eq!(deviates("1-2", "1"), Deviation::Foreign);
    }

    #[test]
    fn a_cpuset_that_changes_is_no_foreign_change() {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-5\n");
        tree.write("proc/7/cpuset", "/pod\n");
        let allow = |cores| tree.write("sys/fs/cgroup/pod/cpuset.cpus.effective", cores);
        allow("0-1");
        let deviates = |found| deviation(&tree, "0-5", "1-2", found);
        assert_eq!(deviates("1"), Deviation::Limited, "the cpuset has lost core 2");
        assert_eq!(deviates("0"), Deviation::Foreign);
        assert_eq!(deviates("0-1"), Deviation::Replaced, "as before Linux 6.2");
        allow("3-4");
        assert_eq!(deviates("3-4"), Deviation::Replaced, "the cpuset has none of its cores");
        assert_eq!(deviates("3"), Deviation::Foreign);
        let found = deviation(&tree, "3-4", "3-4", "0-5");
        assert_eq!(found, Deviation::Foreign, "no cpuset allows these cores");
        allow("0-5");
        let found = deviation(&tree, "0-5", "1-2", "0-5");
        assert_eq!(found, Deviation::Foreign, "the cpuset has not changed");
    }

    #[test]
    fn the_kernel_may_take_away_and_never_add() {
        assert!(Affinity::is_within(affinity("0-3"), affinity("1")));
        assert!(!Affinity::is_within(affinity("0"), affinity("0-1")));
    }
}
