//! Tests of which searches share stored results.

use super::*;
use lull_control::conformance::MemoryPlant;
use lull_control::{AppId, Capability, Machine, Plant};
use lull_measure::{Missing, Nanos, Percentile};
use lull_policies::search::{Method, Protocol, Reading, Refusal, Rules};
use rand::SeedableRng;

const P95: (Percentile, Nanos) = (Percentile::P95, Nanos::from_millis(10));

fn machine(cores: u16) -> Machine {
    MemoryPlant::new(cores, Vec::new()).machine().clone()
}

fn protocol() -> Protocol {
    Protocol {
        app: AppId(0),
        percentile: P95.0,
        bound: P95.1,
        settle: Nanos::ZERO,
        window: Nanos::from_secs(1),
        cut: 2.0,
        allow_modelled: true,
    }
}

fn search() -> Search {
    search_of(&[1.0, 2.0, 3.0, 4.0])
}

fn search_of(cores: &[f64]) -> Search {
    let space = Space::from_values(&[(Capability::Cores, cores.to_vec())]).unwrap();
    let rules = Rules::new(Method::Apart, P95.1.as_micros_f64(), 16).at(P95.0);
    Search::new(space, rules)
}

fn key(machine: &Machine, search: &Search) -> Key {
    key_at(1000.0, machine, search)
}

fn key_at(rate_per_s: f64, machine: &Machine, search: &Search) -> Key {
    let subject = Subject::new(machine, "a", P95.0, P95.1, search.space());
    Key::new(subject, search, &protocol(), "live", rate_per_s)
}

/// One core misses the bound, more meet it.
fn read(search: &Search, point: &SearchPoint) -> Reading {
    let cores = search.space().values(point)[0];
    let tail_us = if cores < 2.0 { 15_000.0 } else { 6000.0 };
    let late = if cores < 2.0 { 200 } else { 3 };
    Reading { tail_us, watts: 10.0 + cores, requests: 1000, late, progress_per_s: None }
}

/// A search with all its trials, and two that miss the bound and refute one core.
fn ended_search() -> Search {
    let mut search = search();
    let mut rng = lull_control::Rng::seed_from_u64(1);
    while let Some(next) = search.ask(&mut rng) {
        let outcome = read(&search, &next.point);
        search.tell(next.point, Ok(outcome));
    }
    for _ in 0..2 {
        let slow = SearchPoint(vec![0]);
        let outcome = read(&search, &slow);
        search.tell(slow, Ok(outcome));
    }
    search
}

#[test]
fn a_store_in_a_directory_that_is_not_there_is_refused_with_that_reason() {
    let error = Store::open(Path::new("/nonexistent/store")).err().unwrap().to_string();
    assert!(error.contains("there is no directory /nonexistent"), "{error}");
}

#[test]
fn what_a_store_knows_of_another_machine_class_is_neither_used_nor_lost() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("spots.sqlite")).unwrap();
    let (here, other) = (machine(4), machine(8));
    let search = ended_search();
    let choice = search.choice().unwrap();
    assert!(choice.meets && !search.refuted().is_empty(), "{choice:?}");
    let of_other = key(&other, &search);
    store.keep_choice(&of_other, &search, &choice).unwrap();
    store.keep_trial(&of_other, 0, &choice.point, &Ok(read(&search, &choice.point))).unwrap();
    let of_here = store.adopt(key(&here, &search)).unwrap();
    assert_eq!(store.known_setting(&of_here).unwrap(), None);
    assert!(store.refuted_here(&of_here, search.space()).unwrap().is_empty());
    assert!(store.trials(&of_here).unwrap().is_empty());
    // A search here does not replace the result of the other machine.
    store.keep_choice(&of_here, &search, &choice).unwrap();
    store.forget(&of_here).unwrap();
    assert!(store.known_setting(&of_other).unwrap().is_some());
    assert_eq!(store.trials(&of_other).unwrap().len(), 1);
}

#[test]
fn a_search_over_other_levels_does_not_continue_with_trials() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("spots.sqlite")).unwrap();
    let (here, search) = (machine(4), search());
    let kept = key(&here, &search);
    let point = search.space().fastest();
    store.keep_trial(&kept, 0, &point, &Ok(read(&search, &point))).unwrap();
    let others = search_of(&[1.0, 2.0, 4.0, 8.0]);
    let of_others = store.adopt(key(&here, &others)).unwrap();
    assert!(store.trials(&of_others).unwrap().is_empty(), "as many levels, of other values");
    assert_eq!(store.trials(&store.adopt(key(&here, &search)).unwrap()).unwrap().len(), 1);
}

#[test]
fn results_of_searches_that_a_knob_has_left_are_found_among_those_of_all_knobs() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("spots.sqlite")).unwrap();
    let of_cores = key(&machine(4), &search()).subject().clone();
    let of_both = of_cores.over(&[Capability::Coalescing, Capability::Cores]);
    let other = of_cores.over(&[Capability::Frequency, Capability::Cores]);
    let found = |knobs: &[Capability], values: &[f64]| Discovery {
        app: AppId(0),
        rate_per_s: 1000.0,
        settings: Vec::new(),
        values: values.to_vec(),
        knobs: knobs.to_vec(),
        meets: true,
        tail_us: 5000.0,
        watts: 10.0,
        trials: 9,
        evidence: None,
        refuted: Vec::new(),
    };
    assert!(store.subjects_within(&of_both).unwrap().is_empty());
    store.keep_found(&of_both, &found(&[Capability::Cores], &[2.0])).unwrap();
    let both = [Capability::Frequency, Capability::Cores];
    store.keep_found(&other, &found(&both, &[2.0, 3.0])).unwrap();
    assert_eq!(store.subjects_within(&of_both).unwrap(), [of_cores]);
}

#[test]
fn a_result_of_a_load_just_beyond_the_edge_of_a_bin_is_of_the_same_load() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("spots.sqlite")).unwrap();
    let (machine, search) = (machine(4), ended_search());
    let choice = search.choice().unwrap();
    store.keep_choice(&key_at(1005.0, &machine, &search), &search, &choice).unwrap();
    assert_ne!(bin(1005.0), bin(1025.0));
    let found = |rate: f64| {
        let key = key_at(rate, &machine, &search);
        let known = store.known_setting(&key).unwrap().map(|known| known.rate_per_s);
        (known, store.refuted_here(&key, search.space()).unwrap().len())
    };
    assert_eq!(found(1025.0), (Some(1005.0), 1));
    assert_eq!(found(1200.0), (None, 0), "another load");
    // A later result of about the load replaces it, with what its own search refuted.
    let clean = Search::new(search.space().clone(), search.rules().clone());
    store.keep_choice(&key_at(1100.0, &machine, &search), &clean, &choice).unwrap();
    assert_eq!(found(1090.0), (Some(1100.0), 0));
    assert_eq!(found(1005.0), (Some(1100.0), 0));
    // If nothing meets the bound there any more, a run has no setting to use without a trial.
    let none = Choice { meets: false, ..choice };
    let key = key_at(1000.0, &machine, &search);
    store.keep_choice(&key, &clean, &none).unwrap();
    assert!(store.known_settings(key.subject()).unwrap().is_empty());
}

#[test]
fn a_search_continues_with_trials_of_about_its_load_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spots.sqlite");
    let store = Store::open(&path).unwrap();
    let (machine, search) = (machine(4), search());
    let point = search.space().fastest();
    let begun = key_at(900.0, &machine, &search);
    store.keep_seed(&begun, 7).unwrap();
    store.keep_trial(&begun, 0, &point, &Ok(read(&search, &point))).unwrap();
    let adopted = |store: &Store, rate: f64| {
        let key = store.adopt(key_at(rate, &machine, &search)).unwrap();
        (store.trials(&key).unwrap().len(), store.seed(&key).unwrap())
    };
    assert!(bin(1030.0) == bin(1150.0) && bin(1030.0) != bin(900.0));
    assert_eq!(adopted(&store, 1030.0), (1, Some(7)), "14 % more, in the next bin");
    assert_eq!(adopted(&store, 1150.0), (0, None), "28 % more, in the next bin");
    // It keeps the load with which it began, whatever the loads at which it continued.
    store.keep_seed(&store.adopt(key_at(1030.0, &machine, &search)).unwrap(), 7).unwrap();
    assert_eq!(adopted(&store, 1150.0), (0, None));
    // Stores of the former version have no load; their searches continue in their own bin.
    let former = "ALTER TABLE search DROP COLUMN rate_per_s; PRAGMA user_version = 3;";
    store.connection.execute_batch(former).unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(adopted(&store, 905.0), (1, Some(7)));
    assert_eq!(adopted(&store, 1030.0), (0, None));
}

#[test]
fn a_search_without_trials_begins_at_the_load_of_its_first_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("spots.sqlite")).unwrap();
    let (machine, search) = (machine(4), search());
    let point = search.space().fastest();
    // It ends before a trial, and the next one is at the other end of the load bin.
    store.keep_seed(&key_at(1030.0, &machine, &search), 7).unwrap();
    let begun = store.adopt(key_at(1150.0, &machine, &search)).unwrap();
    assert_eq!(store.seed(&begun).unwrap(), None, "another seed may be given");
    store.keep_seed(&begun, 8).unwrap();
    store.keep_trial(&begun, 0, &point, &Ok(read(&search, &point))).unwrap();
    let adopted = |rate: f64| store.adopt(key_at(rate, &machine, &search)).unwrap();
    assert_eq!(store.seed(&adopted(1150.0)).unwrap(), Some(8));
    assert!(bin(930.0) != bin(1150.0));
    assert!(store.trials(&adopted(930.0)).unwrap().is_empty(), "a load 24 % higher");
}

#[test]
fn trials_of_a_search_that_was_interrupted_more_than_a_day_ago_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spots.sqlite");
    let store = Store::open(&path).unwrap();
    let (machine, search) = (machine(4), search());
    let point = search.space().fastest();
    let [old, unknown, recent] = [100.0, 400.0, 1600.0].map(|it| key_at(it, &machine, &search));
    for key in [&old, &unknown, &recent] {
        store.keep_seed(key, 7).unwrap();
        for number in 0..2 {
            store.keep_trial(key, number, &point, &Ok(read(&search, &point))).unwrap();
        }
    }
    let set = |measured: &str, key: &Key, numbers: &str| {
        let sql = format!("UPDATE trial SET measured_s = {measured} WHERE bin = ? AND {numbers}");
        store.connection.execute(&sql, [key.bin]).unwrap();
    };
    set("measured_s - 90000", &old, "TRUE");
    set("NULL", &unknown, "TRUE");
    set("measured_s - 90000", &recent, "number = 0");
    assert_eq!(store.forget_old(&recent).unwrap(), 4);
    let trials = |key: &Key| store.trials(key).unwrap().len();
    assert_eq!([&old, &unknown, &recent].map(trials), [0, 0, 2]);
    assert_eq!([&old, &recent].map(|key| store.seed(key).unwrap()), [None, Some(7)]);
    assert_eq!(store.forget_old(&recent).unwrap(), 0);
}

#[test]
fn the_texts_of_capabilities_make_no_other_class_and_what_former_classes_have_stays() {
    let (here, search) = (machine(4), ended_search());
    let with = |capability, text: &str| {
        let capabilities = here.capabilities.clone().with_capability(capability, text);
        Machine { capabilities, ..here.clone() }
    };
    let why = Missing::because("no meter answers: errno 13");
    let capabilities = with(Capability::Cores, "other words").capabilities;
    let capabilities = capabilities.without(Capability::Energy, why);
    let reworded = Machine { capabilities, ..here.clone() };
    assert_eq!(machine_class(&reworded), machine_class(&here));
    assert_ne!(machine_class(&with(Capability::Energy, "a meter")), machine_class(&here));
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("spots.sqlite")).unwrap();
    let mut of_former = key(&here, &search);
    of_former.subject.machine = former::former_class(&here);
    store.keep_choice(&of_former, &search, &search.choice().unwrap()).unwrap();
    let of_here = key(&here, &search);
    assert_eq!(store.known_setting(&of_here).unwrap(), None);
    store.rename_class(&here).unwrap();
    assert!(store.known_setting(&of_here).unwrap().is_some());
    assert_eq!(store.refuted_here(&of_here, search.space()).unwrap().len(), 1);
    assert_eq!(present_class(&former::former_class(&here), &here), machine_class(&here));
    assert_eq!(present_class("another machine", &here), "another machine");
}

#[test]
fn a_disk_that_is_full_is_reported_with_the_store_and_what_it_has_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spots.sqlite");
    let store = Store::open(&path).unwrap();
    let (machine, search) = (machine(4), search());
    let (key, point) = (key(&machine, &search), search.space().fastest());
    store.connection.pragma_update(None, "max_page_count", 1).unwrap();
    let refusal = || Err(Refusal::of_knob(Capability::Cores, "x".repeat(500)));
    let written = (0..1000).map(|number| store.keep_trial(&key, number, &point, &refusal()));
    let written: Vec<_> = written.take_while(Result::is_ok).collect();
    let error = store.keep_trial(&key, 1000, &point, &refusal()).unwrap_err();
    let text = crate::error::describe(&error);
    assert!(text.contains("spots.sqlite") && text.contains("full"), "{text}");
    assert_eq!(store.trials(&key).unwrap().len(), written.len());
}
