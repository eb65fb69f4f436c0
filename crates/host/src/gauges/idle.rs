//! Idle residency of each core and idle state from `cpuidle/state*/time`
//! (Documentation/admin-guide/pm/cpuidle.rst).
//!
//! The kernel adds the time of a sleep when the core wakes up. A core that
//! sleeps through the end of an epoch has that sleep counted in the next one,
//! which is why a share is capped at 1.

use super::{first_reading, unreadable};
use crate::Roots;
use crate::files::{HotFile, read_text, read_value};
use lull_control::CoreId;
use lull_measure::{Gauge, Missing, Nanos};
use std::io;
use std::path::{Path, PathBuf};

/// Idle residency of cores over epochs.
#[derive(Debug)]
pub struct IdleResidency {
    cores: Vec<CoreStates>,
}

/// Shares of an epoch that one core was in its idle states.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleShares {
    /// Indexed by state, shallow ones first, as the kernel counts them.
    pub states: Vec<f64>,
}

impl IdleShares {
    /// All states together.
    pub fn all(&self) -> f64 {
        self.states.iter().sum::<f64>().min(1.0)
    }

    /// The deepest state alone.
    pub fn deepest(&self) -> f64 {
        self.states.last().copied().unwrap_or(0.0)
    }
}

/// One idle state of a core, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleState {
    /// Its name: `C6`.
    pub name: String,
    /// Time that leaving it takes.
    pub exit_latency: Nanos,
    /// Shortest stay that the kernel enters it for; old kernels do not tell.
    pub target_residency: Option<Nanos>,
    dir: PathBuf,
}

/// How often and for how long a core was in one idle state since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleCount {
    /// Entries.
    pub entries: u64,
    /// Time in it.
    pub time: Nanos,
}

impl IdleState {
    /// The states of a core, shallow ones first.
    ///
    /// # Errors
    /// If it has none, or one cannot be read.
    pub fn read_all(roots: &Roots, core: CoreId) -> Result<Vec<Self>, Missing> {
        let dirs = state_dirs(roots, core);
        if dirs.is_empty() {
            return Err(no_states());
        }
        let state = |dir: PathBuf| {
            let (name, latency) = (dir.join("name"), dir.join("latency"));
            let exit_us = read_value(&latency).map_err(|error| unreadable(&latency, &error))?;
            Ok(Self {
                name: read_text(&name).map_err(|error| unreadable(&name, &error))?,
                exit_latency: Nanos::from_micros(exit_us),
                target_residency: read_value(&dir.join("residency")).ok().map(Nanos::from_micros),
                dir,
            })
        };
        dirs.into_iter().map(state).collect()
    }

    /// Returns the kernel's count since boot.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn count(&self) -> io::Result<IdleCount> {
        let number = |name: &str| read_value(&self.dir.join(name));
        Ok(IdleCount { entries: number("usage")?, time: Nanos::from_micros(number("time")?) })
    }
}

#[derive(Debug)]
struct CoreStates {
    /// `stateN/time` of every state, by N: microseconds since boot.
    states: Vec<HotFile>,
    last_us: Option<Vec<u64>>,
}

impl IdleResidency {
    /// A gauge of the cores `0..cores`.
    pub fn new(roots: &Roots, cores: usize) -> Self {
        let states = |core| CoreStates { states: time_files(roots, CoreId(core)), last_us: None };
        Self { cores: (0..).take(cores).map(states).collect() }
    }

    /// Returns the means by which residency is read.
    ///
    /// # Errors
    /// If core 0 has no idle states that can be read.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let mut core = CoreStates { states: time_files(roots, CoreId(0)), last_us: None };
        core.times_us()?;
        let count = core.states.len();
        let names = IdleState::read_all(roots, CoreId(0)).unwrap_or_default();
        let names: Vec<_> = names.into_iter().map(|state| state.name).collect();
        Ok(match names.is_empty() {
            true => format!("cpuidle ({count} states)"),
            false => format!("cpuidle ({})", names.join(", ")),
        })
    }

    /// Share of `span`, the time since the last call, that each core was in
    /// each of its idle states.
    pub fn read(&mut self, span: Nanos) -> Vec<Gauge<IdleShares>> {
        self.cores.iter_mut().map(|core| core.read(span)).collect()
    }
}

impl CoreStates {
    fn read(&mut self, span: Nanos) -> Gauge<IdleShares> {
        let now = self.times_us();
        let last = std::mem::replace(&mut self.last_us, now.as_ref().ok().cloned());
        let (now, last) = (now?, last.ok_or_else(first_reading)?);
        let span_us = span.as_micros_f64();
        if span_us <= 0.0 {
            return Err(Missing::because("the epoch is empty"));
        }
        let share =
            |(now, last): (&u64, &u64)| (now.saturating_sub(*last) as f64 / span_us).min(1.0);
        Ok(IdleShares { states: now.iter().zip(&last).map(share).collect() })
    }

    fn times_us(&mut self) -> Result<Vec<u64>, Missing> {
        if self.states.is_empty() {
            return Err(no_states());
        }
        let read = |file: &mut HotFile| {
            file.read_number().map_err(|error| unreadable(file.path(), &error))
        };
        self.states.iter_mut().map(read).collect()
    }
}

fn no_states() -> Missing {
    Missing::because(
        "no cpuidle states: the kernel has no idle driver for this machine \
         (usual in virtual machines)",
    )
}

fn time_files(roots: &Roots, core: CoreId) -> Vec<HotFile> {
    state_dirs(roots, core).into_iter().map(|dir| HotFile::new(dir.join("time"))).collect()
}

/// The directories `stateN` of a core, by N.
fn state_dirs(roots: &Roots, core: CoreId) -> Vec<PathBuf> {
    let dir = roots.sys.join(format!("devices/system/cpu/cpu{core}/cpuidle"));
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |path: &Path| -> Option<u32> {
        path.file_name()?.to_str()?.strip_prefix("state")?.parse().ok()
    };
    let mut states: Vec<_> = entries
        .filter_map(|entry| number(&entry.path()).map(|number| (number, entry.path())))
        .collect();
    states.sort();
    states.into_iter().map(|(_, dir)| dir).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn set(tree: &Tree, core: u16, state: u16, time_us: u64) {
        let dir = format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}");
        tree.write(&format!("{dir}/time"), &format!("{time_us}\n"));
    }

    #[test]
    fn all_states_add_up() {
        let tree = Tree::new();
        for (core, state) in [(0, 0), (0, 1), (1, 0)] {
            set(&tree, core, state, 1_000);
        }
        let mut gauge = IdleResidency::new(&tree.roots(), 3);
        assert!(gauge.read(Nanos::from_millis(100))[0].is_err());
        set(&tree, 0, 0, 11_000);
        set(&tree, 0, 1, 41_000);
        set(&tree, 1, 0, 901_000);
        let seen = gauge.read(Nanos::from_millis(100));
        let all = |core: usize| seen[core].as_ref().unwrap().all();
        assert_eq!([all(0), all(1)], [0.5, 1.0], "a long sleep is capped");
        assert_eq!(seen[0], Ok(IdleShares { states: vec![0.1, 0.4] }));
        assert_eq!(seen[0].as_ref().unwrap().deepest(), 0.4);
        assert!(seen[2].as_ref().unwrap_err().reason.contains("no cpuidle"));
        assert_eq!(IdleResidency::probe(&tree.roots()).unwrap(), "cpuidle (2 states)");
    }

    #[test]
    fn a_machine_without_cpuidle_says_so() {
        let tree = Tree::new();
        let why = IdleResidency::probe(&tree.roots()).unwrap_err();
        assert!(why.reason.contains("no cpuidle states"), "{why}");
        let seen = IdleResidency::new(&tree.roots(), 1).read(Nanos::from_millis(100));
        assert_eq!(seen, [Err(why)]);
    }

    #[test]
    fn the_real_machine_answers_one_way_or_the_other() {
        let roots = Roots::default();
        let mut gauge = IdleResidency::new(&roots, 1);
        gauge.read(Nanos::from_millis(1));
        let seen = gauge.read(Nanos::from_millis(1));
        assert_eq!(seen[0].is_ok(), IdleResidency::probe(&roots).is_ok());
    }
}
