//! The search on a running server: its policy applies the setting of each trial.
//!
//! The session is the same as in `lull run`, with its record, its limits and its guard:
//! however the search ends, every knob is restored. The store keeps the finding, and
//! `lull run` reads it from there (`agent.spots`).

use super::picture::Picture;
use super::{Hunt, STOPPED, Tuned, Useless};
use crate::cli::TuneArgs;
use crate::commands::UsageError;
use crate::say::notice;
use crate::signals::stop_request;
use crate::text::number;
use anyhow::{anyhow, bail};
use lull_agent::config::Config;
use lull_agent::located::Located;
use lull_agent::session::{Agent, Session, TurnError, search_of, tuning_of};
use lull_agent::tuning_store::{Key, Store, Subject};
use lull_control::journal::Event;
use lull_control::{
    Epoch, Got, Observation, Plan, Plant, PlantError, Policy, Reason, Rng, Setting,
};
use lull_measure::Nanos;
use lull_policies::search::{
    Gather, Gathered, Place, Protocol, Reading, Refusal, Rules, Search, Tuning,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Epochs for which limits may hold back the settings of a trial.
const HELD_MAX: usize = 10;

/// The load has changed.
#[derive(Debug, thiserror::Error)]
#[error("the load has changed from {from} to {to} requests/s")]
struct Moved {
    from: f64,
    to: f64,
}

pub(super) fn tune(source: Located, args: &TuneArgs) -> anyhow::Result<Tuned> {
    if !args.rate.is_empty() {
        let what = "--rate is for a simulated server: a running one has the load it has";
        return Err(UsageError(what.to_owned()).into());
    }
    let config = config(source, args)?;
    let store = Store::open(&args.store)?;
    let say = |text: &str| notice(text);
    let mut session = Agent::new(config).stop(stop_request()?).notify(&say).start()?;
    let mut picture = Picture::new(args.json);
    let tuned = search(&mut session, (&store, args.seed), &mut picture);
    picture.close();
    let record = session.record().display().to_string();
    let ended = tuned
        .as_ref()
        .map(|_| ())
        .map_err(|error| anyhow::Error::msg(lull_agent::error::describe(error)));
    let closed = session.close()?;
    closed.tell(&ended, &say)?;
    say(&format!("{}; the record is {record}", closed.outcome()));
    tuned
}

/// Returns the config with the changes of the command line.
fn config(source: Located, args: &TuneArgs) -> anyhow::Result<Config> {
    let mut config = Config::from_located(source)?;
    search_of(&config)?;
    // Orders of an operator would distort the trials.
    config.agent.control = false;
    let mut put = |key: &str, value: Option<toml::Value>| {
        if let Some(value) = value {
            config.policy_keys.insert(key.to_owned(), value);
        }
    };
    put("trials", args.trials.map(|it| i64::from(it).into()));
    put("method", args.method.clone().map(Into::into));
    put("harm_max", args.harm_max.map(Into::into));
    put("cut", args.cut.map(Into::into));
    Ok(config)
}

/// Searches at the current load; starts again if the load changes.
fn search(
    session: &mut Session,
    (store, seed): (&Store, Option<u32>),
    picture: &mut Picture,
) -> anyhow::Result<Tuned> {
    let Tuning { mut space, rules, protocol, load_change } =
        tuning_of(session.config(), session.plant().machine(), session.apps())?;
    let app = session.apps()[protocol.app.index()].name.clone();
    let machine = session.plant().machine().clone();
    let wanted = Wanted::default();
    session.switch("tune", Box::new(wanted.clone()));
    let load = (0.0, f64::INFINITY);
    let mut trials = Trials { session, wanted, protocol, load, energy: String::new() };
    loop {
        trials.load = (0.0, f64::INFINITY);
        let (before, rate_per_s) = trials.read()?;
        notice(format_args!(
            "{} requests/s; as it is, the tail is {} us at {} W ({})",
            number(rate_per_s),
            number(before.tail_us),
            number(before.watts),
            trials.energy
        ));
        check_length(&rules, protocol, rate_per_s)?;
        trials.load = (rate_per_s, load_change);
        let search = Search::new(space.clone(), rules.clone());
        let subject = Subject::new(&machine, &app, (protocol.percentile, protocol.bound), &space);
        let key = Key::new(subject, &search, &protocol, ("live", rate_per_s));
        let mut hunt = Hunt::new(search, key, store, seed)?;
        let ended = hunt.go_on(picture, |search, place| trials.one(search, place));
        picture.close();
        match ended {
            Ok(()) => {
                return hunt.tuned((&machine.name, &app), rate_per_s, trials.energy.clone());
            }
            Err(error) if error.is::<Moved>() => {
                notice(format_args!("{error}: its trials are kept, and the search starts again"));
                trials.wanted.put(Plan::keep());
            }
            Err(error) => {
                // A knob that is always refused leaves the search, and the rest is searched.
                let knob = error.downcast_ref::<Useless>().map(|useless| useless.knob);
                let Some(left) = knob.and_then(|knob| space.without(knob)) else {
                    return Err(error);
                };
                notice(format_args!("{error}; the search goes on without it"));
                space = left;
                trials.wanted.put(Plan::keep());
            }
        }
    }
}

/// Refuses trials that are too short to show anything about the objective's percentile.
fn check_length(rules: &Rules, protocol: Protocol, rate_per_s: f64) -> anyhow::Result<()> {
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

/// Trials on a running server.
struct Trials<'s> {
    session: &'s mut Session,
    wanted: Wanted,
    protocol: Protocol,
    /// Requests per second, and the share by which they may differ.
    load: (f64, f64),
    /// The source of the last power reading.
    energy: String,
}

impl Trials<'_> {
    /// Sets a place and reads it; returns the reason if it cannot be set.
    fn one(&mut self, search: &Search, place: &Place) -> anyhow::Result<Result<Reading, Refusal>> {
        let number = search.trials().len() as u32 + 1;
        let reason = Reason::Trial { number, expected_gain: None };
        let mut plan = Plan::keep();
        for setting in search.space().settings(place) {
            plan.set(setting, reason.clone());
        }
        self.wanted.put(plan);
        if let Some(why) = self.take_effect(&search.space().settings(place))? {
            return Ok(Err(why));
        }
        let (reading, _) = self.read()?;
        Ok(Ok(reading))
    }

    /// Waits until the settings are in force; returns the reason if they cannot be.
    fn take_effect(&mut self, settings: &[Setting]) -> anyhow::Result<Option<Refusal>> {
        let mut why = None;
        for _ in 0..HELD_MAX {
            let epoch = self.turn()?;
            let lost = settings.iter().find(|it| self.session.yielded().contains(&it.knob()));
            if let Some(setting) = lost {
                let how = "another program has changed that knob, and its setting stays";
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

    /// Returns one reading of the settings in force, and its load in requests per second.
    fn read(&mut self) -> anyhow::Result<(Reading, f64)> {
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
                    return Ok((reading, rate_per_s));
                }
            }
        }
    }

    fn turn(&mut self) -> anyhow::Result<Epoch> {
        let epoch = self.session.turn("tune").map_err(|error| match error {
            TurnError::Plant(PlantError::Stopped) => anyhow!(STOPPED),
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

/// Returns what a knob refused and why, if this event is a refusal.
fn refusal(event: &Event) -> Option<Refusal> {
    let Event::Decision(decision) = event else { return None };
    match &decision.outcome.got {
        Got::Refused { why } => {
            let wanted = &decision.outcome.wanted;
            let why = format!("{wanted} was refused: {why}");
            Some(Refusal::of_knob(wanted.knob().capability(), why))
        }
        _ => None,
    }
}
