//! The governor and the energy-performance preference of all frequency domains.
//!
//! A preference other than `performance` under the governor `performance` is
//! EBUSY (seen on 6.12 and 7.2 with amd-pstate), so request the governor first.

use super::super::KnobError;
use crate::Roots;
use crate::drivers::cpufreq::policies;
use crate::drivers::text;
use crate::drivers::texts::TextWrite;
use std::path::{Path, PathBuf};

/// Sets `scaling_governor` everywhere.
pub(super) fn governor(roots: &Roots, name: &str) -> Result<Vec<TextWrite>, KnobError> {
    write_each_policy(roots, |dir| {
        offered(&dir.join("scaling_available_governors"), name, "governor")?;
        Ok(TextWrite::exactly(dir.join("scaling_governor"), name))
    })
}

/// Sets `energy_performance_preference` everywhere: a name, or 0 to 255.
pub(super) fn preference(roots: &Roots, name: &str) -> Result<Vec<TextWrite>, KnobError> {
    write_each_policy(roots, |dir| {
        let list = dir.join("energy_performance_available_preferences");
        if name.parse::<u8>().is_err() && !is_narrowed(&list) {
            offered(&list, name, "energy-performance preference")?;
        }
        Ok(TextWrite::exactly(dir.join("energy_performance_preference"), name))
    })
}

/// Returns whether the list of preferences has only one name, as under the governor
/// `performance` on 6.12. Another governor in the same plan makes more names available,
/// so the name is not checked against this list and the kernel decides.
fn is_narrowed(list: &Path) -> bool {
    text::read(list).is_ok_and(|names| names.trim() == "performance")
}

fn write_each_policy(
    roots: &Roots,
    write: impl Fn(&Path) -> Result<TextWrite, KnobError>,
) -> Result<Vec<TextWrite>, KnobError> {
    let mut dirs: Vec<PathBuf> = policies(roots).map(|(_, dir)| dir).collect();
    dirs.sort();
    if dirs.is_empty() {
        return Err(KnobError::Nonsense("no cpufreq: there is no frequency driver here".into()));
    }
    dirs.iter().map(|dir| write(dir)).collect()
}

fn offered(list: &Path, name: &str, what: &str) -> Result<(), KnobError> {
    let names = text::read(list)?;
    if names.split_whitespace().any(|known| known == name) {
        return Ok(());
    }
    Err(KnobError::Nonsense(format!("there is no {what} `{name}` here; there are: {names}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::cpufreq::tests::{DIR, policy};
    use crate::testing::Tree;

    #[test]
    fn only_what_the_driver_lists_is_written() {
        let tree = Tree::new();
        assert!(
            governor(&tree.roots(), "performance").unwrap_err().to_string().contains("cpufreq")
        );
        policy(&tree, DIR, "schedutil performance");
        assert_eq!(governor(&tree.roots(), "performance").unwrap().len(), 1);
        let error = governor(&tree.roots(), "ondemand").unwrap_err().to_string();
        assert!(error.contains("schedutil performance"), "{error}");
    }

    #[test]
    fn a_preference_is_a_listed_name_or_a_byte() {
        let tree = Tree::new();
        policy(&tree, DIR, "powersave performance");
        let missing = preference(&tree.roots(), "power").unwrap_err().to_string();
        assert!(missing.contains("energy_performance_available_preferences"), "{missing}");
        let list = format!("{DIR}/energy_performance_available_preferences");
        tree.write(&list, "default performance balance_power power \n");
        assert_eq!(preference(&tree.roots(), "power").unwrap()[0].text, "power");
        assert_eq!(preference(&tree.roots(), "128").unwrap()[0].text, "128");
        assert!(preference(&tree.roots(), "256").is_err());
        assert!(preference(&tree.roots(), "frugal").is_err());
        // A list of one name, until the governor that is requested before is set.
        tree.write(&list, "performance\n");
        assert_eq!(preference(&tree.roots(), "power").unwrap()[0].text, "power");
    }
}
