//! Cores that play P-states on a machine that has none.
//!
//! A directory holds a cpufreq policy for each of these cores
//! (Documentation/admin-guide/pm/cpufreq.rst) and a `stat` in the form of `/proc/stat`. A program
//! in whose mount namespace both are mounted over those of the kernel sees cores with the
//! governors `performance` and `userspace`. The duty cycler of a core follows the frequency that
//! the files request: highest frequency over requested one is the slow-down. The busy time of
//! each P-state is calibrated when the emulation starts, as for [`Emulated`].
//!
//! An emulated core does not have the time that its cycler takes. `stat` therefore leaves this
//! time out, or a core at half of its speed would look half busy when it is idle. It counts in
//! microseconds, where the kernel counts ticks of 10 ms, so that shares of a window of 50 ms are
//! exact. Idle time is that of cpuidle, which the kernel adds up when a core wakes: at most 2 ms
//! late, because the cycler wakes that often.

use super::{Cycler, EmulateError, Emulated};
use crate::Roots;
use crate::drivers::cpufreq::{PolicyState, USERSPACE};
use crate::files::{read_text, read_value};
use crate::gauges::idle::IdleState;
use lull_control::{CoreId, CoreSet};
use lull_measure::{Hertz, Missing, Nanos};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why cores cannot play P-states.
#[derive(Debug, thiserror::Error)]
pub enum CpufreqError {
    /// The frequencies are no P-states.
    #[error("P-states need at least two different frequencies above 0, and one core")]
    Frequencies,
    /// A core cannot have one of the speeds.
    #[error(transparent)]
    Speed(#[from] EmulateError),
    /// The idle time of a core is not counted.
    #[error("the utilisation of core {core} would be unknown: {why}")]
    Idle {
        /// The core.
        core: CoreId,
        /// Why it is not counted.
        why: Missing,
    },
    /// A file of the tree, or of the kernel.
    #[error("cannot use {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The emulated frequencies of cores.
#[derive(Debug, Clone)]
pub struct CpufreqPlan {
    /// Where the files are made.
    pub directory: PathBuf,
    /// The cores.
    pub cores: CoreSet,
    /// The P-states, in any order; the highest is full speed.
    pub frequencies: Vec<Hertz>,
    /// Length of a duty cycle.
    pub period: Nanos,
}

/// A P-state of a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PState {
    /// The frequency that it plays.
    pub frequency: Hertz,
    /// How many times slower than at full speed the core was measured to be.
    pub slowdown: f64,
    /// Busy time of the cycler in a period.
    busy: Nanos,
}

/// Cores whose speed follows the files; they are at full speed again when it is dropped.
#[derive(Debug)]
pub struct EmulatedCpufreq {
    cores: Vec<EmulatedCore>,
    /// `/proc/stat`, if it has cores that are not emulated.
    others: Option<PathBuf>,
    stat: File,
    stat_path: PathBuf,
    begin: Instant,
}

#[derive(Debug)]
struct EmulatedCore {
    core: CoreId,
    policy: PathBuf,
    cycler: Cycler,
    /// Slowest first.
    states: Vec<PState>,
    /// Index of the state in force.
    current: usize,
    idle: Vec<IdleState>,
    /// The kernel's idle time when the emulation began.
    idle_before: Nanos,
    /// The time that the cycler had taken by then.
    taken_before: Nanos,
}

/// Time of a core since the emulation began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CoreTime {
    elapsed: Nanos,
    idle: Nanos,
    /// Taken by the cycler.
    taken: Nanos,
}

impl EmulatedCpufreq {
    /// Calibrates every P-state on every core, which takes some seconds each, and makes the
    /// files. All cores begin at full speed under the governor `performance`.
    ///
    /// # Errors
    /// If the plan is none, a core cannot have a speed, or a file cannot be made.
    pub fn start(plan: &CpufreqPlan, roots: &Roots) -> Result<Self, CpufreqError> {
        let mut frequencies = plan.frequencies.clone();
        frequencies.sort_unstable();
        frequencies.dedup();
        if frequencies.len() < 2 || frequencies[0] == Hertz(0) || plan.cores.is_empty() {
            return Err(CpufreqError::Frequencies);
        }
        let online_path = roots.sys.join("devices/system/cpu/online");
        let online: CoreSet = read_value(&online_path).map_err(file_error(&online_path))?;
        let start = |core| EmulatedCore::start(plan, core, &frequencies, roots);
        let mut cores: Vec<EmulatedCore> =
            plan.cores.iter().map(start).collect::<Result<_, _>>()?;
        let stat_path = plan.directory.join("stat");
        let stat = File::create(&stat_path).map_err(file_error(&stat_path))?;
        let others = (!online.is_subset(&plan.cores)).then(|| roots.proc.join("stat"));
        let begin = Instant::now();
        // Each core has idled while the next ones were calibrated.
        cores.iter_mut().try_for_each(EmulatedCore::begin)?;
        let mut emulated = Self { cores, others, stat, stat_path, begin };
        emulated.follow()?;
        Ok(emulated)
    }

    /// The P-states of each core, slowest first.
    pub fn states(&self) -> impl Iterator<Item = (CoreId, &[PState])> {
        self.cores.iter().map(|core| (core.core, core.states.as_slice()))
    }

    /// Takes over what the files request, and counts the cores' time; to be called every few
    /// milliseconds.
    ///
    /// # Errors
    /// If a file cannot be written or idle time cannot be read.
    pub fn follow(&mut self) -> Result<(), CpufreqError> {
        let elapsed = Nanos::from(self.begin.elapsed());
        let (mut sum, mut lines) = (CoreTime::default(), String::new());
        for core in &mut self.cores {
            core.follow()?;
            let time = core.time(elapsed)?;
            lines.push_str(&stat_line(&format!("cpu{}", core.core), time));
            sum = sum.plus(time);
        }
        if let Some(path) = &self.others {
            let text = read_text(path).map_err(file_error(path))?;
            let is_emulated = |number: u16| self.cores.iter().any(|core| core.core.0 == number);
            lines.push_str(&lines_of_others(&text, is_emulated));
        }
        let text = format!("{}{lines}", stat_line("cpu", sum));
        // Numbers only grow, and so does the text: nothing of an older one is left behind it.
        self.stat.write_all_at(text.as_bytes(), 0).map_err(file_error(&self.stat_path))
    }
}

impl EmulatedCore {
    fn start(
        plan: &CpufreqPlan,
        core: CoreId,
        frequencies: &[Hertz],
        roots: &Roots,
    ) -> Result<Self, CpufreqError> {
        let highest = frequencies[frequencies.len() - 1];
        let slower = |frequency: &Hertz| Emulated {
            core,
            slowdown: highest.0 as f64 / frequency.0 as f64,
            period: plan.period,
        };
        let (_, below) = frequencies.split_last().ok_or(CpufreqError::Frequencies)?;
        below.iter().try_for_each(|frequency| slower(frequency).check(roots))?;
        let idle = IdleState::read_all(roots, core);
        let idle = idle.map_err(|why| CpufreqError::Idle { core, why })?;
        let cycler = slower(&frequencies[0]).cycler()?;
        let mut states = Vec::with_capacity(frequencies.len());
        for frequency in below {
            let (busy, slowdown) = slower(frequency).calibrate(&cycler, roots)?;
            states.push(PState { frequency: *frequency, slowdown, busy });
        }
        cycler.set_busy(Nanos::ZERO);
        states.push(PState { frequency: highest, slowdown: 1.0, busy: Nanos::ZERO });
        let policy = plan.directory.join(format!("cpufreq/policy{core}"));
        make_policy(&policy, core, frequencies).map_err(file_error(&policy))?;
        let (idle_before, taken_before) = (Nanos::ZERO, Nanos::ZERO);
        let current = states.len() - 1;
        Ok(Self { core, policy, cycler, states, current, idle, idle_before, taken_before })
    }

    /// Counts its time from now on.
    fn begin(&mut self) -> Result<(), CpufreqError> {
        self.idle_before = idle_time(self.core, &self.idle)?;
        self.taken_before = self.cycler.taken();
        Ok(())
    }

    fn follow(&mut self) -> Result<(), CpufreqError> {
        // A file that is being written reads as none: the state in force stays until the next look.
        let requested = PolicyState::read(&self.policy).ok().and_then(|state| state.pinned_khz());
        let Some(requested) = requested else { return Ok(()) };
        let wanted = state_for(&self.states, Hertz::from_khz(requested));
        if wanted == self.current {
            return Ok(());
        }
        self.current = wanted;
        self.cycler.set_busy(self.states[wanted].busy);
        let file = self.policy.join("scaling_cur_freq");
        replace(&file, self.states[wanted].frequency).map_err(file_error(&file))
    }

    fn time(&self, elapsed: Nanos) -> Result<CoreTime, CpufreqError> {
        let idle = idle_time(self.core, &self.idle)?.saturating_sub(self.idle_before);
        let taken = self.cycler.taken().saturating_sub(self.taken_before);
        Ok(CoreTime { elapsed, idle, taken })
    }
}

impl CoreTime {
    fn plus(self, other: Self) -> Self {
        Self {
            elapsed: self.elapsed + other.elapsed,
            idle: self.idle + other.idle,
            taken: self.taken + other.taken,
        }
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> CpufreqError + use<> {
    let path = path.to_owned();
    move |source| CpufreqError::File { path, source }
}

/// Makes the files of a policy.
fn make_policy(directory: &Path, core: CoreId, frequencies: &[Hertz]) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let khz = |at: usize| (frequencies[at].0 / 1000).to_string();
    let (lowest, highest) = (khz(0), khz(frequencies.len() - 1));
    let steps: Vec<String> = (0..frequencies.len()).map(khz).collect();
    for (name, text) in [
        ("affected_cpus", core.to_string()),
        ("related_cpus", core.to_string()),
        ("cpuinfo_min_freq", lowest.clone()),
        ("cpuinfo_max_freq", highest.clone()),
        ("scaling_driver", "lull-duty-cycle".to_owned()),
        ("scaling_available_frequencies", steps.join(" ")),
        ("scaling_available_governors", format!("performance {USERSPACE}")),
        ("scaling_governor", "performance".to_owned()),
        ("scaling_min_freq", lowest),
        ("scaling_max_freq", highest.clone()),
        ("scaling_cur_freq", highest),
        ("scaling_setspeed", "<unsupported>".to_owned()),
    ] {
        std::fs::write(directory.join(name), format!("{text}\n"))?;
    }
    Ok(())
}

/// Exchanges a file, so that a reader finds the old frequency or the new one.
fn replace(file: &Path, frequency: Hertz) -> io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{}\n", frequency.0 / 1000))?;
    std::fs::rename(new, file)
}

fn idle_time(core: CoreId, states: &[IdleState]) -> Result<Nanos, CpufreqError> {
    let add =
        |sum: Nanos, state: &IdleState| -> io::Result<Nanos> { Ok(sum + state.count()?.time) };
    let unreadable = |error: io::Error| CpufreqError::Idle {
        core,
        why: Missing::because(format!("cpuidle cannot be read: {error}")),
    };
    states.iter().try_fold(Nanos::ZERO, add).map_err(unreadable)
}

/// Index of the slowest state that is not below a request, as cpufreq's `userspace` chooses
/// (`CPUFREQ_RELATION_L`).
fn state_for(states: &[PState], wanted: Hertz) -> usize {
    let found = states.iter().position(|state| state.frequency >= wanted);
    found.unwrap_or(states.len() - 1)
}

/// The line of a core in `stat`, in microseconds: user, nice, system, idle and six more.
fn stat_line(name: &str, time: CoreTime) -> String {
    let own_us = time.elapsed.saturating_sub(time.taken).0 / 1000;
    let idle_us = (time.idle.0 / 1000).min(own_us);
    format!("{name} {:>20} 0 0 {idle_us:>20} 0 0 0 0 0 0\n", own_us - idle_us)
}

/// The kernel's lines of the cores that are not emulated.
fn lines_of_others(stat: &str, is_emulated: impl Fn(u16) -> bool) -> String {
    let mut kept = String::new();
    for line in stat.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let number = name.strip_prefix("cpu").and_then(|number| number.parse().ok());
        if number.is_some_and(|number| !is_emulated(number)) {
            let _ = writeln!(kept, "{line}");
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauges::utilisation::Utilisation;
    use crate::probe;
    use crate::testing::Tree;

    fn mhz(number: u64) -> Hertz {
        Hertz(number * 1_000_000)
    }

    fn states() -> Vec<PState> {
        let state = |frequency| PState { frequency, slowdown: 1.0, busy: Nanos::ZERO };
        [1_197, 1_729, 2_260].map(mhz).map(state).to_vec()
    }

    fn time(elapsed_us: u64, idle_us: u64, taken_us: u64) -> CoreTime {
        let [elapsed, idle, taken] = [elapsed_us, idle_us, taken_us].map(Nanos::from_micros);
        CoreTime { elapsed, idle, taken }
    }

    #[test]
    fn a_request_between_two_states_is_served_by_the_faster_one() {
        let index = |number| state_for(&states(), mhz(number));
        assert_eq!([0, 1_197, 1_198, 1_729, 2_260, 9_000].map(index), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn the_agents_probe_sees_the_files_as_a_domain_with_these_steps() {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-1\n");
        let frequencies: Vec<_> = states().iter().map(|state| state.frequency).collect();
        for core in [0, 1] {
            let directory = tree.path(&format!("sys/devices/system/cpu/cpufreq/policy{core}"));
            make_policy(&directory, CoreId(core), &frequencies).unwrap();
            let state = PolicyState::read(&directory).unwrap();
            assert_eq!(state.pinned_khz(), Some(2_260_000), "it begins at full speed");
        }
        let machine = probe::machine(&tree.roots()).unwrap();
        assert_eq!(machine.domains.len(), 2);
        assert_eq!(machine.domains[1].steps, frequencies);
        assert_eq!(machine.domains[1].cores.to_string(), "1");
        assert!(machine.capabilities.has(lull_control::Capability::Frequency));
    }

    #[test]
    fn the_time_that_the_cycler_takes_is_no_time_of_the_core() {
        let tree = Tree::new();
        let mut gauge = Utilisation::new(&tree.roots(), 2);
        let mut read = |first: CoreTime, second: CoreTime| {
            let lines = [stat_line("cpu", first), stat_line("cpu0", first)];
            tree.write("proc/stat", &format!("{}{}", lines.concat(), stat_line("cpu1", second)));
            gauge.read()
        };
        read(time(0, 0, 0), time(0, 0, 0));
        // Half of 50 ms is taken: the rest is idle on core 0, and busy for 20 of 25 on core 1.
        let seen = read(time(50_000, 25_000, 25_000), time(50_000, 5_000, 25_000));
        assert_eq!(seen, [Ok(0.0), Ok(0.8)]);
        // Idle time that the kernel adds late is never more than the core had.
        let seen = read(time(100_000, 60_000, 50_000), time(100_000, 5_000, 50_000));
        assert_eq!(seen, [Ok(0.0), Ok(1.0)]);
    }

    #[test]
    fn lines_of_other_cores_are_those_of_the_kernel() {
        let stat = "cpu  3 0 0 4\ncpu0 1 0 0 1\ncpu1 1 0 0 2\ncpu10 1 0 0 1\nintr 9\n";
        let others = lines_of_others(stat, |core| core == 0);
        assert_eq!(others, "cpu1 1 0 0 2\ncpu10 1 0 0 1\n");
    }

    #[test]
    fn one_speed_or_none_is_refused_before_a_thread_starts() {
        let tree = Tree::new();
        let plan = |cores: &str, frequencies: &[u64]| CpufreqPlan {
            directory: tree.path("emulated"),
            cores: cores.parse().unwrap(),
            frequencies: frequencies.iter().copied().map(mhz).collect(),
            period: super::super::PERIOD,
        };
        let cases: [&[u64]; 3] = [&[2_260, 2_260], &[0, 2_260], &[]];
        for frequencies in cases {
            let refused = EmulatedCpufreq::start(&plan("0", frequencies), &tree.roots());
            assert!(matches!(refused, Err(CpufreqError::Frequencies)), "{frequencies:?}");
        }
        let unknown = EmulatedCpufreq::start(&plan("0", &[1_000, 2_000]), &tree.roots());
        assert!(matches!(unknown, Err(CpufreqError::File { .. })), "no list of cores");
        tree.write("sys/devices/system/cpu/online", "0\n");
        let uncounted = EmulatedCpufreq::start(&plan("0", &[1_000, 2_000]), &tree.roots());
        let text = uncounted.unwrap_err().to_string();
        assert!(text.contains("utilisation of core 0"), "{text}");
    }
}
