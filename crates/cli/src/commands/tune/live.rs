//! The search on a running server: its policy applies the setting of each trial.
//!
//! The session is the same as in `lull run`, with its record, its limits and its guard:
//! however the search ends, every knob is restored. The store keeps the finding, and
//! `lull run` reads it from there (`agent.spots`).

use super::picture::Picture;
use super::{STOPPED, StoredSearch, Tuned, UnsearchableKnob};
use crate::cli::TuneArgs;
use crate::commands::UsageError;
use crate::commands::live_trials::{Moved, Trials, check_length, close, describe_as_it_is};
use crate::say::notice;
use crate::signals::stop_request;
use lull_agent::config::Config;
use lull_agent::located::Located;
use lull_agent::session::{Agent, Session, search_of, tuning_of};
use lull_agent::tuning_store::{Key, Store, Subject};
use lull_control::Plant;
use lull_policies::search::{Search, Tuning};

/// Starts in a row in which the load changed before a trial had ended, after which a search ends.
const UNSTEADY_MAX: u32 = 3;

/// The load never stays for a trial.
#[derive(Debug, thiserror::Error)]
#[error(
    "the load has changed three times in a row before a trial had ended: write a shorter \
     window or a larger load_change in [policy], or search while the load is steady"
)]
struct Unsteady;

/// Counts the starts of a search that the load has ended.
#[derive(Debug, Default)]
struct Starts {
    without_trial: u32,
}

impl Starts {
    /// Records that the load has changed after this many trials of a start.
    fn end(&mut self, trials: usize) -> Result<(), Unsteady> {
        self.without_trial = if trials == 0 { self.without_trial + 1 } else { 0 };
        if self.without_trial < UNSTEADY_MAX { Ok(()) } else { Err(Unsteady) }
    }
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
    let tuned = search(&mut session, &store, args.seed, &mut picture);
    picture.close();
    close(session, tuned)
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
    put("safe", args.safe.then_some(true.into()));
    put("cut", args.cut.map(Into::into));
    Ok(config)
}

/// Searches at the current load; starts again if the load changes.
fn search(
    session: &mut Session,
    store: &Store,
    seed: Option<u32>,
    picture: &mut Picture,
) -> anyhow::Result<Tuned> {
    let Tuning { mut space, rules, protocol, load_change } =
        tuning_of(session.config(), session.plant().machine(), session.apps())?;
    let app = session.apps()[protocol.app.index()].name.clone();
    let machine = session.plant().machine().clone();
    store.rename_class(&machine)?;
    let mut trials = Trials::new(session, "tune", protocol, STOPPED);
    let mut starts = Starts::default();
    loop {
        let before = trials.read_as_it_is()?;
        let rate_per_s = before.rate_per_s;
        notice(describe_as_it_is(&before, trials.energy()));
        check_length(&rules, protocol, rate_per_s)?;
        trials.hold_load(rate_per_s, load_change);
        let search = Search::new(space.clone(), rules.clone());
        let subject = Subject::new(&machine, &app, protocol.percentile, protocol.bound, &space);
        // Trials of another meter or model of power have other watts.
        let plant = format!("live, power {}", trials.energy());
        let key = Key::new(subject, &search, &protocol, &plant, rate_per_s);
        forget_old(store, &key)?;
        let mut hunt = StoredSearch::new(search, key, store, seed)?;
        let ended = hunt.run_trials(picture, |search, point| {
            let settings = search.space().settings(point);
            let outcome = trials.one(&settings, search.trials().len() + 1)?;
            Ok(outcome.map(|it| it.reading))
        });
        picture.close();
        match ended {
            Ok(()) => {
                return hunt.tuned((&machine.name, &app), rate_per_s, trials.energy().to_owned());
            }
            Err(error) if error.is::<Moved>() => {
                starts.end(hunt.search.trials().len() - hunt.resumed)?;
                notice(format_args!("{error}: its trials are kept, and the search starts again"));
            }
            Err(error) => {
                // A knob that is always refused leaves the search, and the rest is searched.
                let knob = error.downcast_ref::<UnsearchableKnob>().map(|useless| useless.knob);
                let Some(left) = knob.and_then(|knob| space.without(knob)) else {
                    return Err(error);
                };
                notice(format_args!("{error}; the search continues without it"));
                space = left;
            }
        }
    }
}

/// Deletes trials of earlier searches that are too old to continue with.
fn forget_old(store: &Store, key: &Key) -> anyhow::Result<()> {
    let old = store.forget_old(key)?;
    if old > 0 {
        notice(format_args!(
            "{old} trials of searches that were interrupted more than a day ago are deleted: the \
             server may have changed since"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_if_the_load_never_stays_for_a_trial_and_goes_on_where_it_does() {
        let mut starts = Starts::default();
        for trials in [0, 0, 2, 0, 0, 1, 0, 0] {
            assert!(starts.end(trials).is_ok());
        }
        assert!(starts.end(0).unwrap_err().to_string().contains("load_change"));
    }
}
