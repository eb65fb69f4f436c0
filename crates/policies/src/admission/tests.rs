//! What holds for every admission controller.

use super::testing::{Bench, build};
use super::*;
use crate::registry::{ADMISSION_CONTROLLERS, DISPATCHERS, POLICIES};
use lull_control::admission::{Admission, Allowance, Pace, RoundLimits, RoundObservation};
use lull_measure::Nanos;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Connections that every admission controller can work with.
fn mixed_bench() -> Bench {
    let mut bench = Bench::promised(2, 14);
    bench.objectives[1] = Some(Objective::Disengagement { ratio: 0.001 });
    bench
}

#[test]
fn names_are_unique_among_all_that_the_page_lists() {
    let both = POLICIES.names().chain(DISPATCHERS.names());
    let names: Vec<_> = ADMISSION_CONTROLLERS.names().chain(both).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn a_slip_is_answered_with_the_nearest_name() {
    let text = ADMISSION_CONTROLLERS.find("aples").unwrap_err().to_string();
    assert!(
        text.contains("no admission controller is called `aples`") && text.contains("`apples`"),
        "{text}"
    );
}

#[test]
fn every_admission_controller_builds_from_its_defaults_and_refuses_strange_keys() {
    let bench = mixed_bench();
    for entry in ADMISSION_CONTROLLERS.iter() {
        build(entry.name, &entry.defaults().to_string(), &bench);
        let refused = testing::refused(entry.name, "no_such_key = 1", &bench);
        let named = matches!(&refused,
            PolicyError::Config { key, .. } if key == "no_such_key");
        assert!(named, "{}: {refused:?}", entry.name);
        let keys: Vec<_> = entry.keys().iter().map(|key| key.name).collect();
        assert_eq!(keys, entry.defaults().keys().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn manual_alone_lends_its_numbers_to_a_policy() {
    let bench = mixed_bench();
    for entry in ADMISSION_CONTROLLERS.iter() {
        let lends = build(entry.name, "", &bench).numbers().is_some();
        assert_eq!(lends, entry.name == "manual", "{}", entry.name);
    }
}

proptest! {
    #[test]
    fn whatever_is_seen_the_gate_gets_a_decision_that_it_can_keep(
        steps in prop::collection::vec(
            (1u64..2000, 0.0f64..50_000.0, 0u64..200, proptest::option::of(1u32..200)),
            1..40,
        ),
    ) {
        for entry in ADMISSION_CONTROLLERS.iter() {
            let mut bench = mixed_bench();
            let mut admission = build(entry.name, "", &bench);
            let mut limits = RoundLimits::open(16);
            for (span_ms, per_s, latency_ms, round) in &steps {
                bench.latency = Nanos::from_millis(*latency_ms);
                bench.round = round.map(|queries| RoundObservation {
                    turns: queries,
                    queries,
                    took: Nanos::from_millis(1),
                });
                bench.pass(Nanos::from_millis(*span_ms), *per_s);
                admission.decide(&bench.seen(), &mut limits);
                prop_assert_eq!(limits.allow.len(), 16);
                prop_assert!(limits.cap >= 1, "{}", entry.name);
                match limits.pace {
                    Pace::Open { again } | Pace::Flow { again } => {
                        prop_assert!(again > Nanos::ZERO);
                    }
                    Pace::Rests { .. } => prop_assert!(false, "{}: workers wait here", entry.name),
                    Pace::Rounds { turns, pause, .. } => {
                        prop_assert!(turns >= 1 && pause <= Nanos::from_millis(100));
                        prop_assert!(limits.cap <= bench.cores, "{}", entry.name);
                    }
                }
            }
        }
    }
}

/// An event of the connections of a server, or of their objectives.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// Connections open and close, so that the controller is rebuilt, as by a live gate.
    Connections {
        promised: usize,
        others: usize,
    },
    /// The objective of those that are promised one changes.
    Bound(u64),
    Passes {
        span_ms: u64,
        per_s: f64,
    },
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        1 => (1usize..6, 0usize..40)
            .prop_map(|(promised, others)| Turn::Connections { promised, others }),
        1 => (1u64..500).prop_map(Turn::Bound),
        4 => (1u64..2000, 0.0f64..50_000.0)
            .prop_map(|(span_ms, per_s)| Turn::Passes { span_ms, per_s }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn connections_that_come_and_go_all_have_turns(
        turns in prop::collection::vec(turn(), 1..60),
    ) {
        for entry in ADMISSION_CONTROLLERS.iter() {
            let mut bench = mixed_bench();
            let mut admission = build(entry.name, "", &bench);
            let mut limits = RoundLimits::open(bench.objectives.len());
            for turn in &turns {
                match *turn {
                    Turn::Connections { promised, others } => {
                        // One is best effort: those with an objective have turns at times.
                        bench = Bench::promised(promised, others + 2);
                        let kept = Objective::Disengagement { ratio: 0.001 };
                        bench.objectives[promised] = Some(kept);
                        admission = build(entry.name, "", &bench);
                        limits = RoundLimits::open(bench.objectives.len());
                    }
                    Turn::Bound(bound_ms) => {
                        bench.set_bounds(Nanos::from_millis(bound_ms));
                        if !admission.retarget(&bench.objectives) {
                            admission = build(entry.name, "", &bench);
                        }
                    }
                    Turn::Passes { span_ms, per_s } => {
                        bench.pass(Nanos::from_millis(span_ms), per_s);
                        admission.decide(&bench.seen(), &mut limits);
                        let (name, connections) = (entry.name, bench.objectives.len());
                        prop_assert_eq!(limits.allow.len(), connections, "{}", name);
                        prop_assert!(limits.cap >= 1, "{}", name);
                        let has_turn = |one: &Allowance| one.queries == 0 || one.batch > 0;
                        let all = limits.allow.iter().all(has_turn);
                        prop_assert!(all, "{}: a turn of nothing", name);
                        let any = limits.allow.iter().any(|one| one.queries > 0);
                        prop_assert!(any, "{}: no connection has a turn", name);
                    }
                }
            }
        }
    }
}

/// An event of a live gate.
#[derive(Debug, Clone, Copy)]
enum Churn {
    Opens(prop::sample::Index),
    Closes(prop::sample::Index),
    /// The server is restarted, so that all connections close at once.
    Restarts,
    /// The objective of those that are promised one changes.
    Bound(u64),
    Passes {
        span_ms: u64,
        per_s: f64,
    },
}

fn churn() -> impl Strategy<Value = Churn> {
    prop_oneof![
        3 => any::<prop::sample::Index>().prop_map(Churn::Opens),
        2 => any::<prop::sample::Index>().prop_map(Churn::Closes),
        1 => Just(Churn::Restarts),
        1 => (1u64..500).prop_map(Churn::Bound),
        4 => (1u64..2000, 0.0f64..50_000.0)
            .prop_map(|(span_ms, per_s)| Churn::Passes { span_ms, per_s }),
    ]
}

/// A gate whose controller has a place for each connection that may come, as in the agent.
struct LiveGate {
    name: &'static str,
    bench: Bench,
    admission: Box<dyn Admission>,
    limits: RoundLimits,
    open: Vec<bool>,
}

impl LiveGate {
    fn new(name: &'static str) -> Self {
        let bench = mixed_bench();
        let admission = build(name, "", &bench);
        let places = bench.objectives.len();
        let limits = RoundLimits::open(places);
        Self { name, bench, admission, limits, open: vec![false; places] }
    }

    fn change(&mut self, change: Churn) {
        match change {
            Churn::Opens(which) => self.set_open(which, true),
            Churn::Closes(which) => self.set_open(which, false),
            Churn::Restarts => self.open.fill(false),
            Churn::Bound(bound_ms) => {
                self.bench.set_bounds(Nanos::from_millis(bound_ms));
                if !self.admission.retarget(&self.bench.objectives) {
                    self.admission = build(self.name, "", &self.bench);
                }
            }
            Churn::Passes { span_ms, per_s } => self.decide(Nanos::from_millis(span_ms), per_s),
        }
    }

    fn set_open(&mut self, which: prop::sample::Index, is_open: bool) {
        let place = which.index(self.open.len());
        self.open[place] = is_open;
    }

    fn decide(&mut self, span: Nanos, per_s: f64) {
        self.bench.pass_open(span, per_s, &self.open);
        self.admission.decide(&self.bench.seen(), &mut self.limits);
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let Self { name, limits, .. } = self;
        prop_assert_eq!(limits.allow.len(), self.open.len(), "{}", name);
        prop_assert!(limits.cap >= 1, "{}", name);
        let has_turn = |one: &Allowance| one.queries == 0 || one.batch > 0;
        prop_assert!(limits.allow.iter().all(has_turn), "{}: a turn of nothing", name);
        Ok(())
    }

    /// One connection is left, which waits: it has a turn before long.
    fn settle(&mut self, last: prop::sample::Index) -> Result<(), TestCaseError> {
        self.open.fill(false);
        self.set_open(last, true);
        let last = last.index(self.open.len());
        for _ in 0..SETTLED {
            self.decide(Nanos::from_secs(1), 0.0);
            self.check()?;
            if self.limits.allow[last].queries > 0 {
                return Ok(());
            }
        }
        let (name, limits) = (self.name, &self.limits);
        prop_assert!(false, "{}: connection {} has no turn: {:?}", name, last, limits);
        Ok(())
    }
}

/// Decisions, a second apart, after which a connection that is alone has a turn.
const SETTLED: usize = 120;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_opens_and_closes_at_a_live_gate_a_connection_that_is_left_has_a_turn(
        changes in prop::collection::vec(churn(), 1..60),
        last: prop::sample::Index,
    ) {
        for entry in ADMISSION_CONTROLLERS.iter() {
            let mut gate = LiveGate::new(entry.name);
            for change in &changes {
                gate.change(*change);
                gate.check()?;
            }
            gate.settle(last)?;
        }
    }
}
