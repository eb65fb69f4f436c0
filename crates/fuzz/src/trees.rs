//! Files of kernel, drivers and programs, as a tree that was recorded on another machine.

use crate::ledger::memory;
use lull_control::{CoreId, CoreSet, Machine};
use lull_host::drivers::cpufreq::PolicyState;
use lull_host::oncall::{Linkage, UnmappedServers, linkage};
use lull_host::probe::read_machine;
use lull_host::{Roots, apps::Facts};
use lull_measure::escape::is_hidden;
use std::fs;
use std::io;
use std::path::PathBuf;
use tempfile::TempDir;

/// Ends each file of an input, whose first byte says which one it is: `A` is the first.
const SEPARATOR: u8 = 0x1c;
/// Cores of a machine that is read; each costs several files.
const CORES_MAX: u16 = 256;

/// Files of a machine.
const MACHINE: [&str; 36] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/cpu_capacity",
    "sys/devices/system/cpu/cpu1/cpu_capacity",
    "sys/devices/system/cpu/cpu0/acpi_cppc/highest_perf",
    "sys/devices/system/cpu/cpu1/acpi_cppc/highest_perf",
    "sys/devices/cpu_atom/cpus",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu0/cache/index3/size",
    "sys/devices/system/cpu/cpu0/cpuidle/state1/latency",
    "sys/devices/system/cpu/cpu0/cpuidle/state2/latency",
    "sys/devices/system/cpu/cpufreq/policy0/affected_cpus",
    "sys/devices/system/cpu/cpufreq/policy0/related_cpus",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_available_frequencies",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_min_freq",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_setspeed",
    "sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference",
    "sys/devices/system/cpu/cpufreq/policy0/energy_performance_available_preferences",
    "sys/devices/system/cpu/cpufreq/policy1/affected_cpus",
    "sys/devices/system/cpu/intel_uncore_frequency/package_00_die_00/min_freq_khz",
    "sys/devices/system/cpu/intel_uncore_frequency/package_00_die_00/max_freq_khz",
    "sys/devices/system/cpu/intel_uncore_frequency/uncore00/max_freq_khz",
    "sys/fs/resctrl/schemata",
    "sys/fs/resctrl/info/L3/cbm_mask",
    "sys/fs/resctrl/info/L3/min_cbm_bits",
    "sys/fs/resctrl/info/L3/num_closids",
    "sys/fs/resctrl/info/L3/sparse_masks",
    "sys/fs/resctrl/info/MB/min_bandwidth",
    "sys/fs/resctrl/info/MB/bandwidth_gran",
    "sys/fs/resctrl/info/L3CODE/cbm_mask",
    "proc/cpuinfo",
    "proc/filesystems",
];

/// Files of one process, of which its user chooses most.
const PROCESS: [&str; 7] = [
    "proc/7/stat",
    "proc/7/environ",
    "proc/7/maps",
    "proc/7/comm",
    "proc/7/auxv",
    "proc/7/attr/current",
    "proc/7/exe",
];

/// Writes the files of an input, of those that are listed.
fn tree(files: &[&str], bytes: &[u8]) -> io::Result<TempDir> {
    let tree = tempfile::tempdir_in(memory())?;
    for part in bytes.split(|byte| *byte == SEPARATOR) {
        let Some((choice, content)) = part.split_first() else { continue };
        let file = tree.path().join(files[usize::from(choice.wrapping_sub(b'A')) % files.len()]);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, content)?;
    }
    Ok(tree)
}

/// A machine that is read has its cores in order, and steps and limits that ascend.
pub(crate) fn machine(bytes: &[u8]) {
    let tree = file_result(tree(&MACHINE, bytes));
    let online = fs::read_to_string(tree.path().join(MACHINE[0])).unwrap_or_default();
    let online: Result<CoreSet, _> = online.parse();
    if online.is_ok_and(|cores| cores.iter().any(|core| core.0 >= CORES_MAX)) {
        return;
    }
    let policy = tree.path().join("sys/devices/system/cpu/cpufreq/policy0");
    let _ = PolicyState::read(&policy).map(|state| state.to_string());
    if let Ok(machine) = read_machine(&Roots::under(tree.path())) {
        check(&machine);
    }
}

fn check(machine: &Machine) {
    assert!((0..).map(CoreId).zip(&machine.cores).all(|(id, core)| id == core.id), "{machine:?}");
    let types = &machine.core_types;
    assert!(machine.cores.iter().all(|core| core.core_type < types.len()), "{machine:?}");
    assert!(types.iter().all(|kind| kind.speed >= 1.0 && kind.speed.is_finite()), "{types:?}");
    for domain in &machine.domains {
        assert!(!domain.cores.is_empty() && domain.steps.is_sorted(), "{domain:?}");
    }
    assert!(machine.dials.iter().all(|dial| dial.lowest < dial.highest), "{:?}", machine.dials);
    assert!(machine.idle_latencies.is_sorted(), "{:?}", machine.idle_latencies);
    let least = machine.bandwidth.as_ref().map_or(1, |bandwidth| bandwidth.min_percent);
    assert!(least > 0, "{:?}", machine.bandwidth);
}

/// What a file of the fuzzer gives: without one there is nothing to try.
pub(crate) fn file_result<T>(result: io::Result<T>) -> T {
    result.expect("the fuzzer's own files can be written and read")
}

/// What is reported of a process stays in its line, whatever it has written about itself.
pub(crate) fn process(bytes: &[u8]) {
    let tree = file_result(tree(&PROCESS, bytes));
    let roots = Roots::under(tree.path());
    let facts = Facts::of_process(&roots, 7);
    let page = PathBuf::from("/run/lull-db/page");
    let found = UnmappedServers::new(&roots, page, 4242, 0).look();
    assert!(found.is_empty() || facts.is_ok(), "{found:?}");
    for server in found {
        let text = server.to_string();
        assert!(!text.contains(is_hidden), "{text:?}");
    }
}

/// Only an ELF file is linked.
pub(crate) fn program(bytes: &[u8]) {
    let place = file_result(tempfile::tempdir_in(memory()));
    let file = place.path().join("program");
    file_result(fs::write(&file, bytes));
    let found = file_result(linkage(&file));
    assert!(bytes.starts_with(b"\x7fELF") || found == Linkage::Other, "{found:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn seed(name: &str) -> Vec<u8> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        fs::read(corpus.join(name)).unwrap()
    }

    #[test]
    fn the_seeds_of_a_machine_have_all_that_is_read() {
        let tree = tree(&MACHINE, &seed("machine/server")).unwrap();
        let machine = read_machine(&Roots::under(tree.path())).unwrap();
        assert_eq!((machine.cores.len(), machine.domains.len(), machine.dials.len()), (4, 1, 1));
        assert_eq!((machine.idle_latencies.len(), machine.energy_preferences.len()), (2, 4));
        // Whether shares can be set also depends on who runs the test, and here it may.
        assert_eq!(machine.cache.map(|cache| (cache.ways, cache.size_bytes)), Some((8, 30 << 20)));
        assert_eq!(machine.bandwidth.map(|bandwidth| bandwidth.min_percent), Some(10));
        assert_eq!(machine.core_types.len(), 2);
    }

    #[test]
    fn the_seeds_of_a_process_are_findings() {
        for (name, reason) in [("unmapped", "did not load"), ("confined", "is confined")] {
            let tree = tree(&PROCESS, &seed(&format!("process/{name}"))).unwrap();
            let page = PathBuf::from("/run/lull-db/page");
            let found = UnmappedServers::new(&Roots::under(tree.path()), page, 4242, 0).look();
            assert_eq!(found.len(), 1, "{name}");
            assert!(found[0].to_string().contains(reason), "{}", found[0]);
        }
    }

    #[test]
    fn the_seeds_of_a_program_are_linked_in_each_way() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/program");
        let ways = ["dynamic", "go", "static"].map(|name| linkage(&corpus.join(name)).unwrap());
        assert_eq!(ways, [Linkage::Dynamic, Linkage::Go, Linkage::Static]);
    }
}
