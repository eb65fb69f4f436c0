//! Memory pressure of an app: `memory.pressure` of its cgroup, version 2
//! (Documentation/accounting/psi.rst).
//!
//! The share of time in which at least one task of the cgroup waited for memory (`some`). The
//! file's averages are over 10 s and more, so the gauge takes the change of its total over the
//! epoch. The cgroup is that of the app's first process, and is looked up again in every epoch,
//! since systemd moves processes. Other processes in the same cgroup count too; an app in the
//! cgroup at the top has no pressure of its own.

use super::{first_reading, unreadable};
use crate::Roots;
use crate::files::read_text;
use crate::threads::LiveThread;
use lull_measure::{Gauge, Missing, Nanos};
use std::path::PathBuf;

/// Where unified hierarchies are mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["fs/cgroup", "fs/cgroup/unified"];

/// The gauge of one app over epochs.
#[derive(Debug)]
pub(crate) struct MemoryPressure {
    roots: Roots,
    /// The file then, and its total in microseconds.
    last: Option<(PathBuf, u64)>,
}

impl MemoryPressure {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self { roots: roots.clone(), last: None }
    }

    /// Share of `span`, the time since the last call, in which some task of the app's cgroup
    /// waited for memory.
    pub(crate) fn read(&mut self, threads: &[LiveThread], span: Nanos) -> Gauge<f64> {
        let now = self.total_us(threads);
        let last = std::mem::replace(&mut self.last, now.as_ref().ok().cloned());
        let (path, now_us) = now?;
        let last = last.filter(|(file, total_us)| *file == path && *total_us <= now_us);
        let (_, last_us) = last.ok_or_else(first_reading)?;
        if span == Nanos::ZERO {
            return Err(Missing::because("the epoch is empty"));
        }
        Ok(((now_us - last_us) as f64 / span.as_micros_f64()).min(1.0))
    }

    fn total_us(&self, threads: &[LiveThread]) -> Gauge<(PathBuf, u64)> {
        let file = self.file(threads)?;
        let text = read_text(&file).map_err(|error| {
            let why = unreadable(&file, &error).reason;
            Missing::because(format!("{why}; PSI needs CONFIG_PSI and the boot option psi=1"))
        })?;
        let total = some_total_us(&text);
        let none = || Missing::because(format!("{} has no `some` total", file.display()));
        total.ok_or_else(none).map(|total| (file, total))
    }

    fn file(&self, threads: &[LiveThread]) -> Gauge<PathBuf> {
        let first = threads.first().ok_or_else(|| Missing::because("the app has no thread"))?;
        let list = self.roots.proc.join(format!("{}/cgroup", first.pid));
        let text = read_text(&list).map_err(|error| unreadable(&list, &error))?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let path = path.ok_or_else(|| {
            Missing::because("the app is in no cgroup of version 2, which memory.pressure needs")
        })?;
        if path.is_empty() {
            let why = "the app is in the top cgroup, whose pressure is that of the whole machine";
            return Err(Missing::because(why));
        }
        let mounts = MOUNTS.map(|mount| self.roots.sys.join(mount));
        let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists());
        let mount = mount.ok_or_else(|| Missing::because("no cgroup v2 is mounted in /sys/fs"))?;
        Ok(mount.join(path).join("memory.pressure"))
    }
}

/// The number of `some avg10=0.00 avg60=0.00 avg300=0.00 total=154846035`.
fn some_total_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const SPAN: Nanos = Nanos::from_millis(100);
    const THREADS: [LiveThread; 1] = [LiveThread { pid: 7, tid: 8, start_ticks: 1 }];

    fn set(tree: &Tree, group: &str, total_us: u64) {
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        tree.write("proc/7/cgroup", &format!("12:cpuset:/x\n0::/{group}\n"));
        let text = format!(
            "some avg10=2.20 avg60=1.85 avg300=2.57 total={total_us}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
        );
        tree.write(&format!("sys/fs/cgroup/{group}/memory.pressure"), &text);
    }

    #[test]
    fn pressure_is_the_change_of_the_total_over_the_epoch() {
        let tree = Tree::new();
        set(&tree, "web.slice/a.service", 1_000_000);
        let mut gauge = MemoryPressure::new(&tree.roots());
        assert!(gauge.read(&THREADS, SPAN).unwrap_err().reason.contains("first reading"));
        set(&tree, "web.slice/a.service", 1_025_000);
        assert_eq!(gauge.read(&THREADS, SPAN), Ok(0.25));
        assert_eq!(gauge.read(&THREADS, SPAN), Ok(0.0));
        set(&tree, "other", 5_000_000);
        let moved = gauge.read(&THREADS, SPAN).unwrap_err();
        assert!(moved.reason.contains("first reading"), "another cgroup has another total");
    }

    #[test]
    fn what_is_missing_has_a_reason() {
        let tree = Tree::new();
        let read = |threads| MemoryPressure::new(&tree.roots()).read(threads, SPAN).unwrap_err();
        assert!(read(&[]).reason.contains("no thread"));
        assert!(read(&THREADS).reason.contains("proc/7/cgroup"));
        tree.write("proc/7/cgroup", "12:cpuset:/x\n");
        assert!(read(&THREADS).reason.contains("no cgroup of version 2"));
        tree.write("proc/7/cgroup", "0::/\n");
        assert!(read(&THREADS).reason.contains("top cgroup"));
        tree.write("proc/7/cgroup", "0::/web\n");
        assert!(read(&THREADS).reason.contains("no cgroup v2 is mounted"));
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        assert!(read(&THREADS).reason.contains("CONFIG_PSI"));
        tree.write("sys/fs/cgroup/web/memory.pressure", "none\n");
        assert!(read(&THREADS).reason.contains("no `some` total"));
    }
}
