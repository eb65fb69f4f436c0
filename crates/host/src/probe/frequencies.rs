//! Frequency domains from cpufreq.

use crate::Roots;
use crate::drivers::cpufreq::policies;
use crate::files::{read_text, read_value};
use lull_control::{CoreSet, DomainId, FrequencyDomain};
use lull_measure::Hertz;
use std::path::Path;

/// The domains that cpufreq knows, by number; empty without cpufreq.
pub(super) fn domains(roots: &Roots, online: &CoreSet) -> Vec<FrequencyDomain> {
    let mut found: Vec<_> =
        policies(roots).filter_map(|(id, dir)| domain(id, &dir, online)).collect();
    found.sort_by_key(|domain| domain.id);
    found
}

fn domain(id: DomainId, dir: &Path, online: &CoreSet) -> Option<FrequencyDomain> {
    let cores: CoreSet = ["affected_cpus", "related_cpus"]
        .iter()
        .filter_map(|name| read_text(&dir.join(name)).ok())
        .find_map(|list| list.split_whitespace().collect::<Vec<_>>().join(",").parse().ok())?;
    let cores = cores.intersection(online);
    let (steps, continuous) = steps(dir);
    (!cores.is_empty()).then_some(FrequencyDomain { id, cores, steps, continuous })
}

/// The table of a driver that has one, else the ends of the range.
fn steps(dir: &Path) -> (Vec<Hertz>, bool) {
    let table = read_text(&dir.join("scaling_available_frequencies")).unwrap_or_default();
    let mut steps: Vec<_> =
        table.split_whitespace().filter_map(|khz| khz.parse().ok()).map(Hertz::from_khz).collect();
    let continuous = steps.is_empty();
    if continuous {
        let ends = ["cpuinfo_min_freq", "cpuinfo_max_freq"];
        steps.extend(
            ends.iter().filter_map(|end| read_value(&dir.join(end)).ok()).map(Hertz::from_khz),
        );
    }
    steps.sort_unstable();
    steps.dedup();
    (steps, continuous)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DIR: &str = "sys/devices/system/cpu/cpufreq";

    #[test]
    fn a_table_is_read_ascending_and_a_range_by_its_ends() {
        let tree = Tree::new();
        tree.write(&format!("{DIR}/policy2/affected_cpus"), "2 3\n");
        tree.write(&format!("{DIR}/policy2/cpuinfo_min_freq"), "800000\n");
        tree.write(&format!("{DIR}/policy2/cpuinfo_max_freq"), "3000000\n");
        tree.write(&format!("{DIR}/policy0/affected_cpus"), "0 1\n");
        tree.write(&format!("{DIR}/policy0/scaling_available_frequencies"), "2000000 1000000 \n");
        let found = domains(&tree.roots(), &CoreSet::first(4));
        assert_eq!(found.iter().map(|domain| domain.id.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(found[0].steps, [1_000_000, 2_000_000].map(Hertz::from_khz));
        assert!(!found[0].continuous && found[1].continuous);
        assert_eq!(found[1].cores.to_string(), "2-3");
        assert_eq!(found[1].steps, [800_000, 3_000_000].map(Hertz::from_khz));
    }

    #[test]
    fn a_machine_without_cpufreq_has_no_domains() {
        let tree = Tree::new();
        assert!(domains(&tree.roots(), &CoreSet::first(4)).is_empty());
        tree.write(&format!("{DIR}/policy0/affected_cpus"), "\n");
        assert!(domains(&tree.roots(), &CoreSet::first(4)).is_empty(), "all its cores are offline");
    }
}
