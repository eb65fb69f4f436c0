//! Idle states by exit latency: `cpuidle/stateN/disable`
//! (Documentation/admin-guide/pm/cpuidle.rst).

use super::super::KnobError;
use crate::Roots;
use crate::drivers::text::read_number;
use crate::drivers::texts::TextWrite;
use lull_measure::Nanos;
use std::path::PathBuf;

/// Disables every state that takes longer to leave, on every core, and
/// enables the others that were disabled.
pub(super) fn shallow(roots: &Roots, at_most: Nanos) -> Result<Vec<TextWrite>, KnobError> {
    let states = states(roots);
    if states.is_empty() {
        return Err(KnobError::Nonsense(
            "no cpuidle states: the kernel has no idle driver for this machine".into(),
        ));
    }
    let write = |state: PathBuf| {
        let latency_us = read_number(&state.join("latency"))?;
        let is_deep = Nanos::from_micros(latency_us) > at_most;
        Ok(TextWrite::exactly(state.join("disable"), if is_deep { "1" } else { "0" }))
    };
    states.into_iter().map(write).collect()
}

/// The directories of all states of all cores that are online.
pub(super) fn states(roots: &Roots) -> Vec<PathBuf> {
    let cpus = entries(roots.sys.join("devices/system/cpu"), "cpu");
    let mut found: Vec<_> =
        cpus.into_iter().flat_map(|cpu| entries(cpu.join("cpuidle"), "state")).collect();
    found.sort();
    found
}

/// The entries of a directory with this name and a number.
fn entries(dir: PathBuf, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        let number = path.file_name().and_then(|file| file.to_str()?.strip_prefix(name));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn states_that_take_longer_are_disabled_on_every_core() {
        let tree = Tree::new();
        assert!(shallow(&tree.roots(), Nanos::ZERO).is_err());
        for (core, state, latency_us) in [(0, 0, 0), (0, 1, 2), (0, 2, 50), (1, 2, 50)] {
            let dir = format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}");
            tree.write(&format!("{dir}/latency"), &format!("{latency_us}\n"));
            tree.write(&format!("{dir}/disable"), "0\n");
        }
        let writes = shallow(&tree.roots(), Nanos::from_micros(10)).unwrap();
        let texts: Vec<_> = writes.iter().map(|write| write.text.as_str()).collect();
        assert_eq!(texts, ["0", "0", "1", "1"]);
    }
}
