//! Trials of settings on a running server, for `lull tune` and `lull sweep`.
//!
//! The session is the same as in `lull run`, with its record, its limits and its guard: however
//! the trials end, every knob is restored. The session's policy applies the setting of each
//! trial.

use super::{UsageError, ending};
use crate::say::notice;
use crate::text::number;
use anyhow::{anyhow, bail};
use lull_agent::session::{Session, TurnError};
use lull_agent::sweep::Measured;
use lull_control::journal::Event;
use lull_control::{Epoch, Observation, Plan, PlantError, Policy, Reason, Rng, Setting};
use lull_measure::Nanos;
use lull_policies::search::{Gather, Gathered, Protocol, Refusal, Rules};
use std::sync::{Arc, Mutex, PoisonError};

/// Readings in a row whose meter failed or whose app has restarted, after which trials end.
const UNREAD_MAX: u32 = 3;
/// Epochs for which limits may hold back the settings of a trial.
const HELD_MAX: usize = 10;
/// Repeats of a trial at another load, while the load without its settings stays.
const REPEATS_MAX: u32 = 3;

/// The load has changed.
#[derive(Debug, thiserror::Error)]
#[error("the load has changed from {from} to {to} requests/s")]
pub(super) struct Moved {
    from: f64,
    to: f64,
}

/// The load of comparable trials.
#[derive(Debug)]
struct HeldLoad {
    rate_per_s: f64,
    /// The relative difference that a trial may have.
    share: f64,
    /// How often the present trial was repeated.
    repeats: u32,
    /// Whether settings change the load.
    depends: bool,
}

impl HeldLoad {
    fn new(rate_per_s: f64, share: f64) -> Self {
        Self { rate_per_s, share, repeats: 0, depends: false }
    }

    fn check(&self, rate_per_s: f64) -> Result<(), Moved> {
        let from = self.rate_per_s;
        match (rate_per_s - from).abs() > self.share * rate_per_s.max(from) {
            true => Err(Moved { from, to: rate_per_s }),
            false => Ok(()),
        }
    }

    /// Whether trials of a search run, all of which must be at this load.
    fn is_held(&self) -> bool {
        self.share.is_finite()
    }

    /// Whether the load of the restored server must be read before a trial at this load counts.
    /// Where settings change the load, a trial at the held load may be one of more clients.
    fn is_uncertain(&self, rate_per_s: f64) -> bool {
        self.depends || self.check(rate_per_s).is_err()
    }

    /// Called after a trial whose load is uncertain, with the load of the restored server. Returns
    /// whether the trial counts nevertheless, because settings change the load; if not, it is
    /// repeated.
    fn accept(&mut self, restored_per_s: f64) -> Result<bool, Moved> {
        self.check(restored_per_s)?;
        self.depends |= self.repeats == REPEATS_MAX;
        self.repeats += 1;
        Ok(self.depends)
    }
}

/// Trials on a running server.
pub(super) struct Trials<'s> {
    session: &'s mut Session,
    plan: SharedPlan,
    /// The phase of the session, which is the name of the command.
    phase: &'static str,
    protocol: Protocol,
    load: HeldLoad,
    /// Whether the app was absent or has restarted since the reading began.
    has_restarted: bool,
    /// The error of trials that are stopped.
    stopped: &'static str,
    energy: String,
}

impl<'s> Trials<'s> {
    /// Creates trials; [`Trials::read_as_it_is`] comes first.
    pub(super) fn new(
        session: &'s mut Session,
        phase: &'static str,
        protocol: Protocol,
        stopped: &'static str,
    ) -> Self {
        let load = HeldLoad::new(0.0, f64::INFINITY);
        let (plan, has_restarted, energy) = (SharedPlan::default(), false, String::new());
        Self { session, plan, phase, protocol, load, has_restarted, stopped, energy }
    }

    /// The source of the last power reading.
    pub(super) fn energy(&self) -> &str {
        &self.energy
    }

    /// Makes a change of load by more than a share an error of trials.
    pub(super) fn hold_load(&mut self, rate_per_s: f64, share: f64) {
        self.load = HeldLoad::new(rate_per_s, share);
    }

    /// Restores the knobs and reads the server, at any load.
    pub(super) fn read_as_it_is(&mut self) -> anyhow::Result<Measured> {
        self.plan.put(Plan::keep());
        self.session.switch(self.phase, Box::new(self.plan.clone()));
        self.measure(&[])?.map_err(|refusal| anyhow!(refusal.why))
    }

    /// Applies settings and reads them; returns the reason if they are not in force. A trial at
    /// another load is repeated if the restored server still has the former load. After
    /// [`REPEATS_MAX`] repeats it counts at any load, and so do all later ones, because clients
    /// that wait for their answers change their rate with the setting. From then on the load of
    /// the restored server is read after each trial.
    ///
    /// # Errors
    /// [`Moved`] if the load of the restored server has changed, and everything that ends a run.
    pub(super) fn one(
        &mut self,
        settings: &[Setting],
        number: usize,
    ) -> anyhow::Result<Result<Measured, Refusal>> {
        self.load.repeats = 0;
        loop {
            let outcome = self.attempt(settings, number)?;
            if !outcome.as_ref().is_ok_and(|it| self.load.is_uncertain(it.rate_per_s)) {
                return Ok(outcome);
            }
            let (restored, depended) = (self.read_as_it_is()?, self.load.depends);
            if self.load.accept(restored.rate_per_s)? {
                if !depended {
                    notice(
                        "the load changes with the settings: from now on a trial counts at \
                         whatever load it has",
                    );
                }
                return Ok(outcome);
            }
        }
    }

    fn attempt(
        &mut self,
        settings: &[Setting],
        number: usize,
    ) -> anyhow::Result<Result<Measured, Refusal>> {
        let reason = Reason::Trial { number: number as u32, expected_gain: None };
        let mut plan = Plan::keep();
        for setting in settings {
            plan.set(setting.clone(), reason.clone());
        }
        self.plan.put(plan);
        self.measure(settings)
    }

    /// Waits until the settings are in force and reads them. The safe state replaces them while
    /// no latency is known; they then take effect again. A reading whose meter failed, or whose app
    /// has restarted, is repeated, and nothing is stored of it.
    fn measure(&mut self, settings: &[Setting]) -> anyhow::Result<Result<Measured, Refusal>> {
        let mut unread = 0;
        loop {
            self.has_restarted = false;
            let refused = self.take_effect(settings)?.map(Err);
            let outcome = if refused.is_some() { refused } else { self.read(settings)? };
            match outcome {
                // No knob is at fault.
                Some(Err(refusal)) if refusal.knob.is_none() => {
                    unread += 1;
                    let may_repeat =
                        self.has_restarted || !settings.is_empty() || self.load.is_held();
                    if unread == UNREAD_MAX || !may_repeat {
                        bail!(refusal.why);
                    }
                    notice(format_args!("{}: it is repeated", refusal.why));
                }
                Some(outcome) => return Ok(outcome),
                None => {}
            }
        }
    }

    /// Waits until the settings are in force; returns the reason if they cannot be.
    fn take_effect(&mut self, settings: &[Setting]) -> anyhow::Result<Option<Refusal>> {
        let mut why = None;
        for _ in 0..HELD_MAX {
            let epoch = self.turn()?;
            if let Some(restart) = self.restart() {
                return Ok(Some(restart));
            }
            let lost = |it: &Setting| {
                let why = self.session.why_yielded(it.knob())?;
                let why = format!("{it} cannot be set: {why}");
                Some(Refusal::of_knob(it.knob().capability(), why))
            };
            if let Some(refused) = settings.iter().find_map(lost) {
                return Ok(Some(refused));
            }
            // Decisions of the safe state are not those of the trial.
            if epoch.safe {
                return Ok(None);
            }
            if let Some(refused) = epoch.entries.iter().find_map(|entry| refusal(&entry.event)) {
                return Ok(Some(refused));
            }
            let held = epoch.entries.iter().find_map(|entry| held_back(&entry.event));
            if held.is_none() {
                return Ok(None);
            }
            why = held;
        }
        Ok(why)
    }

    /// Returns one reading of the settings in force, or the reason if they do not stay in force;
    /// `None` if the safe state has replaced them.
    fn read(&mut self, settings: &[Setting]) -> anyhow::Result<Option<Result<Measured, Refusal>>> {
        let mut gather = Gather::new(self.protocol);
        loop {
            let epoch = self.turn()?;
            if let Some(restart) = self.restart() {
                return Ok(Some(Err(restart)));
            }
            if epoch.safe {
                return Ok(None);
            }
            let mut events = epoch.entries.iter().map(|entry| &entry.event);
            if let Some(why) = events.find_map(|event| disturbance(event, settings)) {
                return Ok(Some(Err(why)));
            }
            let state = gather.add(&epoch.seen);
            if let Some(outcome) = concluded(&gather, state)? {
                return Ok(Some(outcome));
            }
        }
    }

    /// Returns why the reading is not one of a warm server, if the app was absent or has restarted
    /// since it began. No knob is at fault, although the app may have refused one as it ended.
    fn restart(&self) -> Option<Refusal> {
        let why =
            || format!("`{}` was absent or has restarted in the trial", self.app_name()).into();
        self.has_restarted.then(why)
    }

    fn app_name(&self) -> &str {
        &self.session.apps()[self.protocol.app.index()].name
    }

    /// Runs an epoch. While the app is absent and can return, further ones follow.
    fn turn(&mut self) -> anyhow::Result<Epoch> {
        let app = self.protocol.app;
        let mut epoch = self.epoch()?;
        while epoch.seen.app(app).is_none_or(|seen| !seen.alive) {
            if !self.session.plant().may_run(app) {
                let (name, logs) = (self.app_name(), self.session.logs());
                bail!(
                    "`{name}` has exited: start it again and repeat the command; the output of \
                     apps that Lull has started is in {}",
                    logs.display()
                );
            }
            if !std::mem::replace(&mut self.has_restarted, true) {
                notice(format_args!(
                    "`{}` is absent: trials continue when it is back",
                    self.app_name()
                ));
            }
            epoch = self.epoch()?;
        }
        self.has_restarted |= epoch.seen.restarted.contains(&app);
        if let Ok(energy) = &epoch.seen.energy {
            self.energy = energy.source.to_string();
        }
        Ok(epoch)
    }

    fn epoch(&mut self) -> anyhow::Result<Epoch> {
        self.session.turn(self.phase).map_err(|error| match error {
            TurnError::Plant(PlantError::Stopped) => anyhow!(self.stopped),
            other => other.into(),
        })
    }
}

/// Refuses trials that are too short to show anything about the objective's percentile.
pub(super) fn check_length(
    rules: &Rules,
    protocol: Protocol,
    rate_per_s: f64,
) -> anyhow::Result<()> {
    let least = rules.least_requests() as f64;
    if protocol.window.as_secs_f64() * rate_per_s >= least {
        return Ok(());
    }
    let takes = Nanos::from_secs_f64((least / rate_per_s).ceil());
    let Protocol { percentile, window, .. } = protocol;
    let rate = number(rate_per_s);
    let what = format!(
        "trials of {window} at {rate} requests/s are too short for {percentile}: write \
         window = \"{takes}\" in [policy], or another percentile"
    );
    Err(UsageError(what).into())
}

/// Describes the server without a setting of a trial.
pub(super) fn describe_as_it_is(before: &Measured, energy: &str) -> String {
    format!(
        "{} requests/s; as it is, the tail is {} us at {} W ({energy})",
        number(before.rate_per_s),
        number(before.reading.tail_us),
        number(before.reading.watts),
    )
}

/// A policy that returns the plan that its clones share, which [`SharedPlan::put`] replaces.
#[derive(Clone, Default)]
struct SharedPlan(Arc<Mutex<Plan>>);

impl SharedPlan {
    fn put(&self, plan: Plan) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }
}

impl Policy for SharedPlan {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns what a knob refused and why, if this event is a refusal. A knob that accepts a level
/// and keeps the former one counts as one, and so does a limit that replaces the level, because
/// the trial would measure another level.
fn refusal(event: &Event) -> Option<Refusal> {
    let Event::Decision(decision) = event else { return None };
    let wanted = &decision.outcome.wanted;
    let failure = || decision.outcome.failure(decision.from.as_ref());
    let why = decision.limit.clone().or_else(failure)?;
    let why = format!("{wanted} was refused: {why}");
    Some(Refusal::of_knob(wanted.knob().capability(), why))
}

/// Returns what limits hold back and why, if this event says so.
fn held_back(event: &Event) -> Option<Refusal> {
    let Event::Held { wanted, why, .. } = event else { return None };
    let why = format!("{wanted} is held back: {why}");
    Some(Refusal::of_knob(wanted.knob().capability(), why))
}

/// Returns the outcome of a trial that has ended; `None` if it continues. A trial with requests and
/// without a reading, because the meter failed, is refused without a knob; a trial without requests
/// means that there is no load.
fn concluded(
    gather: &Gather,
    state: Gathered,
) -> anyhow::Result<Option<Result<Measured, Refusal>>> {
    match state {
        Gathered::More => Ok(None),
        Gathered::Reading(reading, rate_per_s) => {
            let completed_per_s = gather.completed_per_s();
            Ok(Some(Ok(Measured { reading, rate_per_s, completed_per_s })))
        }
        Gathered::Nothing(why) => {
            let why = format!("the trial has no reading: {why}");
            if gather.has_requests() { Ok(Some(Err(why.into()))) } else { bail!(why) }
        }
    }
}

/// Returns why a trial's settings are no longer in force, if an event in its window shows that.
fn disturbance(event: &Event, settings: &[Setting]) -> Option<Refusal> {
    if let Event::Foreign { change, .. } = event {
        let lost = settings.iter().find(|it| it.knob() == change.knob)?;
        let why = format!("{lost} did not stay: another program has changed {}", change.whom);
        return Some(Refusal::of_knob(lost.knob().capability(), why));
    }
    held_back(event).or_else(|| refusal(event))
}

/// Closes the session of trials, and reports the state of the knobs.
///
/// # Errors
/// If a knob could not be restored, or else the error of the trials.
pub(super) fn close<T>(session: Session, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
    let say = |text: &str| notice(text);
    let record = session.record().display().to_string();
    let ended = outcome
        .as_ref()
        .map(|_| ())
        .map_err(|error| anyhow::Error::msg(lull_agent::error::describe(error)));
    let closed = session.close()?;
    closed.report_notices(&ended, &say)?;
    say(&ending(&closed, &record));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::journal::Decision;
    use lull_control::{
        AppId, AppObservation, ApplyOutcome, CoreSet, DomainId, EnergyObservation, EnergySource,
        ForeignChange, LatencyObservation, Outcome,
    };
    use lull_measure::{Hertz, Joules, Latency, Missing, Percentile};

    fn cores(count: u16) -> Setting {
        Setting::Cores(AppId(0), CoreSet::first(count))
    }

    #[test]
    fn a_trial_at_another_load_is_repeated_until_its_settings_are_known_to_cause_it() {
        let mut load = HeldLoad::new(100.0, 0.15);
        assert!(load.check(90.0).is_ok());
        assert!(load.check(50.0).is_err(), "closed-loop clients of a slow setting");
        for _ in 0..REPEATS_MAX {
            assert!(!load.accept(98.0).unwrap());
        }
        assert!(load.accept(98.0).unwrap(), "a search must end nevertheless");
        // The next trials count at once, while the server has the load at which it is searched.
        load.repeats = 0;
        assert!(load.accept(98.0).unwrap());
        assert!(load.accept(200.0).is_err(), "more clients");
    }

    #[test]
    fn where_settings_change_the_load_a_trial_at_the_held_load_may_be_one_of_more_clients() {
        let mut load = HeldLoad::new(100.0, 0.15);
        assert!(!load.is_uncertain(100.0) && load.is_uncertain(50.0));
        load.depends = true;
        assert!(load.is_uncertain(100.0), "a setting may halve the load of twice the clients");
        assert!(load.accept(200.0).is_err());
        // A reading of the restored server whose meter failed is repeated, but not the first one.
        assert!(load.is_held() && !HeldLoad::new(0.0, f64::INFINITY).is_held());
    }

    #[test]
    fn a_load_that_changes_without_a_setting_is_another_load() {
        let mut load = HeldLoad::new(100.0, 0.15);
        let moved = load.accept(200.0).unwrap_err().to_string();
        assert!(moved.contains("from 100 to 200 requests/s"), "{moved}");
    }

    #[test]
    fn a_change_of_another_program_or_a_hold_in_the_window_is_a_refusal() {
        let foreign = |app: u16| {
            let ours = Setting::Cores(AppId(app), CoreSet::first(2));
            let found = Setting::Cores(AppId(app), CoreSet::first(1));
            let whom = "thread 7 of db".to_owned();
            let change = ForeignChange { knob: ours.knob(), ours, found, whom };
            Event::Foreign { change, yielded: true }
        };
        let settings = [cores(2)];
        let lost = disturbance(&foreign(0), &settings).unwrap();
        assert_eq!(lost.knob, Some(lull_control::Capability::Cores));
        assert!(lost.why.contains("another program has changed thread 7 of db"), "{}", lost.why);
        assert_eq!(disturbance(&foreign(1), &settings), None, "a knob of another app");
        let why = "dwell".to_owned();
        let held = Event::Held { wanted: cores(2), reason: Reason::Start, why };
        assert!(disturbance(&held, &settings).unwrap().why.contains("held back: dwell"));
        assert_eq!(disturbance(&Event::SafeEnds, &settings), None);
    }

    /// The outcome of a trial of two epochs of a second, with this many requests in each, whose
    /// meter fails in the second one or not.
    fn trial(requests: u32, fails: bool) -> anyhow::Result<Result<Measured, Refusal>> {
        let second = Nanos::from_secs(1);
        let mut gather = Gather::new(Protocol {
            app: AppId(0),
            percentile: Percentile::P95,
            bound: Nanos::from_millis(10),
            settle: Nanos::ZERO,
            window: second.scale(2.0),
            cut: 2.0,
            allow_modelled: false,
        });
        for is_second in [false, true] {
            let missing = Missing::because("the meter does not answer");
            let mut window = Latency::default();
            window.record_many(Nanos::from_millis(1), u64::from(requests));
            let per_s = f64::from(requests);
            let (offered_per_s, completed_per_s) = (per_s, per_s);
            let latency = LatencyObservation {
                window,
                offered_per_s,
                completed_per_s,
                ..LatencyObservation::default()
            };
            let mut seen = Observation::unknown(second, second, &missing);
            seen.apps =
                vec![AppObservation { latency: Ok(latency), ..AppObservation::unknown(&missing) }];
            if !(fails && is_second) {
                let source = EnergySource::Measured("test".to_owned());
                seen.energy = Ok(EnergyObservation { energy: Joules(20.0), source });
            }
            let state = gather.add(&seen);
            if let Some(outcome) = concluded(&gather, state)? {
                return Ok(outcome);
            }
        }
        unreachable!("a trial ends");
    }

    #[test]
    fn a_meter_that_fails_in_a_trial_costs_the_trial_and_not_the_search() {
        let measured = trial(100, false).unwrap().unwrap();
        assert_eq!((measured.reading.requests, measured.completed_per_s), (200, 100.0));
        let refusal = trial(100, true).unwrap().unwrap_err();
        assert_eq!(refusal.knob, None, "no knob is at fault");
        assert!(refusal.why.contains("the meter does not answer"), "{}", refusal.why);
        let idle = trial(0, false).unwrap_err().to_string();
        assert!(idle.contains("no request arrived"), "{idle}");
    }

    #[test]
    fn a_knob_that_accepts_a_level_and_keeps_the_former_one_is_refused() {
        let [one, two, four] = [1, 2, 4].map(cores);
        let decision = |from: &Setting| {
            let (from, reason) = (Some(from.clone()), Reason::Start);
            let got = ApplyOutcome::Clamped { to: two.clone(), why: "it reads 2".to_owned() };
            let outcome = Outcome { wanted: four.clone(), got };
            Event::Decision(Decision { from, reason, outcome, limit: None, expected: None })
        };
        let refused = refusal(&decision(&two)).unwrap();
        assert_eq!(refused.knob, Some(lull_control::Capability::Cores));
        assert!(refused.why.contains("it was accepted, and"), "{}", refused.why);
        assert_eq!(refusal(&decision(&one)), None, "the knob has moved");
    }

    #[test]
    fn a_setting_that_limits_replace_is_refused() {
        let wanted = Setting::Frequency(DomainId(0), Hertz(2_000_000_000));
        let outcome = Outcome { wanted, got: ApplyOutcome::Done };
        let decision = |limit: Option<&str>| {
            let (reason, limit) = (Reason::Start, limit.map(str::to_owned));
            let outcome = outcome.clone();
            Event::Decision(Decision { from: None, reason, outcome, limit, expected: None })
        };
        assert_eq!(refusal(&decision(None)), None);
        let why = refusal(&decision(Some("limits turned 3 GHz into 2 GHz"))).unwrap().why;
        assert!(why.ends_with("limits turned 3 GHz into 2 GHz"), "{why}");
    }
}
