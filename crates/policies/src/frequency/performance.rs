//! Linux `performance`: the highest frequency, always.
//!
//! The cpufreq governor of this name (drivers/cpufreq/cpufreq_performance.c),
//! not a mode of a driver. The upper end of what frequency costs.

use crate::config::{accept_any, config, read};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::toolkit::domains::{Constant, PerDomain, Table};
use lull_control::Capability;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "performance",
    paper: "Linux, drivers/cpufreq/cpufreq_performance.c",
    summary: "Runs every domain at its highest frequency.",
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
        Ok(Box::new(PerDomain::new(machine, || Constant(Table::highest))))
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
    fn it_is_the_highest_whatever_the_load() {
        assert_eq!(run(&mut Constant(Table::highest), &table(), &[0.0, 1.0]), [2_000, 2_000]);
    }
}
