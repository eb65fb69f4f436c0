//! The idle states of all cores (Documentation/admin-guide/pm/cpuidle.rst).

use crate::Roots;
use std::path::PathBuf;

/// The directories of all states of all cores that are online.
pub(crate) fn states(roots: &Roots) -> Vec<PathBuf> {
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
