//! Storage of the settings that a session's policy finds, in the file `agent.spots` of the config.
//!
//! A policy has no side effects and only returns its findings. The result of a search is
//! written when the search ends, because a search takes minutes and the run may be killed.
//! Later measurements of the same setting are written when the session is closed, after the
//! knobs were restored. An interrupted search has no result. A store that cannot be written
//! causes a notice; the run continues.

use crate::text::number;
use crate::tuning_store::{Store, Subject, rates_near};
use lull_control::journal::Event;
use lull_control::{Discovery, Epoch, Knob, Setting};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A store and the subject of its findings.
#[derive(Debug, Clone)]
pub(super) struct FindingsStore {
    /// The store.
    pub(super) path: PathBuf,
    /// The app, machine and objective of the findings.
    pub(super) subject: Subject,
}

/// Stores findings.
#[derive(Debug)]
pub(super) struct FindingsWriter {
    /// The store; without one nothing is stored.
    place: Option<FindingsStore>,
    /// Findings to be written when the session is closed, one for loads that are near each other.
    waiting: Vec<Discovery>,
    notices: RefCell<Vec<String>>,
}

impl FindingsWriter {
    pub(super) fn new(place: Option<FindingsStore>) -> Self {
        Self { place, waiting: Vec::new(), notices: RefCell::default() }
    }

    /// Accepts what the policy has found by the end of an epoch.
    pub(super) fn take(&mut self, found: Vec<Discovery>, epoch: &Epoch, yielded: &BTreeSet<Knob>) {
        if self.place.is_none() {
            return;
        }
        for one in found {
            if let Some(why) = not_in_force(&one, epoch, yielded) {
                // Repeated measurements occur in every window and cause no notice.
                if one.trials > 0 {
                    self.notice(format!("a setting that the policy found is not stored: {why}"));
                }
                continue;
            }
            // A search's result that could not be written is not replaced by a later window.
            let is_other = |it: &Discovery| !rates_near(one.rate_per_s).contains(&it.rate_per_s);
            self.waiting.retain(|it| is_other(it) || (it.trials > 0 && one.trials == 0));
            match one.trials {
                0 => self.waiting.push(one),
                _ => self.keep(one),
            }
        }
    }

    /// Returns the notices since the last call.
    pub(super) fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }

    /// Writes the waiting findings and returns the notices.
    pub(super) fn close(mut self) -> Vec<String> {
        for one in std::mem::take(&mut self.waiting) {
            if let Err(why) = self.write(&one) {
                self.notice(why);
                break;
            }
        }
        self.notices.into_inner()
    }

    /// Writes the result of a search; if writing fails, it is retried when the session closes.
    fn keep(&mut self, one: Discovery) {
        match self.write(&one) {
            Ok(()) => self.notice(describe_finding(&one)),
            Err(why) => {
                self.notice(why);
                self.waiting.push(one);
            }
        }
    }

    /// Writes one finding. The store is opened for each write, so that a store that was damaged
    /// meanwhile is detected and not changed.
    fn write(&self, one: &Discovery) -> Result<(), String> {
        let Some(FindingsStore { path, subject }) = &self.place else { return Ok(()) };
        let written = Store::open(path).and_then(|store| match one.trials {
            0 => store.keep_seen(subject, one),
            _ => store.keep_found(subject, one),
        });
        written.map_err(|error| {
            format!(
                "a setting that the policy found cannot be stored: {}",
                crate::error::describe(&error)
            )
        })
    }

    fn notice(&self, text: String) {
        self.notices.borrow_mut().push(text);
    }
}

/// Returns why the policy's settings were not in force when they were measured.
fn not_in_force(one: &Discovery, epoch: &Epoch, yielded: &BTreeSet<Knob>) -> Option<String> {
    let lost = one.settings.iter().find(|setting| yielded.contains(&setting.knob()));
    if let Some(setting) = lost {
        return Some(format!("another program has changed the knob of {setting}"));
    }
    epoch.entries.iter().find_map(|entry| refused(&entry.event, &one.settings))
}

fn refused(event: &Event, settings: &[Setting]) -> Option<String> {
    let Event::Decision(decision) = event else { return None };
    let wanted = &decision.outcome.wanted;
    let why = decision.outcome.failure(decision.from.as_ref())?;
    settings.contains(wanted).then(|| format!("{wanted} was refused: {why}"))
}

/// Describes a finding for users.
fn describe_finding(one: &Discovery) -> String {
    let settings: Vec<_> = one.settings.iter().map(ToString::to_string).collect();
    let (rate, trials) = (number(one.rate_per_s), one.trials);
    let evidence = one.evidence.map_or(String::new(), |it| format!(" ({it})"));
    match one.meets {
        true => format!(
            "found in {trials} trials and kept for {rate} requests/s: {}{evidence}",
            settings.join(", ")
        ),
        false => format!(
            "nothing of {trials} trials is shown to meet the bound at {rate} requests/s{evidence}; \
             kept"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning_store::KnownSetting;
    use lull_control::conformance::MemoryPlant;
    use lull_control::{
        AppId, AppSpec, Capability, ControlLoop, Controller, CoreSet, Machine, Observation, Plan,
        Plant, Policy, Rng, Rules, TrialEvidence,
    };
    use lull_measure::{Nanos, Percentile};
    use lull_policies::search::Space;
    use rand::SeedableRng;

    /// Wants nothing.
    struct Idle;

    impl Policy for Idle {
        fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
            Plan::keep()
        }
    }

    fn epoch() -> Epoch {
        let plant = MemoryPlant::new(4, Vec::new());
        let controller = Controller::new(Box::new(Idle), Rules::default(), &plant).unwrap();
        let length = Nanos::from_millis(100);
        ControlLoop::new(plant, controller, length, Rng::seed_from_u64(1)).turn().unwrap()
    }

    fn machine() -> Machine {
        MemoryPlant::new(4, Vec::new()).machine().clone()
    }

    fn place(directory: &tempfile::TempDir) -> FindingsStore {
        let bound = Nanos::from_millis(10);
        let spec = AppSpec::latency_critical("a", Percentile::P95, bound);
        let space = Space::from_machine(&machine(), &[spec], &[Capability::Cores]).unwrap();
        let subject = Subject::new(&machine(), "a", Percentile::P95, bound, &space);
        FindingsStore { path: directory.path().join("spots.sqlite"), subject }
    }

    fn found(rate_per_s: f64, cores: u16, trials: u32) -> Discovery {
        Discovery {
            app: AppId(0),
            rate_per_s,
            settings: vec![Setting::Cores(AppId(0), CoreSet::first(cores))],
            values: vec![f64::from(cores)],
            knobs: vec![Capability::Cores],
            meets: true,
            tail_us: 5000.0,
            watts: 10.0,
            trials,
            evidence: Some(EVIDENCE),
            refuted: Vec::new(),
        }
    }

    const EVIDENCE: TrialEvidence = TrialEvidence {
        trials: 4,
        requests: 800,
        late: 3,
        at_least: 0.001,
        at_most: 0.02,
        allowed: 0.05,
        probability: 0.99,
    };

    fn known_settings(place: &FindingsStore) -> Vec<KnownSetting> {
        Store::open(&place.path).unwrap().known_settings(&place.subject).unwrap()
    }

    #[test]
    fn the_end_of_a_search_is_kept_at_once_and_what_is_seen_again_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        let mut keeper = FindingsWriter::new(Some(place.clone()));
        let (epoch, none) = (epoch(), BTreeSet::new());
        keeper.take(vec![found(100.0, 2, 12)], &epoch, &none);
        let kept = KnownSetting { rate_per_s: 100.0, values: vec![2.0], evidence: EVIDENCE };
        assert_eq!(known_settings(&place), [kept]);
        assert!(keeper.take_notices()[0].contains("found in 12 trials"));
        // 109 is in the bin beside that of 100.
        let again = Discovery { watts: 7.0, ..found(109.0, 2, 0) };
        keeper.take(vec![again, found(500.0, 3, 0)], &epoch, &none);
        assert_eq!(known_settings(&place).len(), 1, "what is seen again waits");
        assert!(keeper.close().is_empty());
        let rates: Vec<f64> = known_settings(&place).iter().map(|known| known.rate_per_s).collect();
        assert_eq!(rates, [100.0, 500.0]);
        let open = rusqlite::Connection::open(&place.path).unwrap();
        let watts: Vec<f64> = open
            .prepare("SELECT watts FROM spot ORDER BY rate_per_s")
            .and_then(|mut all| all.query_map([], |row| row.get(0))?.collect())
            .unwrap();
        assert_eq!(watts, [7.0, 10.0], "renewed, and added");
    }

    #[test]
    fn what_is_seen_again_does_not_replace_what_another_search_has_found() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        let (epoch, none) = (epoch(), BTreeSet::new());
        let mut keeper = FindingsWriter::new(Some(place.clone()));
        keeper.take(vec![found(100.0, 3, 0)], &epoch, &none);
        Store::open(&place.path).unwrap().keep_found(&place.subject, &found(100.0, 1, 9)).unwrap();
        assert!(keeper.close().is_empty());
        assert_eq!(known_settings(&place)[0].values, [1.0]);
        // A search that ends later replaces it, and one that found nothing takes it back.
        let mut keeper = FindingsWriter::new(Some(place.clone()));
        keeper.take(vec![found(100.0, 2, 5)], &epoch, &none);
        assert_eq!(known_settings(&place)[0].values, [2.0]);
        keeper.take(vec![Discovery { meets: false, ..found(100.0, 4, 5) }], &epoch, &none);
        assert!(known_settings(&place).is_empty());
    }

    #[test]
    fn settings_of_former_stores_have_no_evidence_and_are_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        Store::open(&place.path).unwrap().keep_found(&place.subject, &found(100.0, 2, 9)).unwrap();
        let open = rusqlite::Connection::open(&place.path).unwrap();
        // The tables of the former version.
        open.execute_batch(
            "ALTER TABLE spot DROP COLUMN evidence; DROP TABLE refuted; PRAGMA user_version = 2;",
        )
        .unwrap();
        drop(open);
        let store = Store::open(&place.path).unwrap();
        assert!(store.known_settings(&place.subject).unwrap().is_empty());
        assert_eq!(store.count_without_evidence(&place.subject).unwrap(), 1);
        // A window without evidence adds none to the finding.
        let few = TrialEvidence { at_most: 0.3, ..EVIDENCE };
        let seen = Discovery { evidence: Some(few), ..found(100.0, 2, 0) };
        store.keep_seen(&place.subject, &seen).unwrap();
        assert!(store.known_settings(&place.subject).unwrap().is_empty());
        store.keep_found(&place.subject, &found(100.0, 2, 9)).unwrap();
        assert_eq!(store.known_settings(&place.subject).unwrap().len(), 1);
        assert_eq!(store.count_without_evidence(&place.subject).unwrap(), 0);
    }

    #[test]
    fn refuted_settings_are_those_of_the_last_search_of_their_load() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        let store = Store::open(&place.path).unwrap();
        let refuted = |values: &[f64]| values.iter().map(|it| vec![*it]).collect();
        let first = Discovery { refuted: refuted(&[1.0, 2.0]), ..found(100.0, 3, 9) };
        store.keep_found(&place.subject, &first).unwrap();
        let other = Discovery { refuted: refuted(&[1.0]), ..found(500.0, 3, 9) };
        store.keep_found(&place.subject, &other).unwrap();
        let all = || {
            let all = store.refuted_settings(&place.subject).unwrap();
            all.iter().map(|one| (one.rate_per_s, one.values[0])).collect::<Vec<_>>()
        };
        assert_eq!(all(), [(100.0, 1.0), (100.0, 2.0), (500.0, 1.0)]);
        let again = Discovery { refuted: Vec::new(), ..found(101.0, 3, 9) };
        store.keep_found(&place.subject, &again).unwrap();
        assert_eq!(all(), [(500.0, 1.0)]);
    }

    #[test]
    fn what_was_not_in_force_is_not_kept_and_no_store_is_made_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        let mut keeper = FindingsWriter::new(Some(place.clone()));
        let lost = BTreeSet::from([Knob::Cores(AppId(0))]);
        keeper.take(vec![found(100.0, 2, 12)], &epoch(), &lost);
        assert!(keeper.close()[0].contains("another program"), "the notice names the cause");
        assert!(!place.path.exists());
        let mut nowhere = FindingsWriter::new(None);
        nowhere.take(vec![found(100.0, 2, 12)], &epoch(), &BTreeSet::new());
        assert!(nowhere.close().is_empty());
    }

    #[test]
    fn a_result_that_could_not_be_written_is_written_at_the_end_with_what_it_refuted() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        let mut keeper = FindingsWriter::new(Some(place.clone()));
        std::fs::write(&place.path, "this was a database once").unwrap();
        let result = Discovery { refuted: vec![vec![1.0]], ..found(100.0, 2, 12) };
        keeper.take(vec![result], &epoch(), &BTreeSet::new());
        keeper.take(vec![found(100.0, 2, 0)], &epoch(), &BTreeSet::new());
        std::fs::remove_file(&place.path).unwrap();
        keeper.close();
        assert_eq!(known_settings(&place).len(), 1);
        let store = Store::open(&place.path).unwrap();
        assert_eq!(store.refuted_settings(&place.subject).unwrap().len(), 1);
    }

    #[test]
    fn a_store_that_is_damaged_meanwhile_is_reported_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory);
        let mut keeper = FindingsWriter::new(Some(place.clone()));
        std::fs::write(&place.path, "this was a database once").unwrap();
        keeper.take(vec![found(100.0, 2, 12)], &epoch(), &BTreeSet::new());
        let reported = keeper.take_notices();
        assert!(reported[0].contains("not a store of `lull tune`"), "{reported:?}");
        assert_eq!(keeper.close().len(), 1, "tried once more at the end");
        assert_eq!(std::fs::read_to_string(&place.path).unwrap(), "this was a database once");
    }
}
