//! A policy of the apps that were not removed from the run.
//!
//! The id of a removed app is not used again, so that it leaves a gap. Policies number their apps
//! from 0 without gaps. A [`Subset`] translates what a policy sees, and what it wants, between
//! both numberings.

use crate::{
    AppId, AppObservation, AppSpec, Discovery, Expectation, ForeignChange, GateControl, Knob,
    Machine, Observation, Plan, Policy, Reason, Rng, RosterChange, Setting, in_force,
};
use lull_measure::Missing;

/// Builds a policy of the apps that were not removed: `build` gets them, and a machine whose gates
/// are theirs. The policy that is returned takes and gives the ids of the run.
///
/// # Errors
/// As `build`.
pub fn build_without_removed<E>(
    machine: &Machine,
    apps: &[AppSpec],
    build: impl FnOnce(&Machine, &[AppSpec]) -> Result<Box<dyn Policy>, E>,
) -> Result<Box<dyn Policy>, E> {
    if !apps.iter().any(AppSpec::is_removed) {
        return build(machine, apps);
    }
    let specs: Vec<AppSpec> = in_force(apps).map(|(_, spec)| spec.clone()).collect();
    let numbers = Numbering(in_force(apps).map(|(app, _)| app).collect());
    let gate = |gate: &GateControl| Some(GateControl { app: numbers.own(gate.app)?, ..*gate });
    let gates = machine.gates.iter().filter_map(gate).collect();
    let machine = Machine { gates, ..machine.clone() };
    let inner = build(&machine, &specs)?;
    Ok(Box::new(Subset { inner, numbers }))
}

/// The ids in the run, in the order of a policy's own.
#[derive(Debug, Clone)]
struct Numbering(Vec<AppId>);

impl Numbering {
    /// Returns the id in the run of an app of the policy.
    fn in_run(&self, own: AppId) -> Option<AppId> {
        self.0.get(own.index()).copied()
    }

    /// Returns the policy's own id of an app of the run; `None` if the app was removed.
    fn own(&self, app: AppId) -> Option<AppId> {
        let own = self.0.iter().position(|one| *one == app)?;
        u16::try_from(own).ok().map(AppId)
    }

    /// Returns the specs of the policy's apps; `None` if the run lacks one.
    fn specs(&self, apps: &[AppSpec]) -> Option<Vec<AppSpec>> {
        self.0.iter().map(|app| apps.get(app.index()).cloned()).collect()
    }

    /// Returns what the policy sees of an observation.
    fn observed(&self, seen: &Observation) -> Observation {
        let unknown = || AppObservation::unknown(&Missing::because("the app is not observed"));
        let app = |app: &AppId| seen.app(*app).cloned().unwrap_or_else(unknown);
        let foreign = |change: &ForeignChange| {
            let own = |setting: &Setting| renumber(setting, |app| self.own(app));
            let (ours, found) = (own(&change.ours)?, own(&change.found)?);
            let (knob, whom) = (ours.knob(), change.whom.clone());
            Some(ForeignChange { knob, ours, found, whom })
        };
        Observation {
            time: seen.time,
            epoch: seen.epoch,
            apps: self.0.iter().map(app).collect(),
            cores: seen.cores.clone(),
            energy: seen.energy.clone(),
            cpu_pressure: seen.cpu_pressure.clone(),
            interrupts_per_s: seen.interrupts_per_s.clone(),
            packets_per_s: seen.packets_per_s.clone(),
            c6_opportunity: seen.c6_opportunity.clone(),
            idle_gaps: seen.idle_gaps.clone(),
            run_queue_latency: seen.run_queue_latency.clone(),
            foreign: seen.foreign.iter().filter_map(foreign).collect(),
            restarted: seen.restarted.iter().filter_map(|app| self.own(*app)).collect(),
        }
    }

    /// Returns what a plan of the policy means in the run.
    fn planned(&self, own: &Plan) -> Plan {
        let mut plan = Plan::keep();
        for step in own.steps() {
            if let Some(setting) = renumber(&step.setting, |app| self.in_run(app)) {
                plan.set(setting, self.reason(&step.reason));
            }
        }
        plan.expected = own.expected.clone().map(|expected| Expectation {
            app: expected.app.and_then(|app| self.in_run(app)),
            ..expected
        });
        plan
    }

    fn reason(&self, own: &Reason) -> Reason {
        match own.clone() {
            Reason::Threshold { metric, app, value, threshold } => {
                let app = app.and_then(|app| self.in_run(app));
                Reason::Threshold { metric, app, value, threshold }
            }
            Reason::Exited { app } => Reason::Exited { app: self.in_run(app).unwrap_or(app) },
            other => other,
        }
    }

    fn discovery(&self, own: Discovery) -> Discovery {
        let in_run = |setting: &Setting| renumber(setting, |app| self.in_run(app));
        Discovery {
            app: self.in_run(own.app).unwrap_or(own.app),
            settings: own.settings.iter().filter_map(in_run).collect(),
            ..own
        }
    }
}

/// Returns the same setting of the app that `to` returns; `None` if it returns none.
fn renumber(setting: &Setting, to: impl Fn(AppId) -> Option<AppId>) -> Option<Setting> {
    let knob: Knob = setting.knob();
    let Some(app) = knob.app() else { return Some(setting.clone()) };
    (knob.row().knob)(to(app)?.0).set_to(setting.value())
}

/// A policy with the numbering of its apps.
struct Subset {
    inner: Box<dyn Policy>,
    numbers: Numbering,
}

impl Policy for Subset {
    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan {
        let own = self.numbers.observed(seen);
        let plan = self.inner.decide(&own, rng);
        self.numbers.planned(&plan)
    }

    fn retarget(&mut self, apps: &[AppSpec]) -> bool {
        self.numbers.specs(apps).is_some_and(|own| self.inner.retarget(&own))
    }

    fn references_changed(&mut self, apps: &[AppSpec]) {
        if let Some(own) = self.numbers.specs(apps) {
            self.inner.references_changed(&own);
        }
    }

    fn roster_changed(&mut self, changes: &[RosterChange]) -> bool {
        let own = |change: &RosterChange| {
            Some(RosterChange { app: self.numbers.own(change.app)?, event: change.event })
        };
        let own: Vec<RosterChange> = changes.iter().filter_map(own).collect();
        own.is_empty() || self.inner.roster_changed(&own)
    }

    fn refused(&mut self, all: &[(Setting, String)]) {
        let own = |(setting, why): &(Setting, String)| {
            Some((renumber(setting, |app| self.numbers.own(app))?, why.clone()))
        };
        let own: Vec<(Setting, String)> = all.iter().filter_map(own).collect();
        if !own.is_empty() {
            self.inner.refused(&own);
        }
    }

    fn fault(&self) -> Option<String> {
        self.inner.fault()
    }

    fn discoveries(&mut self) -> Vec<Discovery> {
        let found = self.inner.discoveries();
        found.into_iter().map(|one| self.numbers.discovery(one)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CoreSet, Direction, RosterEvent, Scheduling};
    use lull_measure::Nanos;
    use lull_measure::catalogue::SLACK;
    use rand::SeedableRng;
    use std::sync::{Arc, Mutex};

    /// The calls of a policy.
    #[derive(Debug, Default)]
    struct Calls {
        alive: Vec<bool>,
        foreign: Vec<Knob>,
        restarted: Vec<AppId>,
        changes: Vec<RosterChange>,
        refused: Vec<Setting>,
        objectives: Vec<String>,
        references: Vec<String>,
    }

    /// Pins its last app to the first core, and notes its calls.
    struct Notes(AppId, Arc<Mutex<Calls>>);

    impl Policy for Notes {
        fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
            let mut calls = self.1.lock().unwrap();
            calls.alive = seen.apps.iter().map(|app| app.alive).collect();
            calls.foreign = seen.foreign.iter().map(|change| change.knob).collect();
            calls.restarted.clone_from(&seen.restarted);
            let mut plan = Plan::keep();
            let reason = Reason::Exited { app: self.0 };
            plan.set(Setting::Cores(self.0, CoreSet::first(1)), reason);
            plan.set(Setting::RealTimeThrottle(true), Reason::Fixed);
            let (app, direction) = (Some(self.0), Direction::Lower);
            plan.expected = Some(Expectation { metric: SLACK, app, direction, by: None });
            plan
        }

        fn retarget(&mut self, apps: &[AppSpec]) -> bool {
            self.1.lock().unwrap().objectives = apps.iter().map(|app| app.name.clone()).collect();
            true
        }

        fn references_changed(&mut self, apps: &[AppSpec]) {
            self.1.lock().unwrap().references = apps.iter().map(|app| app.name.clone()).collect();
        }

        fn roster_changed(&mut self, changes: &[RosterChange]) -> bool {
            self.1.lock().unwrap().changes = changes.to_vec();
            false
        }

        fn refused(&mut self, all: &[(Setting, String)]) {
            self.1.lock().unwrap().refused = all.iter().map(|(one, _)| one.clone()).collect();
        }
    }

    fn machine() -> Machine {
        let gate = |app| GateControl {
            app: AppId(app),
            workers: None,
            cap_max: 8,
            batch_max: 1,
            delay_max: Nanos::ZERO,
        };
        Machine { name: "test".to_owned(), gates: vec![gate(0), gate(2)], ..Machine::default() }
    }

    fn specs() -> Vec<AppSpec> {
        let [a, c] = ["a", "c"].map(AppSpec::best_effort);
        vec![a, AppSpec::removed(), c]
    }

    /// A policy of `a` and `c`, whose second is the third of the run.
    fn policy() -> (Box<dyn Policy>, Arc<Mutex<Calls>>) {
        let calls = Arc::<Mutex<Calls>>::default();
        let build = |machine: &Machine, apps: &[AppSpec]| {
            let names: Vec<&str> = apps.iter().map(|app| app.name.as_str()).collect();
            assert_eq!(names, ["a", "c"]);
            let gates: Vec<u16> = machine.gates.iter().map(|gate| gate.app.0).collect();
            assert_eq!(gates, [0, 1]);
            Ok::<Box<dyn Policy>, String>(Box::new(Notes(AppId(1), Arc::clone(&calls))))
        };
        let policy = build_without_removed(&machine(), &specs(), build).unwrap();
        (policy, calls)
    }

    fn seen() -> Observation {
        let why = Missing::because("test");
        let second = Nanos::from_secs(1);
        let app = |alive| AppObservation { alive, ..AppObservation::unknown(&why) };
        let change = |app| {
            let ours = Setting::Scheduling(AppId(app), Scheduling::Idle);
            let whom = String::new();
            ForeignChange { knob: ours.knob(), found: ours.clone(), ours, whom }
        };
        Observation {
            apps: vec![app(true), app(true), app(false)],
            foreign: vec![change(1), change(2)],
            restarted: vec![AppId(1), AppId(2)],
            ..Observation::unknown(second, second, &why)
        }
    }

    #[test]
    fn a_policy_neither_sees_a_removed_app_nor_sets_it() {
        let (mut policy, calls) = policy();
        let plan = policy.decide(&seen(), &mut Rng::seed_from_u64(1));
        {
            let calls = calls.lock().unwrap();
            assert_eq!(calls.alive, [true, false]);
            assert_eq!(calls.foreign, [Knob::Scheduling(AppId(1))]);
            assert_eq!(calls.restarted, [AppId(1)]);
        }
        let settings: Vec<&Setting> = plan.steps().map(|step| &step.setting).collect();
        let cores = Setting::Cores(AppId(2), CoreSet::first(1));
        assert_eq!(settings, [&cores, &Setting::RealTimeThrottle(true)]);
        let reason = plan.steps().next().map(|step| &step.reason);
        assert_eq!(reason, Some(&Reason::Exited { app: AppId(2) }));
        assert_eq!(plan.expected.and_then(|expected| expected.app), Some(AppId(2)));
    }

    #[test]
    fn a_policy_hears_of_its_own_apps_by_its_own_numbers() {
        let (mut policy, calls) = policy();
        let change = |app| RosterChange { app: AppId(app), event: RosterEvent::Arrived };
        assert!(policy.roster_changed(&[change(1)]), "it is not its app");
        assert!(!policy.roster_changed(&[change(1), change(2)]));
        let set = |app| Setting::Cores(AppId(app), CoreSet::first(2));
        policy.refused(&[(set(1), "why".to_owned())]);
        assert!(calls.lock().unwrap().refused.is_empty());
        policy.refused(&[(set(0), "why".to_owned()), (set(2), "why".to_owned())]);
        assert!(policy.retarget(&specs()));
        policy.references_changed(&specs());
        let calls = calls.lock().unwrap();
        assert_eq!(calls.changes, [change(1)]);
        assert_eq!(calls.refused, [set(0), set(1)]);
        assert_eq!(calls.objectives, ["a", "c"]);
        assert_eq!(calls.references, ["a", "c"]);
    }

    #[test]
    fn a_policy_of_a_run_without_removed_apps_is_built_as_it_is() {
        let (apps, machine) = ([AppSpec::best_effort("a")], machine());
        let build = |of: &Machine, _: &[AppSpec]| {
            assert_eq!(of.gates.len(), 2);
            Err::<Box<dyn Policy>, &str>("refused")
        };
        let built = build_without_removed(&machine, &apps, build);
        assert_eq!(built.err(), Some("refused"));
    }
}
