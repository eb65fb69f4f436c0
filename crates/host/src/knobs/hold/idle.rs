//! Idle states by exit latency or by name: `cpuidle/stateN/disable`
//! (Documentation/admin-guide/pm/cpuidle.rst).

use super::super::KnobError;
use crate::Roots;
use crate::drivers::cpuidle::states;
use crate::drivers::text::{read, read_number};
use crate::drivers::texts::TextWrite;
use lull_measure::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Disables every state that takes longer to leave, on every core, and
/// enables the others that were disabled.
pub(super) fn shallow(roots: &Roots, at_most: Nanos) -> Result<Vec<TextWrite>, KnobError> {
    let states = some(roots)?;
    let write = |state: PathBuf| {
        let latency_us = read_number(&state.join("latency"))?;
        let is_deep = Nanos::from_micros(latency_us) > at_most;
        Ok(TextWrite::exactly(state.join("disable"), if is_deep { "1" } else { "0" }))
    };
    states.into_iter().map(write).collect()
}

/// Enables the state of this name and disables all others, on every core.
pub(super) fn only(roots: &Roots, wanted: &str) -> Result<Vec<TextWrite>, KnobError> {
    let states = some(roots)?;
    let mut names = BTreeMap::new();
    for state in states {
        let name = read(&state.join("name"))?;
        names.insert(state, name);
    }
    let cores: BTreeSet<_> = names.keys().map(|state| state.parent()).collect();
    let with = names.iter().filter(|(_, name)| *name == wanted).map(|(state, _)| state.parent());
    if with.collect::<BTreeSet<_>>() != cores {
        let known: BTreeSet<&str> = names.values().map(String::as_str).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(KnobError::Nonsense(format!(
            "there is no idle state `{wanted}` on every core; there are: {known}"
        )));
    }
    let write = |(state, name): (&PathBuf, &String)| {
        TextWrite::exactly(state.join("disable"), if name == wanted { "0" } else { "1" })
    };
    Ok(names.iter().map(write).collect())
}

/// All states; there is one at least.
fn some(roots: &Roots) -> Result<Vec<PathBuf>, KnobError> {
    let states = states(roots);
    if states.is_empty() {
        return Err(KnobError::Nonsense(
            "no cpuidle states: the kernel has no idle driver for this machine".into(),
        ));
    }
    Ok(states)
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
    #[test]
    fn one_state_alone_is_left_and_one_that_is_not_there_is_refused_with_a_list() {
        let tree = Tree::new();
        for (core, state, name) in [(0, 0, "POLL"), (0, 1, "C1"), (0, 2, "C6"), (1, 0, "C6")] {
            let dir = format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}");
            tree.write(&format!("{dir}/name"), &format!("{name}\n"));
            tree.write(&format!("{dir}/disable"), "0\n");
        }
        let writes = only(&tree.roots(), "C6").unwrap();
        let texts: Vec<_> = writes.iter().map(|write| write.text.as_str()).collect();
        assert_eq!(texts, ["1", "1", "0", "0"]);
        let why = only(&tree.roots(), "C1").unwrap_err().to_string();
        assert!(why.contains("`C1` on every core; there are: C1, C6, POLL"), "{why}");
    }
}
