//! Linux default: the kernel's governor and the driver's own moderation.
//!
//! The baseline "Linux" of Dong et al., CCDS 2026: `ondemand` chooses frequencies, the
//! network driver adapts its interrupt delay. A frequency governor is not a
//! setting of Lull's, so frequencies are left alone; a delay that was fixed
//! is given back to the driver.

use crate::config::{accept_any, config, read};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use lull_control::{
    Capability, Coalescing, Machine, Observation, Plan, Policy, Reason, Rng, RosterChange, Setting,
};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "linux-default",
    paper: "Dong et al., CCDS 2026, section 3.5 (there: Linux)",
    summary: "Leaves frequencies to the kernel's governor and interrupt delays to the driver.",
    kind: PolicyKind {
        family: Family::Tuning,
        needs: &[],
        uses: &[Capability::Coalescing],
        dip: None,
        latency: LatencyDetail::TailOnly,
        epoch: NaturalEpoch::USUAL,
        search: SettingSearch::None,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        read::<Config>(table)?;
        Ok(Box::new(LinuxDefault { plan: plan(machine) }))
    },
};

config! {
    /// The policy has no keys.
    struct Config checked by accept_any {}
}

/// The policy.
struct LinuxDefault {
    plan: Plan,
}

fn plan(machine: &Machine) -> Plan {
    let mut plan = Plan::keep();
    if machine.capabilities.has(Capability::Coalescing) {
        for nic in &machine.nics {
            plan.set(Setting::Coalescing(nic.id, Coalescing::Adaptive), Reason::Fixed);
        }
    }
    plan
}

impl Policy for LinuxDefault {
    /// The policy steers the machine, whichever apps are present.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;
    use lull_control::NicId;

    #[test]
    fn the_driver_has_its_delay_and_nothing_else_is_named() {
        let plan = plan(&machine(2));
        let settings: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        assert_eq!(settings, [Setting::Coalescing(NicId(0), Coalescing::Adaptive)]);
        let mut bare = machine(2);
        bare.capabilities = lull_control::Capabilities::default();
        assert!(super::plan(&bare).is_empty());
    }
}
