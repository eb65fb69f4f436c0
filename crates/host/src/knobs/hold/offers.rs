//! Which of the knobs to hold this machine has, and which other programs may set knobs.

use super::{cgroup, power_limit};
use crate::Roots;
use crate::drivers::cpufreq::policies;
use crate::drivers::systemd::Systemd;
use crate::drivers::text::read;
use crate::drivers::{cpuidle, ethtool};
use crate::files::read_text;
use lull_measure::Missing;
use rustix::fs::{Access, access};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// One knob that can be held, or why it cannot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// Its name on the command line.
    pub knob: &'static str,
    /// The means.
    #[serde(flatten)]
    pub found: Found,
}

/// The means, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// The knob is present; the text names the means.
    By(String),
    /// The knob is missing, with the reason.
    Missing(Missing),
}

/// Every knob of [`super::HoldRequest`], found or why not.
pub fn offers(roots: &Roots) -> Vec<Offered> {
    let all: [(&'static str, Result<String, String>); 11] = [
        ("governor", of_domains(roots, "scaling_governor", "scaling_available_governors")),
        (
            "energy-preference",
            of_domains(
                roots,
                "energy_performance_preference",
                "energy_performance_available_preferences",
            ),
        ),
        ("idle-latency", idle_states(roots)),
        ("idle-state", idle_states(roots)),
        ("wake-latency", writable(&roots.dev.join("cpu_dma_latency"))),
        ("resume-latency", resume(roots)),
        ("power-limit", power_limits(roots)),
        ("irq", interrupts(roots)),
        ("cgroup", cgroups(roots)),
        ("unit", units(roots)),
        ("coalescing", coalescing(roots)),
    ];
    let offered = |(knob, found): (&'static str, Result<String, String>)| Offered {
        knob,
        found: match found {
            Ok(means) => Found::By(means),
            Err(why) => Found::Missing(Missing::because(why)),
        },
    };
    all.into_iter().map(offered).collect()
}

/// Returns running programs that set the same knobs, with the knobs.
pub fn managers(roots: &Roots) -> Vec<(String, &'static str)> {
    let entries = std::fs::read_dir(&roots.proc).into_iter().flatten().flatten();
    let name = |pid: &Path| read_text(&pid.join("comm")).ok();
    let mut found = Vec::new();
    for running in entries.filter_map(|entry| name(&entry.path())) {
        let known = MANAGERS.iter().find(|(comm, _)| *comm == running);
        if let Some((comm, sets)) = known {
            found.push(((*comm).to_owned(), *sets));
        }
    }
    // TLP leaves no process behind, but its mark.
    if Path::new("/run/tlp/lock_tlp").exists() && roots.is_own_proc() {
        found.push(("tlp".to_owned(), "governor, energy preference, PCI and disk power"));
    }
    found.sort();
    found.dedup();
    found
}

/// Names of managers in their first 15 letters, as the kernel keeps them.
const MANAGERS: [(&str, &str); 9] = [
    ("tuned", "governor, energy preference, wake-up latency, coalescing, IRQ affinity"),
    ("power-profiles-", "energy preference, platform profile"),
    ("tuned-ppd", "energy preference, by tuned"),
    ("auto-cpufreq", "governor, energy preference, turbo"),
    ("thermald", "power limits, frequency bounds"),
    ("irqbalance", "IRQ affinity"),
    ("libvirtd", "cgroups, affinity, resctrl groups of its guests"),
    ("virtqemud", "cgroups, affinity, resctrl groups of its guests"),
    ("pqos", "resctrl groups"),
];

fn of_domains(roots: &Roots, file: &str, list: &str) -> Result<String, String> {
    let mut dirs: Vec<PathBuf> = policies(roots).map(|(_, dir)| dir).collect();
    dirs.sort();
    let Some(first) = dirs.first() else {
        return Err("no cpufreq: the kernel has no frequency driver here".to_owned());
    };
    let values = read(&first.join(list)).map_err(|error| error.to_string())?;
    writable(&first.join(file))?;
    Ok(format!("{file} of {} domains: {values}", dirs.len()))
}

fn idle_states(roots: &Roots) -> Result<String, String> {
    let states = cpuidle::states(roots);
    let Some(first) = states.first() else {
        return Err("no cpuidle states: the kernel has no idle driver here".to_owned());
    };
    writable(&first.join("disable"))?;
    let of_first = states.iter().filter(|state| state.parent() == first.parent());
    let names = of_first.filter_map(|state| {
        let (name, us) = (read(&state.join("name")).ok()?, read(&state.join("latency")).ok()?);
        Some(format!("{name} {us} us"))
    });
    Ok(format!("cpuidle: {}", names.collect::<Vec<_>>().join(", ")))
}

fn resume(roots: &Roots) -> Result<String, String> {
    writable(&roots.sys.join("devices/system/cpu/cpu0/power/pm_qos_resume_latency_us"))
}

fn power_limits(roots: &Roots) -> Result<String, String> {
    let zones = power_limit::zones(roots);
    let limited = |zone: &PathBuf| zone.join("constraint_0_power_limit_uw").exists();
    let names: Vec<_> = zones
        .iter()
        .filter(|zone| limited(zone))
        .filter_map(|zone| read(&zone.join("name")).ok())
        .collect();
    let Some(first) = zones.iter().find(|zone| limited(zone)) else {
        return Err("no powercap: there is no RAPL driver here (usual in virtual machines)".into());
    };
    writable(&first.join("constraint_0_power_limit_uw"))?;
    Ok(format!("powercap: {}", names.join(", ")))
}

fn interrupts(roots: &Roots) -> Result<String, String> {
    let entries = std::fs::read_dir(roots.proc.join("irq")).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path().join("smp_affinity_list"));
    let settable = files.filter(|file| access(file, Access::WRITE_OK).is_ok()).count();
    match settable {
        0 => Err("no interrupt in /proc/irq can be set: run as root, on the host".to_owned()),
        count => Ok(format!("smp_affinity_list of {count} interrupts")),
    }
}

fn cgroups(roots: &Roots) -> Result<String, String> {
    let top = cgroup::unified(roots).map_err(|error| error.to_string())?;
    let controllers = read(&top.join("cgroup.controllers")).map_err(|error| error.to_string())?;
    writable(&top.join("cgroup.subtree_control"))?;
    Ok(format!("cgroup v2 with {controllers}"))
}

fn units(roots: &Roots) -> Result<String, String> {
    let answers = Systemd::connect(&roots.run).map_err(|error| error.to_string());
    answers.map(|_| "runtime properties of systemd".to_owned())
}

fn coalescing(roots: &Roots) -> Result<String, String> {
    let nics = ethtool::interfaces(&roots.sys);
    let mut refused = Vec::new();
    let mut found = Vec::new();
    for nic in &nics {
        match ethtool::get(nic) {
            Ok(now) => found.push(format!("{nic} ({now})")),
            Err(error) => refused.push(format!("{nic}: {}", error.source)),
        }
    }
    match found.is_empty() {
        true if nics.is_empty() => Err("there is no network interface".to_owned()),
        true => Err(format!("no interface coalesces: {}", refused.join(", "))),
        false => Ok(format!("ethtool netlink: {}", found.join(", "))),
    }
}

fn writable(file: &Path) -> Result<String, String> {
    let path = file.display();
    match access(file, Access::WRITE_OK) {
        Ok(()) => Ok(path.to_string()),
        Err(error) => Err(format!("{path} cannot be written: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn every_knob_is_found_or_has_a_reason_on_any_machine() {
        for roots in [Roots::default(), Tree::new().roots()] {
            for Offered { knob, found } in offers(&roots) {
                let text = match found {
                    Found::By(means) => means,
                    Found::Missing(why) => why.to_string(),
                };
                assert!(!text.is_empty(), "{knob}");
            }
        }
    }

    #[test]
    fn other_managers_are_named_with_what_they_set() {
        let tree = Tree::new();
        tree.write("proc/7/comm", "tuned\n");
        tree.write("proc/8/comm", "irqbalance\n");
        tree.write("proc/9/comm", "bash\n");
        let found = managers(&tree.roots());
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["irqbalance", "tuned"]);
        assert!(found[1].1.contains("coalescing"));
    }
}
