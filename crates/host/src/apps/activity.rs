//! Whether a cgroup may have other processes than at its last listing, by a single read.
//!
//! A listing opens and reads files and directories of a cgroup and of all below it, which for
//! hundreds of apps costs more than the rest of an epoch. One number says whether it is needed:
//!
//! - `pids.current`, where the controller of version 2 is on: the number of tasks in the cgroup and
//!   below it. If it is that of the threads of the known processes, there are no others.
//! - else `usage_usec` of `cpu.stat`, which each cgroup of version 2 has. While it stays, no task
//!   of the cgroup has run, so that none was made and none has ended. The kernel updates it at
//!   ticks and switches, so that what a task does within a tick may be found one look later.
//!
//! Neither shows that one process was exchanged for another with as many threads, or that a
//! process was moved to the cgroup and has not run since. The CPU time does not show either that a
//! process was moved away from the cgroup. Callers therefore list the cgroup now and then in any
//! case.
//!
//! Source: `kernel/cgroup/pids.c` and `kernel/cgroup/rstat.c`; verified on Linux 6.18.

use crate::files::{HotFile, numbers};
use std::path::Path;

/// The reading of a cgroup's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// The number of its tasks and of those below it.
    Tasks(u64),
    /// The CPU time that its tasks and those below it have used, in microseconds.
    UsageUs(u64),
}

/// The file of a cgroup by which its activity is read.
#[derive(Debug)]
pub(super) struct CgroupActivity {
    file: HotFile,
    counts_tasks: bool,
}

impl CgroupActivity {
    /// Chooses the file for the cgroup with this directory.
    pub(super) fn new(place: &Path) -> Self {
        let tasks = place.join("pids.current");
        let counts_tasks = tasks.exists();
        let path = if counts_tasks { tasks } else { place.join("cpu.stat") };
        Self { file: HotFile::new(path), counts_tasks }
    }

    /// Returns the activity; `None` if the cgroup has gone or has no such file.
    pub(super) fn read(&mut self) -> Option<Activity> {
        // The file begins with the number, or with the line of the number.
        let mut buffer = [0; 48];
        let text = self.file.read_first(&mut buffer).ok()?;
        if self.counts_tasks {
            return numbers(text).next().map(Activity::Tasks);
        }
        numbers(text.strip_prefix(b"usage_usec ")?).next().map(Activity::UsageUs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn tasks_are_counted_where_the_controller_is_on_and_else_their_time() {
        let tree = Tree::new();
        tree.write("a/cpu.stat", "usage_usec 18446744073709551615\nuser_usec 1\n");
        let mut activity = CgroupActivity::new(&tree.path("a"));
        assert_eq!(activity.read(), Some(Activity::UsageUs(u64::MAX)));
        // Version 1 has other lines.
        tree.write("a/cpu.stat", "nr_periods 0\nnr_throttled 0\n");
        assert_eq!(activity.read(), None);
        tree.write("a/pids.current", "3\n");
        assert_eq!(CgroupActivity::new(&tree.path("a")).read(), Some(Activity::Tasks(3)));
        assert_eq!(CgroupActivity::new(&tree.path("none")).read(), None);
    }
}
