//! What holds for every dispatcher.

use super::testing::{amp_site, ask, dvfs_site};
use super::*;
use crate::registry::{DISPATCHERS, POLICIES};
use lull_control::PolicyError;
use lull_control::dispatcher::Place;
use std::collections::BTreeSet;

#[test]
fn names_are_unique_and_differ_from_those_of_policies() {
    let names: BTreeSet<_> = DISPATCHERS.names().chain(POLICIES.names()).collect();
    assert_eq!(names.len(), DISPATCHERS.iter().count() + POLICIES.iter().count());
}

#[test]
fn a_slip_is_answered_with_the_nearest_name() {
    let text = DISPATCHERS.find("etl").unwrap_err().to_string();
    assert!(text.contains("no dispatcher is called `etl`") && text.contains("`eetl`"), "{text}");
}

#[test]
fn every_dispatcher_builds_from_its_defaults_somewhere_and_refuses_strange_keys() {
    let (amp, dvfs) = (amp_site(), dvfs_site());
    for entry in DISPATCHERS.iter() {
        let built = |site| entry.build(&entry.defaults(), site);
        let (on_amp, on_dvfs) = (built(&amp.site()), built(&dvfs.site()));
        assert!(on_amp.is_ok() || on_dvfs.is_ok(), "{}", entry.name);
        let strange = "no_such_key = 1".parse().unwrap();
        let refused = entry.build(&strange, &amp.site()).err();
        let named = matches!(&refused,
            Some(DispatcherError::Config(PolicyError::Config { key, .. })) if key == "no_such_key");
        assert!(named, "{}: {refused:?}", entry.name);
        let keys: Vec<_> = entry.keys().iter().map(|key| key.name).collect();
        assert_eq!(keys, entry.defaults().keys().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn no_request_is_sent_to_a_core_that_is_not_free() {
    for entry in DISPATCHERS.iter() {
        for site in [amp_site(), dvfs_site()] {
            let Ok(mut dispatcher) = entry.build(&entry.defaults(), &site.site()) else { continue };
            let types = site.ladder.types().len();
            for age_ms in [0, 100, 1000] {
                let none = vec![0; types];
                let waiting = dispatcher.place(&ask(age_ms, None, (20, 21), &none));
                assert_eq!(waiting.place, Place::Stay, "{}", entry.name);
            }
        }
    }
}
