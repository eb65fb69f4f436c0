//! One policy with its limits, safety and journal; knows no plant.
//!
//! [`crate::ControlLoop`] joins it to one plant. A driver of many plants on
//! one clock (a simulated system) holds one controller a plant.

mod presence;
mod retries;
mod survey;

pub use presence::RebuildPolicy;

use crate::assess::{Assessment, Assessor};
use crate::journal::{Decision, Effect, Entry, Event, OperatorAct};
use crate::limits::{Gatekeeper, LimitsError, Verdict};
use crate::roster::Roster;
use crate::{
    Applied, Discovery, Expectation, Knob, Limits, Machine, Observation, Plan, Plant, Policy,
    Reason, Rng, Setting, numbered, safe_plan, sample_value,
};
use lull_measure::Nanos;
use lull_measure::entropy::RelativeImportance;
use retries::Retries;
use std::collections::{BTreeMap, BTreeSet};
use survey::SurveyPause;

/// How a controller treats its policy's plans.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Bounds, dwell and hysteresis.
    pub limits: Limits,
    /// Relative importance of latency-critical apps in E_S.
    pub importance: RelativeImportance,
    /// How long a latency source may be silent before the SLO-safe state.
    pub silence_max: Nanos,
    /// Whether Lull sets a knob again that another writer changed.
    pub override_foreign: bool,
    /// Whether plans are only journalled.
    pub dry_run: bool,
}

impl Default for Rules {
    /// Default limits, RI 0.8, 2 s of silence, foreign writers win, no dry run.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            importance: RelativeImportance::default(),
            silence_max: Nanos::from_secs(2),
            override_foreign: false,
            dry_run: false,
        }
    }
}

/// A policy under [`Rules`].
pub struct Controller {
    policy: Box<dyn Policy>,
    rules: Rules,
    gate: Gatekeeper,
    assessor: Assessor,
    machine: Machine,
    apps: Vec<crate::AppSpec>,
    original: Vec<Setting>,
    state: BTreeMap<Knob, Setting>,
    yielded: BTreeSet<Knob>,
    /// Knobs that stay among the yielded ones for the whole run.
    reserved: BTreeSet<Knob>,
    heard: Vec<Nanos>,
    roster: Roster,
    /// Whether no observation was seen yet.
    is_first: bool,
    rebuild: Option<RebuildPolicy>,
    safe: bool,
    paused: bool,
    survey: SurveyPause,
    /// The operator's acts since the last turn.
    acts: Vec<OperatorAct>,
    pending: Option<(Expectation, f64)>,
    retries: Retries,
}

/// The decision of a controller on one observation.
#[derive(Debug)]
pub struct Turn {
    /// The readings of the apps against their objectives.
    pub assessment: Assessment,
    /// Settings to apply now, in order.
    pub changes: Vec<Setting>,
    /// Entries that are already known for the journal.
    pub entries: Vec<Entry>,
    /// The plan of the policy, before the limits.
    pub plan: Plan,
    /// Settings of the plan that are not applied and not in force, and why.
    withheld: Vec<(Setting, String)>,
    origins: Vec<SettingOrigin>,
    expected: Option<Expectation>,
    time: Nanos,
}

/// Why a setting is applied.
#[derive(Debug)]
struct SettingOrigin {
    reason: Reason,
    limit: Option<String>,
}

impl Controller {
    /// A controller for one plant, in the state the plant is in.
    ///
    /// # Errors
    /// If the limits do not fit the machine.
    pub fn new(
        policy: Box<dyn Policy>,
        rules: Rules,
        plant: &impl Plant,
    ) -> Result<Self, LimitsError> {
        rules.limits.check(plant.machine())?;
        let original = plant.settings();
        let apps = plant.apps().to_vec();
        let roster = Roster::new(numbered(&apps).map(|(app, _)| plant.is_present(app)).collect());
        Ok(Self {
            policy,
            gate: Gatekeeper::new(rules.limits.clone()),
            assessor: Assessor::new(&apps, rules.importance),
            rules,
            machine: plant.machine().clone(),
            state: original.iter().map(|setting| (setting.knob(), setting.clone())).collect(),
            original,
            yielded: BTreeSet::new(),
            reserved: BTreeSet::new(),
            heard: vec![Nanos::ZERO; apps.len()],
            roster,
            is_first: true,
            rebuild: None,
            apps,
            safe: false,
            paused: false,
            survey: SurveyPause::default(),
            acts: Vec::new(),
            pending: None,
            retries: Retries::default(),
        })
    }

    /// Leaves these knobs alone for the whole run, like those that another program has set: another
    /// part of the agent decides on the same resources.
    pub fn reserve(&mut self, knobs: impl IntoIterator<Item = Knob>) {
        self.reserved.extend(knobs);
        self.yielded.extend(&self.reserved);
    }

    /// Replaces the policy, with the knobs as they are now.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>, settings: &[Setting]) {
        self.policy = policy;
        self.survey.has_decided = false;
        self.set_state(settings);
    }

    /// Replaces the policy; every knob keeps its value until the next plan.
    pub(crate) fn replace_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
        self.survey.has_decided = false;
        self.pending = None;
        self.retries = Retries::default();
    }

    /// Continues under other rules, and with other objectives of the same apps; returns whether the
    /// policy adapts to these, which it does not if apps were added, removed or renamed. The limits
    /// must have been checked.
    pub(crate) fn reconfigure(&mut self, rules: Rules, apps: &[crate::AppSpec]) -> bool {
        self.gate.set_limits(rules.limits.clone());
        self.assessor.respecify(apps, rules.importance);
        self.rules = rules;
        self.retries = Retries::default();
        self.survey.has_decided = false;
        self.heard.resize(apps.len(), Nanos::ZERO);
        self.roster.grow(apps.len());
        let is_same = self.apps == apps;
        let has_same_apps = self.apps.len() == apps.len()
            && self.apps.iter().zip(apps).all(|(before, now)| before.name == now.name);
        self.apps = apps.to_vec();
        is_same || (has_same_apps && self.policy.retarget(apps))
    }

    /// Continues with corrected references of the same apps; the policy keeps its learned state.
    pub fn set_references(&mut self, apps: &[crate::AppSpec]) {
        self.assessor.set_references(apps);
        self.policy.references_changed(apps);
        self.apps = apps.to_vec();
    }

    /// Records the state of the knobs after they were restored.
    pub(crate) fn set_state(&mut self, settings: &[Setting]) {
        self.pending = None;
        self.retries = Retries::default();
        self.state = settings.iter().map(|now| (now.knob(), now.clone())).collect();
    }

    /// Returns what the policy has found since the last call.
    pub fn discoveries(&mut self) -> Vec<Discovery> {
        self.policy.discoveries()
    }

    /// Stops deciding and setting, the SLO-safe state too, or continues.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Adds to the journal of the next turn.
    pub(crate) fn note(&mut self, act: OperatorAct) {
        self.acts.push(act);
    }

    /// Whether an operator has paused it.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the SLO-safe state is in force instead of the policy.
    pub fn is_safe(&self) -> bool {
        self.safe
    }

    /// The knobs as last known.
    pub fn state(&self) -> &BTreeMap<Knob, Setting> {
        &self.state
    }

    /// Returns the knobs that are left to other writers, reserved ones included.
    pub fn yielded(&self) -> &BTreeSet<Knob> {
        &self.yielded
    }

    /// Returns the knobs that are left to another part of the agent.
    pub fn reserved(&self) -> &BTreeSet<Knob> {
        &self.reserved
    }

    /// Decides on one observation. The caller applies [`Turn::changes`] and
    /// hands the outcome to [`Controller::conclude`].
    pub fn turn(&mut self, seen: &Observation, rng: &mut Rng) -> Turn {
        let assessment = self.assessor.assess(seen);
        let mut turn = Turn {
            assessment,
            changes: Vec::new(),
            entries: Vec::new(),
            plan: Plan::keep(),
            withheld: Vec::new(),
            origins: Vec::new(),
            expected: None,
            time: seen.time,
        };
        std::mem::take(&mut self.acts).into_iter().for_each(|act| turn.push(Event::Operator(act)));
        self.note_effect(seen, &mut turn);
        self.note_foreign(seen, &mut turn);
        self.note_roster(seen, &mut turn);
        let silent = self.silent_app(seen);
        turn.plan = match silent {
            // While the operator has paused the loop no knob is set, not even to the safe
            // state; the journal records this.
            _ if self.paused => self.paused_turn(),
            Some(cause) => self.safe_turn(cause, &mut turn),
            None if self.skips_survey(&mut turn) => Plan::keep(),
            None => self.policy_turn(seen, rng, &mut turn),
        };
        self.admit(&mut turn);
        turn
    }

    /// Takes note of what the plant made of a turn's changes; the journal of the epoch.
    pub fn conclude(&mut self, turn: Turn, applied: Applied) -> (Assessment, Vec<Entry>) {
        let Turn { assessment, mut entries, withheld, origins, expected, time, .. } = turn;
        let (mut changed, mut refused) = (false, withheld);
        for (outcome, origin) in applied.outcomes.into_iter().zip(origins) {
            let knob = outcome.wanted.knob();
            let from = self.state.get(&knob).cloned();
            if let Some(now) = outcome.in_force() {
                self.state.insert(knob, now.clone());
                self.gate.note_change(knob, time);
                changed = true;
            }
            self.retries.note(&outcome, self.state.get(&knob), time);
            if let Some(why) = outcome.failure(from.as_ref()) {
                refused.push((outcome.wanted.clone(), why));
            }
            let SettingOrigin { reason, limit } = origin;
            let decision = Decision { from, reason, outcome, limit, expected: expected.clone() };
            entries.push(Entry { time, event: Event::Decision(decision) });
        }
        if !refused.is_empty() {
            self.policy.refused(&refused);
        }
        if let Some(expected) = expected.filter(|_| changed) {
            let before = sample_value(&self.apps, &assessment, &expected);
            self.pending = before.map(|before| (expected, before));
        }
        (assessment, entries)
    }

    fn policy_turn(&mut self, seen: &Observation, rng: &mut Rng, turn: &mut Turn) -> Plan {
        self.survey.has_decided = true;
        let plan = self.policy.decide(seen, rng);
        if let Some(cause) = self.policy.fault() {
            return self.safe_turn(cause, turn);
        }
        if std::mem::take(&mut self.safe) {
            // The safe state has tried at every epoch.
            self.retries = Retries::default();
            turn.push(Event::SafeEnds);
        }
        plan
    }

    fn paused_turn(&mut self) -> Plan {
        self.safe = false;
        Plan::keep()
    }

    fn safe_turn(&mut self, cause: String, turn: &mut Turn) -> Plan {
        let plan = safe_plan(&self.machine, &self.apps, &self.original, &cause);
        if !std::mem::replace(&mut self.safe, true) {
            turn.push(Event::SafeBegins { cause });
        }
        plan
    }

    /// Why the policy cannot be followed: an app whose latency is not heard of.
    fn silent_app(&mut self, seen: &Observation) -> Option<String> {
        let mut cause = None;
        for ((app, spec), heard) in numbered(&self.apps).zip(&mut self.heard) {
            let Some(now) = seen.app(app).filter(|_| spec.is_latency_critical()) else { continue };
            match &now.latency {
                Ok(_) => *heard = seen.time,
                // An absent app has no latency to keep safe.
                Err(why) if now.alive && seen.time >= *heard + self.rules.silence_max => {
                    cause = cause.or(Some(format!("no latency of {}: {why}", spec.name)));
                }
                Err(_) => {}
            }
        }
        cause
    }

    fn note_effect(&mut self, seen: &Observation, turn: &mut Turn) {
        let Some((expected, before)) = self.pending.take() else { return };
        if let Some(after) = sample_value(&self.apps, &turn.assessment, &expected) {
            let event = Event::Effect(Effect { expected, before, after });
            turn.entries.push(Entry { time: seen.time, event });
        }
    }

    fn note_foreign(&mut self, seen: &Observation, turn: &mut Turn) {
        for change in &seen.foreign {
            let yielded = !self.rules.override_foreign;
            self.state.insert(change.knob, change.found.clone());
            if yielded {
                self.yielded.insert(change.knob);
            }
            turn.push(Event::Foreign { change: change.clone(), yielded });
        }
    }

    /// Passes the plan through the limits into the turn's changes.
    fn admit(&self, turn: &mut Turn) {
        let plan = std::mem::take(&mut turn.plan);
        for step in plan.steps() {
            let held = |why| Event::Held {
                wanted: step.setting.clone(),
                reason: step.reason.clone(),
                why,
            };
            let knob = step.setting.knob();
            let is_absent = knob.app().is_some_and(|app| !self.roster.is_present(app));
            // An absent app has no thread to set.
            if is_absent {
                continue;
            }
            if let Some(why) = self.why_yielded(knob) {
                if self.state.get(&knob) != Some(&step.setting) {
                    turn.withheld.push((step.setting.clone(), why.to_owned()));
                }
                continue;
            }
            match self.gate.judge(&step.setting, &self.state, turn.time, self.safe) {
                Verdict::Same => {}
                // The setting is applied later: the policy requests it until then.
                Verdict::Wait(why) => turn.push(held(why)),
                Verdict::Hold(why) => {
                    turn.withheld.push((step.setting.clone(), why.clone()));
                    turn.push(held(why));
                }
                Verdict::Pass(_, _) if self.rules.dry_run => turn.push(held("dry run".into())),
                Verdict::Pass(to, limit) => match self.why_paused(&to, turn.time) {
                    Some(why) => turn.withheld.push((to, why.to_owned())),
                    None => {
                        turn.changes.push(to);
                        turn.origins.push(SettingOrigin { reason: step.reason.clone(), limit });
                    }
                },
            }
        }
        turn.expected = plan.expected.clone();
        turn.plan = plan;
    }

    /// Returns why a setting is not tried again yet. The SLO-safe state is tried at every epoch.
    fn why_paused(&self, setting: &Setting, time: Nanos) -> Option<&str> {
        let in_force = self.state.get(&setting.knob());
        self.retries.why_paused(setting, in_force, time).filter(|_| !self.safe)
    }

    /// Returns why the policy leaves a knob alone: another program has changed it, or it is
    /// reserved. `None` if it does not.
    pub fn why_yielded(&self, knob: Knob) -> Option<&'static str> {
        let why = match self.reserved.contains(&knob) {
            true => "areas of cores decide on that knob",
            false => "another program has changed that knob, and its setting stays",
        };
        self.yielded.contains(&knob).then_some(why)
    }
}

impl Turn {
    fn push(&mut self, event: Event) {
        self.entries.push(Entry { time: self.time, event });
    }
}
