//! Facts of a machine that no policy needs and a simulation of the machine does, each with the
//! file that it comes from.

use crate::Roots;
use crate::files::{read_text, read_value};
use crate::gauges::idle::IdleState;
use lull_control::{CoreId, CoreSet};
use lull_measure::{Missing, Nanos};
use std::path::{Path, PathBuf};

/// A value and the file that states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated<T> {
    /// The value.
    pub value: T,
    /// The file.
    pub file: PathBuf,
}

/// Facts that the kernel states beyond cores, frequencies and shares.
#[derive(Debug, Clone)]
pub struct MachineFacts {
    /// The cores that are online.
    pub online: CoreSet,
    /// Main memory in bytes.
    pub memory_bytes: Result<Stated<u64>, Missing>,
    /// How long a change of frequency takes.
    pub transition: Result<Stated<Nanos>, Missing>,
    /// The slice of the fair scheduling class.
    pub slice: Result<Stated<Nanos>, Missing>,
    /// The slice of real-time threads of one priority.
    pub real_time_slice: Result<Stated<Nanos>, Missing>,
    /// The idle states of core 0, shallow ones first.
    pub idle: Result<Vec<IdleState>, Missing>,
    /// Size and ways of the last-level cache, whether or not they can be divided.
    pub cache: Result<Stated<(String, u32)>, Missing>,
}

impl MachineFacts {
    /// Reads the facts of the machine under these roots.
    ///
    /// # Errors
    /// If the list of online cores cannot be read.
    pub fn read(roots: &Roots) -> Result<Self, super::ProbeError> {
        Ok(Self {
            online: super::cpus::online(roots)?,
            memory_bytes: memory_bytes(roots),
            transition: transition(roots),
            slice: slice(roots),
            real_time_slice: real_time_slice(roots),
            idle: IdleState::read_all(roots, CoreId(0)),
            cache: cache(roots),
        })
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> Missing {
    Missing::because(format!("{} cannot be read: {error}", file.display()))
}

fn number(file: PathBuf) -> Result<Stated<u64>, Missing> {
    let value = read_value(&file).map_err(|error| unreadable(&file, &error))?;
    Ok(Stated { value, file })
}

fn memory_bytes(roots: &Roots) -> Result<Stated<u64>, Missing> {
    let file = roots.proc.join("meminfo");
    let text = read_text(&file).map_err(|error| unreadable(&file, &error))?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let none = || Missing::because(format!("{} has no MemTotal", file.display()));
    Ok(Stated { value: kib.ok_or_else(none)? * 1024, file: file.clone() })
}

/// The kernel writes 0 or the largest number where the driver does not know.
fn transition(roots: &Roots) -> Result<Stated<Nanos>, Missing> {
    let file = roots.sys.join("devices/system/cpu/cpufreq/policy0/cpuinfo_transition_latency");
    let Stated { value, file } = number(file)?;
    if value == 0 || value >= u64::from(u32::MAX) {
        return Err(Missing::because("the frequency driver does not report it"));
    }
    Ok(Stated { value: Nanos(value), file })
}

/// The file is `base_slice_ns` since Linux 6.6, and `min_granularity_ns` before.
fn slice(roots: &Roots) -> Result<Stated<Nanos>, Missing> {
    let directory = roots.sys.join("kernel/debug/sched");
    let read = |name: &str| number(directory.join(name));
    let found = read("base_slice_ns").or_else(|_| read("min_granularity_ns"));
    let found = found.map(|Stated { value, file }| Stated { value: Nanos(value), file });
    let why = format!("{} cannot be read: mount debugfs, run as root", directory.display());
    found.map_err(|_| Missing::because(why))
}

fn real_time_slice(roots: &Roots) -> Result<Stated<Nanos>, Missing> {
    let Stated { value, file } = number(roots.proc.join("sys/kernel/sched_rr_timeslice_ms"))?;
    Ok(Stated { value: Nanos::from_millis(value), file })
}

fn cache(roots: &Roots) -> Result<Stated<(String, u32)>, Missing> {
    let directory = roots.sys.join("devices/system/cpu/cpu0/cache/index3");
    let (size, ways) = (directory.join("size"), directory.join("ways_of_associativity"));
    let size = read_text(&size).map_err(|error| unreadable(&size, &error))?;
    let ways = read_value(&ways).map_err(|error| unreadable(&ways, &error))?;
    Ok(Stated { value: (size.trim().to_owned(), ways), file: directory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn facts_come_with_their_file_and_what_is_missing_with_a_reason() {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-1\n");
        tree.write("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
        tree.write("proc/sys/kernel/sched_rr_timeslice_ms", "100\n");
        tree.write("sys/kernel/debug/sched/min_granularity_ns", "750000\n");
        let policy = "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_transition_latency";
        tree.write(policy, "4294967295\n");
        let facts = MachineFacts::read(&tree.roots()).unwrap();
        let memory = facts.memory_bytes.unwrap();
        assert_eq!((memory.value, memory.file.ends_with("meminfo")), (2 << 20, true));
        assert_eq!(facts.real_time_slice.unwrap().value, Nanos::from_millis(100));
        assert_eq!(facts.slice.unwrap().value, Nanos::from_micros(750));
        assert!(facts.transition.unwrap_err().to_string().contains("does not report it"));
        assert!(facts.cache.unwrap_err().to_string().contains("index3/size cannot be read"));
        assert!(facts.idle.is_err());
        tree.write(policy, "20000\n");
        let facts = MachineFacts::read(&tree.roots()).unwrap();
        assert_eq!(facts.transition.unwrap().value, Nanos::from_micros(20));
    }
}
