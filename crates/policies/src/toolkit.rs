//! Parts that several policies use: regions of resources, periods, estimators, plans.

pub(crate) mod clusters;
pub(crate) mod compliance;
pub(crate) mod descent;
pub(crate) mod domains;
pub(crate) mod knee;
pub(crate) mod lattice;
pub(crate) mod load_limit;
pub(crate) mod partition;
pub(crate) mod period;
pub(crate) mod pid;
pub(crate) mod placement;
pub(crate) mod quota;
pub(crate) mod regions;
pub(crate) mod slack;
pub(crate) mod slow_to_fast;
pub(crate) mod surrogate;
pub(crate) mod thresholds;
pub(crate) mod ways;

use lull_control::{
    AppId, Capability, Machine, Observation, Plan, Policy, Reason, Rng, RosterChange, Setting,
};

/// A policy with one plan, always the same.
pub(crate) struct FixedPlan(pub(crate) Plan);

impl Policy for FixedPlan {
    /// The settings of an app do not depend on the other apps.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        for_present_apps(&self.0, seen)
    }
}

/// A plan without the knobs of apps that have exited: they have no threads
/// to set, and a refusal in every epoch would fill the journal.
pub(crate) fn for_present_apps(plan: &Plan, seen: &Observation) -> Plan {
    let lives = |app: AppId| seen.app(app).is_some_and(|app| app.alive);
    if seen.apps.iter().all(|app| app.alive) {
        return plan.clone();
    }
    let mut kept = Plan::keep();
    for step in plan.steps() {
        if step.setting.knob().app().is_none_or(lives) {
            kept.set(step.setting.clone(), step.reason.clone());
        }
    }
    kept.expected.clone_from(&plan.expected);
    kept
}

/// Changes a plan to these settings: settings that differ get the new reason, the others keep their
/// own.
pub(crate) fn revise(plan: &mut Plan, settings: Vec<Setting>, reason: &Reason) {
    for setting in settings {
        if plan.setting(setting.knob()) != Some(&setting) {
            plan.set(setting, reason.clone());
        }
    }
}

/// The state of the kernel's throttle on real-time threads that a config
/// sets. On is the kernel's own default and needs no knob; a policy that
/// wants it off must require the capability.
pub(crate) fn throttle(plan: &mut Plan, on: bool, machine: &Machine) {
    if machine.capabilities.has(Capability::RealTimeThrottle) {
        plan.set(Setting::RealTimeThrottle(on), Reason::Fixed);
    }
}
