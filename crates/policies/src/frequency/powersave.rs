//! Linux `powersave`: the lowest frequency, always.
//!
//! The cpufreq governor of this name (drivers/cpufreq/cpufreq_powersave.c).
//! intel_pstate has a *mode* of the same name that does scale with load; this
//! is not that.

use crate::config::{accept_any, config, read};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::toolkit::domains::{Constant, PerDomain, Table};
use lull_control::Capability;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "powersave",
    paper: "Linux, drivers/cpufreq/cpufreq_powersave.c",
    summary: "Runs every domain at its lowest frequency.",
    kind: PolicyKind {
        family: Family::Frequency,
        needs: &[Capability::Frequency],
        uses: &[],
        dip: None,
        latency: LatencyDetail::TailOnly,
        epoch: NaturalEpoch::USUAL,
        search: SettingSearch::None,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        read::<Config>(table)?;
        Ok(Box::new(PerDomain::new(machine, || Constant(Table::lowest))))
    },
};

config! {
    /// The policy has no keys.
    struct Config checked by accept_any {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::domains::testing::{run, table};

    #[test]
    fn it_is_the_lowest_whatever_the_load() {
        assert_eq!(run(&mut Constant(Table::lowest), &table(), &[0.0, 1.0]), [1_000, 1_000]);
    }
}
