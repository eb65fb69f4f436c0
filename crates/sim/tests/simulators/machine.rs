//! The co-location node: laws that hold whatever runs, and the seam to policies.

use lull_control::{
    AppId, AppSpec, ApplyOutcome, CoreSet, Plant, RosterEvent, Scheduling, Setting, WayMask,
    conformance,
};
use lull_measure::catalogue::CPU;
use lull_measure::compliance::late_share;
use lull_measure::{Nanos, Percentile};
use lull_sim::machine::{
    Activity, Cache, ClosedClients, LinuxScheduler, LoadStep, LocalClient, MachineApp,
    MachineModel, MachinePlant, MachineSimulation, MachineTotals, Memory, MemoryUse, Presence,
    Throttle,
};
use lull_sim::model::{Distribution, Shape};
use proptest::prelude::*;
use rayon::prelude::*;

const SECOND: Nanos = Nanos::from_secs(1);

fn requests(name: &str, threads: u32, rate_per_s: f64, shape: Shape) -> MachineApp {
    let work = Distribution { mean: Nanos::from_millis(1), shape };
    let load = vec![LoadStep { from: Nanos::ZERO, rate_per_s }];
    let memory = MemoryUse { share: 0.3, bytes_per_s: 0.5e9, floor: 0.3, ways: 4.0 };
    let activity = Activity::requests(work, load);
    MachineApp {
        name: name.to_owned(),
        threads,
        activity,
        memory,
        ipc: 1.2,
        presence: Default::default(),
    }
}

fn batch(name: &str, threads: u32, activity: Activity) -> MachineApp {
    let memory = MemoryUse { share: 0.4, bytes_per_s: 2e9, floor: 0.5, ways: 6.0 };
    MachineApp {
        name: name.to_owned(),
        threads,
        activity,
        memory,
        ipc: 1.0,
        presence: Default::default(),
    }
}

fn phases() -> Activity {
    Activity::Phases { work: Distribution::exponential(Nanos::from_millis(5)) }
}

fn node(cores: u16, app: Vec<MachineApp>) -> MachineModel {
    MachineModel {
        cache: Some(Cache { ways: 20, reference_ways: None, way_bytes: 1 << 20 }),
        memory: Some(Memory {
            peak_bytes_per_s: 20e9,
            queueing: 0.5,
            throttle: Some(Throttle { min_percent: 10, step_percent: 10 }),
        }),
        app,
        ..MachineModel::plain("test", cores, "2GHz".parse().unwrap())
    }
}

/// Without cache and memory, and with switches that cost nothing: a queue.
fn bare(cores: u16, app: Vec<MachineApp>) -> MachineModel {
    let scheduler = LinuxScheduler { switch_cost: Nanos::ZERO, ..LinuxScheduler::default() };
    MachineModel { cache: None, memory: None, scheduler, ..node(cores, app) }
}

fn three() -> MachineModel {
    let apps = vec![
        requests("a", 4, 900.0, Shape::Lognormal { cv2: 3.0 }),
        requests("b", 2, 700.0, Shape::Exponential),
        batch("c", 3, phases()),
        batch("d", 2, Activity::Endless),
    ];
    node(4, apps)
}

fn specs() -> Vec<AppSpec> {
    let lc = |name| AppSpec::latency_critical(name, Percentile::P95, Nanos::from_millis(10));
    let be = AppSpec::best_effort;
    vec![lc("a"), lc("b"), be("c"), be("d")]
}

fn plant(replication: u64) -> MachinePlant {
    MachinePlant::new(&three(), &specs(), 1, replication).unwrap()
}

#[test]
fn a_simulated_node_is_a_plant() {
    conformance::check(Nanos::from_millis(50), || plant(0));
}

#[test]
fn apps_of_a_simulated_node_come_and_go() {
    conformance::check_churn(Nanos::from_millis(50), 200, &mut plant(0), |plant, app, event| {
        plant.change(app, event);
    });
}

#[test]
fn an_app_uses_the_node_while_it_is_present_and_others_have_the_rest() {
    let at = |seconds: &[u64]| seconds.iter().map(|second| SECOND * *second).collect();
    let presence = Presence { arrives: at(&[1, 6]), leaves: at(&[4]), restarts: at(&[2]) };
    let visitor = MachineApp { presence, ..batch("visitor", 2, Activity::Endless) };
    let mut alone = MachineSimulation::new(&bare(2, vec![visitor]), 1, 0).unwrap();
    alone.run_until(SECOND * 7);
    let visited = alone.totals();
    assert_eq!(visited.apps[0].present, SECOND * 4);
    let busy_s: f64 = visited.utilisation.iter().map(|share| share * 7.0).sum();
    assert!((busy_s - 8.0).abs() < 1e-6, "two cores for four seconds: {busy_s}");

    let beside = |presence| {
        let mut apps = three().app;
        apps[2].presence = presence;
        let mut plant = MachinePlant::new(&node(4, apps), &specs(), 1, 0).unwrap();
        plant.observe(SECOND * 5).unwrap();
        plant.simulation().totals()
    };
    let (with, without) = (
        beside(Presence::default()),
        beside(Presence { arrives: at(&[10]), ..Presence::default() }),
    );
    assert_eq!(without.apps[2].busy_cores, 0.0);
    assert!(without.apps[3].work_per_s > 1.1 * with.apps[3].work_per_s, "the rest is used");
    let arrived = |totals: &MachineTotals| [0, 1].map(|app: usize| totals.apps[app].arrived);
    assert_eq!(arrived(&with), arrived(&without), "requests are the same");
}

#[test]
fn a_restart_loses_the_requests_that_wait_and_is_reported_once() {
    let mut plant = plant(0);
    let _ = plant.apply(&[Setting::Cores(AppId(0), CoreSet::first(1))]);
    plant.observe(SECOND).unwrap();
    let class = Setting::Scheduling(AppId(0), Scheduling::RoundRobin { priority: 3 });
    let _ = plant.apply(&[class]);
    plant.change(AppId(0), RosterEvent::Restarted);
    let normal = Setting::Scheduling(AppId(0), Scheduling::Normal { nice: 0 });
    let all = Setting::Cores(AppId(0), CoreSet::first(4));
    assert!(plant.settings().contains(&normal) && plant.settings().contains(&all));
    assert_eq!(plant.observe(SECOND).unwrap().restarted, [AppId(0)]);
    assert!(plant.observe(SECOND).unwrap().restarted.is_empty());
    let totals = &plant.simulation().totals().apps[0];
    let waiting = plant.observe(Nanos(1)).unwrap().apps[0].latency.as_ref().unwrap().outstanding;
    assert_eq!(totals.arrived, totals.answered + totals.lost + waiting);
    assert!(totals.lost > 0 && totals.present == SECOND * 3);
}

#[test]
fn changes_that_cannot_happen_are_refused_with_their_key() {
    let times = |times: &[u64]| times.iter().map(|second| SECOND * *second).collect::<Vec<_>>();
    let refused = |arrives: &[u64], leaves: &[u64], restarts: &[u64]| {
        let (arrives, leaves, restarts) = (times(arrives), times(leaves), times(restarts));
        let mut model = three();
        model.app[1].presence = Presence { arrives, leaves, restarts };
        MachineSimulation::new(&model, 1, 0).err().map(|error| error.to_string())
    };
    assert_eq!(refused(&[5], &[2, 9], &[1, 6]), None);
    let cases = [
        (refused(&[0], &[], &[]), "app[1].presence.arrives: each change"),
        (refused(&[2], &[2], &[]), "app[1].presence.leaves: each change"),
        (
            refused(&[1, 2], &[], &[]),
            "app[1].presence.arrives: the app arrives while it is present",
        ),
        (refused(&[], &[1, 2], &[]), "app[1].presence.leaves: the app leaves while it is absent"),
        (refused(&[2], &[], &[1]), "app[1].presence.restarts: the app restarts while it is absent"),
    ];
    for (found, wanted) in cases {
        assert!(found.as_ref().is_some_and(|text| text.contains(wanted)), "{found:?}: {wanted}");
    }
    let mut model = three();
    model.app.push(MachineApp {
        presence: Presence { leaves: times(&[1]), ..Default::default() },
        ..batch("clients", 1, Activity::Clients)
    });
    let text = MachineSimulation::new(&model, 1, 0).err().unwrap().to_string();
    assert!(text.contains("app[4].presence.leaves: an app of clients"), "{text}");
}

#[test]
fn a_node_without_cache_and_memory_has_no_such_knobs() {
    let make = || MachinePlant::new(&bare(2, three().app), &specs(), 1, 0).unwrap();
    conformance::check(Nanos::from_millis(50), make);
    let wanted = [Setting::CacheWays(AppId(0), WayMask(1))];
    assert!(matches!(make().apply(&wanted).outcomes[0].got, ApplyOutcome::Refused { .. }));
}

#[test]
fn the_same_seed_gives_the_same_run_on_any_number_of_threads() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let all = (0..6u64).into_par_iter().map(|replication| {
                let mut plant = plant(replication);
                for epoch in 0..6u16 {
                    let cores = CoreSet::first(1 + epoch % 4);
                    let _ = plant.apply(&[Setting::Cores(AppId(epoch % 4), cores)]);
                    plant.observe(Nanos::from_millis(150)).unwrap();
                }
                plant.simulation().totals()
            });
            all.collect::<Vec<_>>()
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(4));
    assert_ne!(one[0], one[1], "replications differ");
}

#[test]
fn looking_does_not_change_what_happens() {
    let (mut often, mut once) = (plant(0), plant(0));
    (0..200).for_each(|_| drop(often.observe(Nanos::from_millis(10)).unwrap()));
    once.observe(SECOND * 2).unwrap();
    let events = |plant: &MachinePlant| (plant.simulation().events(), plant.simulation().totals());
    assert_eq!(events(&often), events(&once));
}

#[test]
fn policies_that_steer_differently_meet_the_same_requests() {
    let arrived = |cores: u16| {
        let mut plant = plant(0);
        let _ = plant.apply(&[Setting::Cores(AppId(0), CoreSet::first(cores))]);
        plant.observe(SECOND * 3).unwrap();
        plant.simulation().totals().apps.iter().map(|app| app.arrived).collect::<Vec<_>>()
    };
    assert_eq!(arrived(1), arrived(4));
}

/// Mean response of an app alone on `cores` with as many threads, in units of its work.
fn alone(cores: u16, rate_per_s: f64) -> f64 {
    let app = requests("q", u32::from(cores), rate_per_s, Shape::Exponential);
    let model = bare(cores, vec![app]);
    let runs = (0..8u64).into_par_iter().map(|replication| {
        let mut node = MachineSimulation::new(&model, 7, replication).unwrap();
        node.run_until(SECOND * 2);
        node.forget();
        node.run_until(SECOND * 102);
        node.totals().apps[0].latency.mean().unwrap().as_secs_f64() * 1e3
    });
    runs.collect::<Vec<_>>().iter().sum::<f64>() / 8.0
}

#[test]
fn an_app_alone_is_the_queue_that_theory_knows() {
    // M/M/1 at load 0.8: 5 units. M/M/4 at load 0.8: Erlang C gives 1.7455.
    let (one, four) = (alone(1, 800.0), alone(4, 3200.0));
    assert!((one / 5.0 - 1.0).abs() < 0.05, "{one}");
    assert!((four / 1.7455 - 1.0).abs() < 0.03, "{four}");
}

#[test]
fn real_time_goes_first_and_idle_goes_last() {
    let apps = vec![requests("a", 4, 900.0, Shape::Exponential), batch("c", 4, Activity::Endless)];
    let specs = [
        AppSpec::latency_critical("a", Percentile::P95, Nanos::from_millis(10)),
        AppSpec::best_effort("c"),
    ];
    let tail = |setting: Option<Setting>| {
        let mut plant = MachinePlant::new(&bare(2, apps.clone()), &specs, 1, 0).unwrap();
        setting.iter().for_each(|it| drop(plant.apply(std::slice::from_ref(it))));
        let seen = plant.observe(SECOND * 20).unwrap();
        seen.apps[0].latency.as_ref().unwrap().tail(Percentile::P95).unwrap()
    };
    let shared = tail(None);
    let real_time =
        tail(Some(Setting::Scheduling(AppId(0), Scheduling::RoundRobin { priority: 1 })));
    let idle = tail(Some(Setting::Scheduling(AppId(1), Scheduling::Idle)));
    // M/M/2 alone at load 0.45 has its 95th percentile at 3.5 ms.
    assert!(real_time < Nanos::from_micros(4200), "{real_time}");
    assert!(idle < Nanos::from_micros(4600), "{idle}");
    assert!(shared > real_time * 2, "{shared} shared, {real_time} real-time");
}

/// Share of short requests that wait for an endless thread's slice to end.
fn waiting(wakeup_lead: Option<Nanos>, wakeup_chance: f64) -> f64 {
    let mut app = requests("a", 1, 5.0, Shape::Constant);
    let Activity::Requests { work, .. } = &mut app.activity else { unreachable!() };
    work.mean = Nanos::from_micros(10);
    let model = bare(1, vec![app, batch("c", 1, Activity::Endless)]);
    let scheduler = LinuxScheduler { wakeup_lead, wakeup_chance, ..model.scheduler };
    let mut node = MachineSimulation::new(&MachineModel { scheduler, ..model }, 3, 0).unwrap();
    node.run_until(SECOND * 2000);
    let totals = node.totals();
    late_share(&totals.apps[0].latency, Nanos::from_micros(20)).unwrap()
}

#[test]
fn a_waking_thread_preempts_as_often_as_configured() {
    assert!(waiting(None, 1.0) > 0.99);
    assert!(waiting(Some(Nanos::ZERO), 1.0) < 0.01);
    for chance in [0.9, 0.5] {
        let share = waiting(Some(Nanos::ZERO), chance);
        // Four standard deviations of a share of 10,000.
        assert!((share - (1.0 - chance)).abs() < 0.02, "{chance}: {share}");
    }
}

#[test]
fn nice_values_share_a_core_by_weight() {
    let apps = vec![batch("c", 1, Activity::Endless), batch("d", 1, Activity::Endless)];
    let specs = [AppSpec::best_effort("c"), AppSpec::best_effort("d")];
    let mut plant = MachinePlant::new(&bare(1, apps), &specs, 1, 0).unwrap();
    let _ = plant.apply(&[Setting::Scheduling(AppId(1), Scheduling::Normal { nice: 5 })]);
    let seen = plant.observe(SECOND * 20).unwrap();
    let cpu = |app: usize| seen.apps[app].readings.value(CPU).unwrap();
    let ratio = cpu(0) / cpu(1);
    assert!((ratio / 1.25_f64.powi(5) - 1.0).abs() < 0.02, "{ratio}");
}

#[test]
fn threads_leave_cores_that_they_may_no_longer_use() {
    let mut plant = plant(0);
    plant.observe(SECOND).unwrap();
    for app in 0..4 {
        let _ = plant.apply(&[Setting::Cores(AppId(app), CoreSet::first(1))]);
    }
    let seen = plant.observe(SECOND).unwrap();
    let used: Vec<f64> =
        seen.cores.iter().map(|core| *core.utilisation.as_ref().unwrap()).collect();
    assert!(used[0] > 0.999 && used[1..].iter().all(|used| *used == 0.0), "{used:?}");
}

#[test]
fn fenced_cores_are_wasted_while_others_wait_and_shared_ones_change_hands() {
    let apps = vec![batch("batch", 2, Activity::Endless), requests("b", 1, 100.0, Shape::Constant)];
    let critical = AppSpec::latency_critical("b", Percentile::P95, Nanos::from_millis(10));
    let specs = [AppSpec::best_effort("batch"), critical];
    let run = |cores: [&str; 2]| {
        let mut plant = MachinePlant::new(&bare(2, apps.clone()), &specs, 1, 0).unwrap();
        for (app, cores) in (0..).map(AppId).zip(cores) {
            let _ = plant.apply(&[Setting::Cores(app, cores.parse().unwrap())]);
        }
        plant.observe(SECOND * 10).unwrap();
        plant
    };
    let fenced = run(["0", "1"]);
    assert_eq!(fenced.simulation().running_on(0), Some(0));
    assert_eq!(fenced.simulation().waiting_threads(), 1, "the other thread of the batch app");
    let fenced = fenced.simulation().totals();
    let [batch, server] = [&fenced.apps[0], &fenced.apps[1]];
    let idle = 2.0 - batch.busy_cores - server.busy_cores;
    assert!((fenced.wasted_cores - idle).abs() < 1e-9 && idle > 0.8, "{fenced:?}");
    // Only its first request follows a thread of the other app on its core.
    assert!(server.transfers <= 1 && server.transferred_cores < 0.001, "{server:?}");
    assert_eq!(batch.transfers, 0);

    let shared = run(["0-1", "0-1"]).simulation().totals();
    let server = &shared.apps[1];
    assert_eq!(shared.wasted_cores, 0.0);
    assert!(server.transfers > 500 && server.transferred_cores > 0.9 * server.busy_cores);
}

#[test]
fn threads_at_a_barrier_leave_their_cores_to_others() {
    let busy = |app: Vec<MachineApp>, watched: usize| {
        let mut node = MachineSimulation::new(&bare(4, app), 1, 0).unwrap();
        node.run_until(SECOND * 10);
        let totals = node.totals();
        (totals.apps[watched].busy_cores, totals.utilisation.iter().sum::<f64>())
    };
    // Four exponential phases end together after 1 + 1/2 + 1/3 + 1/4 means: 4/2.083 = 1.92 cores.
    let (alone, _) = busy(vec![batch("c", 4, phases())], 0);
    assert!((alone - 1.92).abs() < 0.1, "{alone}");
    let filled = vec![batch("c", 4, phases()), batch("d", 4, Activity::Endless)];
    assert!((busy(filled, 1).1 - 4.0).abs() < 1e-9, "an endless app fills every gap");
}

#[test]
fn ipc_shows_interference_and_cpu_time_does_not() {
    let quiet = MachineModel { app: vec![three().app.remove(3)], ..three() };
    let mut apps = quiet.app.clone();
    let noisy = MemoryUse { share: 0.9, bytes_per_s: 12e9, floor: 0.9, ways: 2.0 };
    apps.push(MachineApp { memory: noisy, ..batch("noise", 2, Activity::Endless) });
    let run = |model: &MachineModel| {
        let mut node = MachineSimulation::new(model, 1, 0).unwrap();
        node.run_until(SECOND * 2);
        let app = node.totals().apps.remove(0);
        (app.ipc, app.busy_cores)
    };
    let (alone, beside) = (run(&quiet), run(&MachineModel { app: apps, ..three() }));
    assert!(beside.0 < 0.8 * alone.0, "{alone:?} {beside:?}");
    assert!((alone.1 - 2.0).abs() < 1e-9 && (beside.1 - 2.0).abs() < 1e-9);
}

type Break = fn(&mut MachineModel);

#[test]
fn a_bad_node_is_refused_by_key() {
    let broken: [(&str, Break); 9] = [
        ("cores", |model| model.cores = 0),
        ("cores", |model| model.cores = 65),
        ("app", |model| model.app.clear()),
        ("app[1].threads", |model| model.app[1].threads = 0),
        ("app[2].name", |model| model.app[2].name = "a".to_owned()),
        ("app[3].memory.share", |model| model.app[3].memory.share = 0.0),
        ("app[3].memory.bytes-per-s", |model| model.app[3].memory.bytes_per_s = 1e308),
        ("scheduler.wakeup-chance", |model| model.scheduler.wakeup_chance = 1.01),
        ("scheduler.switch-cost", |model| model.scheduler.switch_cost = Nanos::from_millis(4)),
    ];
    for (key, break_it) in broken {
        let mut model = three();
        break_it(&mut model);
        let error = MachineSimulation::new(&model, 1, 0).unwrap_err();
        assert_eq!(error.key, key, "{error}");
    }
    for (shape, wanted) in [
        (Shape::HyperExponential { cv2: 0.5 }, "from 1 to 1e6"),
        (Shape::Gamma { cv2: 0.0 }, "above 1e-6"),
        (Shape::Erlang { stages: 0 }, "must be at least 1"),
    ] {
        let model = node(1, vec![requests("a", 1, 100.0, shape)]);
        let error = MachineSimulation::new(&model, 1, 0).unwrap_err();
        assert!(error.key.starts_with("app[0].activity.requests.work.shape"), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let strange = [AppSpec::best_effort("stranger")];
    let text = MachinePlant::new(&three(), &strange, 1, 0).unwrap_err().to_string();
    assert!(text.contains("stranger") && text.contains("a, b, c, d"), "{text}");
    let silent = [AppSpec::latency_critical("d", Percentile::P95, SECOND)];
    assert!(MachinePlant::new(&three(), &silent, 1, 0).is_err());
}

/// An act of a policy on an app, or of its owner.
#[derive(Debug, Clone)]
enum Turn {
    Cores(u16),
    Class(Scheduling),
    Ways(u32, u32),
    Percent(u8),
    Roster(RosterEvent),
}

fn turn() -> impl Strategy<Value = (u16, Turn)> {
    let class = prop_oneof![
        Just(Scheduling::Idle),
        (-20i8..20).prop_map(|nice| Scheduling::Normal { nice }),
        (1u8..4).prop_map(|priority| Scheduling::RoundRobin { priority }),
    ];
    let turn = prop_oneof![
        (1u16..16).prop_map(Turn::Cores),
        class.prop_map(Turn::Class),
        (0u32..10, 1u32..10).prop_map(|(first, count)| Turn::Ways(first, count)),
        (1u8..=100).prop_map(Turn::Percent),
        Just(Turn::Roster(RosterEvent::Departed)),
        Just(Turn::Roster(RosterEvent::Arrived)),
        Just(Turn::Roster(RosterEvent::Restarted)),
    ];
    (0u16..4, turn)
}

fn steer(plant: &mut MachinePlant, app: u16, turn: &Turn) {
    let app = AppId(app);
    let setting = match turn {
        Turn::Cores(bits) => {
            let cores = (0..4).filter(|core| bits & 1 << core != 0).map(lull_control::CoreId);
            Setting::Cores(app, cores.collect())
        }
        Turn::Class(class) => Setting::Scheduling(app, *class),
        Turn::Ways(first, count) => Setting::CacheWays(app, WayMask::run(*first, *count)),
        Turn::Percent(percent) => Setting::MemoryBandwidth(app, *percent),
        Turn::Roster(event) => return plant.change(app, *event),
    };
    if !plant.is_present(app) {
        return;
    }
    for outcome in plant.apply(&[setting]).outcomes {
        assert!(outcome.in_force().is_some(), "{outcome:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_laws_hold_whatever_a_policy_does(
        turns in prop::collection::vec(turn(), 0..24),
        replication in 0u64..1000,
    ) {
        let mut plant = plant(replication);
        for (app, turn) in &turns {
            steer(&mut plant, *app, turn);
            let seen = plant.observe(Nanos::from_millis(37)).unwrap();
            let used = seen.cores.iter().map(|core| *core.utilisation.as_ref().unwrap());
            let cores: f64 = used.sum();
            let used = seen.apps.iter().map(|app| app.readings.value(CPU).unwrap_or(0.0));
            let apps: f64 = used.sum();
            prop_assert!((cores - apps).abs() < 1e-6, "busy cores {cores}, apps {apps}");
        }
        plant.observe(SECOND).unwrap();
        let totals = plant.simulation().totals();
        for app in &totals.apps {
            // Work is conserved: none is done off a core, none faster than alone.
            prop_assert!(app.work_per_s <= app.busy_cores * (1.0 + 1e-9), "{app:?}");
            prop_assert!(app.answered + app.lost <= app.arrived);
            prop_assert_eq!(app.latency.count(), app.answered);
        }
        // Nothing idles while a thread that may run there waits: the endless app's cores are busy.
        let mask = plant.settings().into_iter().find_map(|setting| match setting {
            Setting::Cores(AppId(3), cores) => Some(cores),
            _ => None,
        });
        if turns.is_empty() {
            let free = mask.unwrap().len().min(2) as f64;
            prop_assert!(totals.utilisation.iter().sum::<f64>() >= free - 1e-6);
        }
    }

    #[test]
    fn no_core_idles_while_a_thread_that_may_use_it_waits(
        turns in prop::collection::vec(turn(), 0..12),
        replication in 0u64..1000,
    ) {
        // More endless threads than cores, free to go everywhere.
        let mut apps = three().app;
        apps[3].threads = 5;
        let mut plant = MachinePlant::new(&node(4, apps), &specs(), 1, replication).unwrap();
        for (app, turn) in turns.iter().filter(|(app, _)| *app != 3) {
            steer(&mut plant, *app, turn);
            let seen = plant.observe(Nanos::from_millis(20)).unwrap();
            for core in &seen.cores {
                let used = *core.utilisation.as_ref().unwrap();
                prop_assert!((used - 1.0).abs() < 1e-9, "{used}");
            }
        }
    }

    #[test]
    fn littles_law_is_exact_once_everybody_has_left(
        turns in prop::collection::vec(turn(), 0..12),
        replication in 0u64..1000,
    ) {
        let mut model = three();
        for app in &mut model.app {
            if let Activity::Requests { load, .. } = &mut app.activity {
                load.push(LoadStep { from: SECOND, rate_per_s: 0.0 });
            }
        }
        model.app.truncate(2);
        let mut plant = MachinePlant::new(&model, &specs()[..2], 1, replication).unwrap();
        // Who departs leaves requests unanswered: the law is of those that stay.
        let stays = |turn: &Turn| !matches!(turn, Turn::Roster(_));
        for (app, turn) in turns.iter().filter(|(app, turn)| *app < 2 && stays(turn)) {
            steer(&mut plant, *app, turn);
            plant.observe(Nanos::from_millis(50)).unwrap();
        }
        plant.observe(SECOND * 60).unwrap();
        let totals = plant.simulation().totals();
        for app in &totals.apps {
            prop_assert_eq!(app.arrived, app.answered);
            let rate = app.answered as f64 / totals.span.as_secs_f64();
            let mean = app.latency.mean().unwrap().as_secs_f64();
            // Latencies are kept within 0.1 %.
            prop_assert!((rate * mean / app.outstanding - 1.0).abs() < 2e-3, "{app:?}");
        }
    }
}

/// One core, one app, and clients that wait for their answers.
fn closed(clients: u32, think_ms: u64) -> MachineModel {
    let activity = Activity::Requests {
        work: Distribution::exponential(Nanos::from_millis(1)),
        load: Vec::new(),
        closed: Some(ClosedClients {
            clients,
            think: Distribution::exponential(Nanos::from_millis(think_ms)),
        }),
        arrivals: "poisson".parse().unwrap(),
        delay: None,
        client: None,
    };
    let app = MachineApp { memory: MemoryUse::default(), ..batch("a", 1, activity) };
    MachineModel {
        scheduler: LinuxScheduler { switch_cost: Nanos::ZERO, ..LinuxScheduler::default() },
        ..bare(1, vec![app])
    }
}

#[test]
fn clients_that_wait_for_answers_make_the_throughput_of_a_closed_queue() {
    // M/M/1//N (Kleinrock 1975, section 3.8): the share of time without a request.
    let (clients, ratio) = (8u32, 1.0 / 10.0);
    let terms = (0..=clients).scan(1.0, |term, waiting| {
        let now = *term;
        *term *= f64::from(clients - waiting) * ratio;
        Some(now)
    });
    let utilisation = 1.0 - 1.0 / terms.sum::<f64>();
    let mut node = MachineSimulation::new(&closed(clients, 10), 1, 0).unwrap();
    node.run_until(SECOND * 10);
    node.forget();
    node.run_until(SECOND * 310);
    let app = &node.totals().apps[0];
    let per_s = app.answered as f64 / 300.0;
    assert!((per_s / (1e3 * utilisation) - 1.0).abs() < 0.01, "{per_s} {utilisation}");
    // Little's law over the whole loop: each client either thinks or waits.
    let loop_s = app.latency.mean().unwrap().as_secs_f64() + 0.01;
    assert!((per_s * loop_s / f64::from(clients) - 1.0).abs() < 0.01, "{loop_s}");
}

#[test]
fn clients_that_wait_are_refused_beside_a_rate_or_where_their_app_departs() {
    let key = |change: fn(&mut MachineApp)| {
        let mut model = closed(2, 1);
        change(&mut model.app[0]);
        model.check().unwrap_err().key
    };
    let with_rate = |app: &mut MachineApp| {
        let Activity::Requests { load, .. } = &mut app.activity else { unreachable!() };
        load.push(LoadStep { from: Nanos::ZERO, rate_per_s: 1.0 });
    };
    assert_eq!(key(with_rate), "app[0].activity.requests.load");
    assert_eq!(key(|app| app.presence.leaves = vec![SECOND]), "app[0].activity.requests.closed");
    let none = |app: &mut MachineApp| {
        let Activity::Requests { closed: Some(closed), .. } = &mut app.activity else {
            unreachable!()
        };
        closed.clients = 0;
    };
    assert_eq!(key(none), "app[0].activity.requests.closed.clients");
}

/// One app of constant work whose clients run here too, hardly loaded.
fn with_client(client: &str) -> MachineModel {
    let constant = |us| Distribution::constant(Nanos::from_micros(us));
    let activity = Activity::Requests {
        work: constant(300),
        load: vec![LoadStep { from: Nanos::ZERO, rate_per_s: 1.0 }],
        closed: None,
        arrivals: "constant".parse().unwrap(),
        delay: Some(constant(1_000)),
        client: Some(LocalClient { app: client.to_owned(), work: constant(50) }),
    };
    let app = vec![batch("a", 2, activity), batch("clients", 1, Activity::Clients)];
    bare(2, app.into_iter().map(|app| MachineApp { memory: MemoryUse::default(), ..app }).collect())
}

#[test]
fn a_request_passes_through_its_client_twice_and_its_delay_keeps_no_core() {
    let mut node = MachineSimulation::new(&with_client("clients"), 1, 0).unwrap();
    node.run_until(SECOND * 10);
    let totals = node.totals();
    let [app, client] = [&totals.apps[0], &totals.apps[1]];
    assert_eq!(app.answered, 9);
    let latency = app.latency.quantile(Percentile::P50).unwrap();
    let wanted = Nanos::from_micros(50 + 300 + 50 + 1_000);
    assert!(latency.0.abs_diff(wanted.0) <= wanted.0 / 500, "{latency}");
    assert!((app.busy_cores - 9.0 * 300e-6 / 10.0).abs() < 1e-9, "{}", app.busy_cores);
    assert!((client.busy_cores - 9.0 * 100e-6 / 10.0).abs() < 1e-9, "{}", client.busy_cores);
}

#[test]
fn a_client_that_is_none_is_refused() {
    for name in ["a", "stranger"] {
        let error = MachineSimulation::new(&with_client(name), 1, 0).unwrap_err();
        assert_eq!(error.key, "app[0].activity.requests.client.app", "{error}");
    }
}
