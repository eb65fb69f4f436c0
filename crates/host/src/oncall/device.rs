//! How busy the machine's storage is, for admission controllers that rest.
//!
//! The kernel counts the time in which each disk has at least one request (`/proc/diskstats`, the
//! tenth figure; Documentation/admin-guide/iostats.rst), and the time in which some task waits for
//! storage (`/proc/pressure/io`, PSI). A disk that serves requests in parallel has one long before
//! it is full, and a kernel that writes back in the background keeps a disk busy without a task
//! that waits for it. So the lesser of both is the share; it is no less than the share of the
//! disk's throughput in use while tasks wait for each request.

use crate::gauges::pressure::Pressure;
use crate::{Roots, monotonic};
use lull_measure::{Gauge, Missing, Nanos};
use std::collections::BTreeMap;

/// Time between two readings, at least.
const EVERY: Nanos = Nanos::from_secs(1);
/// Block devices that are not disks: their I/O is in memory, or is counted for the disk below them,
/// too.
const NO_DISKS: [&str; 5] = ["dm-", "loop", "md", "ram", "zram"];

/// Reads the share of the busiest disk.
#[derive(Debug)]
pub struct DeviceClock {
    roots: Roots,
    pressure: Pressure,
    last: Option<Reading>,
    /// When it is read again at the earliest.
    next: Nanos,
    share: Gauge<f64>,
}

#[derive(Debug)]
struct Reading {
    at: Nanos,
    /// Indexed by disk: the time since boot for which it had a request.
    busy: BTreeMap<String, Nanos>,
}

impl DeviceClock {
    /// A clock that has read nothing yet.
    pub fn new(roots: &Roots) -> Self {
        let share = Err(Missing::because("the disks were not read yet"));
        let (roots, pressure) = (roots.clone(), Pressure::of_storage(roots));
        Self { roots, pressure, last: None, next: Nanos::ZERO, share }
    }

    /// Returns the share of the time in which the busiest disk had a request and some task waited
    /// for storage, over the last second or more.
    ///
    /// # Errors
    /// In the first second, and where the kernel shows no disks.
    pub fn read(&mut self) -> Gauge<f64> {
        self.read_at(monotonic())
    }

    fn read_at(&mut self, at: Nanos) -> Gauge<f64> {
        if at >= self.next {
            // The next time is set also where nothing can be read, so that a decision costs no more
            // there.
            self.next = at.saturating_add(EVERY);
            self.share = self.measure(at);
        }
        self.share.clone()
    }

    fn measure(&mut self, at: Nanos) -> Gauge<f64> {
        let now = Reading { at, busy: read_busy(&self.roots)? };
        let Some(last) = self.last.replace(now) else {
            // The pressure has a first reading, too.
            let _ = self.pressure.read(EVERY);
            return Err(Missing::because("the disks were read for the first time"));
        };
        let span = at.saturating_sub(last.at);
        let waited = self.pressure.read(span);
        let busy = self.last.as_ref().and_then(|now| busiest(&now.busy, &last.busy, span));
        let busy = busy.ok_or_else(|| Missing::because("/proc/diskstats has no disk"))?;
        // A kernel without PSI shows only whether the disk is busy.
        Ok(waited.map_or(busy, |waited| busy.min(waited)))
    }
}

/// Returns the share of `span` in which the busiest of the disks that both readings have had a
/// request; `None` without any.
fn busiest(
    now: &BTreeMap<String, Nanos>,
    last: &BTreeMap<String, Nanos>,
    span: Nanos,
) -> Option<f64> {
    let shares = now.iter().filter_map(|(disk, now)| {
        let busy = now.saturating_sub(*last.get(disk)?);
        Some((busy.as_secs_f64() / span.as_secs_f64()).min(1.0))
    });
    shares.max_by(f64::total_cmp)
}

/// Returns for how long each disk has had a request.
fn read_busy(roots: &Roots) -> Gauge<BTreeMap<String, Nanos>> {
    let path = roots.proc.join("diskstats");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Missing::because(format!("{} cannot be read: {error}", path.display())))?;
    let is_disk = |name: &str| {
        // A partition has a directory only below its disk's.
        !NO_DISKS.iter().any(|begin| name.starts_with(begin))
            && roots.sys.join("block").join(name.replace('/', "!")).exists()
    };
    let disks = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let name = words.nth(2).filter(|name| is_disk(name))?;
        let busy_ms = words.nth(9)?.parse().ok()?;
        Some((name.to_owned(), Nanos::from_millis(busy_ms)))
    });
    Ok(disks.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    /// A tree with a disk `sda` that has had a request for this long, and a partition, a virtual
    /// disk and a loop device that have had one all the time.
    fn write_disks(tree: &Tree, busy_ms: u64) {
        for device in ["sda", "dm-0", "loop0"] {
            tree.write(&format!("sys/block/{device}/size"), "8\n");
        }
        let line = |name: &str, busy_ms: u64| {
            format!("   8       0 {name} 9 1 700 4 80 3 900 60 0 {busy_ms} 64 0 0 0 0 5 2\n")
        };
        let others = ["sda1", "dm-0", "loop0"].map(|name| line(name, 77 * busy_ms));
        tree.write("proc/diskstats", &format!("{}{}", line("sda", busy_ms), others.concat()));
    }

    fn write_waits(tree: &Tree, total_us: u64) {
        let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n");
        tree.write("proc/pressure/io", &text);
    }

    #[test]
    fn the_share_is_that_in_which_the_disk_is_busy_and_a_task_waits_for_it() {
        let (tree, at) = (Tree::new(), Nanos::from_secs);
        write_disks(&tree, 1000);
        write_waits(&tree, 0);
        let mut clock = DeviceClock::new(&tree.roots());
        assert!(clock.read_at(at(10)).is_err(), "a change needs two readings");
        write_disks(&tree, 2500);
        write_waits(&tree, 1_900_000);
        assert_eq!(clock.read_at(at(12)), Ok(0.75), "the disk");
        write_disks(&tree, 4500);
        write_waits(&tree, 2_900_000);
        assert_eq!(clock.read_at(at(14)), Ok(0.5), "the tasks");
        // Within a second the last share holds.
        write_disks(&tree, 9000);
        assert_eq!(clock.read_at(at(14) + Nanos::from_millis(900)), Ok(0.5));
    }

    #[test]
    fn without_psi_the_disk_alone_counts_and_without_disks_nothing_is_known() {
        let (tree, at) = (Tree::new(), Nanos::from_secs);
        let mut clock = DeviceClock::new(&tree.roots());
        let why = clock.read_at(at(1)).unwrap_err();
        assert!(why.reason.contains("diskstats cannot be read"), "{why}");
        write_disks(&tree, 0);
        let soon = clock.read_at(at(1) + Nanos::from_millis(900));
        assert_eq!(soon.unwrap_err().reason, why.reason, "it is not tried again at once");
        assert!(clock.read_at(at(2)).is_err());
        write_disks(&tree, 1000);
        assert_eq!(clock.read_at(at(4)), Ok(0.5));
        tree.write("proc/diskstats", "");
        let why = clock.read_at(at(6)).unwrap_err();
        assert_eq!(why.reason, "/proc/diskstats has no disk");
    }
}
