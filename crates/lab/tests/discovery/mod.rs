//! What the policy `bayop` finds on a simulated plant.

use lull_control::{Discovery, Plant, Rng};
use lull_measure::Nanos;
use lull_policies::POLICIES;
use rand::SeedableRng;

/// Length of an epoch.
pub(crate) const EPOCH: Nanos = Nanos::from_millis(100);

/// Returns what `bayop` finds with these keys within this many epochs.
pub(crate) fn discover(mut plant: impl Plant, keys: &str, epochs_max: u32) -> Discovery {
    let table = keys.parse().unwrap();
    let mut policy = POLICIES.build("bayop", &table, plant.machine(), plant.apps()).unwrap();
    let mut rng = Rng::seed_from_u64(7);
    for _ in 0..epochs_max {
        let seen = plant.observe(EPOCH).unwrap();
        let plan = policy.decide(&seen, &mut rng);
        let wanted: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        for outcome in plant.apply(&wanted).outcomes {
            assert!(outcome.in_force().is_some(), "{outcome:?}");
        }
        if let Some(found) = policy.discoveries().pop() {
            return found;
        }
    }
    panic!("the search has no end");
}
