//! What holds for every dispatcher.

use super::testing::{OwnedSite, amp_site, dvfs_site, request, seen};
use super::*;
use crate::registry::{DISPATCHERS, POLICIES};
use lull_control::PolicyError;
use lull_control::dispatcher::{
    CoreChoice, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher, Supply,
};
use lull_measure::Nanos;
use proptest::prelude::*;
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
                let waiting = dispatcher.place(&request(age_ms, None, (20, 21), &none));
                assert_eq!(waiting.place, CoreChoice::Stay, "{}", entry.name);
            }
        }
    }
}

/// Requests on the cores of a site under one dispatcher.
struct Running {
    site: OwnedSite,
    dispatcher: Box<dyn Dispatcher>,
    now: Nanos,
    /// Of each request, oldest first: when it arrived, and the type of the core that it has.
    requests: Vec<(Nanos, Option<usize>)>,
}

impl Running {
    fn free(&self) -> Vec<u32> {
        let used = |kind: Option<usize>| {
            let on =
                |(_, on): &&(Nanos, Option<usize>)| on.is_some() && (kind.is_none() || *on == kind);
            self.requests.iter().filter(on).count() as u32
        };
        match self.site.ladder.supply() {
            Supply::Fixed(cores) => {
                (0..cores.len()).map(|kind| cores[kind] - used(Some(kind))).collect()
            }
            Supply::Any(cores) => vec![cores - used(None); self.site.ladder.types().len()],
        }
    }

    /// Lets the dispatcher choose a core type for a request and moves it there; returns whether
    /// it has a core then.
    fn request(&mut self, index: usize) -> bool {
        let free = self.free();
        let (arrived, on) = self.requests[index];
        let age = self.now - arrived;
        let (older, active) = (index, self.requests.len());
        let done = if on.is_some() { age / 2 } else { Nanos::ZERO };
        let question =
            DispatchRequest { age, done, on, older, active, work: Some(age), free: &free };
        if let CoreChoice::On(kind) = self.dispatcher.place(&question).place {
            assert!(kind < free.len(), "a type that there is");
            if question.can(kind, &self.site.ladder) {
                self.requests[index].1 = Some(kind);
            }
        }
        self.requests[index].1.is_some()
    }

    /// Calls the dispatcher for all requests that a change concerns.
    fn ask_all(&mut self) {
        let decision_scope = match self.dispatcher.decision_scope() {
            DecisionScope::Ages => 0,
            DecisionScope::Oldest(count) => count,
            DecisionScope::All => usize::MAX,
        };
        for index in 0..self.requests.len().min(decision_scope) {
            if self.requests[index].1.is_some() {
                self.request(index);
            }
        }
        for index in 0..self.requests.len() {
            let waits = self.requests[index].1.is_none();
            let is_free = self.free().iter().any(|free| *free > 0);
            if waits && is_free && !self.request(index) && self.dispatcher.first_come() {
                break;
            }
        }
    }
}

/// An event of requests, or of the objective.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Arrives,
    Departs(prop::sample::Index),
    /// The server is restarted: all requests are gone at once.
    Restarts,
    Measured(u64, usize, f64),
    /// The target changes, so that the dispatcher is rebuilt.
    Retargeted(u64),
}

fn turn() -> impl Strategy<Value = (u64, Turn)> {
    let turn = prop_oneof![
        4 => Just(Turn::Arrives),
        3 => any::<prop::sample::Index>().prop_map(Turn::Departs),
        1 => Just(Turn::Restarts),
        1 => (0u64..2000, 0usize..2000, 0.0f64..1e4)
            .prop_map(|(tail, samples, rate)| Turn::Measured(tail, samples, rate)),
        1 => (150u64..500).prop_map(Turn::Retargeted),
    ];
    (0u64..100, turn)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn whatever_comes_and_goes_no_core_is_lost_and_every_request_gets_one(
        turns in prop::collection::vec(turn(), 1..120),
    ) {
        for entry in DISPATCHERS.iter() {
            for mut site in [amp_site(), dvfs_site()] {
                let Ok(dispatcher) = entry.build(&entry.defaults(), &site.site()) else { continue };
                site.profile.truncate(500);
                let mut run = Running { site, dispatcher, now: Nanos::ZERO, requests: Vec::new() };
                for (wait_ms, turn) in &turns {
                    run.now += Nanos::from_millis(*wait_ms);
                    match turn {
                        Turn::Arrives => run.requests.push((run.now, None)),
                        Turn::Departs(_) if run.requests.is_empty() => {}
                        Turn::Departs(which) => {
                            run.requests.remove(which.index(run.requests.len()));
                        }
                        Turn::Restarts => run.requests.clear(),
                        Turn::Measured(tail_ms, samples, rate) => {
                            let seen = seen(*tail_ms, *samples, *rate);
                            run.dispatcher.adjust(&DispatchObservation { now: run.now, ..seen });
                        }
                        Turn::Retargeted(target_ms) => {
                            run.site.target = Nanos::from_millis(*target_ms);
                            let rebuilt = entry.build(&entry.defaults(), &run.site.site());
                            if let Ok(dispatcher) = rebuilt {
                                run.dispatcher = dispatcher;
                            }
                        }
                    }
                    run.ask_all();
                }
                // Nothing is left but one request: it is not forgotten.
                run.requests.clear();
                run.requests.push((run.now, None));
                for _ in 0..2000 {
                    run.now += Nanos::from_millis(1);
                    run.ask_all();
                }
                prop_assert!(run.requests[0].1.is_some(), "{}", entry.name);
            }
        }
    }
}
