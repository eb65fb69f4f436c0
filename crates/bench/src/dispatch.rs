//! The cost of dispatching requests: a decision, the thresholds, a simulated run.

use super::stats::{BoxedContender, Summary, interleave_all, ns_each};
use super::{Bench, Context, report::Report};
use anyhow::Result;
use lull_control::CoreId;
use lull_control::dispatcher::{
    Answer, CoreSpeed, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher,
    MeasurementRule, Supply,
};
use lull_host::dispatch::{DispatchState, Floor};
use lull_measure::{Nanos, Percentile, Watts};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_sim::dispatch::{DispatchModel, DispatchSimulation, RequestWork};
use lull_sim::model::{Distribution, Shape};
use lull_sim::{Replication, RunLength};
use std::hint::black_box;
use std::sync::{Arc, Mutex};

pub(super) const BENCH: Bench = Bench {
    name: "dispatch",
    about: "Requests on slow and fast cores: a decision, thresholds of 8000 requests, 30,000 \
            simulated requests",
    run,
};

const ROUNDS: usize = 15;
/// The bound on the cost of a decision.
const DECISION_NS: f64 = 200.0;
const PER_EVENT_NS: f64 = 50.0;
const SOLVE_MS: f64 = 100.0;
const RUN_MS: f64 = 50.0;

const REQUESTS: u64 = 30_000;
const LENGTH: RunLength<u64> = RunLength { warmup: 0, counted: REQUESTS };
const STREAMS: Replication = Replication { seed: 1, number: 0 };
const PROFILE: usize = 8000;
const TARGET: Nanos = Nanos::from_millis(200);
/// Load of the run, in the middle of figure 9.
const RATE_PER_S: f64 = 50.0;

/// 2F-13S with EETL's demand, power and interference (its lab scenario).
fn amp() -> DispatchModel {
    let types = vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.8)];
    let work = Distribution::exponential(Nanos::from_micros(94_400));
    let work = work.shaped(Shape::Gamma { cv2: 1.0 / 2.7 });
    DispatchModel {
        move_cost: Nanos::from_micros(300),
        static_watts: Watts(0.02),
        interference: 0.009,
        ..DispatchModel::new(
            types,
            Supply::Fixed(vec![13, 2]),
            RATE_PER_S,
            RequestWork::Drawn(work),
        )
    }
}

/// Table 4's five speeds.
fn five_speeds() -> DispatchModel {
    let speeds = [(1.0, 1.0), (1.44, 2.7), (1.59, 3.5), (1.71, 4.5), (2.0, 6.8)];
    let types = speeds.map(|(speed, watts)| CoreSpeed::new("core", speed, watts));
    let supply = Supply::Fixed(vec![5, 1, 1, 1, 1]);
    DispatchModel { types: types.to_vec(), supply, ..amp() }
}

fn build(model: &DispatchModel, name: &str, profile: &[Nanos]) -> Result<Box<dyn Dispatcher>> {
    let ladder = model.ladder()?;
    let site = Site { ladder: &ladder, percentile: Percentile::P99, target: TARGET, profile };
    Ok(DISPATCHERS.build(name, &toml::Table::new(), &site)?)
}

fn run(_: &Context) -> Result<Report> {
    let (two, five) = (amp(), five_speeds());
    let (profile, long) = (two.profile(PROFILE, 1)?, five.profile(PROFILE, 1)?);
    let recorded = record(&two, &profile)?;
    let mut dispatcher = build(&two, "eetl", &profile)?;
    let mut contenders: Vec<BoxedContender<'_>> = vec![
        Box::new(|| decision_ns(&two, build(&two, "eetl", &profile)?)),
        Box::new(|| Ok(recorded.replay_ns(&mut *dispatcher))),
        Box::new(|| {
            let mut built = Ok(());
            let solve =
                || built = build(&five, "s2f", &long).map(|dispatcher| drop(black_box(dispatcher)));
            let solve_ms = ns_each(1, solve) / 1e6;
            built.map(|()| solve_ms)
        }),
        Box::new(|| simulate_ms(&two, &profile)),
    ];
    let costs = interleave_all(ROUNDS, &mut contenders)?;
    let rows = [
        ("decision in the runtime (EETL, two types)", "ns", DECISION_NS),
        ("decisions in the simulator, for each event", "ns", PER_EVENT_NS),
        ("thresholds, 8000 requests and 5 speeds", "ms", SOLVE_MS),
        ("30,000 simulated requests of 2F-13S under EETL", "ms", RUN_MS),
    ];
    let mut report = Report::default();
    for ((what, unit, most), costs) in rows.into_iter().zip(costs) {
        report.bounded(what, Summary::new(costs), unit, 0.0..=most);
    }
    report.note(format!(
        "CPU time, {ROUNDS} rounds in turn. The runtime's decision is all work of its state: \
         finding the request, calling the dispatcher, taking note, at up to 15 requests under \
         way; the change of affinity is the kernel's. In the simulator the dispatcher gets the \
         events of an earlier run again, at {RATE_PER_S} requests/s. Thresholds include sorting \
         the profile."
    ));
    Ok(report)
}

/// Returns the time of one decision with 13 slow and 2 fast cores, in nanoseconds: a request
/// arrives each 20 ms, is decided on at its threshold, and leaves after 240 ms.
fn decision_ns(model: &DispatchModel, dispatcher: Box<dyn Dispatcher>) -> Result<f64> {
    const ROUNDS: usize = 20_000;
    let ladder = model.ladder()?;
    let cores = vec![(0..13).map(CoreId).collect(), (13..15).map(CoreId).collect()];
    let floor = Floor { ladder, cores, abandon: Nanos::from_secs(60) };
    let mut state = DispatchState::new(floor, dispatcher)?;
    let mut under_way = std::collections::VecDeque::new();
    let cycle = |state: &mut DispatchState, under_way: &mut std::collections::VecDeque<u64>| {
        for round in 0..ROUNDS as u64 {
            let now = Nanos::from_millis(20 * round);
            under_way.push_back(state.arrive(now, now, round as i32 + 1));
            state.tick(Nanos(now.0 + 10_000_000));
            if under_way.len() > 12
                && let Some(id) = under_way.pop_front()
            {
                state.leave(Nanos(now.0 + 15_000_000), id);
            }
            black_box(state.take_orders());
        }
    };
    let spent_ns = ns_each(1, || cycle(&mut state, &mut under_way));
    let decisions = state.take_tally(Nanos::from_millis(20 * ROUNDS as u64)).decisions;
    Ok(spent_ns / decisions.max(1) as f64)
}

fn simulate_ms(model: &DispatchModel, profile: &[Nanos]) -> Result<f64> {
    let dispatcher = build(model, "eetl", profile)?;
    let mut outcome = None;
    let ns = ns_each(1, || {
        outcome = Some(DispatchSimulation::measure(model, dispatcher, STREAMS, LENGTH));
    });
    black_box(outcome).transpose()?;
    Ok(ns / 1e6)
}

/// The decisions that a dispatcher made in a run.
struct Recorded {
    decisions: Questions,
    events: u64,
}

/// A [`DispatchRequest`] without borrowed parts.
#[derive(Clone, Copy)]
struct Decisions {
    age: Nanos,
    done: Nanos,
    on: Option<usize>,
    older: usize,
    active: usize,
}

/// Each request to decide on, with the cores that were free then, by type.
type Questions = Vec<(Decisions, [u32; 2])>;

/// Records each decision that is requested, and forwards it to another dispatcher.
struct Recorder {
    inner: Box<dyn Dispatcher>,
    decisions: Arc<Mutex<Questions>>,
}

impl Dispatcher for Recorder {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let DispatchRequest { age, done, on, older, active, .. } = *request;
        if let Ok(mut decisions) = self.decisions.lock() {
            decisions.push((
                Decisions { age, done, on, older, active },
                [request.free[0], request.free[1]],
            ));
        }
        self.inner.place(request)
    }

    fn decision_scope(&self) -> DecisionScope {
        self.inner.decision_scope()
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        self.inner.measurement_rule()
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        self.inner.adjust(seen);
    }
}

fn record(model: &DispatchModel, profile: &[Nanos]) -> Result<Recorded> {
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let inner = build(model, "eetl", profile)?;
    let recorder = Box::new(Recorder { inner, decisions: Arc::clone(&decisions) });
    let outcome = DispatchSimulation::measure(model, recorder, STREAMS, LENGTH)?;
    let decisions = decisions.lock().map(|decisions| decisions.clone()).unwrap_or_default();
    Ok(Recorded { decisions, events: outcome.events })
}

impl Recorded {
    /// Returns the cost of a decision for each event of the run.
    fn replay_ns(&self, dispatcher: &mut dyn Dispatcher) -> f64 {
        let all = || {
            for (decision, free) in &self.decisions {
                let Decisions { age, done, on, older, active } = *decision;
                let request = DispatchRequest { age, done, on, older, active, work: None, free };
                black_box(dispatcher.place(black_box(&request)));
            }
        };
        ns_each(self.events.max(1) as usize, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_has_decisions_of_every_kind() {
        let model = amp();
        let recorded = record(&model, &model.profile(PROFILE, 1).unwrap()).unwrap();
        let decisions = &recorded.decisions;
        assert!(recorded.events > 2 * REQUESTS && decisions.len() as u64 > REQUESTS);
        for on in [None, Some(0), Some(1)] {
            assert!(decisions.iter().any(|(one, _)| one.on == on), "{on:?}");
        }
    }

    #[test]
    fn a_decision_of_the_runtime_takes_time() {
        let model = amp();
        let dispatcher = build(&model, "eetl", &model.profile(PROFILE, 1).unwrap()).unwrap();
        assert!(decision_ns(&model, dispatcher).unwrap() > 0.0);
    }
}
