//! An oversubscribed server under a policy, beside other apps and under other
//! schedulers: what must hold whatever its numbers.

use crate::limits::{FixedLimits, Open};
use lull_control::admission::{Admission, GateLimits};
use lull_control::{
    AppId, ApplyOutcome, CoreSet, DomainId, Objective, Observation, Plant, Setting, conformance,
};
use lull_measure::ideal_batch::C6_BREAK_EVEN;
use lull_measure::{Hertz, Nanos, Percentile};
use lull_sim::model::Distribution;
use lull_sim::oversubscribed::{
    CoRunner, GatedTotals, MachinePlant, OversubscribedModel, Polling, RunQueues,
};
use lull_sim::{Replication, RunLength};
use proptest::prelude::*;

/// Returns a plant with a gate of these limits before its workers.
fn gated_plant(cap: u32, batch: u32, delay: Nanos) -> MachinePlant {
    let gate = FixedLimits(GateLimits { cap, batch, delay });
    model().plant(Box::new(gate), 1, 0).unwrap()
}

const FAIR: RunQueues = RunQueues::Fair {
    slice: Nanos::from_millis(3),
    credit: Nanos::from_millis(12),
    preempt: Nanos::from_millis(4),
};
const SOL: RunQueues =
    RunQueues::Central { slice: Nanos::from_millis(1), dispatch: Nanos::from_micros(2) };

/// 4 cores, 8 promised connections and 24 others, and a device that is quick enough.
fn model() -> OversubscribedModel {
    let text = r#"
        cores = 4
        [frequency]
        lowest = "1.2GHz"
        highest = "2.2GHz"
        step = "100MHz"
        governor = "performance"
        [power]
        active_base = 0.6
        active_dynamic = 3.9
        voltage_ratio = 0.8
        fixed = 10.0
        [[idle]]
        name = "C1"
        residency = "2us"
        exit = "2us"
        watts = 0.7
        [device]
        channels = 64
        rate_per_s = 100000.0
        burst = 60.0
        order = "random"
        [query]
        before = { mean = "180us" }
        io = { mean = "250us" }
        after = { mean = "115us" }
        round_trip = { mean = "150us" }
        [[class]]
        name = "promised"
        connections = 8
        objective = { tail = { percentile = "p99", bound = "20ms" } }
        [[class]]
        name = "others"
        connections = 24
    "#;
    toml::from_str(text).unwrap()
}

fn contended_model(scheduler: RunQueues, co_runners: &[u32]) -> OversubscribedModel {
    let co_runner = |(index, threads): (usize, &u32)| CoRunner {
        name: format!("runner {index}"),
        threads: *threads,
    };
    let co_runner = co_runners.iter().enumerate().map(co_runner).collect();
    OversubscribedModel { scheduler, co_runner, ..model() }
}

fn plant(model: &OversubscribedModel) -> MachinePlant {
    model.plant(Box::new(Open), 1, 0).unwrap()
}

fn measure(model: &OversubscribedModel) -> GatedTotals {
    let lengths = RunLength { warmup: Nanos::from_millis(200), counted: Nanos::from_secs(2) };
    let streams = Replication { seed: 1, number: 0 };
    model.measure(Box::new(Open), streams, lengths).unwrap()
}

fn rate(seen: &Observation, app: usize) -> f64 {
    let app = &seen.apps[app];
    match (&app.latency, &app.progress) {
        (Ok(latency), _) => latency.completed_per_s,
        (_, Ok(progress)) => progress.per_s,
        (Err(why), _) => panic!("{why}"),
    }
}

#[test]
fn it_conforms_with_and_without_co_runners_and_under_every_scheduler() {
    for model in [
        contended_model(RunQueues::Queues, &[]),
        contended_model(FAIR, &[3, 2]),
        contended_model(SOL, &[2]),
    ] {
        conformance::check(Nanos::from_millis(20), || plant(&model));
    }
}

#[test]
fn it_conforms_with_a_gate_whose_numbers_can_be_set() {
    for delay in [Nanos::ZERO, Nanos::from_millis(2)] {
        conformance::check(Nanos::from_millis(20), || gated_plant(4, 1, delay));
    }
}

#[test]
fn a_gate_that_was_set_serves_as_one_that_began_so() {
    for (cap, batch, delay) in
        [(3, 1, Nanos::ZERO), (8, 4, Nanos::ZERO), (8, 1, Nanos::from_millis(2))]
    {
        let app = AppId(0);
        let mut set = gated_plant(16, 2, Nanos::from_millis(1));
        set.observe(Nanos::from_millis(50)).unwrap();
        let wanted = [
            Setting::GateCap(app, cap),
            Setting::GateBatch(app, batch),
            Setting::GateDelay(app, delay),
        ];
        let outcomes = set.apply(&wanted).outcomes;
        assert!(outcomes.iter().all(|one| one.in_force().is_some()), "{outcomes:?}");
        let mut begun = gated_plant(cap, batch, delay);
        let answered = |plant: &mut MachinePlant| {
            // Turns of the numbers before have ended by then.
            plant.observe(Nanos::from_millis(200)).unwrap();
            let seen = plant.observe(Nanos::from_secs(2)).unwrap();
            rate(&seen, 0) + rate(&seen, 1)
        };
        let (set, begun) = (answered(&mut set), answered(&mut begun));
        assert!((set / begun - 1.0).abs() < 0.05, "{cap} {batch} {delay}: {set} {begun}");
    }
}

#[test]
fn an_admission_controller_that_chooses_its_numbers_lends_none() {
    let mut plant = plant(&model());
    assert!(plant.machine().gates.is_empty());
    let got = plant.apply(&[Setting::GateCap(AppId(0), 4)]).outcomes[0].got.clone();
    let ApplyOutcome::Refused { why } = got else { panic!("{got:?}") };
    assert!(why.contains("manual"), "{why}");
    // One gate of all classes is the knob of the first class and of no other.
    let got = gated_plant(4, 1, Nanos::ZERO).apply(&[Setting::GateCap(AppId(1), 4)]).outcomes;
    assert!(matches!(&got[0].got, ApplyOutcome::Refused { .. }), "{got:?}");
}

#[test]
fn an_app_runs_on_its_cores_and_nowhere_else() {
    for scheduler in [RunQueues::Queues, FAIR, SOL] {
        let mut plant = plant(&contended_model(scheduler, &[]));
        plant.observe(Nanos::from_millis(50)).unwrap();
        for app in [AppId(0), AppId(1)] {
            let _ = plant.apply(&[Setting::Cores(app, CoreSet::first(2))]);
        }
        // A request that ran elsewhere leaves immediately; its last work there ends with the slice.
        plant.observe(Nanos::from_millis(5)).unwrap();
        let seen = plant.observe(Nanos::from_millis(200)).unwrap();
        let busy: Vec<f64> =
            seen.cores.iter().map(|core| *core.utilisation.as_ref().unwrap()).collect();
        assert!(busy[0] > 0.9 && busy[1] > 0.9, "{scheduler:?}: {busy:?}");
        assert_eq!(busy[2], 0.0, "{scheduler:?}: {busy:?}");
        let agent = matches!(scheduler, RunQueues::Central { .. });
        assert_eq!(busy[3], f64::from(u8::from(agent)), "{scheduler:?}: {busy:?}");
    }
}

#[test]
fn the_opportunity_of_an_epoch_is_that_of_a_run_as_long() {
    let mut model = model();
    // Queries so rare that some sleeps are longer than the break-even, and some shorter.
    model.class[0].connections = 2;
    model.class[1].connections = 1;
    model.query.round_trip = Distribution::exponential(Nanos::from_millis(3));
    let mut plant = plant(&model);
    plant.observe(Nanos::from_millis(50)).unwrap();
    plant.forget();
    let seen = plant.observe(Nanos::from_secs(1)).unwrap();
    let served = plant.gated_totals();
    let share = seen.c6_opportunity.unwrap();
    assert_eq!(Some(share), served.c6_opportunity(C6_BREAK_EVEN));
    assert!(share > 0.1 && share < 0.95, "{share}");
    // A core that no thread used has neither ended a sleep nor worked.
    let cores = seen.cores.iter().filter_map(|core| core.c6_opportunity.clone().ok());
    let (low, high) = (cores.clone().fold(1.0, f64::min), cores.fold(0.0, f64::max));
    assert!(low <= share && share <= high, "{low} {share} {high}");
    let gaps = seen.idle_gaps.unwrap();
    let longest = served.intervals.iter().max().unwrap();
    assert!(gaps.p50 < gaps.p95 && gaps.p95 <= gaps.p99 && gaps.p99 <= *longest, "{gaps:?}");
}

#[test]
fn no_app_runs_on_the_schedulers_own_core() {
    let mut plant = plant(&contended_model(SOL, &[]));
    let agent: CoreSet = "3".parse().unwrap();
    let got = plant.apply(&[Setting::Cores(AppId(0), agent)]).outcomes[0].got.clone();
    assert!(matches!(got, ApplyOutcome::Refused { .. }), "{got:?}");
    let got = plant.apply(&[Setting::Cores(AppId(0), CoreSet::first(4))]).outcomes[0].got.clone();
    let first = Setting::Cores(AppId(0), CoreSet::first(3));
    assert!(matches!(got, ApplyOutcome::Clamped { to, .. } if to == first));
}

#[test]
fn a_core_that_is_held_slow_does_less() {
    let mut plant = plant(&model());
    let fast = plant.observe(Nanos::from_secs(1)).unwrap();
    for core in 0..4 {
        let _ = plant.apply(&[Setting::Frequency(DomainId(core), Hertz(1_200_000_000))]);
    }
    plant.observe(Nanos::from_millis(10)).unwrap();
    let slow = plant.observe(Nanos::from_secs(1)).unwrap();
    let all = |seen: &Observation| rate(seen, 0) + rate(seen, 1);
    let ratio = all(&slow) / all(&fast);
    // All four cores are busy all the time, so answers go with the frequency.
    assert!((ratio / (1.2 / 2.2) - 1.0).abs() < 0.03, "{ratio}");
}

#[test]
fn fair_threads_have_equal_time_whatever_app_they_belong_to() {
    // 12 threads that never sleep on 4 cores: a third of a core each.
    let served = measure(&quiet(contended_model(FAIR, &[4, 8])));
    let cores: Vec<f64> = (0..2).map(|index| served.co_runner_cores(index)).collect();
    assert!((cores[1] / cores[0] - 2.0).abs() < 0.1, "{cores:?}");
    assert!((3.85..=4.0).contains(&(cores[0] + cores[1])), "{cores:?}");
}

/// One connection with a query every 10 ms: a negligible load.
fn quiet(model: OversubscribedModel) -> OversubscribedModel {
    let mut model = OversubscribedModel { class: vec![model.class[1].clone()], ..model };
    model.class[0].connections = 1;
    model.query.round_trip.mean = Nanos::from_millis(10);
    model
}

#[test]
fn a_thread_that_sleeps_a_lot_is_not_held_up_by_those_who_never_do() {
    let model = quiet(contended_model(FAIR, &[8]));
    let beside = measure(&model).latency().mean().unwrap();
    let alone =
        measure(&OversubscribedModel { co_runner: Vec::new(), ..model }).latency().mean().unwrap();
    assert!(beside < alone.scale(1.2), "{beside} {alone}");
}

#[test]
fn a_co_runner_needs_a_scheduler_with_slices() {
    let refused = contended_model(RunQueues::Queues, &[1]).check().unwrap_err().to_string();
    assert!(refused.starts_with("scheduler: ") && refused.contains("time slices"), "{refused}");
    let one = OversubscribedModel { cores: 1, ..contended_model(SOL, &[]) };
    let refused = one.check().unwrap_err().to_string();
    assert!(refused.contains("the agent has one to itself"), "{refused}");
}

#[test]
fn a_central_queue_serves_in_order_of_waking() {
    // The agent's core is busy and runs no thread; the others share one queue.
    let served = measure(&contended_model(SOL, &[]));
    let queues = measure(&OversubscribedModel { cores: 3, ..model() });
    let ratio = served.throughput_per_s() / queues.throughput_per_s();
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
    assert!(served.busy > queues.busy + Nanos::from_secs(1), "the agent spins");
}

#[test]
fn workers_that_look_for_their_turn_cost_core_time_and_start_with_their_next_look() {
    let limits = GateLimits { cap: 2, batch: 1, delay: Nanos::ZERO };
    let run = |polling| {
        let model = OversubscribedModel { polling, ..model() };
        let lengths = RunLength { warmup: Nanos::from_millis(200), counted: Nanos::from_secs(2) };
        let streams = Replication { seed: 1, number: 0 };
        model.measure(Box::new(FixedLimits(limits)), streams, lengths).unwrap()
    };
    let every = Nanos::from_millis(1);
    let on_call = run(None);
    let looks = run(Some(Polling { every, work: Nanos::from_micros(20) }));
    // Thirty of 32 workers wait, each with some 980 looks a second.
    let spent = |served: &GatedTotals| {
        let queries: u64 = served.answers.iter().sum();
        served.busy.as_secs_f64() - 295e-6 * queries as f64
    };
    let looking_s = spent(&looks) - spent(&on_call);
    assert!((1.0..1.25).contains(&looking_s), "{looking_s} s of 2 s on four cores");
    // A slot is empty for half a period on average, before a query of .7 ms.
    let ratio = looks.throughput_per_s() / on_call.throughput_per_s();
    assert!((0.5..0.75).contains(&ratio), "{ratio}");
    assert_eq!(looks.most_turns, 2);
}

#[test]
fn spins_waste_fewer_instructions_where_an_app_has_fewer_cores() {
    let wasted = |spins_on, cores: u16| {
        let mut model = model();
        (model.contention.sigma, model.contention.spins_on) = (0.1, spins_on);
        let mut plant = plant(&model);
        let all = (0..2).map(|app| Setting::Cores(AppId(app), CoreSet::first(cores)));
        assert!(
            plant.apply(&all.collect::<Vec<_>>()).outcomes.iter().all(|it| it.in_force().is_some())
        );
        plant.observe(Nanos::from_millis(500)).unwrap();
        plant.gated_totals().instructions - 1.0
    };
    assert!((wasted(Some(4), 2) / wasted(None, 2) - 0.5).abs() < 0.1);
    assert!((wasted(Some(4), 4) / wasted(None, 4) - 1.0).abs() < 1e-9);
}

#[test]
fn other_promises_reach_an_admission_controller_or_make_a_new_one() {
    let mut model = model();
    let mut plant = plant(&model);
    let bound = Nanos::from_millis(5);
    let tight = Some(Objective::Tail { percentile: Percentile::P99, bound });
    let mut made = false;
    let rebuild = || {
        made = true;
        Ok::<_, std::convert::Infallible>(Box::new(Open) as Box<dyn Admission>)
    };
    model.class[0].objective = tight;
    plant.retarget(model.specs(), &model.objectives(), rebuild).unwrap();
    assert!(made, "an admission controller that cannot change its objectives is rebuilt");
    assert_eq!(plant.apps()[0].tail(), Some((Percentile::P99, bound)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn time_and_work_are_conserved_whatever_is_confined(
        kind in 0usize..3,
        runners in prop::collection::vec(1u32..6, 0..3),
        moves in prop::collection::vec((0u16..4, 1u16..4, 0u16..3), 1..12),
    ) {
        let scheduler = [FAIR, SOL, FAIR][kind];
        let model = contended_model(scheduler, &runners);
        let mut plant = plant(&model);
        for (app, count, first) in moves {
            let cores = (first..(first + count).min(4)).map(lull_control::CoreId).collect();
            let _ = plant.apply(&[Setting::Cores(AppId(app), cores)]);
            plant.observe(Nanos::from_millis(7)).unwrap();
        }
        let served = plant.gated_totals();
        let idle: Nanos = served.residency.iter().copied().sum();
        prop_assert_eq!(served.busy + idle, served.span * 4);
        let cpu: Nanos = served.spent.iter().map(|spent| spent.cpu).sum();
        let agent = if kind == 1 { served.span } else { Nanos::ZERO };
        prop_assert_eq!(cpu + agent, served.busy, "busy time is that of a party or the agent");
        for (arrivals, answers) in served.arrivals.iter().zip(&served.answers) {
            prop_assert!(arrivals.abs_diff(*answers) <= 1);
        }
    }
}
