//! FullSpeed: P0, always.
//!
//! The baseline of Wang et al. (TRIOS'13, section 2 and appendix
//! A): the Dell BIOS setting "Maximum Performance". The same frequencies as
//! Linux `performance`; a name of its own, so that a run says which baseline
//! its table has.

use crate::config::{accept_any, config, read};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::toolkit::domains::{Constant, PerDomain, Table};
use lull_control::Capability;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "full-speed",
    paper: "Wang et al., TRIOS'13, section 2 and appendix A, FullSpeed",
    summary: "Runs every domain at P0: the baseline that DVFS is compared with.",
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
    use crate::toolkit::domains::testing::{run, xeon};

    #[test]
    fn it_is_p0_whatever_the_load() {
        assert_eq!(run(&mut Constant(Table::highest), &xeon(), &[0.0, 1.0]), [2_260, 2_260]);
    }
}
