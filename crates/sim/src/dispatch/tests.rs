//! The dispatched machine against values computed by hand or by queueing theory.

use super::*;
use crate::model::{Distribution, Shape};
use crate::theory;
use crate::{Replication, RunLength};
use lull_control::dispatcher::{
    Answer, CoreSpeed, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher,
    MeasurementPeriod, MeasurementRule, Supply,
};
use lull_measure::{Nanos, Percentile, Watts};
use std::sync::mpsc::{Sender, channel};

/// Starts on the slowest free type and moves to the fastest at an age.
struct At(Option<Nanos>);

impl Dispatcher for At {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let fastest = request.free.len() - 1;
        if request.on.is_none() {
            let free = request.free.iter().position(|free| *free > 0);
            return free.map_or(Answer::stay(None), |kind| Answer::on(kind, self.0));
        }
        match self.0 {
            Some(age) if request.age >= age => Answer::on(fastest, None),
            again => Answer::stay(again),
        }
    }

    fn decision_scope(&self) -> DecisionScope {
        DecisionScope::Oldest(2)
    }
}

const fn streams(seed: u64, number: u64) -> Replication {
    Replication { seed, number }
}

const fn length(warmup: u64, counted: u64) -> RunLength<u64> {
    RunLength { warmup, counted }
}

const MS: u64 = 1_000_000;

fn two_types() -> Vec<CoreSpeed> {
    vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.8)]
}

fn constant(ms: u64) -> RequestWork {
    RequestWork::Drawn(Distribution::constant(Nanos::from_millis(ms)))
}

/// So rare requests that they never meet.
fn lonely(supply: Supply, work_ms: u64) -> DispatchModel {
    DispatchModel::new(two_types(), supply, 0.01, constant(work_ms))
}

fn run(model: &DispatchModel, age: Option<Nanos>, requests: u64) -> DispatchTotals {
    DispatchSimulation::measure(model, Box::new(At(age)), streams(1, 0), length(0, requests))
        .unwrap()
}

#[test]
fn a_threshold_is_crossed_at_its_age_to_the_nanosecond() {
    for supply in [Supply::Fixed(vec![2, 1]), Supply::Any(2)] {
        let outcome = run(&lonely(supply, 300), Some(Nanos::from_millis(100)), 5);
        // 100 ms slow, then 200 ms of work at twice the speed.
        assert_eq!(outcome.latencies_ns, [200 * MS; 5]);
        assert_eq!((outcome.moves, outcome.abandoned), (5, 0));
        assert!((outcome.energy.0 / 5.0 - (0.1 * 1.0 + 0.1 * 6.8)).abs() < 1e-9);
        assert!((outcome.busy_s[0] - 0.5).abs() < 1e-9 && (outcome.busy_s[1] - 0.5).abs() < 1e-9);
    }
}

#[test]
fn a_move_costs_its_time_at_the_power_of_the_new_core() {
    let model = DispatchModel {
        move_cost: Nanos::from_millis(4),
        ..lonely(Supply::Fixed(vec![1, 1]), 300)
    };
    let outcome = run(&model, Some(Nanos::from_millis(100)), 1);
    assert_eq!(outcome.latencies_ns, [204 * MS]);
    assert!((outcome.energy.0 - (0.1 + 0.104 * 6.8)).abs() < 1e-9, "{:?}", outcome.energy);
}

#[test]
fn running_cores_slow_each_other_by_the_stated_law() {
    let mut model = lonely(Supply::Fixed(vec![0, 1]), 200);
    model.interference = 0.5;
    // One core of speed 2: pace 1/(1 + 0.5 (2 - 1)), so 100 ms become 150.
    assert_eq!(run(&model, None, 1).latencies_ns, [150 * MS]);
}

#[test]
fn static_power_is_drawn_by_idle_cores_too() {
    let watts = |supply| {
        let mut model = lonely(supply, 1);
        model.static_watts = Watts(0.02);
        let outcome = run(&model, None, 20);
        outcome.energy.0 / outcome.span.as_secs_f64()
    };
    // 13 cores of speed 1 and 2 of speed 2; four cores that reach speed 2.
    assert!((watts(Supply::Fixed(vec![13, 2])) / 0.34 - 1.0).abs() < 1e-3);
    assert!((watts(Supply::Any(4)) / 0.16 - 1.0).abs() < 1e-3);
}

#[test]
fn one_type_of_cores_is_the_queue_of_theory() {
    // M/M/3 at load 0.8: mean response from Erlang's C formula.
    let types = vec![CoreSpeed::new("core", 1.0, 1.0)];
    let work = RequestWork::Drawn(Distribution::exponential(Nanos::from_millis(10)));
    let model = DispatchModel::new(types, Supply::Fixed(vec![3]), 240.0, work);
    let outcomes: Vec<f64> = (0..8)
        .map(|replication| {
            let dispatcher = Box::new(At(None));
            let outcome = DispatchSimulation::measure(
                &model,
                dispatcher,
                streams(7, replication),
                length(20_000, 100_000),
            )
            .unwrap();
            let busy = outcome.energy.0 / outcome.span.as_secs_f64();
            assert!((busy / 2.4 - 1.0).abs() < 0.02, "power is utilisation: {busy}");
            outcome.mean().unwrap().as_millis_f64()
        })
        .collect();
    let exact = 1e3 * theory::mmc(240.0, 0.01, 3).unwrap().response_s;
    let estimate = crate::stats::Estimate::from_values(&outcomes).unwrap();
    assert!(estimate.near(exact, 2.0) && estimate.relative() < 0.03, "{estimate:?} {exact}");
}

#[test]
fn a_request_that_never_ends_is_taken_off_and_frees_its_core() {
    let mut model = lonely(Supply::Fixed(vec![1, 0]), 1);
    let endless = Nanos::from_secs(1_000_000);
    model.work = RequestWork::Listed(vec![endless]);
    model.load[0].rate_per_s = 10.0;
    model.abandon = Some(Nanos::from_secs(5));
    let outcome = run(&model, None, 100);
    assert_eq!((outcome.abandoned, outcome.latencies_ns.len()), (100, 0));
    assert!(outcome.energy_per_request().is_none() && outcome.tail(Percentile::P99).is_none());
}

#[test]
fn the_same_replication_meets_the_same_requests_under_any_dispatcher() {
    let model = DispatchModel::new(
        two_types(),
        Supply::Fixed(vec![4, 1]),
        20.0,
        RequestWork::Drawn(Distribution::exponential(Nanos::from_millis(50))),
    );
    let early = run(&model, Some(Nanos::from_millis(20)), 2000);
    let late = run(&model, None, 2000);
    assert_eq!(early, run(&model, Some(Nanos::from_millis(20)), 2000), "same bytes again");
    assert!(late.energy.0 < early.energy.0 && late.mean() > early.mean());
    assert!((late.span.as_secs_f64() / early.span.as_secs_f64() - 1.0).abs() < 0.01);
}

/// Sends what it is shown.
struct Watcher(MeasurementRule, Sender<DispatchObservation>);

impl Dispatcher for Watcher {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        if request.free[0] > 0 { Answer::on(0, None) } else { Answer::stay(None) }
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        Some(self.0)
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        self.1.send(*seen).unwrap();
    }
}

fn watch(every: MeasurementPeriod, load: Vec<RateStep>, requests: u64) -> Vec<DispatchObservation> {
    let mut model = lonely(Supply::Fixed(vec![64, 0]), 10);
    model.load = load;
    let rule = MeasurementRule {
        every,
        window: 500,
        percentile: Percentile::P99,
        bound: Some(Nanos::from_millis(9)),
    };
    let (to, from) = channel();
    DispatchSimulation::measure(
        &model,
        Box::new(Watcher(rule, to)),
        streams(3, 0),
        length(0, requests),
    )
    .unwrap();
    from.iter().collect()
}

#[test]
fn beats_come_by_answers_or_by_time_with_what_was_measured() {
    let steady = || vec![RateStep { rate_per_s: 100.0, requests: None }];
    let seen = watch(MeasurementPeriod::Answers(500), steady(), 2000);
    assert_eq!(seen.len(), 4);
    for one in &seen {
        assert_eq!((one.tail, one.samples), (Some(Nanos::from_millis(10)), 500));
        assert_eq!(one.late, Some(1.0), "all took 10 ms");
        assert!((one.rate_per_s.unwrap() / 100.0 - 1.0).abs() < 0.2, "{one:?}");
    }
    let seen = watch(MeasurementPeriod::Time(Nanos::from_secs(5)), steady(), 2100);
    let times: Vec<_> = seen.iter().map(|one| one.now.as_secs_f64()).collect();
    assert_eq!(times, [5.0, 10.0, 15.0, 20.0]);
}

#[test]
fn the_rate_changes_after_as_many_requests_as_it_says() {
    let load = vec![
        RateStep { rate_per_s: 10.0, requests: Some(1000) },
        RateStep { rate_per_s: 90.0, requests: Some(1000) },
        RateStep { rate_per_s: 10.0, requests: None },
    ];
    let seen = watch(MeasurementPeriod::Answers(500), load, 3000);
    let rates: Vec<_> = seen.iter().map(|one| one.rate_per_s.unwrap().round()).collect();
    for (rate, wanted) in rates.iter().zip([10.0, 10.0, 90.0, 90.0, 10.0, 10.0_f64]) {
        assert!((rate / wanted - 1.0).abs() < 0.25, "{rates:?}");
    }
}

#[test]
fn the_requests_of_a_replication_are_those_that_its_node_meets() {
    let mut model = lonely(Supply::Fixed(vec![1, 0]), 1);
    model.work = RequestWork::Drawn(Distribution::exponential(Nanos::from_millis(50)));
    let outcome =
        DispatchSimulation::measure(&model, Box::new(At(None)), streams(11, 3), length(0, 200))
            .unwrap();
    let requests = model.requests(200, streams(11, 3)).unwrap();
    for ((_, work), latency_ns) in requests.iter().zip(&outcome.latencies_ns) {
        assert!(latency_ns.abs_diff(work.0) <= 1, "alone, each takes its work: {work}");
    }
    let (last, work) = requests[199];
    assert!(outcome.span.0.abs_diff((last + work).0) <= 1, "and it came when it is said to");
    model.load.clear();
    assert!(model.requests(1, streams(11, 3)).is_err());
}

#[test]
fn a_model_that_cannot_be_run_is_refused_by_its_key() {
    let refused = |change: &dyn Fn(&mut DispatchModel)| {
        let mut model = lonely(Supply::Fixed(vec![1, 1]), 1);
        change(&mut model);
        DispatchSimulation::new(&model, Box::new(At(None)), 1, 0).err().unwrap().to_string()
    };
    assert!(refused(&|m| m.load.clear()).contains("load: is empty"));
    assert!(refused(&|m| m.load[0].rate_per_s = 0.0).contains("load[0].rate_per_s: is 0"));
    assert!(refused(&|m| m.load.push(m.load[0])).contains("load[0]: has no `requests`"));
    assert!(
        refused(&|m| m.work = RequestWork::Listed(Vec::new())).contains("work.listed: is empty")
    );
    assert!(refused(&|m| m.types.reverse()).contains("from slow to fast"));
    let branches = Distribution::exponential(Nanos::from_millis(1))
        .shaped(Shape::HyperExponential { cv2: 0.5 });
    assert!(refused(&|m| m.work = RequestWork::Drawn(branches)).contains("work.drawn.shape"));
    assert!(refused(&|m| m.static_watts = Watts(-1.0)).contains("static_watts: is -1"));
    assert!(refused(&|m| m.interference = f64::NAN).contains("interference"));
}
