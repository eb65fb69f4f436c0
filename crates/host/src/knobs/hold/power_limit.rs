//! The long-term power limit of a RAPL domain
//! (Documentation/power/powercap/powercap.rst).
//!
//! The kernel takes any number and the register what fits (99999999999 uW
//! became 1695875000 on 6.1 to 7.2), so the bounds are checked here.

use super::super::KnobError;
use crate::Roots;
use crate::drivers::text::{read, read_number};
use crate::drivers::texts::{ReadBack, TextWrite};
use lull_measure::Watts;
use std::path::{Path, PathBuf};

/// Limits the domain of this name, and enables the limit.
pub(super) fn limit(roots: &Roots, name: &str, power: Watts) -> Result<Vec<TextWrite>, KnobError> {
    let zone = zone(roots, name)?;
    let constraint = long_term(&zone)?;
    let file = |end: &str| zone.join(format!("{constraint}_{end}"));
    let highest_uw = read_number(&file("max_power_uw")).unwrap_or(0);
    let wanted_uw = power.0 * 1e6;
    // Some firmware states no highest power; a limit of no watts stops a machine.
    let is_within = wanted_uw >= 1e6 && (highest_uw == 0 || wanted_uw <= highest_uw as f64);
    if !is_within {
        let most = highest_uw as f64 / 1e6;
        let bounds = if highest_uw == 0 { "1 W or more".into() } else { format!("1 to {most} W") };
        return Err(KnobError::Nonsense(format!(
            "{power} is not a limit of {name}: write {bounds}"
        )));
    }
    let uw = (wanted_uw.round() as u64).to_string();
    let limit = TextWrite { path: file("power_limit_uw"), text: uw, kept: ReadBack::Nearly };
    let enabled = zone.join("enabled");
    let enable = enabled.exists().then(|| TextWrite::exactly(enabled, "1"));
    Ok([limit].into_iter().chain(enable).collect())
}

/// The zone with this name; the MSR's before the same one by MMIO.
fn zone(roots: &Roots, name: &str) -> Result<PathBuf, KnobError> {
    let zones = zones(roots);
    let names: Vec<_> = zones.iter().map(|zone| read(&zone.join("name"))).collect();
    let named = |found: &Result<String, _>| found.as_ref().is_ok_and(|found| found == name);
    if let Some(at) = names.iter().position(named) {
        return Ok(zones[at].clone());
    }
    let names: Vec<_> = names.into_iter().flatten().collect();
    Err(KnobError::Nonsense(match names.is_empty() {
        true => "no powercap: there is no RAPL driver here (usual in virtual machines)".into(),
        false => format!("there is no power domain `{name}`; there are {}", names.join(", ")),
    }))
}

/// `intel-rapl:0` before `intel-rapl-mmio:0`, packages before their parts.
pub(super) fn zones(roots: &Roots) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(roots.sys.join("class/powercap")).into_iter().flatten();
    let dirs = entries.flatten().map(|entry| entry.path());
    let mut zones: Vec<_> = dirs.filter(|dir| dir.join("name").exists()).collect();
    let is_mmio = |zone: &PathBuf| zone.to_string_lossy().contains("mmio");
    zones.sort_by_key(|zone| (is_mmio(zone), zone.clone()));
    zones
}

fn long_term(zone: &Path) -> Result<String, KnobError> {
    let is_long = |number: &usize| {
        let name = read(&zone.join(format!("constraint_{number}_name")));
        name.is_ok_and(|name| name == "long_term")
    };
    let none = || format!("{} has no long-term limit", zone.display());
    let number = (0..4).find(is_long).ok_or_else(|| KnobError::Nonsense(none()))?;
    Ok(format!("constraint_{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn scene() -> Tree {
        let tree = Tree::new();
        for dir in ["intel-rapl:0", "intel-rapl-mmio:0"] {
            for (file, text) in [
                ("name", "package-0"),
                ("enabled", "0"),
                ("constraint_0_name", "long_term"),
                ("constraint_0_max_power_uw", "65000000"),
                ("constraint_0_power_limit_uw", "28000000"),
            ] {
                tree.write(&format!("sys/class/powercap/{dir}/{file}"), text);
            }
        }
        tree
    }

    #[test]
    fn the_limit_is_written_and_enabled_in_the_registers_of_the_processor() {
        let tree = scene();
        let writes = limit(&tree.roots(), "package-0", Watts(45.0)).unwrap();
        assert!(writes[0].path.ends_with("intel-rapl:0/constraint_0_power_limit_uw"));
        assert_eq!((writes[0].text.as_str(), writes[1].text.as_str()), ("45000000", "1"));
    }

    #[test]
    fn what_the_hardware_would_silently_change_is_refused() {
        let tree = scene();
        for watts in [0.0, -1.0, 65.1, 99_999.0, f64::NAN] {
            let refused = limit(&tree.roots(), "package-0", Watts(watts)).unwrap_err();
            assert!(refused.to_string().contains("1 to 65 W"), "{refused}");
        }
        let unknown = limit(&tree.roots(), "dram", Watts(5.0)).unwrap_err().to_string();
        assert!(unknown.contains("package-0"), "{unknown}");
        let none = limit(&Tree::new().roots(), "dram", Watts(5.0)).unwrap_err().to_string();
        assert!(none.contains("no RAPL driver"), "{none}");
    }
}
