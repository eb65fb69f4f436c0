//! What holds for every policy of the registry.

use super::*;
use crate::entry::NaturalEpoch;
use lull_control::Plant;
use lull_control::conformance::MemoryPlant;
use lull_control::{Capability, Machine, PolicyError};
use lull_measure::{Missing, Nanos};
use std::collections::BTreeSet;

/// A machine that has everything.
fn machine() -> Machine {
    let mut machine = MemoryPlant::new(4, Vec::new()).machine().clone();
    for capability in Capability::ALL {
        machine.capabilities = machine.capabilities.with_capability(capability, "test");
    }
    machine
}

fn message(error: &PolicyError) -> String {
    assert!(matches!(error, PolicyError::Config { key, .. } if key == "name"), "{error:?}");
    error.to_string()
}

#[test]
fn names_are_unique_and_easy_to_type() {
    let names: BTreeSet<_> = POLICIES.names().collect();
    assert_eq!(names.len(), POLICIES.iter().count());
    let easy = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    assert!(names.iter().all(|name| easy(name)), "{names:?}");
}

#[test]
fn a_slip_is_answered_with_the_nearest_name_and_all_names() {
    let text = message(&POLICIES.find("ark").unwrap_err());
    assert!(text.contains("Did you mean `arq`?"), "{text}");
    assert!(POLICIES.iter().all(|entry| text.contains(entry.name)), "{text}");
    let text = message(&POLICIES.find("LC_First").unwrap_err());
    assert!(text.contains("Did you mean `lc-first`?"), "{text}");
    assert!(!message(&POLICIES.find("zzz").unwrap_err()).contains("Did you mean"));
}

#[test]
fn every_policy_builds_from_its_own_defaults_and_refuses_strange_keys() {
    let machine = machine();
    for entry in POLICIES.iter() {
        let built = entry.build(&entry.defaults(), &machine, &[]);
        assert!(built.is_ok(), "{}: {:?}", entry.name, built.err());
        let strange = "no_such_key = 1".parse().unwrap();
        let refused = entry.build(&strange, &machine, &[]).err();
        let named = matches!(&refused,
            Some(PolicyError::Config { key, .. }) if key == "no_such_key");
        assert!(named, "{}: {refused:?}", entry.name);
    }
}

#[test]
fn a_natural_epoch_is_a_time_of_the_policy_or_follows_its_key() {
    for entry in POLICIES.iter() {
        let usual = entry.natural_epoch(&toml::Table::new());
        assert!((1..=500_000_000).contains(&usual.0), "{}: {usual}", entry.name);
        let NaturalEpoch::Key(key) = entry.kind.epoch else { continue };
        assert_eq!(entry.defaults()[key].as_str(), Some(usual.to_string().as_str()));
        let of = |time: &str| {
            entry.natural_epoch(&toml::Table::from_iter([(key.to_owned(), time.into())]))
        };
        assert_eq!(of("70ms"), Nanos::from_millis(70), "{}", entry.name);
        // A config that is refused anyway has some epoch, and never one without length.
        assert_eq!((of("0s"), of("often")), (usual, usual), "{}", entry.name);
    }
    let schedutil = POLICIES.find("schedutil").unwrap();
    assert_eq!(schedutil.natural_epoch(&toml::Table::new()), Nanos::from_millis(2));
}

#[test]
fn no_policy_runs_without_what_it_needs() {
    for entry in POLICIES.iter() {
        for need in entry.kind.needs {
            let mut machine = machine();
            let gone = Missing::because("taken away");
            machine.capabilities = machine.capabilities.without(*need, gone.clone());
            let refused = entry.build(&toml::Table::new(), &machine, &[]).err();
            let lacks = PolicyError::Lacks { policy: entry.name, capability: *need, why: gone };
            assert_eq!(refused, Some(lacks));
        }
    }
}

#[test]
fn every_key_is_documented_with_its_default() {
    for entry in POLICIES.iter() {
        let keys: Vec<_> = entry.keys().iter().map(|key| key.name).collect();
        let defaults = entry.defaults();
        assert_eq!(keys, defaults.keys().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn a_description_is_json() {
    let json = serde_json::to_value(POLICIES.find("arq").unwrap().describe()).unwrap();
    assert_eq!(json["defaults"]["period"], "500ms");
    assert_eq!(json["dip"], "D+I+P");
}
