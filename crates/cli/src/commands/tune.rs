//! `lull tune`: searches a server's settings for the least power within its bound, and
//! stores what it found.
//!
//! The server runs here, under a config of the agent ([`live`]), or it is simulated
//! ([`simulated`]). A store keeps trials and findings by app, machine and load as soon as
//! they are measured: after a kill, a search resumes with its trials; a new search starts
//! with the earlier finding.

mod live;
mod picture;
mod simulated;

use crate::cli::TuneArgs;
use crate::commands::UsageError;
use crate::say::notice;
use crate::text::{number, table};
use lull_agent::located::Located;
use lull_agent::tuning_store::{Key, KnownSetting, Store};
use lull_control::{Capability, Rng, TrialEvidence};
use lull_policies::search::{
    Choice, FrontSetting, Method, Prediction, Reading, Refusal, Search, SearchPoint, Space, Trial,
    of_another_load,
};
use picture::Picture;
use rand::SeedableRng;
use serde::Serialize;
use std::hash::{BuildHasher, RandomState};

/// The error of a search that is stopped.
const STOPPED: &str =
    "stopped before the end; the trials are kept, and the same command continues with them";

/// A knob cannot be searched.
#[derive(Debug, thiserror::Error)]
#[error("{knob} cannot be searched here: {why}")]
struct UnsearchableKnob {
    knob: Capability,
    why: String,
}

/// The result of a search.
#[derive(Debug, Serialize)]
struct Tuned {
    machine: String,
    app: String,
    rate_per_s: f64,
    trials: usize,
    resumed: usize,
    /// The seed with which the search can be repeated.
    seed: u32,
    /// Whether the setting's trials show that it meets the bound.
    meets: bool,
    /// The evidence of its trials; absent if the fastest setting was never measured.
    evidence: Option<TrialEvidence>,
    /// Values of the settings that do not meet the bound at this load.
    refuted: Vec<Vec<f64>>,
    /// Why a safe search tried nothing but the fastest setting; absent if it did.
    stayed: Option<String>,
    setting: String,
    values: Vec<f64>,
    tail_us: f64,
    watts: f64,
    /// The source of the power: a meter or a model.
    energy: String,
    /// Share of the search's requests that were over the bound.
    harm: f64,
    /// The tried settings within the bound that no other one beats in predicted power, tail and,
    /// with best-effort apps, progress.
    front: Vec<FrontRow>,
    /// All trials, in order.
    tried: Vec<TrialResult>,
}

/// A setting of the front, with its predictions.
#[derive(Debug, Serialize)]
struct FrontRow {
    setting: String,
    values: Vec<f64>,
    tail_us: f64,
    watts: f64,
    /// Predicted progress of the best-effort apps per second, if each trial has it.
    progress_per_s: Option<f64>,
}

/// One trial: its reading, or why there is none.
#[derive(Debug, Serialize)]
struct TrialResult {
    values: Vec<f64>,
    tail_us: Option<f64>,
    watts: Option<f64>,
    requests: Option<u64>,
    /// Requests over the bound, or never answered.
    late: Option<u64>,
    /// Progress of the best-effort apps per second.
    progress_per_s: Option<f64>,
    why: Option<String>,
}

impl TrialResult {
    fn from_trial(trial: &Trial, space: &Space) -> Self {
        let reading = trial.outcome.as_ref().ok();
        Self {
            values: space.values(&trial.point),
            tail_us: reading.map(|it| it.tail_us),
            watts: reading.map(|it| it.watts),
            requests: reading.map(|it| it.requests),
            late: reading.map(|it| it.late),
            progress_per_s: reading.and_then(|it| it.progress_per_s),
            why: trial.outcome.as_ref().err().map(|refusal| refusal.why.clone()),
        }
    }
}

pub(crate) fn run(args: &TuneArgs) -> anyhow::Result<()> {
    let source = Located::read(&args.config)?;
    let has_apps = source.text().parse::<toml::Table>().is_ok_and(|it| it.contains_key("app"));
    let tuned = match has_apps {
        true => vec![live::tune(source, args)?],
        false => simulated::tune(&source, args)?,
    };
    // All knobs are restored: from here on a closed pipe may end the process.
    sigpipe::reset();
    if args.json {
        return super::print_json(&tuned);
    }
    print(&tuned);
    Ok(())
}

/// A search and the store of its trials.
struct StoredSearch<'s> {
    search: Search,
    key: Key,
    store: &'s Store,
    resumed: usize,
    seed: u32,
}

impl<'s> StoredSearch<'s> {
    /// Resumes the trials of a search that was interrupted, and starts with an earlier
    /// finding at about this load if there is one.
    fn new(
        mut search: Search,
        key: Key,
        store: &'s Store,
        seed: Option<u32>,
    ) -> anyhow::Result<Self> {
        let key = store.adopt(key)?;
        let seed = seed_of(store, &key, seed)?;
        let mut resumed = 0;
        for trial in store.trials(&key)? {
            if search.space().contains(&trial.point) {
                search.tell(trial.point, trial.outcome);
                resumed += 1;
            }
        }
        let ignored = store.count_without_evidence(key.subject())?;
        if ignored > 0 {
            notice(format_args!(
                "{ignored} settings of earlier searches were stored without evidence and are \
                 ignored"
            ));
        }
        if let Some(text) = store.describe_unused(key.subject())? {
            notice(text);
        }
        search.leave_out(store.refuted_here(&key, search.space())?);
        if let Some(known) = store.known_setting(&key)? {
            let point = search.space().nearest(&known.values);
            notice(format_args!(
                "an earlier search found {} at {} requests/s: it is tried early",
                search.space().describe(&point),
                number(known.rate_per_s)
            ));
            search.begin_with(point);
        } else if let Some(known) = known_at_another_load(store, &key)? {
            let point = search.space().nearest(&known.values);
            notice(format_args!(
                "an earlier search found {} at {} requests/s, which is another load: it is tried \
                 early",
                search.space().describe(&point),
                number(known.rate_per_s)
            ));
            search.begin_with(point);
        }
        if resumed > 0 {
            notice(format_args!("resumes with {resumed} trials of an earlier search"));
        }
        Ok(Self { search, key, store, resumed, seed })
    }

    /// Makes trials until the search is over, and stores each as soon as it is measured.
    fn run_trials(
        &mut self,
        picture: &mut Picture,
        mut trial: impl FnMut(&Search, &SearchPoint) -> anyhow::Result<Result<Reading, Refusal>>,
    ) -> anyhow::Result<()> {
        loop {
            // The only knob stays while another setting of it is an answer.
            let can_leave = |knob: &Capability| {
                self.search.space().without(*knob).is_some() || self.search.choice().is_none()
            };
            if let Some(knob) = self.search.useless_knob().filter(can_leave) {
                self.store.forget(&self.key)?;
                let trials = self.search.trials().iter();
                let mut refusals = trials.rev().filter_map(|it| it.outcome.as_ref().err());
                let why = refusals.next().map_or(String::new(), |refusal| refusal.why.clone());
                return Err(UnsearchableKnob { knob, why }.into());
            }
            let number = self.search.trials().len();
            // Each trial has its own generator, so that a resumed search draws the same numbers.
            let mut rng = Rng::seed_from_u64((u64::from(self.seed) << 32) | number as u64);
            let Some(next) = self.search.ask(&mut rng) else { return Ok(()) };
            picture.show(&self.search, Some(&next.point))?;
            let outcome = trial(&self.search, &next.point)?;
            self.store.keep_trial(&self.key, number, &next.point, &outcome)?;
            self.search.tell(next.point, outcome);
        }
    }

    /// Returns and stores the chosen setting; if none is shown to meet the bound, the fastest,
    /// with a notice.
    fn finish(&self) -> anyhow::Result<Choice> {
        let search = &self.search;
        let Some(choice) = search.choice() else {
            let why = search.trials().iter().find_map(|trial| trial.outcome.as_ref().err());
            let why = why.map_or("no trial was made", |refusal| &refusal.why);
            anyhow::bail!("no trial gave a reading: {why}");
        };
        let choice = match choice.meets {
            true => choice,
            false => {
                notice(format_args!(
                    "no setting of {} trials is shown to meet the bound of {} us; the best tail \
                     was {} us, with {}. The fastest setting stays in force",
                    search.trials().len(),
                    search.rules().bound_us,
                    number(choice.tail_us),
                    choice.evidence
                ));
                fastest_of(search, choice)
            }
        };
        self.store.keep_choice(&self.key, search, &choice)?;
        Ok(choice)
    }

    /// Ends the search and returns its result.
    fn tuned(&self, of: (&str, &str), rate_per_s: f64, energy: String) -> anyhow::Result<Tuned> {
        let (choice, search) = (self.finish()?, &self.search);
        Ok(Tuned {
            machine: of.0.to_owned(),
            app: of.1.to_owned(),
            rate_per_s,
            trials: search.trials().len(),
            resumed: self.resumed,
            seed: self.seed,
            meets: choice.meets,
            evidence: search.evidence(&choice.point),
            refuted: search.refuted().iter().map(|it| search.space().values(it)).collect(),
            stayed: search.confinement(),
            setting: search.space().describe(&choice.point),
            values: search.space().values(&choice.point),
            tail_us: choice.tail_us,
            watts: choice.watts,
            energy,
            harm: search.harm(),
            front: front_of(search),
            tried: search
                .trials()
                .iter()
                .map(|it| TrialResult::from_trial(it, search.space()))
                .collect(),
        })
    }
}

/// Returns the fastest setting with its own figures and evidence in place of a choice that is not
/// shown to meet the bound. One reading predicts nothing: its setting then remains.
fn fastest_of(search: &Search, choice: Choice) -> Choice {
    let point = search.space().fastest();
    let believed = search.predict(std::slice::from_ref(&point)).and_then(|mut all| all.pop());
    let Some(Prediction { tail_us, watts, meets }) = believed else { return choice };
    let untried = TrialEvidence {
        trials: 0,
        requests: 0,
        late: 0,
        at_least: 0.0,
        at_most: 1.0,
        allowed: search.rules().allowed,
        probability: meets,
    };
    let evidence = search.evidence(&point).unwrap_or(untried);
    Choice { point, meets: false, evidence, watts, tail_us }
}

/// Returns the setting that an earlier search has stored for the next load.
fn known_at_another_load(store: &Store, key: &Key) -> anyhow::Result<Option<KnownSetting>> {
    let all = store.known_settings(key.subject())?;
    let pairs = all.into_iter().map(|known| (known.rate_per_s, known));
    Ok(of_another_load(pairs, key.rate_per_s()))
}

/// Returns the seed of a search: that of the search that it continues, the one that is given, or
/// one that differs by run.
fn seed_of(store: &Store, key: &Key, given: Option<u32>) -> anyhow::Result<u32> {
    let seed = match (store.seed(key)?, given) {
        (Some(kept), Some(given)) if kept != given => {
            let what = "the stored search, which this command continues, has another seed";
            let advice = format!("leave out --seed, write {kept}, or name another --store");
            return Err(UsageError(format!("--seed {given}: {what}: {advice}")).into());
        }
        (Some(kept), _) => kept,
        // The keys of a hash map are random in each process, and differ by map.
        (None, given) => given.unwrap_or_else(|| RandomState::new().hash_one(0) as u32),
    };
    store.keep_seed(key, seed)?;
    notice(format_args!("the seed of the search is {seed}: --seed {seed} repeats it"));
    Ok(seed)
}

/// Returns the front of a search of the front; other searches have none.
fn front_of(search: &Search) -> Vec<FrontRow> {
    if search.rules().method != Method::Front {
        return Vec::new();
    }
    let on_front =
        |FrontSetting { point, tail_us, watts, progress_per_s }: FrontSetting| FrontRow {
            setting: search.space().describe(&point),
            values: search.space().values(&point),
            tail_us,
            watts,
            progress_per_s,
        };
    search.front().into_iter().map(on_front).collect()
}

fn print(tuned: &[Tuned]) {
    let row = |it: &Tuned| {
        vec![
            number(it.rate_per_s),
            it.setting.clone(),
            number(it.tail_us),
            if it.meets { "met" } else { "not shown" }.to_owned(),
            number(it.watts),
            format!("{} ({} kept)", it.trials, it.resumed),
            format!("{:.2} %", 100.0 * it.harm),
        ]
    };
    let head = ["requests/s", "setting", "tail (us)", "objective", "power (W)", "trials", "late"];
    println!("{}", table(&head, tuned.iter().map(row)));
    for one in tuned {
        println!("power: {}", one.energy);
        if let Some(evidence) = &one.evidence {
            println!("evidence at {} requests/s: {evidence}", number(one.rate_per_s));
        }
        if let Some(why) = &one.stayed {
            println!("{why}");
        }
        if !one.refuted.is_empty() {
            println!("{} settings were refuted and are left out next time", one.refuted.len());
        }
        if !one.front.is_empty() {
            print_front(&one.front);
        }
    }
}

fn print_front(front: &[FrontRow]) {
    let has_progress = front.iter().all(|it| it.progress_per_s.is_some());
    println!(
        "front of tail{} power, as the trials predict them:",
        if has_progress { ", best-effort progress and" } else { " and" }
    );
    let head = ["setting", "tail (us)", "power (W)", "progress/s"];
    let columns = head.len() - usize::from(!has_progress);
    let row = |it: &FrontRow| {
        let progress = it.progress_per_s.map_or(String::new(), number);
        let all = vec![it.setting.clone(), number(it.tail_us), number(it.watts), progress];
        all.into_iter().take(columns).collect()
    };
    println!("{}", table(&head[..columns], front.iter().map(row)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_policies::search::Rules;

    #[test]
    fn the_fastest_setting_has_its_own_figures_and_evidence() {
        let space = Space::from_values(&[(Capability::Cores, vec![1.0, 2.0, 4.0])]).unwrap();
        let mut search = Search::new(space, Rules::new(Method::Apart, 10_000.0, 8));
        let mut trial = |level: u16, tail_us: f64, watts: f64| {
            let (requests, late) = (1000, 500);
            let reading = Reading { tail_us, watts, requests, late, progress_per_s: None };
            search.tell(SearchPoint(vec![level]), Ok(reading));
        };
        // Two cores have the lower tail by chance, and less power.
        (0..3).for_each(|_| trial(2, 30_000.0, 40.0));
        (0..2).for_each(|_| trial(1, 20_000.0, 20.0));
        let choice = search.choice().unwrap();
        assert_eq!((choice.meets, &choice.point), (false, &SearchPoint(vec![1])));
        let fastest = fastest_of(&search, choice);
        assert_eq!((fastest.point, fastest.evidence.trials), (SearchPoint(vec![2]), 3));
        let Choice { watts, tail_us, .. } = fastest;
        assert!(watts > 35.0 && tail_us > 25_000.0, "{watts} {tail_us}");
    }
}
