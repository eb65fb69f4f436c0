//! Unmanaged: touches nothing.
//!
//! The baseline of Ah-Q (Liu et al. 2024, section VII-A; called Shared in section
//! VIII): all apps on all cores under the kernel's own scheduler, no
//! partition, no priority. What Lull measures under it is what the machine
//! does by itself, which is what every other policy is compared with.

use crate::config::{NoKeys, read};
use crate::entry::{ConfigSchema, Entry, Family, PolicyKind};
use lull_control::{AppSpec, Observation, Plan, Policy, Rng, RosterChange};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "unmanaged",
    paper: "Ah-Q (Liu et al. 2024), sections VII-A and VIII (there: Unmanaged, Shared)",
    summary: "Touches nothing: the machine as the kernel runs it, to compare with.",
    kind: PolicyKind {
        // The kernel knows whose thread runs; the paper still counts it as no ability.
        dip: Some(crate::Dip::None),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<NoKeys>(),
    make: |table, _, _| {
        read::<NoKeys>(table)?;
        Ok(Box::new(Unmanaged))
    },
};

/// The policy.
struct Unmanaged;

impl Policy for Unmanaged {
    /// The policy reads no objective.
    fn retarget(&mut self, _: &[AppSpec]) -> bool {
        true
    }

    /// The settings of an app do not depend on the other apps.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        Plan::keep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;
    use lull_measure::Nanos;
    use rand::SeedableRng;

    #[test]
    fn it_names_no_knob() {
        let be = AppSpec::best_effort("be");
        let app = lull_control::conformance::MemoryApp {
            spec: be,
            demand_cores: 0.0,
            service: Nanos::from_millis(1),
            threads: 1,
        };
        let mut plant = MemoryPlant::new(2, vec![app]);
        let mut policy =
            ENTRY.build(&toml::Table::new(), plant.machine(), plant.apps()).expect("no needs");
        let seen = plant.observe(Nanos::from_secs(1)).unwrap();
        assert!(policy.decide(&seen, &mut Rng::seed_from_u64(1)).is_empty());
        assert!(policy.retarget(plant.apps()), "it goes on under any objectives");
    }
}
