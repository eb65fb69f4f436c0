//! A shadow policy: it decides beside the acting one and changes no knob.
//!
//! It observes the machine under the acting policy, and its own decisions count as applied, so
//! that each decision builds on the previous one. Its expectations are recorded, but not the
//! effects, because its decisions are not applied.

use lull_control::journal::{Entry, Event};
use lull_control::{
    AppSpec, Applied, ApplyOutcome, Controller, LimitsError, Observation, Outcome, Plant, Policy,
    RebuildPolicy, Rng, Rules,
};
use rand::SeedableRng;

/// A shadow policy and the controller that checks its limits.
pub(super) struct Shadow {
    name: String,
    controller: Controller,
    rng: Rng,
}

impl Shadow {
    /// Creates a shadow policy under the rules of the acting one, from the plant's present state.
    pub(super) fn new(
        name: &str,
        policy: Box<dyn Policy>,
        rules: Rules,
        plant: &impl Plant,
        seed: u64,
    ) -> Result<Self, LimitsError> {
        // A dry run would repeat every decision in every epoch.
        let rules = Rules { dry_run: false, ..rules };
        let controller = Controller::new(policy, rules, plant)?;
        Ok(Self { name: name.to_owned(), controller, rng: Rng::seed_from_u64(seed) })
    }

    /// Sets how the policy is rebuilt when the roster of apps changes.
    pub(super) fn set_rebuild(&mut self, rebuild: RebuildPolicy) {
        self.controller.set_rebuild(rebuild);
    }

    /// Continues with corrected references of the same apps.
    pub(super) fn set_references(&mut self, apps: &[AppSpec]) {
        self.controller.set_references(apps);
    }

    /// The policy's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its decisions after this epoch, and the ones that the limits would have held back.
    pub(super) fn turn(&mut self, seen: &Observation) -> Vec<Entry> {
        let turn = self.controller.turn(seen, &mut self.rng);
        let had = |wanted: &lull_control::Setting| Outcome {
            wanted: wanted.clone(),
            got: ApplyOutcome::Done,
        };
        let applied = Applied { outcomes: turn.changes.iter().map(had).collect() };
        let (_, mut entries) = self.controller.conclude(turn, applied);
        // Effects would compare its expectations with the actions of another policy, and the other
        // events are in the journal of the run. The safe state may be due to its own fault.
        entries.retain(|entry| {
            let event = &entry.event;
            matches!(event, Event::Decision(_) | Event::Held { .. })
                || matches!(event, Event::SafeBegins { .. } | Event::SafeEnds)
        });
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::{AppId, CoreSet, Plan, Reason, Setting};
    use lull_measure::Nanos;

    /// Wants one core more in every epoch.
    struct Grows(u16);

    impl Policy for Grows {
        fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
            let mut plan = Plan::keep();
            self.0 = (self.0 + 1).min(3);
            plan.set(Setting::Cores(AppId(0), CoreSet::first(self.0)), Reason::Fixed);
            plan
        }
    }

    #[test]
    fn its_wishes_build_on_each_other_and_touch_nothing() {
        let app = MemoryApp {
            spec: AppSpec::best_effort("be"),
            demand_cores: 1.0,
            service: Nanos::from_millis(1),
            threads: 4,
        };
        let mut plant = MemoryPlant::new(4, vec![app]);
        let rules = Rules { dry_run: true, ..Rules::default() };
        let mut shadow = Shadow::new("grows", Box::new(Grows(0)), rules, &plant, 1).unwrap();
        let before = plant.settings();
        let mut lines = Vec::new();
        for _ in 0..6 {
            let seen = plant.observe(Nanos::from_millis(500)).unwrap();
            lines.extend(shadow.turn(&seen));
        }
        assert_eq!(plant.settings(), before);
        let from: Vec<usize> = lines
            .iter()
            .map(|entry| match &entry.event {
                Event::Decision(decision) => match &decision.from {
                    Some(Setting::Cores(_, cores)) => cores.len(),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(from, [4, 1, 2], "what is wanted again is not a decision");
    }
}
