//! Which searches share what is stored.

use super::*;
use lull_control::conformance::MemoryPlant;
use lull_control::{AppId, Capability, Machine, Plant};
use lull_measure::{Nanos, Percentile};
use lull_policies::search::{Method, Protocol, Rules};
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
    let subject = Subject::new(machine, "a", P95, search.space());
    Key::new(subject, search, &protocol(), ("live", rate_per_s))
}

/// One core misses the bound, more meet it.
fn read(search: &Search, place: &Place) -> Reading {
    let cores = search.space().values(place)[0];
    let tail_us = if cores < 2.0 { 15_000.0 } else { 6000.0 };
    let late = if cores < 2.0 { 200 } else { 3 };
    Reading { tail_us, watts: 10.0 + cores, requests: 1000, late, progress_per_s: None }
}

/// A search with all its trials, and two that miss the bound and refute one core.
fn ended_search() -> Search {
    let mut search = search();
    let mut rng = lull_control::Rng::seed_from_u64(1);
    while let Some(next) = search.ask(&mut rng) {
        let came = read(&search, &next.place);
        search.tell(next.place, Ok(came));
    }
    for _ in 0..2 {
        let slow = Place(vec![0]);
        let came = read(&search, &slow);
        search.tell(slow, Ok(came));
    }
    search
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
    store.keep_trial(&of_other, 0, &choice.place, &Ok(read(&search, &choice.place))).unwrap();
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
    let place = search.space().fastest();
    store.keep_trial(&kept, 0, &place, &Ok(read(&search, &place))).unwrap();
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
    // A nearer result counts instead, with what its own search refuted.
    let clean = Search::new(search.space().clone(), search.rules().clone());
    store.keep_choice(&key_at(1100.0, &machine, &search), &clean, &choice).unwrap();
    assert_eq!(found(1090.0), (Some(1100.0), 0));
    assert_eq!(found(1025.0), (Some(1005.0), 1));
}
