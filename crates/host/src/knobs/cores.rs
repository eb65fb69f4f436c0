//! The cores of an app: affinity of each of its threads.
//!
//! Threads of one app may be bound differently before Lull comes; then the
//! app reads as the union. The kernel leaves out of a mask what is offline or
//! outside the cpuset of the app's cgroup.

use super::threads::{ThreadValue, values};
use crate::Roots;
use crate::files::read_text;
use crate::guard::{FieldValue, Original};
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

    /// A core that goes offline leaves all masks, and is back in them later.
    fn is_explained(wanted: &CoreSet, ours: Self, found: Self, roots: &Roots) -> bool {
        let online = read_text(&roots.sys.join("devices/system/cpu/online"));
        let Some(online) = online.ok().and_then(|list| list.parse::<CoreSet>().ok()) else {
            return false;
        };
        let found = cores_of(&found.0);
        found == wanted.intersection(&online) || found == cores_of(&ours.0).intersection(&online)
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

    #[test]
    fn a_core_that_goes_offline_is_no_foreign_change() {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-1,3\n");
        let wanted = "1-2".parse().unwrap();
        let explained = |ours, found| {
            Affinity::is_explained(&wanted, affinity(ours), affinity(found), &tree.roots())
        };
        assert!(explained("1-2", "1"), "core 2 went offline");
        assert!(!explained("1-2", "3"));
        assert!(!explained("1-2", "1,3"));
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        assert!(explained("1", "1-2"), "core 2 came back");
        assert!(!explained("1-2", "1"));
    }

    #[test]
    fn the_kernel_may_take_away_and_never_add() {
        assert!(Affinity::is_within(affinity("0-3"), affinity("1")));
        assert!(!Affinity::is_within(affinity("0"), affinity("0-1")));
    }
}
