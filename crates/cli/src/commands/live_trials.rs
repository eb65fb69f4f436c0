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

/// Epochs for which limits may hold back the settings of a trial.
const HELD_MAX: usize = 10;

/// The load has changed.
#[derive(Debug, thiserror::Error)]
#[error("the load has changed from {from} to {to} requests/s")]
pub(super) struct Moved {
    from: f64,
    to: f64,
}

/// Trials on a running server.
pub(super) struct Trials<'s> {
    session: &'s mut Session,
    wanted: Wanted,
    /// The phase of the session, which is the name of the command.
    phase: &'static str,
    protocol: Protocol,
    /// Requests per second, and the share by which they may differ.
    load: (f64, f64),
    /// The error of trials that are stopped.
    stopped: &'static str,
    energy: String,
}

impl<'s> Trials<'s> {
    /// Restores the knobs and applies no setting until the first trial.
    pub(super) fn new(
        session: &'s mut Session,
        phase: &'static str,
        protocol: Protocol,
        stopped: &'static str,
    ) -> Self {
        let wanted = Wanted::default();
        session.switch(phase, Box::new(wanted.clone()));
        let load = (0.0, f64::INFINITY);
        Self { session, wanted, phase, protocol, load, stopped, energy: String::new() }
    }

    /// The source of the last power reading.
    pub(super) fn energy(&self) -> &str {
        &self.energy
    }

    /// Makes a change of load by more than a share an error of trials.
    pub(super) fn hold_load(&mut self, rate_per_s: f64, share: f64) {
        self.load = (rate_per_s, share);
    }

    /// Reads the server without a setting of a trial, at any load.
    pub(super) fn read_as_it_is(&mut self) -> anyhow::Result<Measured> {
        self.wanted.put(Plan::keep());
        self.load = (0.0, f64::INFINITY);
        self.read()
    }

    /// Applies settings and reads them; returns the reason if they cannot be applied.
    pub(super) fn one(
        &mut self,
        settings: &[Setting],
        number: usize,
    ) -> anyhow::Result<Result<Measured, Refusal>> {
        let reason = Reason::Trial { number: number as u32, expected_gain: None };
        let mut plan = Plan::keep();
        for setting in settings {
            plan.set(setting.clone(), reason.clone());
        }
        self.wanted.put(plan);
        if let Some(why) = self.take_effect(settings)? {
            return Ok(Err(why));
        }
        Ok(Ok(self.read()?))
    }

    /// Waits until the settings are in force; returns the reason if they cannot be.
    fn take_effect(&mut self, settings: &[Setting]) -> anyhow::Result<Option<Refusal>> {
        let mut why = None;
        for _ in 0..HELD_MAX {
            let epoch = self.turn()?;
            let lost = settings.iter().find(|it| self.session.yielded().contains(&it.knob()));
            if let Some(setting) = lost {
                let how = match self.session.reserved().contains(&setting.knob()) {
                    true => "areas of cores decide on that knob",
                    false => "another program has changed that knob, and its setting stays",
                };
                let why = format!("{setting} cannot be set: {how}");
                return Ok(Some(Refusal::of_knob(setting.knob().capability(), why)));
            }
            if let Some(refused) = epoch.entries.iter().find_map(|entry| refusal(&entry.event)) {
                return Ok(Some(refused));
            }
            let held = epoch.entries.iter().find_map(|entry| match &entry.event {
                Event::Held { wanted, why, .. } => {
                    let why = format!("{wanted} is held back: {why}");
                    Some(Refusal::of_knob(wanted.knob().capability(), why))
                }
                _ => None,
            });
            if held.is_none() {
                return Ok(None);
            }
            why = held;
        }
        Ok(why)
    }

    /// Returns one reading of the settings in force.
    fn read(&mut self) -> anyhow::Result<Measured> {
        let mut gather = Gather::new(self.protocol);
        loop {
            let epoch = self.turn()?;
            if epoch.safe {
                // In safe mode no latency is known, and the place is not in force.
                gather = Gather::new(self.protocol);
                continue;
            }
            match gather.add(&epoch.seen) {
                Gathered::More => {}
                Gathered::Nothing(why) => bail!("a trial gives no reading: {why}"),
                Gathered::Reading(reading, rate_per_s) => {
                    let (from, share) = self.load;
                    if (rate_per_s - from).abs() > share * rate_per_s.max(from) {
                        return Err(Moved { from, to: rate_per_s }.into());
                    }
                    let completed_per_s = gather.completed_per_s();
                    return Ok(Measured { reading, rate_per_s, completed_per_s });
                }
            }
        }
    }

    fn turn(&mut self) -> anyhow::Result<Epoch> {
        let epoch = self.session.turn(self.phase).map_err(|error| match error {
            TurnError::Plant(PlantError::Stopped) => anyhow!(self.stopped),
            other => other.into(),
        })?;
        let lives = epoch.seen.app(self.protocol.app).is_some_and(|app| app.alive);
        if !lives {
            let name = &self.session.apps()[self.protocol.app.index()].name;
            bail!("`{name}` has exited; its output is in {}", self.session.logs().display());
        }
        if let Ok(energy) = &epoch.seen.energy {
            self.energy = energy.source.to_string();
        }
        Ok(epoch)
    }
}

/// Refuses trials that are too short to show anything about the objective's percentile.
pub(super) fn check_length(
    rules: &Rules,
    protocol: Protocol,
    rate_per_s: f64,
) -> anyhow::Result<()> {
    let takes = Nanos::from_secs_f64((rules.least_requests() / rate_per_s).ceil());
    if protocol.window.as_secs_f64() * rate_per_s >= rules.least_requests() {
        return Ok(());
    }
    let Protocol { percentile, window, .. } = protocol;
    let rate = number(rate_per_s);
    let what = format!(
        "trials of {window} at {rate} requests/s are too short for {percentile}: write \
         window = \"{takes}\" in [policy], or another percentile"
    );
    Err(UsageError(what).into())
}

/// Says what the server is like without a setting of a trial.
pub(super) fn describe_as_it_is(before: &Measured, energy: &str) -> String {
    format!(
        "{} requests/s; as it is, the tail is {} us at {} W ({energy})",
        number(before.rate_per_s),
        number(before.reading.tail_us),
        number(before.reading.watts),
    )
}

/// A policy that returns the plan that was put into it.
#[derive(Clone, Default)]
struct Wanted(Arc<Mutex<Plan>>);

impl Wanted {
    fn put(&self, plan: Plan) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }
}

impl Policy for Wanted {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns what a knob refused and why, if this event is a refusal. A knob that accepts a level
/// and keeps the former one counts as one, because the trial would measure the former level.
fn refusal(event: &Event) -> Option<Refusal> {
    let Event::Decision(decision) = event else { return None };
    let wanted = &decision.outcome.wanted;
    let why = decision.outcome.failure(decision.from.as_ref())?;
    let why = format!("{wanted} was refused: {why}");
    Some(Refusal::of_knob(wanted.knob().capability(), why))
}

/// Closes the session of trials that ended so, and reports what became of the knobs.
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
