//! Constant frequencies: `performance`, `powersave` and FullSpeed.
//!
//! Linux `performance` and `powersave` are the cpufreq governors of these names
//! (drivers/cpufreq/cpufreq_performance.c and cpufreq_powersave.c), not modes of a driver: the
//! mode `powersave` of intel_pstate does scale with load. They are the upper and the lower end of
//! what frequency costs.
//!
//! FullSpeed is the baseline of Wang et al. (TRIOS'13, section 2 and appendix A): the Dell BIOS
//! setting "Maximum Performance". It has the frequencies of `performance`, and a name of its own,
//! so that a run says which baseline its table has.

use crate::config::{NoKeys, read};
use crate::entry::{ConfigSchema, Entry, Family, PolicyKind};
use crate::toolkit::domains::{Constant, PerDomain, Table};
use lull_control::{Capability, Machine, Policy, PolicyError};
use lull_measure::Hertz;

const KIND: PolicyKind =
    PolicyKind { needs: &[Capability::Frequency], ..PolicyKind::new(Family::Frequency) };

/// The registry's entry of FullSpeed.
pub(crate) static FULL_SPEED: Entry<PolicyKind> = Entry {
    name: "full-speed",
    paper: "Wang et al., TRIOS'13, section 2 and appendix A, FullSpeed",
    summary: "Runs every domain at P0: the baseline that DVFS is compared with.",
    kind: KIND,
    config: ConfigSchema::new::<NoKeys>(),
    make: |config, machine, _| constant(config, machine, Table::highest),
};

/// The registry's entry of `performance`.
pub(crate) static PERFORMANCE: Entry<PolicyKind> = Entry {
    name: "performance",
    paper: "Linux, drivers/cpufreq/cpufreq_performance.c",
    summary: "Runs every domain at its highest frequency.",
    kind: KIND,
    config: ConfigSchema::new::<NoKeys>(),
    make: |config, machine, _| constant(config, machine, Table::highest),
};

/// The registry's entry of `powersave`.
pub(crate) static POWERSAVE: Entry<PolicyKind> = Entry {
    name: "powersave",
    paper: "Linux, drivers/cpufreq/cpufreq_powersave.c",
    summary: "Runs every domain at its lowest frequency.",
    kind: KIND,
    config: ConfigSchema::new::<NoKeys>(),
    make: |config, machine, _| constant(config, machine, Table::lowest),
};

fn constant(
    config: &toml::Table,
    machine: &Machine,
    frequency: fn(&Table) -> Hertz,
) -> Result<Box<dyn Policy>, PolicyError> {
    read::<NoKeys>(config)?;
    Ok(Box::new(PerDomain::new(machine, || Constant(frequency))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::domains::testing::{run, table, xeon};

    #[test]
    fn the_frequency_is_the_same_whatever_the_load() {
        assert_eq!(run(&mut Constant(Table::highest), &xeon(), &[0.0, 1.0]), [2_260, 2_260]);
        assert_eq!(run(&mut Constant(Table::highest), &table(), &[0.0, 1.0]), [2_000, 2_000]);
        assert_eq!(run(&mut Constant(Table::lowest), &table(), &[0.0, 1.0]), [1_000, 1_000]);
    }
}
