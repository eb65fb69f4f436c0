//! A machine of any parts: a plant in every combination, and what the parts do to each other.

use crate::limits::{FixedLimits, Open};
use lull_control::admission::{Admission, GateLimits, GateObservation, RoundLimits};
use lull_control::dispatcher::{Answer, CoreSpeed, DispatchRequest, Dispatcher, Supply};
use lull_control::{
    AppId, AppSpec, ApplyOutcome, Capability, Coalescing, CoreId, CoreSet, DomainId,
    LatencyObservation, NicId, Observation, Plant, RosterEvent, Scheduling, Setting, WayMask,
    conformance,
};
use lull_measure::{Hertz, Nanos, Percentile};
use lull_sim::Replication;
use lull_sim::machine::{
    Activity, ClosedClients, Contention, Controllers, CoreTypes, DispatchPart, DutyCycle,
    GateModel, Governor, MachineApp, MachineModel, MachinePlant, MemoryUse, Polling, Query,
    RunQueues,
};
use lull_sim::model::Distribution;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Four cores with every part.
const WHOLE: &str = include_str!("whole.toml");

fn whole() -> MachineModel {
    toml::from_str(WHOLE).unwrap()
}

/// The parts of a machine.
#[derive(Debug, Clone, Copy)]
struct Parts {
    scaling: bool,
    idle: bool,
    power: bool,
    cache: bool,
    memory: bool,
    card: bool,
    gate: Option<bool>,
    run_queues: Option<RunQueues>,
    /// Slow and fast cores, and a dispatcher that chooses among them.
    dispatch: bool,
}

impl Parts {
    /// All combinations that can be.
    fn all() -> Vec<Self> {
        let slice = Nanos::from_millis(3);
        let fair = RunQueues::Fair { slice, credit: slice, preempt: slice };
        let central = RunQueues::Central { slice, dispatch: Nanos::from_micros(2) };
        let mut all = Vec::new();
        for bits in 0u8..128 {
            let has = |bit: u8| bits & 1 << bit != 0;
            for gate in [None, Some(false), Some(true)] {
                for run_queues in [None, Some(fair), Some(central)] {
                    let [scaling, idle, power, cache, memory, card] = [0, 1, 2, 3, 4, 5].map(has);
                    let dispatch = has(6);
                    all.push(Self {
                        scaling,
                        idle,
                        power,
                        cache,
                        memory,
                        card,
                        gate,
                        run_queues,
                        dispatch,
                    });
                }
            }
        }
        all.retain(|it| it.idle || !(it.power || it.scaling || it.run_queues.is_some()));
        all.retain(|it| !(it.card || it.dispatch) || it.run_queues.is_none());
        // Cache and memory do not know of dispatching: one of both is enough.
        all.retain(|it| !it.dispatch || it.cache == it.memory);
        all
    }

    fn model(self) -> MachineModel {
        let mut model = whole();
        let Self { scaling, idle, power, cache, memory, card, gate, run_queues, dispatch } = self;
        if dispatch {
            dispatched(&mut model);
        }
        model.scaling = model.scaling.filter(|_| scaling);
        model.power = model.power.filter(|_| power);
        model.cache = model.cache.filter(|_| cache);
        model.memory = model.memory.filter(|_| memory);
        model.card = model.card.filter(|_| card);
        if gate.is_none() {
            model.gate.clear();
        }
        model.run_queues = run_queues;
        if !idle {
            model.idle.clear();
        }
        model.app.retain(|app| match app.activity {
            Activity::Connections => gate.is_some(),
            Activity::Requests { .. } => run_queues.is_none(),
            _ => true,
        });
        model
    }

    fn plant(self) -> MachinePlant {
        let admission: Vec<Box<dyn Admission>> = match self.gate {
            None => Vec::new(),
            Some(false) => vec![Box::new(Open)],
            Some(true) => vec![Box::new(FixedLimits(numbers(4)))],
        };
        let dispatcher: Option<Box<dyn Dispatcher>> = match self.dispatch {
            true => Some(Box::new(Promoter(Nanos::from_millis(1)))),
            false => None,
        };
        plant(&self.model(), Controllers { admission, dispatcher })
    }
}

/// Starts requests on slow cores and moves them to fast ones at this age.
struct Promoter(Nanos);

impl Dispatcher for Promoter {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let free = request.free.iter().position(|free| *free > 0);
        match (request.on, free) {
            (None, Some(kind)) => Answer::on(kind, Some(self.0)),
            (Some(0), _) if request.age >= self.0 => Answer::on(1, None),
            (Some(0), _) => Answer::stay(Some(self.0)),
            _ => Answer::stay(None),
        }
    }
}

/// Two slow and two fast cores, and a dispatcher for the requests of `search`.
fn dispatched(model: &mut MachineModel) {
    let types = vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.0)];
    model.core_types = Some(CoreTypes { types, supply: Supply::Fixed(vec![2, 2]) });
    model.interference = 0.01;
    let move_cost = Nanos::from_micros(20);
    model.dispatch = Some(DispatchPart { app: "search".to_owned(), move_cost, abandon: None });
    model.app[0].threads = 4;
}

fn numbers(cap: u32) -> GateLimits {
    GateLimits { cap, batch: 2, delay: Nanos::ZERO }
}

/// A plant that watches all apps, latency-critical if they answer anything.
fn plant(model: &MachineModel, controllers: impl Into<Controllers>) -> MachinePlant {
    let spec = |app: &MachineApp| match app.serves() {
        true => AppSpec::latency_critical(&app.name, Percentile::P99, Nanos::from_millis(20)),
        false => AppSpec::best_effort(&app.name),
    };
    let specs: Vec<_> = model.app.iter().map(spec).collect();
    MachinePlant::behind(model, &specs, controllers, Replication { seed: 1, number: 0 }).unwrap()
}

/// Only an admission controller.
fn gate(admission: impl Admission + 'static) -> Controllers {
    Controllers { admission: vec![Box::new(admission)], dispatcher: None }
}

fn whole_plant(cap: u32) -> MachinePlant {
    plant(&whole(), gate(FixedLimits(numbers(cap))))
}

#[test]
fn a_machine_of_any_parts_is_a_plant() {
    Parts::all().into_par_iter().for_each(|parts| {
        let run = || conformance::check(Nanos::from_millis(20), || parts.plant());
        let run = std::panic::AssertUnwindSafe(run);
        assert!(std::panic::catch_unwind(run).is_ok(), "{parts:?}");
    });
}

#[test]
fn one_plant_has_the_capabilities_of_all_its_parts() {
    let plant = whole_plant(4);
    for capability in [
        Capability::Cores,
        Capability::Scheduling,
        Capability::CacheWays,
        Capability::MemoryBandwidth,
        Capability::Frequency,
        Capability::Coalescing,
        Capability::GateCap,
        Capability::Energy,
        Capability::IdleResidency,
        Capability::TailLatency,
        Capability::Progress,
    ] {
        assert!(plant.machine().capabilities.has(capability), "{capability}");
    }
    assert_eq!(plant.machine().domains.len(), 2, "two cores share a frequency");
    assert_eq!(plant.machine().gates[0].app, AppId(1), "the gate is the database's");
}

#[test]
fn time_and_energy_are_those_of_the_parts() {
    let mut plant = whole_plant(4);
    plant.observe(Nanos::from_millis(200)).unwrap();
    plant.forget();
    let mut joules = 0.0;
    for _ in 0..20 {
        joules += plant.observe(Nanos::from_millis(50)).unwrap().energy.unwrap().energy.0;
    }
    let totals = plant.gated_totals();
    let idle: Nanos = totals.residency.iter().copied().sum();
    assert_eq!(totals.busy + idle, totals.span * 4, "every core is awake or in one idle state");
    assert!((totals.energy.total().0 / joules - 1.0).abs() < 1e-9, "epochs add up");
    assert_eq!(totals.energy.fixed.0, 10.0);
    let answered: u64 = totals.answers.iter().sum();
    assert!(totals.arrivals.iter().sum::<u64>().abs_diff(answered) <= 16, "one query a connection");
    assert!(totals.most_turns <= 4 && totals.gate.turns > 100, "{:?}", totals.gate);
}

/// The p99 of an app over two seconds after a second, with these settings.
fn tail(model: &MachineModel, cap: u32, settings: &[Setting], app: usize) -> Nanos {
    let mut plant = plant(model, gate(FixedLimits(numbers(cap))));
    for outcome in plant.apply(settings).outcomes {
        assert!(!matches!(outcome.got, ApplyOutcome::Refused { .. }), "{outcome:?}");
    }
    plant.observe(Nanos::from_secs(1)).unwrap();
    let seen = plant.observe(Nanos::from_secs(2)).unwrap();
    seen.apps[app].latency.as_ref().unwrap().window.quantile(Percentile::P99).unwrap()
}

#[test]
fn knobs_of_one_part_reach_the_apps_of_another() {
    let model = whole();
    let base = tail(&model, 16, &[], 1);
    // Cores and cache decide how long a query behind the gate takes.
    let idle_batch = Setting::Scheduling(AppId(2), Scheduling::Idle);
    let alone = Setting::CacheWays(AppId(2), WayMask::run(0, 1));
    let protected = tail(&model, 16, &[idle_batch.clone(), alone], 1);
    assert!(protected < base, "{protected} {base}");
    // So does the frequency, which a policy holds.
    let slow = |domain| Setting::Frequency(DomainId(domain), Hertz(1_200_000_000));
    let slowed = tail(&model, 16, &[idle_batch, slow(0), slow(1)], 1);
    assert!(slowed > protected, "{slowed} {protected}");
    // The gate decides how much the database leaves to the app beside it.
    let confined = Setting::Cores(AppId(0), CoreSet::first(1));
    let beside = |cap| tail(&model, cap, std::slice::from_ref(&confined), 0);
    assert!(beside(1) < beside(16));
}

#[test]
fn a_query_without_io_is_answered_as_soon_as_its_work_is_done() {
    let at = |us| Distribution::constant(Nanos::from_micros(us));
    let query = Query { before: at(1000), io: at(0), after: at(0), round_trip: at(1) };
    let contention = Contention::default();
    let gate = GateModel { query, contention, ..whole().gate.remove(0) };
    let app = vec![MachineApp::new("database", 3, Activity::Connections)];
    let plain = MachineModel::plain("one", 1, Hertz(1_000_000_000));
    let model = MachineModel { gate: vec![gate], app, ..plain };
    // It waits for the work of two others. A worker that needed the core once more would wait for
    // them again.
    let worst = tail(&model, 3, &[], 0);
    assert!(worst < Nanos::from_micros(3_500), "{worst}");
}

#[test]
fn a_longer_interrupt_delay_saves_interrupts_and_costs_latency_on_the_same_machine() {
    let seen = |delay_us: u64| {
        // With more connections the device would decide how long their queries take.
        let mut model = whole();
        model.app[1].threads = 4;
        let mut plant = plant(&model, gate(FixedLimits(numbers(16))));
        let delay = Coalescing::Delay(Nanos::from_micros(delay_us));
        let idle_batch = Setting::Scheduling(AppId(2), Scheduling::Idle);
        let _ = plant.apply(&[Setting::Coalescing(NicId(0), delay), idle_batch]);
        plant.observe(Nanos::from_millis(500)).unwrap();
        plant.observe(Nanos::from_secs(2)).unwrap()
    };
    let (short, long) = (seen(0), seen(900));
    let rate = |seen: &Observation| *seen.interrupts_per_s.as_ref().unwrap();
    assert!(rate(&long) < 0.8 * rate(&short), "{} {}", rate(&long), rate(&short));
    for app in 0..2 {
        let latency = |seen: &Observation| seen.apps[app].latency.as_ref().unwrap().clone();
        let (quick, slow) = (latency(&short), latency(&long));
        let mean = |latency: &LatencyObservation| latency.window.mean().unwrap();
        assert!(mean(&slow) > mean(&quick), "{} {}", mean(&slow), mean(&quick));
        // Every answered request is two packets.
        assert!(*short.packets_per_s.as_ref().unwrap() > 2.0 * quick.completed_per_s * 0.99);
    }
}

#[test]
fn changing_the_cores_of_an_app_does_not_wake_or_restart_cores_that_sleep() {
    let totals = |moves: bool| {
        let mut model = whole();
        model.app.retain(|app| app.name == "search");
        (model.gate, model.card, model.scaling) = (Vec::new(), None, None);
        let Activity::Requests { load, .. } = &mut model.app[0].activity else { unreachable!() };
        load[0].rate_per_s = 20.0;
        let mut plant = plant(&model, Controllers::default());
        for step in 0..200 {
            // The app's threads prefer the first core, which they may always use.
            let cores = CoreSet::first(if moves && step % 2 == 0 { 3 } else { 4 });
            let _ = plant.apply(&[Setting::Cores(AppId(0), cores)]);
            plant.observe(Nanos::from_millis(10)).unwrap();
        }
        plant.gated_totals()
    };
    let (still, moved) = (totals(false), totals(true));
    assert!(still.entries.iter().sum::<u64>() > 10);
    assert_eq!(still.entries, moved.entries);
    assert_eq!(still.residency, moved.residency);
    assert!((still.energy.idle.0 / moved.energy.idle.0 - 1.0).abs() < 1e-9);
}

#[test]
fn a_core_computes_nothing_for_some_time_after_its_frequency_has_changed() {
    let progress = |latency: Nanos, changes: bool| {
        let mut model = whole();
        model.app.retain(|app| app.name == "batch");
        (model.gate, model.card, model.cache, model.memory) = (Vec::new(), None, None, None);
        model.app[0].memory = MemoryUse::default();
        model.scheduler.switch_cost = Nanos::ZERO;
        model.scaling.as_mut().unwrap().latency = latency;
        let mut plant = plant(&model, Controllers::default());
        let mut done = 0.0;
        for step in 0..100 {
            let hertz = Hertz(if changes && step % 2 == 1 { 2_100_000_000 } else { 2_200_000_000 });
            let set = |domain| Setting::Frequency(DomainId(domain), hertz);
            let _ = plant.apply(&[set(0), set(1)]);
            let seen = plant.observe(Nanos::from_millis(10)).unwrap();
            done += seen.apps[0].progress.as_ref().unwrap().per_s * 0.01;
        }
        done
    };
    let latency = Nanos::from_micros(500);
    assert!((progress(latency, false) - 4.0).abs() < 0.01, "four cores for a second");
    let lost = progress(Nanos::ZERO, true) - progress(latency, true);
    // Four cores, 99 changes of 500 us each: at 2.1 or 2.2 GHz of 2.2.
    let wanted = 4.0 * 99.0 * 500e-6 * (2.15 / 2.2);
    assert!((lost / wanted - 1.0).abs() < 0.02, "{lost} {wanted}");
}

/// Four cores under batch work, without cache and memory, whose frequency change takes this long.
fn changing(latency: Nanos) -> MachinePlant {
    let mut model = whole();
    model.app.retain(|app| app.name == "batch");
    (model.gate, model.card, model.cache, model.memory) = (Vec::new(), None, None, None);
    model.app[0].memory = MemoryUse::default();
    model.scaling.as_mut().unwrap().latency = latency;
    plant(&model, Controllers::default())
}

fn set_frequency(plant: &mut MachinePlant, hertz: u64) {
    let set = |domain| Setting::Frequency(DomainId(domain), Hertz(hertz));
    let applied = plant.apply(&[set(0), set(1)]);
    assert!(applied.outcomes.iter().all(|it| it.in_force().is_some()), "{applied:?}");
}

/// Seconds of work of the first app in the counted time.
fn work_s(plant: &MachinePlant) -> f64 {
    let totals = plant.simulation().totals();
    totals.apps[0].work_per_s * totals.span.as_secs_f64()
}

#[test]
fn changes_of_frequency_at_one_instant_take_the_time_of_one() {
    let work = |latency| {
        let mut plant = changing(latency);
        // The governor has raised the frequency after its first period.
        plant.observe(Nanos::from_millis(50)).unwrap();
        plant.forget();
        for _ in 0..5 {
            set_frequency(&mut plant, 1_200_000_000);
            set_frequency(&mut plant, 2_200_000_000);
        }
        plant.observe(Nanos::from_millis(50)).unwrap();
        work_s(&plant)
    };
    let lost = work(Nanos::ZERO) - work(Nanos::from_millis(4));
    assert!((lost / (4.0 * 4e-3) - 1.0).abs() < 0.02, "four cores, 4 ms each: {lost}");
}

#[test]
fn a_thread_that_starts_during_a_change_of_frequency_waits_for_its_end() {
    let work = |latency| {
        let mut plant = changing(latency);
        plant.change(AppId(0), RosterEvent::Departed);
        plant.observe(Nanos::from_millis(50)).unwrap();
        set_frequency(&mut plant, 2_100_000_000);
        plant.change(AppId(0), RosterEvent::Arrived);
        plant.observe(Nanos::from_millis(50)).unwrap();
        work_s(&plant)
    };
    let lost = work(Nanos::ZERO) - work(Nanos::from_millis(5));
    // The cores leave their idle states, of up to 133 us, in the same time.
    let wanted = 4.0 * 5e-3 * (2.1 / 2.2);
    assert!((lost / wanted - 1.0).abs() < 0.05, "{lost} {wanted}");
}

#[test]
fn a_dispatcher_moves_requests_between_cores_that_other_apps_use_too() {
    let seen = |age_ms: u64, beside: bool| {
        let mut model = whole();
        dispatched(&mut model);
        model.app.retain(|app| app.name == "search" || beside && app.name == "batch");
        (model.gate, model.card, model.scaling) = (Vec::new(), None, None);
        let dispatcher = Some(Box::new(Promoter(Nanos::from_millis(age_ms))) as Box<_>);
        let mut plant = plant(&model, Controllers { dispatcher, ..Controllers::default() });
        plant.observe(Nanos::from_secs(1)).unwrap();
        let _ = plant.simulation_mut().take_dispatch_counts();
        let seen = plant.observe(Nanos::from_secs(4)).unwrap();
        (seen, plant.simulation_mut().take_dispatch_counts(), plant)
    };
    let tail = |seen: &Observation| {
        seen.apps[0].latency.as_ref().unwrap().window.quantile(Percentile::P99).unwrap()
    };
    let ((early, moved, plant), (late, unmoved, _)) = (seen(1, false), seen(1000, false));
    assert!(moved.moves > 100 && moved.abandoned == 0, "{moved:?}");
    assert_eq!(unmoved.moves, 0);
    assert!(tail(&early) < tail(&late), "{} {}", tail(&early), tail(&late));
    let types: Vec<_> = plant.machine().core_types.iter().map(|kind| kind.speed).collect();
    assert_eq!(types, [1.0, 2.0]);
    // Best-effort work on the same cores takes their time, and never that of the dispatcher.
    let (shared, shared_counts, _) = seen(1, true);
    assert!(tail(&shared) > tail(&early), "{} {}", tail(&shared), tail(&early));
    assert!(shared_counts.moves > 100);
    assert!(shared.apps[1].progress.as_ref().unwrap().per_s > 2.0, "{:?}", shared.apps[1]);
}

#[test]
fn apps_of_a_dispatched_machine_come_and_go() {
    let mut model = whole();
    dispatched(&mut model);
    model.app.retain(|app| app.name != "database");
    (model.gate, model.card) = (Vec::new(), None);
    let dispatcher: Option<Box<dyn Dispatcher>> = Some(Box::new(Promoter(Nanos::ZERO)));
    let mut plant = plant(&model, Controllers { dispatcher, ..Controllers::default() });
    conformance::check_churn(Nanos::from_millis(20), 200, &mut plant, |plant, app, event| {
        plant.change(app, event);
    });
}

/// Counts the changes of the machine that the simulator reports to the admission controller.
struct ChangeCounter(Arc<AtomicU32>);

impl Admission for ChangeCounter {
    fn decide(&mut self, seen: &GateObservation<'_>, limits: &mut RoundLimits) {
        Open.decide(seen, limits);
    }

    fn machine_changed(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A machine with every part, and the changes that its admission controller counts.
fn counted_plant() -> (MachinePlant, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    (plant(&whole(), gate(ChangeCounter(Arc::clone(&count)))), count)
}

#[test]
fn a_setting_that_stays_clamped_is_reported_to_the_gate_once() {
    let (mut plant, count) = counted_plant();
    let share = |percent| [Setting::MemoryBandwidth(AppId(2), percent)];
    for (percent, changes) in [(5, 1), (5, 1), (50, 2), (50, 2), (5, 3)] {
        let applied = plant.apply(&share(percent));
        let is_clamped = matches!(applied.outcomes[0].got, ApplyOutcome::Clamped { .. });
        assert_eq!(is_clamped, percent == 5, "{applied:?}");
        assert_eq!(count.load(Ordering::Relaxed), changes, "{percent} %");
    }
}

#[test]
fn the_gate_learns_of_apps_that_arrive_and_depart() {
    let (mut plant, count) = counted_plant();
    plant.observe(Nanos::from_millis(20)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 0, "apps that are there from the start");
    // A restart is a departure and an arrival.
    let changes = [
        (RosterEvent::Departed, 1),
        (RosterEvent::Departed, 1),
        (RosterEvent::Arrived, 2),
        (RosterEvent::Arrived, 2),
        (RosterEvent::Restarted, 4),
    ];
    for (event, changes) in changes {
        plant.change(AppId(2), event);
        assert_eq!(count.load(Ordering::Relaxed), changes, "{event:?}");
    }
}

#[test]
fn cores_that_are_taken_from_a_dispatched_app_are_not_dispatched_to() {
    let mut model = whole();
    dispatched(&mut model);
    model.app.retain(|app| app.name == "search");
    (model.gate, model.card) = (Vec::new(), None);
    let dispatcher: Option<Box<dyn Dispatcher>> = Some(Box::new(Promoter(Nanos::ZERO)));
    let mut plant = plant(&model, Controllers { dispatcher, ..Controllers::default() });
    plant.observe(Nanos::from_secs(1)).unwrap();
    let slow = Setting::Cores(AppId(0), CoreSet::first(2));
    assert!(plant.apply(&[slow]).outcomes[0].in_force().is_some());
    plant.observe(Nanos::from_millis(100)).unwrap();
    let seen = plant.observe(Nanos::from_secs(1)).unwrap();
    let used: Vec<_> = seen.cores.iter().map(|core| *core.utilisation.as_ref().unwrap()).collect();
    assert!(used[0] > 0.1 && used[1] > 0.05 && used[2] == 0.0 && used[3] == 0.0, "{used:?}");
}

#[test]
fn a_move_takes_its_whole_time_although_its_thread_is_preempted_meanwhile() {
    let mut model = whole();
    dispatched(&mut model);
    model.app.retain(|app| app.name != "database");
    (model.gate, model.card, model.scaling) = (Vec::new(), None, None);
    (model.cache, model.memory) = (None, None);
    model.app.iter_mut().for_each(|app| app.memory = MemoryUse::default());
    model.dispatch.as_mut().unwrap().move_cost = Nanos::from_millis(60);
    let Activity::Requests { work, load, closed, .. } = &mut model.app[0].activity else {
        unreachable!()
    };
    *work = Distribution::constant(Nanos::from_millis(10));
    load.clear();
    let think = Distribution::constant(Nanos::from_millis(7));
    *closed = Some(ClosedClients { clients: 1, think });
    let dispatcher: Option<Box<dyn Dispatcher>> = Some(Box::new(Promoter(Nanos::from_millis(1))));
    let mut plant = plant(&model, Controllers { dispatcher, ..Controllers::default() });
    plant.simulation_mut().keep_log(0);
    plant.observe(Nanos::from_secs(5)).unwrap();
    let log = plant.simulation().log(0);
    let (least, most) = (*log.iter().min().unwrap(), *log.iter().max().unwrap());
    // At least 1 ms on a slow core, the move, and half of the 9 ms of work that are left. Batch
    // work has half of the core meanwhile, in slices of 4 ms: the move is not paid again.
    assert!(least > Nanos::from_millis(65) && most < Nanos::from_millis(200), "{least} {most}");
}

#[test]
fn an_abandoned_request_leaves_its_core_to_the_thread_that_runs_there() {
    let mut model = whole();
    dispatched(&mut model);
    model.app.retain(|app| app.name != "database");
    (model.gate, model.card) = (Vec::new(), None);
    model.dispatch.as_mut().unwrap().abandon = Some(Nanos::from_millis(3));
    let dispatcher: Option<Box<dyn Dispatcher>> = Some(Box::new(Promoter(Nanos::from_millis(1))));
    let mut plant = plant(&model, Controllers { dispatcher, ..Controllers::default() });
    for step in 0..200 {
        // The app loses two cores and gets them back, so that its requests change cores too.
        let cores = CoreSet::first(if step % 2 == 0 { 2 } else { 4 });
        let _ = plant.apply(&[Setting::Cores(AppId(0), cores)]);
        plant.observe(Nanos::from_millis(10)).unwrap();
    }
    let counts = plant.simulation_mut().take_dispatch_counts();
    let totals = plant.simulation().totals();
    let [search, batch] = &totals.apps[..] else { panic!("two apps") };
    assert!(counts.abandoned > 100 && search.answered > 50, "{counts:?}");
    assert_eq!(search.lost, counts.abandoned);
    let outstanding = u64::from(plant.simulation().outstanding(0));
    assert_eq!(search.arrived, search.answered + search.lost + outstanding);
    // Some thread always wants to run, and a core runs one thread at a time.
    let busy = search.busy_cores + batch.busy_cores;
    assert!(busy <= 4.0 + 1e-9 && busy > 3.99, "{busy} cores");
    let used: f64 = totals.utilisation.iter().sum();
    assert!((used - busy).abs() < 1e-6, "{used} {busy}");
}

#[test]
fn requests_whose_core_is_taken_get_a_free_one_or_wait_with_the_work_that_is_left() {
    const WORK: Nanos = Nanos::from_millis(20);
    const ALLOWED: [&[u16]; 4] = [&[0, 1, 2, 3], &[1], &[2, 3], &[0, 1, 3]];
    for supply in [Supply::Fixed(vec![2, 2]), Supply::Any(4)] {
        let mut model = whole();
        dispatched(&mut model);
        model.core_types.as_mut().unwrap().supply = supply;
        model.app.retain(|app| app.name == "search");
        (model.gate, model.card, model.scaling) = (Vec::new(), None, None);
        let Activity::Requests { work, load, .. } = &mut model.app[0].activity else {
            unreachable!()
        };
        *work = Distribution::constant(WORK);
        load[0].rate_per_s = 60.0;
        let dispatcher: Option<Box<dyn Dispatcher>> =
            Some(Box::new(Promoter(Nanos::from_millis(5))));
        let mut plant = plant(&model, Controllers { dispatcher, ..Controllers::default() });
        for step in 0..400 {
            let cores: CoreSet = ALLOWED[step % 4].iter().copied().map(CoreId).collect();
            let _ = plant.apply(&[Setting::Cores(AppId(0), cores)]);
            plant.observe(Nanos::from_millis(7)).unwrap();
        }
        let totals = plant.simulation().totals();
        let search = &totals.apps[0];
        assert_eq!(search.queued, 0.0, "a core has one request at a time");
        let outstanding = u64::from(plant.simulation().outstanding(0));
        assert_eq!(search.arrived, search.answered + outstanding);
        assert!(search.answered > 100 && outstanding < 20, "{} {outstanding}", search.answered);
        let done = work_s(&plant) / WORK.as_secs_f64();
        let answered = search.answered as f64;
        let range = answered - 0.01..=answered + outstanding as f64 + 0.01;
        assert!(range.contains(&done), "no work is lost or done again: {done} {range:?}");
    }
}

fn cycle(model: &mut MachineModel, cores: &[u16], share: f64, period_us: u64) {
    let (cores, period) = (cores.to_vec(), Nanos::from_micros(period_us));
    model.duty_cycle = Some(DutyCycle { cores, share, period });
}

#[test]
fn a_core_with_a_duty_cycle_does_its_share_of_the_work() {
    let mut model = whole();
    model.app.retain(|app| app.name == "batch");
    (model.gate, model.card, model.cache, model.memory) = (Vec::new(), None, None, None);
    model.scaling = None;
    cycle(&mut model, &[1, 3], 0.25, 250);
    let mut plant = plant(&model, None);
    plant.observe(Nanos::from_secs(1)).unwrap();
    let seen = plant.observe(Nanos::from_secs(1)).unwrap();
    let per_s = seen.apps[0].progress.as_ref().unwrap().per_s;
    assert!((per_s - 2.5).abs() < 0.01, "two cores and two quarters: {per_s}");
    let used = seen.cores[1].utilisation.as_ref().unwrap();
    assert!(*used > 0.999, "the core is held in its pauses: {used}");
}

#[test]
fn polling_takes_its_core_time_from_the_apps() {
    let progress = |receive: Nanos| {
        let mut model = whole();
        model.card.as_mut().unwrap().receive = receive;
        let mut plant = plant(&model, gate(Open));
        plant.observe(Nanos::from_secs(1)).unwrap().apps[2].progress.as_ref().unwrap().per_s
    };
    let (cheap, dear) = (progress(Nanos::from_micros(1)), progress(Nanos::from_micros(200)));
    assert!(dear < 0.95 * cheap, "{dear} {cheap}");
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let run = || {
        let mut plant = whole_plant(4);
        plant.observe(Nanos::from_millis(300)).unwrap();
        (plant.gated_totals(), plant.simulation().totals())
    };
    assert_eq!(run(), run());
}

const LOOK: Nanos = Nanos::from_micros(20);

fn look(model: &mut MachineModel, polling: Polling) {
    model.gate[0].polling = Some(polling);
}

type Change = fn(&mut MachineModel);

fn assert_refused(cases: &[(Change, &str)]) {
    for (change, message) in cases {
        let mut model = whole();
        change(&mut model);
        let error = model.check().unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn times_of_changes_and_of_looks_have_bounds() {
    assert_refused(&[
        (
            |model| {
                let scaling = model.scaling.as_mut().unwrap();
                scaling.governor = Governor::Performance;
                scaling.latency = Nanos::from_millis(11);
            },
            "scaling.latency: is 11000000, must be at most 10 ms",
        ),
        (
            |model| look(model, Polling { every: Nanos(1), work: Nanos::ZERO }),
            "gate.polling.every: is 1, must be at least 10 us",
        ),
        (
            |model| look(model, Polling { every: LOOK, work: LOOK }),
            "gate.polling.every: is 20000, must be longer than a look",
        ),
    ]);
}

#[test]
fn a_part_that_another_needs_is_named() {
    assert_refused(&[
        (|model| model.idle.clear(), "power: needs idle states"),
        (
            |model| model.gate[0].query.round_trip.mean = Nanos(u64::MAX),
            "gate.query.round_trip.mean: ",
        ),
        (|model| model.gate.clear(), "app[1].activity: connections are served behind a gate"),
        (|model| drop(model.app.remove(1)), "gate: nothing is behind it"),
        (|model| model.scaling.as_mut().unwrap().lowest = Hertz(3_000_000_000), "scaling.lowest"),
        (|model| model.scaling.as_mut().unwrap().domain = 3, "scaling.domain"),
        (|model| model.idle.swap(0, 1), "idle[1].residency"),
        (
            |model| {
                dispatched(model);
                model.core_types.as_mut().unwrap().types.reverse();
            },
            "core-types: core types must go from slow to fast",
        ),
        (
            |model| {
                dispatched(model);
                model.core_types.as_mut().unwrap().supply = Supply::Any(3);
            },
            "core-types.supply: the numbers of cores",
        ),
        (
            |model| {
                dispatched(model);
                model.dispatch.as_mut().unwrap().app = "batch".to_owned();
            },
            "dispatch.app: the activity of the app",
        ),
        (
            |model| {
                dispatched(model);
                model.app[0].threads = 3;
            },
            "app[0].threads: a dispatched app needs",
        ),
        (|model| model.idle[1].watts.0 = 9.0, "idle[1].watts: the state never pays"),
        (|model| cycle(model, &[0, 4], 0.5, 250), "duty-cycle.cores[1]: is 4, must be the number"),
        (|model| cycle(model, &[0], 1.0, 250), "duty-cycle.share: is 1, must be above 0"),
        (|model| cycle(model, &[0], 0.5, 1), "duty-cycle.period: is 0.000001, must be from 10 us"),
        (
            |model| model.run_queues = Some(RunQueues::Queues),
            "run-queues: an app that never blocks needs time slices",
        ),
    ]);
    let error = MachinePlant::new(&whole(), &[], 1, 0).unwrap_err().to_string();
    assert!(error.contains("no admission controller"), "{error}");
}
