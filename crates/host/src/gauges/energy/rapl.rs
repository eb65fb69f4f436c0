//! Energy from the RAPL counters of `/sys/class/powercap`
//! (Documentation/power/powercap/powercap.rst).
//!
//! Counted are all package domains and, where they are domains of their own,
//! memory (`dram`). `core` and `uncore` lie within a package; `psys` covers
//! packages too and is left out so that nothing counts twice.

use super::total;
use crate::Roots;
use crate::files::{HotFile, read_text, read_value};
use crate::gauges::unreadable;
use lull_control::{EnergyObservation, EnergySource};
use lull_measure::{Gauge, Joules, Missing};
use std::path::{Path, PathBuf};

/// The RAPL domains that together make up the machine.
#[derive(Debug)]
pub struct Rapl {
    domains: Vec<Domain>,
    source: EnergySource,
}

#[derive(Debug)]
struct Domain {
    name: String,
    energy_uj: HotFile,
    /// The counter starts again at 0 after this value.
    max_uj: u64,
    last_uj: Option<u64>,
}

impl Rapl {
    /// The meter, after one successful reading of every domain.
    ///
    /// # Errors
    /// If there is no RAPL, or its counters cannot be read.
    pub fn open(roots: &Roots) -> Result<Self, Missing> {
        let powercap = roots.sys.join("class/powercap");
        let (mut domains, mut how) = (domains(&powercap, "intel-rapl:"), "");
        if domains.is_empty() {
            (domains, how) = (domains_by_mmio(&powercap), " (by MMIO)");
        }
        if domains.is_empty() {
            let reason = format!(
                "no RAPL: {} has no package domain (usual in virtual machines)",
                powercap.display()
            );
            return Err(Missing::because(reason));
        }
        for domain in &mut domains {
            domain.change()?;
        }
        let names: Vec<_> = domains.iter().map(|domain| domain.name.as_str()).collect();
        let source = EnergySource::Measured(format!("RAPL {}{how}", names.join(" + ")));
        Ok(Self { domains, source })
    }

    /// Returns the domains that are summed.
    pub fn source(&self) -> &EnergySource {
        &self.source
    }

    /// Energy since the last call.
    pub fn read(&mut self) -> Gauge<EnergyObservation> {
        let sum_uj: u64 = total(self.domains.iter_mut().map(Domain::change))?;
        let energy = Joules(sum_uj as f64 / 1e6);
        Ok(EnergyObservation { energy, source: self.source.clone() })
    }
}

impl Domain {
    /// The domain of a zone that counts; `None` for all others.
    fn new(zone: &Path) -> Option<Self> {
        let name = read_text(&zone.join("name")).ok()?;
        let counts = name.starts_with("package-") || name == "dram";
        let max_uj = read_value(&zone.join("max_energy_range_uj")).unwrap_or(u64::MAX);
        let energy_uj = HotFile::new(zone.join("energy_uj"));
        counts.then_some(Self { name, energy_uj, max_uj, last_uj: None })
    }

    /// Microjoules since the last call; `None` at the first.
    fn change(&mut self) -> Result<Option<u64>, Missing> {
        let read = self.energy_uj.read_number();
        let last = std::mem::replace(&mut self.last_uj, read.as_ref().ok().copied());
        let now = read.map_err(|error| unreadable(self.energy_uj.path(), &error))?;
        Ok(last.map(|last| match now.checked_sub(last) {
            Some(change) => change,
            None => self.max_uj.saturating_sub(last).saturating_add(now),
        }))
    }
}

/// The domains that count, of the zones whose names begin like this:
/// `intel-rapl:N` and `intel-rapl:N:M`; AMD uses the same names.
fn domains(powercap: &Path, start: &str) -> Vec<Domain> {
    let entries = std::fs::read_dir(powercap).into_iter().flatten().flatten();
    let is_zone = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(start.as_bytes()))
    };
    let mut zones: Vec<_> = entries.map(|entry| entry.path()).filter(is_zone).collect();
    zones.sort();
    zones.iter().filter_map(|zone| Domain::new(zone)).collect()
}

/// The same counters at another place, for kernels that have no other way to them.
fn domains_by_mmio(powercap: &Path) -> Vec<Domain> {
    domains(powercap, "intel-rapl-mmio:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn zone(tree: &Tree, dir: &str, name: &str, energy_uj: u64) {
        let dir = format!("sys/class/powercap/{dir}");
        tree.write(&format!("{dir}/name"), name);
        tree.write(&format!("{dir}/max_energy_range_uj"), "1000000\n");
        tree.write(&format!("{dir}/energy_uj"), &format!("{energy_uj}\n"));
    }

    #[test]
    fn packages_and_memory_add_up_and_nothing_counts_twice() {
        let tree = Tree::new();
        let set = |package, dram, other| {
            zone(&tree, "intel-rapl:0", "package-0", package);
            zone(&tree, "intel-rapl:0:0", "core", other);
            zone(&tree, "intel-rapl:0:1", "dram", dram);
            zone(&tree, "intel-rapl:1", "psys", other);
            zone(&tree, "intel-rapl-mmio:0", "package-0", other);
        };
        set(100, 200, 300);
        let mut meter = Rapl::open(&tree.roots()).unwrap();
        assert_eq!(meter.source().to_string(), "measured by RAPL package-0 + dram");
        set(500_100, 100_200, 900_000);
        assert_eq!(meter.read().unwrap().energy, Joules(0.6));
    }

    #[test]
    fn counters_by_mmio_count_where_there_are_no_others() {
        let tree = Tree::new();
        zone(&tree, "intel-rapl-mmio:0", "package-0", 10);
        let mut meter = Rapl::open(&tree.roots()).unwrap();
        assert_eq!(meter.source().to_string(), "measured by RAPL package-0 (by MMIO)");
        zone(&tree, "intel-rapl-mmio:0", "package-0", 500_010);
        assert_eq!(meter.read().unwrap().energy, Joules(0.5));
    }

    #[test]
    fn a_counter_that_wraps_goes_on() {
        let tree = Tree::new();
        zone(&tree, "intel-rapl:0", "package-0", 900_000);
        let mut meter = Rapl::open(&tree.roots()).unwrap();
        zone(&tree, "intel-rapl:0", "package-0", 50_000);
        assert_eq!(meter.read().unwrap().energy, Joules(0.15));
    }

    #[test]
    fn a_counter_that_vanishes_is_missing_and_not_zero() {
        let tree = Tree::new();
        zone(&tree, "intel-rapl:0", "package-0", 10);
        let mut meter = Rapl::open(&tree.roots()).unwrap();
        tree.write("sys/class/powercap/intel-rapl:0/energy_uj", "\n");
        assert!(meter.read().is_err());
        zone(&tree, "intel-rapl:0", "package-0", 20);
        assert!(meter.read().unwrap_err().reason.contains("first"), "what was between is unknown");
        zone(&tree, "intel-rapl:0", "package-0", 1_000_020 - 1_000_000);
        assert_eq!(meter.read().unwrap().energy, Joules(0.0));
    }

    #[test]
    fn a_machine_without_rapl_says_so() {
        let why = Rapl::open(&Tree::new().roots()).unwrap_err();
        assert!(why.reason.contains("no RAPL"), "{why}");
    }
}
