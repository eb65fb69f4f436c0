//! Memory pressure of an app: `memory.pressure` of its cgroup, version 2
//! (Documentation/accounting/psi.rst).
//!
//! The share of time in which at least one task of the cgroup waited for memory (`some`). The
//! file's averages are over 10 s and more, so the gauge takes the change of its total over the
//! epoch. The cgroup is that of the app's first process, and is looked up again in every epoch,
//! since systemd moves processes; both files stay open, as there may be hundreds of apps. It is
//! looked up again after some seconds only if the app has its processes by their cgroup, and if it
//! is the one at the top, which has no pressure of its own. Other processes in the same cgroup
//! count too. Nothing is read while no task of the cgroup has run, or none of the app where its
//! cgroup is not known to be its own: a task begins to wait for memory only when it runs, and one
//! that waits on was seen waiting in the epoch before. So a process that another program moves
//! while it sleeps is looked up when it runs.
//!
//! Where an objective bounds it, it is the latency of the app as well: the time for which some
//! task waits in each second.

use super::{AppEpoch, first_reading, unreadable};
use crate::Roots;
use crate::files::HotFile;
use lull_control::{LatencyObservation, stall_time_per_s};
use lull_measure::{Gauge, Latency, Missing, Nanos};
use std::path::PathBuf;

/// Where unified hierarchies are mounted: alone, or beside version 1.
const MOUNTS: [&str; 2] = ["fs/cgroup", "fs/cgroup/unified"];

/// Bytes that hold the first line of a file of PSI, which is of `some`: it has 72 at most.
const FIRST_LINE: usize = 80;

/// Bytes of a list of cgroups that are read: it has a path for each hierarchy.
const LIST_MAX: usize = 8 << 10;

/// Time after which a cgroup that hardly changes is looked up again.
const LOOK_UP_AGAIN: Nanos = Nanos::from_secs(5);

/// The weight of an epoch among others: it counts as one look each so often.
const LOOK: Nanos = Nanos::from_millis(10);

/// The gauge of one app over epochs.
#[derive(Debug)]
pub struct MemoryPressure {
    roots: Roots,
    /// Where cgroups of version 2 are mounted.
    mount: Gauge<PathBuf>,
    /// The app's first process and the list of its cgroups.
    list: Option<(i32, HotFile)>,
    found: Option<Found>,
    /// The total of that cgroup at the last reading, in microseconds.
    last_us: Option<u64>,
    /// What holds until a task runs.
    idle_reading: Option<IdleReading>,
}

/// A reading that is the same as long as no task has run.
#[derive(Debug)]
struct IdleReading {
    /// The app's first process.
    pid: i32,
    /// The CPU time of the app's cgroup in microseconds, if it was read.
    usage_us: Option<u64>,
    /// No task has waited, or the app has no pressure of its own.
    share: Gauge<f64>,
}

/// The cgroup of an app.
#[derive(Debug)]
struct Found {
    /// The app's first process, of which it is the cgroup.
    pid: i32,
    /// `memory.pressure`, or why there is none.
    pressure: Gauge<HotFile>,
    /// When it is looked up again, by `CLOCK_MONOTONIC`; zero for the next epoch.
    until: Nanos,
}

impl MemoryPressure {
    pub(crate) fn new(roots: &Roots) -> Self {
        let mount = cgroup_mount(roots);
        let roots = roots.clone();
        Self { roots, mount, list: None, found: None, last_us: None, idle_reading: None }
    }

    /// Returns the means by which memory pressure of cgroups is read.
    ///
    /// # Errors
    /// If the kernel has no PSI, or no cgroup of version 2 is mounted.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let whole = roots.proc.join("pressure/memory");
        some_total_of(&mut HotFile::new(whole))?;
        let mount = cgroup_mount(roots)?;
        Ok(format!("memory.pressure of cgroups in {}", mount.display()))
    }

    /// Share of the epoch, which began with the last call, in which some task of the app's cgroup
    /// waited for memory; `is_idle` is whether no task of the app has run in it.
    pub(crate) fn read(&mut self, epoch: AppEpoch<'_>, is_idle: bool) -> Gauge<f64> {
        let AppEpoch { threads, usage_us, .. } = epoch;
        let first = threads.first().map(|first| first.pid);
        let holds = |known: &&IdleReading| {
            let has_none_run = known.usage_us == usage_us && (usage_us.is_some() || is_idle);
            first == Some(known.pid) && has_none_run
        };
        if let Some(known) = self.idle_reading.as_ref().filter(holds) {
            return known.share.clone();
        }
        let share = self.read_share(epoch);
        let has_none = self.found.as_ref().is_some_and(|found| found.pressure.is_err());
        let pid = first.filter(|_| has_none || share == Ok(0.0));
        self.idle_reading = pid.map(|pid| IdleReading { pid, usage_us, share: share.clone() });
        share
    }

    fn read_share(&mut self, epoch: AppEpoch<'_>) -> Gauge<f64> {
        let span = epoch.span;
        let now = self.total_us(epoch);
        let last_us = std::mem::replace(&mut self.last_us, now.as_ref().ok().copied());
        let now_us = now?;
        let last_us = last_us.filter(|last_us| *last_us <= now_us).ok_or_else(first_reading)?;
        if span == Nanos::ZERO {
            return Err(Missing::because("the epoch is empty"));
        }
        Ok(((now_us - last_us) as f64 / span.as_micros_f64()).min(1.0))
    }

    /// The total of the app's cgroup.
    fn total_us(&mut self, epoch: AppEpoch<'_>) -> Gauge<u64> {
        let first =
            epoch.threads.first().ok_or_else(|| Missing::because("the app has no thread"))?;
        let now = crate::monotonic();
        let mut found = match self.found.take() {
            Some(found) if found.pid == first.pid && now < found.until => found,
            before => self.look_up(first.pid, before),
        };
        if found.until == Nanos::ZERO && (epoch.is_by_cgroup || found.pressure.is_err()) {
            found.until = now.saturating_add(LOOK_UP_AGAIN);
        }
        let total_us = match &mut found.pressure {
            // A file that cannot be read is looked up again in the next epoch.
            Ok(pressure) => some_total_of(pressure)?,
            Err(why) => {
                let why = why.clone();
                self.found = Some(found);
                return Err(why);
            }
        };
        self.found = Some(found);
        Ok(total_us)
    }

    /// Looks up the cgroup of a process. The totals of two cgroups cannot be compared.
    fn look_up(&mut self, pid: i32, before: Option<Found>) -> Found {
        let kept = before.and_then(|before| before.pressure.ok());
        // Without a mounted hierarchy there is nothing to look up.
        let path = self.mount.clone().and_then(|mount| Ok(mount.join(self.path_of(pid)?)));
        let path = path.map(|path| path.join("memory.pressure"));
        let kept = kept.filter(|kept| path.as_ref().is_ok_and(|path| path == kept.path()));
        if kept.is_none() {
            self.last_us = None;
        }
        let pressure = path.map(|path| kept.unwrap_or_else(|| HotFile::new(path)));
        Found { pid, pressure, until: Nanos::ZERO }
    }

    /// The path of a process's cgroup, or why it has no pressure of its own.
    fn path_of(&mut self, pid: i32) -> Gauge<String> {
        let kept = self.list.take().filter(|(of, _)| *of == pid);
        let kept = kept.unwrap_or_else(|| {
            let list = self.roots.proc.join(format!("{pid}/cgroup"));
            (pid, HotFile::new(list))
        });
        let (_, list) = self.list.insert(kept);
        let mut buffer = [0; LIST_MAX];
        let text = list.read_first(&mut buffer).map(String::from_utf8_lossy);
        let text = text.map_err(|error| unreadable(list.path(), &error))?;
        let why = match text.lines().find_map(|line| line.strip_prefix("0::/")) {
            Some("") => "the app is in the top cgroup, whose pressure is that of the whole machine",
            Some(path) => return Ok(path.to_owned()),
            None => "the app is in no cgroup of version 2, which memory.pressure needs",
        };
        Err(Missing::because(why))
    }
}

/// Returns the pressure of an epoch as the latency of looks at the cgroup, each of which finds
/// the time for which tasks wait in each second. An epoch has looks by its length, so that
/// percentiles of several epochs weigh them by time.
pub(crate) fn latency(share: Gauge<f64>, span: Nanos) -> Gauge<LatencyObservation> {
    let stalled = stall_time_per_s(share?);
    let looks = (span.0 / LOOK.0).max(1);
    let mut window = Latency::default();
    window.record_many(stalled, looks);
    Ok(LatencyObservation::on_server(window, span, (0, None), 0))
}

/// Where cgroups of version 2 are mounted.
fn cgroup_mount(roots: &Roots) -> Gauge<PathBuf> {
    let mut mounts = MOUNTS.into_iter().map(|mount| roots.sys.join(mount));
    let mount = mounts.find(|mount| mount.join("cgroup.controllers").exists());
    mount.ok_or_else(|| Missing::because("no cgroup v2 is mounted in /sys/fs"))
}

/// The time for which some task has waited, in microseconds, by a file of PSI.
fn some_total_of(file: &mut HotFile) -> Gauge<u64> {
    let mut buffer = [0; FIRST_LINE];
    let text = file.read_first(&mut buffer).map(String::from_utf8_lossy).map_err(|error| {
        let why = unreadable(file.path(), &error).reason;
        Missing::because(format!("{why}; PSI needs CONFIG_PSI and the boot option psi=1"))
    })?;
    let none = || Missing::because(format!("{} has no `some` total", file.path().display()));
    some_total_us(&text).ok_or_else(none)
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
    use crate::threads::LiveThread;
    use lull_measure::Percentile;

    const SPAN: Nanos = Nanos::from_millis(100);
    const THREADS: [LiveThread; 1] = [LiveThread { pid: 7, tid: 8, start_ticks: 1 }];

    /// An epoch of an app that is not found by its cgroup.
    const fn epoch(threads: &[LiveThread]) -> AppEpoch<'_> {
        let (listed, group, usage_us) = (Nanos::ZERO, None, None);
        AppEpoch {
            threads,
            refreshed: None,
            span: SPAN,
            listed,
            group,
            is_by_cgroup: false,
            usage_us,
        }
    }

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
        assert!(gauge.read(epoch(&THREADS), false).unwrap_err().reason.contains("first reading"));
        set(&tree, "web.slice/a.service", 1_025_000);
        assert_eq!(gauge.read(epoch(&THREADS), false), Ok(0.25));
        assert_eq!(gauge.read(epoch(&THREADS), false), Ok(0.0));
        set(&tree, "other", 5_000_000);
        let moved = gauge.read(epoch(&THREADS), false).unwrap_err();
        assert!(moved.reason.contains("first reading"), "another cgroup has another total");
        let by_cgroup = AppEpoch { is_by_cgroup: true, ..epoch(&THREADS) };
        assert_eq!(gauge.read(by_cgroup, false), Ok(0.0));
        set(&tree, "third", 6_000_000);
        gauge.found.as_mut().unwrap().until = Nanos::MAX;
        assert_eq!(gauge.read(by_cgroup, false), Ok(0.0), "its cgroup hardly changes");
        gauge.found.as_mut().unwrap().until = Nanos::ZERO;
        assert!(gauge.read(by_cgroup, false).is_err(), "it is looked up now and then");
    }

    #[test]
    fn nothing_is_read_while_no_task_has_run_and_none_was_waiting() {
        let tree = Tree::new();
        let mut gauge = MemoryPressure::new(&tree.roots());
        let mut read = |usage_us, total_us| {
            set(&tree, "web", total_us);
            gauge.mount = Ok(tree.path("sys/fs/cgroup"));
            gauge.read(AppEpoch { usage_us, ..epoch(&THREADS) }, true)
        };
        assert!(read(Some(5), 1_000).is_err(), "the first reading");
        assert_eq!(read(Some(5), 2_000), Ok(0.01), "a task waits without running");
        assert_eq!(read(Some(5), 3_000), Ok(0.01));
        assert_eq!(read(Some(5), 3_000), Ok(0.0));
        assert_eq!(read(Some(5), 9_000), Ok(0.0), "not read, since none can have begun to wait");
        assert_eq!(read(Some(6), 13_000), Ok(0.1), "one has run");
        assert_eq!(read(None, 14_000), Ok(0.01), "the time is not known");
    }

    #[test]
    fn an_app_at_rest_without_a_known_cgroup_is_read_when_it_runs() {
        let tree = Tree::new();
        let mut gauge = MemoryPressure::new(&tree.roots());
        let mut read = |group, total_us, is_idle| {
            set(&tree, "web", total_us);
            tree.write("proc/7/cgroup", &format!("0::/{group}\n"));
            gauge.mount = Ok(tree.path("sys/fs/cgroup"));
            gauge.found.iter_mut().for_each(|found| found.until = Nanos::ZERO);
            gauge.read(epoch(&THREADS), is_idle)
        };
        assert!(read("", 1_000, false).unwrap_err().reason.contains("top cgroup"));
        let at_rest = read("web", 1_000, true).unwrap_err();
        assert!(at_rest.reason.contains("top cgroup"), "it was moved while it slept");
        assert!(read("web", 1_000, false).unwrap_err().reason.contains("first reading"));
        assert_eq!(read("web", 2_000, true), Ok(0.01), "it waits without running");
        assert_eq!(read("web", 2_000, true), Ok(0.0));
        assert_eq!(read("web", 9_000, true), Ok(0.0), "others have waited");
        assert_eq!(read("web", 13_000, false), Ok(0.11), "since the last reading");
    }

    #[test]
    fn an_app_without_a_cgroup_of_its_own_is_looked_up_again_later_and_another_at_once() {
        let tree = Tree::new();
        set(&tree, "web", 1_000);
        tree.write("proc/7/cgroup", "0::/\n");
        tree.write("proc/9/cgroup", "0::/web\n");
        let mut gauge = MemoryPressure::new(&tree.roots());
        let reason = |gauge: &mut MemoryPressure, threads: &[LiveThread]| {
            gauge.read(epoch(threads), false).unwrap_err().reason
        };
        assert!(reason(&mut gauge, &THREADS).contains("top cgroup"));
        tree.write("proc/7/cgroup", "0::/web\n");
        let until = |gauge: &mut MemoryPressure, time| gauge.found.as_mut().unwrap().until = time;
        until(&mut gauge, Nanos::MAX);
        assert!(reason(&mut gauge, &THREADS).contains("top cgroup"));
        let other = [LiveThread { pid: 9, tid: 9, start_ticks: 1 }];
        assert!(reason(&mut gauge, &other).contains("first reading"));
        until(&mut gauge, Nanos::ZERO);
        let seen = gauge.read(epoch(&THREADS), false);
        assert_eq!(seen, Ok(0.0), "it is in the same cgroup as the other");
    }

    #[test]
    fn a_pressure_is_a_latency_in_which_every_epoch_weighs_as_long_as_it_lasts() {
        let seen = latency(Ok(0.02), Nanos::from_millis(500)).unwrap();
        assert_eq!((seen.window.count(), seen.offered_per_s), (50, 100.0));
        let tail = seen.tail(Percentile::P95).unwrap();
        assert!(tail.0.abs_diff(20_000_000) < 200_000, "{tail}");
        let mut both = seen.window;
        both.merge(&latency(Ok(0.5), Nanos::from_millis(100)).unwrap().window);
        assert!(both.quantile(Percentile::P50).unwrap() < Nanos::from_millis(21));
        assert!(both.quantile(Percentile::P95).unwrap() > Nanos::from_millis(490));
        let none = latency(Ok(0.0), Nanos(1)).unwrap();
        assert!(none.window.count() == 1 && none.tail(Percentile::P95).unwrap().0 < 1_000);
        assert!(latency(Err(first_reading()), SPAN).is_err());
    }

    #[test]
    fn a_machine_without_pressure_is_refused_with_what_it_lacks() {
        let tree = Tree::new();
        let why = || MemoryPressure::probe(&tree.roots()).unwrap_err().reason;
        assert!(why().contains("CONFIG_PSI"), "{}", why());
        tree.write("proc/pressure/memory", "some avg10=0.00 total=1\n");
        assert!(why().contains("no cgroup v2"), "{}", why());
        tree.write("sys/fs/cgroup/unified/cgroup.controllers", "\n");
        assert!(MemoryPressure::probe(&tree.roots()).unwrap().contains("cgroup/unified"));
    }

    #[test]
    fn what_is_missing_has_a_reason() {
        let tree = Tree::new();
        let read =
            |threads| MemoryPressure::new(&tree.roots()).read(epoch(threads), false).unwrap_err();
        assert!(read(&[]).reason.contains("no thread"));
        assert!(read(&THREADS).reason.contains("no cgroup v2 is mounted"));
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        assert!(read(&THREADS).reason.contains("proc/7/cgroup"));
        tree.write("proc/7/cgroup", "12:cpuset:/x\n");
        assert!(read(&THREADS).reason.contains("no cgroup of version 2"));
        tree.write("proc/7/cgroup", "0::/\n");
        assert!(read(&THREADS).reason.contains("top cgroup"));
        tree.write("proc/7/cgroup", "0::/web\n");
        assert!(read(&THREADS).reason.contains("CONFIG_PSI"));
        tree.write("sys/fs/cgroup/web/memory.pressure", "none\n");
        assert!(read(&THREADS).reason.contains("no `some` total"));
    }
}
