//! Cores and their types from `/sys/devices/system/cpu` and `/proc/cpuinfo`.

use super::ProbeError;
use crate::Roots;
use crate::files::{read_text, read_value};
use lull_control::{Core, CoreId, CoreSet, CoreType};
use std::path::PathBuf;

/// Capacities within this factor count as one core type: cores of one design
/// differ by a few percent in the highest frequency that each may reach.
const SAME_TYPE: f64 = 1.1;
/// The capacity of a core where the kernel states none.
const FULL_CAPACITY: f64 = 1024.0;

/// The cores that are online.
pub(super) fn online(roots: &Roots) -> Result<CoreSet, ProbeError> {
    let path = roots.sys.join("devices/system/cpu/online");
    let read = read_text(&path).and_then(|text| {
        let cores: CoreSet = text.parse().map_err(std::io::Error::other)?;
        let none = || std::io::Error::other("no core is online");
        (!cores.is_empty()).then_some(cores).ok_or_else(none)
    });
    read.map_err(|error| ProbeError::new(&path, error))
}

/// All cores up to the highest online one, and their types, slowest first.
pub(super) fn cores(roots: &Roots, online: &CoreSet) -> (Vec<Core>, Vec<CoreType>) {
    let highest = online.iter().next_back().map_or(0, |core| core.0);
    let all: Vec<_> = (0..=highest).map(CoreId).collect();
    let capacities = capacities(roots, &all);
    let floors = type_floors(online.iter().map(|core| capacities[usize::from(core.0)]).collect());
    let core = |id: CoreId| {
        let capacity = capacities[usize::from(id.0)];
        let above = floors.iter().filter(|floor| **floor <= capacity).count();
        Core {
            id,
            core_type: above.saturating_sub(1),
            package: package(roots, id),
            smt_leader: smt_leader(roots, id),
        }
    };
    (all.into_iter().map(core).collect(), types(&floors))
}

/// The CPU's name as its maker gives it, or the architecture.
pub(super) fn model_name(roots: &Roots) -> String {
    // procfs::CpuInfo panics on a file without a `processor` line, which some
    // architectures have.
    let info = read_text(&roots.proc.join("cpuinfo")).unwrap_or_default();
    let keys = ["model name", "Model", "Hardware", "cpu model", "uarch"];
    let value = |wanted: &str| {
        let mut pairs = info.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim().to_owned())
    };
    let named = keys.iter().find_map(|key| value(key));
    named.unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

fn cpu_dir(roots: &Roots, core: CoreId) -> PathBuf {
    roots.sys.join(format!("devices/system/cpu/cpu{core}"))
}

/// Relative speed of each core at its highest frequency, in any unit.
///
/// `cpu_capacity` says it where the kernel knows (arm64, hybrid x86 since 6.12).
/// Older kernels list the two kinds of a hybrid Intel part as two PMUs; then
/// the firmware's highest performance level compares them.
fn capacities(roots: &Roots, all: &[CoreId]) -> Vec<f64> {
    let number = |core: &CoreId, file: &str| {
        read_value::<u32>(&cpu_dir(roots, *core).join(file)).ok().map(f64::from)
    };
    let stated = |core: &CoreId| number(core, "cpu_capacity");
    if all.iter().any(|core| stated(core).is_some()) {
        return all.iter().map(|core| stated(core).unwrap_or(FULL_CAPACITY)).collect();
    }
    let is_hybrid = roots.sys.join("devices/cpu_atom/cpus").exists();
    let performance = |core: &CoreId| number(core, "acpi_cppc/highest_perf").filter(|_| is_hybrid);
    all.iter().map(|core| performance(core).unwrap_or(FULL_CAPACITY)).collect()
}

/// The lowest capacity of each core type, ascending.
fn type_floors(mut capacities: Vec<f64>) -> Vec<f64> {
    capacities.retain(|capacity| *capacity > 0.0);
    capacities.sort_by(f64::total_cmp);
    let mut floors: Vec<f64> = Vec::new();
    for capacity in capacities {
        if floors.last().is_none_or(|floor| capacity > floor * SAME_TYPE) {
            floors.push(capacity);
        }
    }
    if floors.is_empty() {
        floors.push(FULL_CAPACITY);
    }
    floors
}

fn types(floors: &[f64]) -> Vec<CoreType> {
    let names: &[&str] = match floors.len() {
        1 => &["only"],
        2 => &["little", "big"],
        3 => &["little", "middle", "big"],
        _ => &[],
    };
    let name = |index: usize| match names.get(index) {
        Some(name) => (*name).to_owned(),
        None => format!("type {index}"),
    };
    let one =
        |(index, floor): (usize, &f64)| CoreType { name: name(index), speed: floor / floors[0] };
    floors.iter().enumerate().map(one).collect()
}

fn package(roots: &Roots, core: CoreId) -> u16 {
    // The kernel says -1 where it does not know.
    read_value(&cpu_dir(roots, core).join("topology/physical_package_id")).unwrap_or(0)
}

fn smt_leader(roots: &Roots, core: CoreId) -> CoreId {
    let list = read_text(&cpu_dir(roots, core).join("topology/thread_siblings_list"));
    let siblings: Option<CoreSet> = list.ok().and_then(|list| list.parse().ok());
    siblings.and_then(|siblings| siblings.iter().next()).unwrap_or(core)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn tree(online: &str) -> Tree {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", online);
        tree
    }

    fn speeds(types: &[CoreType]) -> Vec<f64> {
        types.iter().map(|kind| kind.speed).collect()
    }

    #[test]
    fn a_hole_in_the_numbers_is_listed() {
        let tree = tree("0,2-3\n");
        tree.write("sys/devices/system/cpu/cpu2/topology/physical_package_id", "1");
        tree.write("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "2-3");
        let online = online(&tree.roots()).unwrap();
        let (cores, types) = cores(&tree.roots(), &online);
        let numbers: Vec<_> = cores.iter().map(|core| core.id.0).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert_eq!((cores[2].package, cores[3].smt_leader), (1, CoreId(2)));
        assert_eq!((types[0].name.as_str(), types[0].speed), ("only", 1.0));
    }

    #[test]
    fn capacities_become_types_slowest_first() {
        let tree = tree("0-3");
        for (core, capacity) in [(0, 1024), (1, 512), (2, 1000), (3, 512)] {
            tree.write(
                &format!("sys/devices/system/cpu/cpu{core}/cpu_capacity"),
                &capacity.to_string(),
            );
        }
        let (cores, types) = cores(&tree.roots(), &CoreSet::first(4));
        assert_eq!(speeds(&types), [1.0, 1000.0 / 512.0]);
        assert_eq!(types[1].name, "big");
        let kinds: Vec<_> = cores.iter().map(|core| core.core_type).collect();
        assert_eq!(kinds, [1, 0, 1, 0]);
    }

    #[test]
    fn a_capacity_that_is_no_whole_number_is_none() {
        let tree = tree("0-1");
        for (core, capacity) in [(0, "inf"), (1, "512")] {
            tree.write(&format!("sys/devices/system/cpu/cpu{core}/cpu_capacity"), capacity);
        }
        let types = cores(&tree.roots(), &CoreSet::first(2)).1;
        assert_eq!(speeds(&types), [1.0, FULL_CAPACITY / 512.0]);
    }

    #[test]
    fn a_hybrid_processor_is_recognised_by_its_firmware() {
        let tree = tree("0-1");
        for (core, level) in [(0, 60), (1, 40)] {
            tree.write(
                &format!("sys/devices/system/cpu/cpu{core}/acpi_cppc/highest_perf"),
                &level.to_string(),
            );
        }
        let types = |tree: &Tree| speeds(&cores(&tree.roots(), &CoreSet::first(2)).1);
        assert_eq!(types(&tree), [1.0], "levels of equal cores only rank them");
        tree.write("sys/devices/cpu_atom/cpus", "1");
        assert_eq!(types(&tree), [1.0, 1.5]);
    }

    #[test]
    fn without_a_list_of_cores_there_is_no_machine() {
        let error = online(&Tree::new().roots()).unwrap_err().to_string();
        assert!(error.contains("cpu/online cannot be read"), "{error}");
        assert!(online(&tree("\n").roots()).is_err());
    }

    #[test]
    fn the_model_is_named_where_the_kernel_names_it() {
        let tree = tree("0");
        assert!(model_name(&tree.roots()).ends_with("processor"));
        tree.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU 9\n\n");
        assert_eq!(model_name(&tree.roots()), "Fast CPU 9");
    }
}
