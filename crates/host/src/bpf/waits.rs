//! Waits of the threads of apps for a core, as the programs of `crates/host/bpf/waits.bpf.c`
//! count them: for apps that report no latency of their own.
//!
//! ```text
//!   sched_switch ─────────▶ it runs: the histogram of its app. Since when it could run, the
//!                           kernel has noted when it was woken or switched out (sched_info)
//!   sched_process_fork ───▶ the child belongs to its parent's app
//!   sched_process_exit ───▶ the process belongs to none
//! ```
//!
//! A thread that was about to sleep when another one took its core, and is woken before it goes
//! on, is not seen to wait: the kernel does not note that either.
//!
//! A wait does not contain the time for which the quota of the thread's cgroup (`cpu.max`) kept
//! it off, which is summed apart (Linux 5.19 and later; before, it is part of the wait). It is
//! exact for a thread that the quota stopped. Of one that was woken meanwhile it is the last time
//! in which its cgroup was held off on its core, as far as it lies in the wait; if threads of
//! several cgroups with quotas take turns there, it counts as a wait. The kernel's clock of
//! throttling runs slower where a core runs below its full frequency, so that a part of the
//! throttled time may count as a wait.
//!
//! What ran on the thread's core during a wait is summed as well: threads of its own app, of other
//! apps, and others, the kernel's among them. Each core remembers the last 64 changes between
//! these; the rest of a longer wait is attributed to none of them, and so is what a thread waited
//! before it was moved to another core.

use super::BpfError;
use super::buckets::{self, Histogram};
use super::object::{FreesTypes, Object, kernel_types};
use crate::sys::bpf::MappedWords;
use aya::EbpfLoader;
use aya::maps::{Array, HashMap, Map, MapData};
use lull_measure::Nanos;
use std::collections::BTreeMap;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/waits.bpf.o");

/// Cores that remember what ran on them where their number is not known.
const CORES_UNKNOWN: usize = 1024;

/// The processes that all apps together may have, each an entry of the table of processes.
pub const PROCESSES_MAX: u32 = 16_384;

/// Most bytes of the records if each core has its own: all are read in every epoch.
const OWN_RECORDS_BYTES: usize = 256 << 10;

/// The variable of the programs that is no zero at first: the generation.
const GENERATION: &str = ".data";

/// The 64-bit words of `struct app_record` in `waits.bpf.c`.
struct Record;

impl Record {
    const WAITS: usize = 0;
    const UNFOLLOWED: usize = buckets::WORDS;
    const WORDS: usize = buckets::WORDS + 8;
}

/// The 64-bit words of `struct app_on_core` in `waits.bpf.c`.
struct OnCore;

impl OnCore {
    const BEHIND_OWN: usize = 0;
    const BEHIND_APPS: usize = 1;
    const BEHIND_OTHERS: usize = 2;
    const THROTTLED: usize = 3;
    const WORDS: usize = 16;
}

/// Waits of the threads of some apps, counted from its creation until it is dropped.
#[derive(Debug)]
pub struct WaitWatch {
    #[expect(dead_code, reason = "the programs run while their object lives")]
    object: Object,
    apps: usize,
    cores: usize,
    /// Cores that have records of their own; the others have one more together.
    own_records: usize,
    /// Indexed by core and app.
    records: MappedWords,
    /// Indexed by core and app.
    on_cores: MappedWords,
    processes: HashMap<MapData, u32, u32>,
    /// The last content written to `processes`.
    known: BTreeMap<u32, u32>,
    /// How often that was, and one, by which the programs know that they have to look again.
    generation: Map,
    generations: u32,
}

/// The waits of an app observed since the watch began.
#[derive(Debug, Clone, Default)]
pub struct WaitsSeen {
    /// Waits that have ended.
    pub waits: Histogram,
    /// Children whose waits are not counted, because the table of processes was full.
    pub unfollowed: u64,
    /// Time for which threads could run and the quota of their cgroup kept them off, which is
    /// no part of the waits; summed over threads, as the following.
    pub throttled: Nanos,
    /// Time of the waits in which other threads of the app had the core.
    pub behind_own: Nanos,
    /// Time of the waits in which threads of other apps of the watch had the core.
    pub behind_apps: Nanos,
    /// Time of the waits in which any other thread had the core.
    pub behind_others: Nanos,
}

impl WaitWatch {
    /// Begins to watch this number of apps, which have no process yet.
    ///
    /// # Errors
    /// The kernel's refusal, with the remedy.
    pub fn begin(apps: usize) -> Result<Self, BpfError> {
        Self::begin_on(apps, aya::util::nr_cpus().unwrap_or(CORES_UNKNOWN))
    }

    /// The same where only the first cores remember what ran on them: waits on others are counted
    /// and attributed to nothing.
    fn begin_on(apps: usize, cores: usize) -> Result<Self, BpfError> {
        let _freed = FreesTypes;
        let kernel = kernel_types()?;
        let apps = apps.max(1);
        let fits = cores * apps * Record::WORDS * size_of::<u64>() <= OWN_RECORDS_BYTES;
        let own_records = if fits { cores } else { 0 };
        let records = (own_records + 1) * apps;
        let (number, own) = (apps as u32, own_records as u32);
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&kernel)).map_max_entries("records", records as u32);
        loader.override_global("apps", &number, true);
        loader.override_global("own_records", &own, true);
        loader.map_max_entries("processes", PROCESSES_MAX);
        loader.map_max_entries("cores", cores as u32);
        loader.map_max_entries("on_cores", (cores * apps) as u32);
        let mut object = Object::load(&mut loader, PROGRAMS)?;
        let records = object.mapped("records", Record::WORDS, records)?;
        let on_cores = object.mapped("on_cores", OnCore::WORDS, cores * apps)?;
        let processes = HashMap::try_from(object.take_map("processes")?);
        let processes = processes
            .map_err(|error| BpfError::from_aya("the table of processes is of no use", &error))?;
        let generation = object.take_map(GENERATION)?;
        let programs = [
            ("lull_app_fork", "sched_process_fork"),
            ("lull_app_exit", "sched_process_exit"),
            ("lull_app_switch", "sched_switch"),
        ];
        object.attach_each(&programs, &kernel)?;
        Ok(Self {
            object,
            apps,
            cores,
            own_records,
            records,
            on_cores,
            processes,
            known: BTreeMap::new(),
            generation,
            generations: 1,
        })
    }

    /// Sets which processes belong to which app, by the number of the app.
    ///
    /// # Errors
    /// The kernel's error, such as that there are more processes than its table holds. The others
    /// are set.
    pub fn follow(&mut self, wanted: &BTreeMap<u32, u32>) -> Result<(), BpfError> {
        if self.known == *wanted {
            return Ok(());
        }
        let outcome = self.write_processes(wanted);
        // The generation rises after the table is written: look-ups from here on use the new one.
        self.generations = self.generations.wrapping_add(1);
        let counted = Array::<&mut MapData, u32>::try_from(&mut self.generation)
            .and_then(|mut generation| generation.set(0, self.generations, 0));
        outcome.and(counted.map_err(|error| BpfError::from_aya("cannot follow processes", &error)))
    }

    fn write_processes(&mut self, wanted: &BTreeMap<u32, u32>) -> Result<(), BpfError> {
        let mut outcome = Ok(());
        let gone = self.known.keys().filter(|pid| !wanted.contains_key(pid));
        for pid in gone.copied().collect::<Vec<_>>() {
            let removed = self.processes.remove(&pid);
            let failed =
                removed.map_err(|error| BpfError::from_aya("cannot forget a process", &error));
            // The kernel removes a process at its end.
            if let Err(error) = failed
                && error.raw_os_error() != Some(libc::ENOENT)
            {
                outcome = Err(error);
            }
            self.known.remove(&pid);
        }
        for (pid, app) in wanted {
            if self.known.get(pid) == Some(app) {
                continue;
            }
            match self.processes.insert(pid, app, 0) {
                Ok(()) => drop(self.known.insert(*pid, *app)),
                Err(error) => outcome = Err(BpfError::from_aya("cannot follow a process", &error)),
            }
        }
        outcome
    }

    /// Reads all that was seen of an app up to now.
    pub fn read(&self, app: usize) -> WaitsSeen {
        let word = |index: usize| {
            let at = |core: usize| (core * self.apps + app) * Record::WORDS + index;
            (0..=self.own_records).map(|core| self.records.get(at(core))).sum::<u64>()
        };
        let at = |core: usize| (core * self.apps + app) * OnCore::WORDS;
        let time = |index: usize| {
            Nanos((0..self.cores).map(|core| self.on_cores.get(at(core) + index)).sum())
        };
        // The parts are read before the waits, so that their sum never exceeds the waits.
        WaitsSeen {
            throttled: time(OnCore::THROTTLED),
            behind_own: time(OnCore::BEHIND_OWN),
            behind_apps: time(OnCore::BEHIND_APPS),
            behind_others: time(OnCore::BEHIND_OTHERS),
            unfollowed: word(Record::UNFOLLOWED),
            waits: Histogram::read(|index| word(Record::WAITS + index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::allowed;
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Ends its process when dropped.
    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A shell that runs a script, on the first core.
    fn shell(script: &str) -> Ends {
        shell_on(0, script)
    }

    fn shell_on(core: usize, script: &str) -> Ends {
        let mut command = Command::new("taskset");
        Ends(command.args(["-c", &core.to_string(), "sh", "-c", script]).spawn().unwrap())
    }

    fn watch(apps: usize) -> Option<WaitWatch> {
        let begun = WaitWatch::begin(apps);
        if begun.as_ref().is_err_and(BpfError::is_unsupported) {
            lull_testing::skip(&begun.unwrap_err().to_string());
            return None;
        }
        allowed(begun)
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "{what} never happens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn two_that_share_a_core_wait_for_each_other_and_each_has_its_own_histogram() {
        let Some(mut watch) = watch(3) else { return };
        let spin = "while :; do :; done";
        let (first, second) = (shell(spin), shell(spin));
        let [one, two] = [&first, &second].map(|shell| shell.0.id());
        watch.follow(&BTreeMap::from([(one, 0), (two, 2)])).unwrap();
        // A slice of the other one, beside short waits for whatever else runs on the core; the
        // scheduler's shortest slice is 0.7 ms.
        let is_long = |waits: &Histogram| {
            waits.quantile(1.0).is_some_and(|wait| wait > Nanos::from_micros(300))
        };
        let has_waited = |app| {
            let waits = watch.read(app).waits;
            waits.count() > 20 && is_long(&waits)
        };
        until("a long wait of both", || has_waited(0) && has_waited(2));
        assert_eq!(watch.read(1).waits.count(), 0, "an app without a process");
        assert_eq!([0, 2].map(|app| watch.read(app).unfollowed), [0, 0]);
        let [one, two] = [0, 2].map(|app| watch.read(app));
        for seen in [&one, &two] {
            let all = seen.waits.total();
            assert!(seen.behind_apps > Nanos::from_millis(1), "the other app ran: {seen:?}");
            assert!(seen.behind_own + seen.behind_apps + seen.behind_others <= all, "{seen:?}");
            assert!(seen.behind_own < all / 4, "a single thread never waits for itself");
        }
    }

    #[test]
    fn threads_of_one_app_wait_behind_its_own_and_strangers_are_no_app() {
        let Some(mut watch) = watch(1) else { return };
        let spin = "while :; do :; done";
        let own = [shell(spin), shell(spin)];
        let follow = |shells: &[&Ends]| shells.iter().map(|one| (one.0.id(), 0)).collect();
        watch.follow(&follow(&[&own[0], &own[1]])).unwrap();
        until("waits behind its own", || watch.read(0).behind_own > Nanos::from_millis(50));
        let before = watch.read(0);
        assert_eq!(before.behind_apps, Nanos::ZERO, "there is no other app");
        watch.follow(&follow(&[&own[0]])).unwrap();
        let others = || watch.read(0).behind_others.saturating_sub(before.behind_others);
        until("waits behind a stranger", || others() > Nanos::from_millis(50));
    }

    /// A cgroup with a quota for CPU time, of either version; removed when dropped.
    struct Limited(std::path::PathBuf);

    impl Limited {
        /// A quota of 5 ms in each 50 ms; `None` where no such cgroup can be made.
        fn new() -> Option<Self> {
            let name = format!("lull-waits-{}", std::process::id());
            let first = std::path::Path::new("/sys/fs/cgroup/cpu").join(&name);
            let second = std::path::Path::new("/sys/fs/cgroup").join(&name);
            let limited = [first, second].into_iter().find_map(|path| {
                std::fs::create_dir(&path).ok()?;
                Some(Self(path))
            })?;
            let write = |file: &str, text: &str| std::fs::write(limited.0.join(file), text);
            let of_first =
                || write("cpu.cfs_period_us", "50000").and(write("cpu.cfs_quota_us", "5000"));
            write("cpu.max", "5000 50000").or_else(|_| of_first()).ok()?;
            Some(limited)
        }

        fn add(&self, pid: u32) {
            std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        }
    }

    impl Drop for Limited {
        fn drop(&mut self) {
            until("the cgroup is empty", || std::fs::remove_dir(&self.0).is_ok());
        }
    }

    #[test]
    fn waits_on_a_core_beyond_those_known_count_and_are_attributed_to_nothing() {
        let allowed_cores = sched_getaffinity(None).unwrap();
        let last = (1..64).rev().find(|core| allowed_cores.is_set(*core));
        let Some(last) = last else { return lull_testing::skip("the test needs a second core") };
        let begun = WaitWatch::begin_on(1, last);
        if begun.as_ref().is_err_and(BpfError::is_unsupported) {
            return lull_testing::skip(&begun.unwrap_err().to_string());
        }
        let Some(mut watch) = allowed(begun) else { return };
        let spin = "while :; do :; done";
        let own = [shell_on(last, spin), shell_on(last, spin)];
        // Before it is pinned, a shell may wait on a core that is known.
        let is_pinned = |one: &Ends| {
            let pid = Pid::from_raw(one.0.id().cast_signed());
            sched_getaffinity(pid).is_ok_and(|cores| cores.count() == 1 && cores.is_set(last))
        };
        until("both are pinned", || own.iter().all(is_pinned));
        watch.follow(&own.iter().map(|one| (one.0.id(), 0)).collect()).unwrap();
        until("waits for each other", || watch.read(0).waits.total() > Nanos::from_millis(50));
        let seen = watch.read(0);
        let attributed = [seen.behind_own, seen.behind_apps, seen.behind_others];
        assert_eq!(attributed, [Nanos::ZERO; 3], "{seen:?}");
    }

    #[test]
    fn time_that_a_quota_takes_is_no_wait_and_is_summed_apart() {
        let Some(mut watch) = watch(1) else { return };
        let Some(cgroup) = Limited::new() else {
            return lull_testing::skip("no cgroup with a quota can be made");
        };
        // The wait in which it is followed has begun before.
        let begun = Instant::now();
        let own = shell("while :; do :; done");
        cgroup.add(own.0.id());
        watch.follow(&BTreeMap::from([(own.0.id(), 0)])).unwrap();
        // Nine tenths of the time are throttled, in pieces of about 45 ms.
        until("a second of throttling", || watch.read(0).throttled > Nanos::from_secs(1));
        let seen = watch.read(0);
        // One thread cannot be throttled and wait at once. On an idle machine both together are
        // longer than the time that has passed if throttled time counts as a wait, too.
        let both = seen.waits.total() + seen.throttled;
        assert!(both <= begun.elapsed().into(), "waits are what is left: {seen:?}");
        drop(own);
    }

    #[test]
    fn waits_of_a_thread_that_is_moved_are_those_that_the_kernel_sums() {
        let allowed_cores = sched_getaffinity(None).unwrap();
        let mut cores = (0..64).filter(|core| allowed_cores.is_set(*core));
        let (Some(first), Some(last)) = (cores.next(), cores.next_back()) else {
            return lull_testing::skip("the test needs a second core");
        };
        let Some(mut watch) = watch(1) else { return };
        let spin = "while :; do :; done";
        let _rivals = [first, last].map(|core| shell_on(core, spin));
        let own = shell_on(first, spin);
        let (pid, process) = (own.0.id(), Pid::from_child(&own.0));
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let stop = || {
            kill_process(process, Signal::STOP).unwrap();
            until("it is stopped", || read("stat").contains(") T"));
        };
        let waited_ns =
            || read("schedstat").split(' ').nth(1).and_then(|it| it.parse::<u64>().ok()).unwrap();
        stop();
        let before_ns = waited_ns();
        watch.follow(&BTreeMap::from([(pid, 0)])).unwrap();
        kill_process(process, Signal::CONT).unwrap();
        until("its first wait", || watch.read(0).waits.count() > 0);
        let mut moves = 0;
        until("waits on both cores", || {
            let mut core = CpuSet::new();
            core.set([last, first][moves % 2]);
            sched_setaffinity(Some(process), &core).unwrap();
            moves += 1;
            watch.read(0).waits.total() > Nanos::from_millis(100)
        });
        stop();
        let (seen, kernels_ns) = (watch.read(0), waited_ns() - before_ns);
        // Its wait before a move is known to the microsecond.
        let error_ns = (seen.waits.total() + seen.throttled).0.abs_diff(kernels_ns);
        assert!(error_ns < 2_000 * moves as u64, "{error_ns} ns of {kernels_ns}: {seen:?}");
    }

    #[test]
    fn a_thread_that_was_no_apps_is_followed_from_the_next_wait_on_and_back() {
        let Some(mut watch) = watch(2) else { return };
        // It never sleeps, so that only the rival on its core makes it wait, and no child does.
        let spin = "while :; do :; done";
        let (_rival, other) = (shell(spin), shell(spin));
        let as_app = |app| BTreeMap::from([(other.0.id(), app)]);
        for app in [0, 1, 0] {
            let before = watch.read(app).waits.count();
            watch.follow(&as_app(app as u32)).unwrap();
            until("waits of its app", || watch.read(app).waits.count() >= before + 3);
        }
        watch.follow(&BTreeMap::new()).unwrap();
        let seen = [0, 1].map(|app| watch.read(app).unfollowed);
        assert_eq!(seen, [0, 0]);
    }

    #[test]
    fn a_child_belongs_to_its_parents_app_and_no_other_waits_count() {
        let Some(mut watch) = watch(2) else { return };
        let parent = shell("sleep 0.2; for i in 1 2 3; do sh -c 'sleep 0.05'; done; sleep 600");
        let stranger = shell("while :; do sleep 0.01; done");
        watch.follow(&BTreeMap::from([(parent.0.id(), 1)])).unwrap();
        // Of the parent alone: one wait a child that it wakes up for, and few more.
        until("waits of the children", || watch.read(1).waits.count() >= 8);
        assert_eq!(watch.read(0).waits.count(), 0);
        let before = watch.read(1);
        watch.follow(&BTreeMap::new()).unwrap();
        watch.follow(&BTreeMap::from([(stranger.0.id(), 0)])).unwrap();
        until("waits of the other one", || watch.read(0).waits.count() >= 3);
        assert!(watch.read(1).waits.count() <= before.waits.count() + 8, "no longer followed");
    }
}
