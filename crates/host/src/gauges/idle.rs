//! Idle residency of each core from `cpuidle/state*/time`.
//!
//! The kernel adds the time of a sleep when the core wakes up. A core that
//! sleeps through the end of an epoch has that sleep counted in the next one,
//! which is why a share is capped at 1.

use super::{first_reading, unreadable};
use crate::Roots;
use crate::files::HotFile;
use lull_control::CoreId;
use lull_measure::{Gauge, Missing, Nanos};
use std::path::PathBuf;

/// Idle residency of cores over epochs.
#[derive(Debug)]
pub struct IdleResidency {
    cores: Vec<CoreStates>,
}

#[derive(Debug)]
struct CoreStates {
    /// `stateN/time` of every state: microseconds since boot.
    states: Vec<HotFile>,
    last_us: Option<u64>,
}

impl IdleResidency {
    /// A gauge of the cores `0..cores`.
    pub fn new(roots: &Roots, cores: usize) -> Self {
        let states = |core| CoreStates { states: state_files(roots, CoreId(core)), last_us: None };
        Self { cores: (0..).take(cores).map(states).collect() }
    }

    /// By which means residency is read, or why it cannot be.
    ///
    /// # Errors
    /// If core 0 has no idle states that can be read.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let mut core = CoreStates { states: state_files(roots, CoreId(0)), last_us: None };
        core.total_us()?;
        Ok(format!("cpuidle ({} states)", core.states.len()))
    }

    /// Share of `span`, the time since the last call, that each core was in
    /// idle states, all states together.
    pub fn read(&mut self, span: Nanos) -> Vec<Gauge<f64>> {
        self.cores.iter_mut().map(|core| core.read(span)).collect()
    }
}

impl CoreStates {
    fn read(&mut self, span: Nanos) -> Gauge<f64> {
        let now = self.total_us();
        let last = std::mem::replace(&mut self.last_us, now.as_ref().ok().copied());
        let slept_us = now?.saturating_sub(last.ok_or_else(first_reading)?);
        let span_us = span.as_micros_f64();
        if span_us <= 0.0 {
            return Err(Missing::because("the epoch is empty"));
        }
        Ok((slept_us as f64 / span_us).min(1.0))
    }

    fn total_us(&mut self) -> Result<u64, Missing> {
        if self.states.is_empty() {
            return Err(Missing::because(
                "no cpuidle states: the kernel has no idle driver for this machine \
                 (usual in virtual machines)",
            ));
        }
        let mut sum = 0;
        for file in &mut self.states {
            sum += file.read_number().map_err(|error| unreadable(file.path(), &error))?;
        }
        Ok(sum)
    }
}

fn state_files(roots: &Roots, core: CoreId) -> Vec<HotFile> {
    let dir = roots.sys.join(format!("devices/system/cpu/cpu{core}/cpuidle"));
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_state = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"state"))
    };
    let states = entries.map(|entry| entry.path()).filter(is_state);
    states.map(|state| HotFile::new(state.join("time"))).collect()
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
        assert_eq!(seen[..2], [Ok(0.5), Ok(1.0)], "a long sleep is capped");
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
