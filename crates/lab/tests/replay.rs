//! A replay of a run whose truth is known: it was simulated.

use lull_control::{
    AppSpec, ControlLoop, Controller, Epoch, EpochRule, Machine, Plant, Rng, Rules,
};
use lull_lab::PolicySource;
use lull_lab::progress::Progress;
use lull_lab::replay::{
    Effort, RecordedAppEpoch, RecordedEpoch, Recording, Replay, ReplayError, Steered, Unfit,
};
use lull_lab::scenario::Outcome;
use lull_measure::catalogue::{CPU, RUN_QUEUE_WAIT};
use lull_measure::{Latency, Nanos, Percentile};
use lull_policies::POLICIES;

use lull_sim::machine::{
    Activity, LinuxScheduler, LoadStep, LocalClient, MachineApp, MachineModel, MachinePlant,
};
use lull_sim::model::{Distribution, Shape};
use lull_workload::arrivals::Process;
use rand::SeedableRng;

const EPOCH: Nanos = Nanos::from_millis(500);

fn app(name: &str, threads: u32, activity: Activity) -> MachineApp {
    MachineApp {
        name: name.to_owned(),
        threads,
        activity,
        memory: Default::default(),
        ipc: 1.0,
        presence: Default::default(),
    }
}

/// A server whose load jumps, its client, and endless work beside them; its
/// rates are this many times those of an ordinary load, at which two cores of
/// its own are a third busy at most.
fn truth(times: f64) -> MachineModel {
    let lognormal = |us: u64, cv2: f64| Distribution {
        mean: Nanos::from_micros(us),
        shape: Shape::Lognormal { cv2 },
    };
    let step = |s: u64, rate_per_s: f64| LoadStep {
        from: Nanos::from_secs(s),
        rate_per_s: times * rate_per_s,
    };
    let server = Activity::Requests {
        work: lognormal(400, 1.5),
        load: vec![step(0, 800.0), step(10, 1600.0), step(20, 800.0), step(30, 1200.0)],
        closed: None,
        arrivals: Process::Poisson,
        delay: Some(lognormal(150, 0.5)),
        client: Some(LocalClient {
            app: "client".to_owned(),
            work: Distribution::constant(Nanos::from_micros(20)),
        }),
    };
    let switch_cost = Nanos::from_micros(4);
    MachineModel {
        scheduler: LinuxScheduler { wakeup_lead: None, switch_cost, ..LinuxScheduler::default() },
        app: vec![
            app("server", 4, server),
            app("batch", 2, Activity::Endless),
            app("client", 1, Activity::Clients),
        ],
        ..MachineModel::plain("truth", 3, "2GHz".parse().unwrap())
    }
}

fn specs() -> Vec<AppSpec> {
    let server = AppSpec {
        ideal: Some(Nanos::from_micros(1500)),
        ..AppSpec::latency_critical("server", Percentile::P95, Nanos::from_millis(4))
    };
    vec![server, AppSpec { solo_per_s: Some(2.0), ..AppSpec::best_effort("batch") }]
}

/// Returns an epoch as a recorder would store it.
fn recorded_epoch(epoch: &Epoch) -> RecordedEpoch {
    let busy = epoch.seen.cores.iter().filter_map(|core| core.utilisation.as_ref().ok());
    let each = epoch.seen.apps.iter().map(|app| {
        let latency = app.latency.as_ref().ok();
        RecordedAppEpoch {
            latency: latency.map(|it| it.window.clone()),
            offered_per_s: latency.map(|it| it.offered_per_s),
            completed_per_s: latency.map(|it| it.completed_per_s),
            cpu: app.readings.value(CPU),
            waiting: app.readings.value(RUN_QUEUE_WAIT),
            progress_per_s: app.progress.as_ref().ok().map(|it| it.per_s),
            threads: app.threads.as_ref().ok().copied(),
            ..RecordedAppEpoch::default()
        }
    });
    RecordedEpoch { length: epoch.seen.epoch, apps: each.collect(), busy_cores: Some(busy.sum()) }
}

/// The true run under a policy: 40 s.
fn run(policy: &str, seed: u64, times: f64) -> (Machine, Vec<RecordedEpoch>) {
    let plant = MachinePlant::new(&truth(times), &specs(), seed, 0).unwrap();
    let built = POLICIES.build(policy, &toml::Table::new(), plant.machine(), plant.apps()).unwrap();
    let controller = Controller::new(built, Rules::default(), &plant).unwrap();
    let machine = plant.machine().clone();
    let mut control = ControlLoop::new(plant, controller, EPOCH, Rng::seed_from_u64(1));
    (machine, (0..80).map(|_| recorded_epoch(&control.turn().unwrap())).collect())
}

fn recording(policy: &str, seed: u64) -> Recording {
    recording_at(1.0, policy, seed)
}

fn recording_at(times: f64, policy: &str, seed: u64) -> Recording {
    let (machine, epochs) = run(policy, seed, times);
    Recording {
        machine,
        apps: specs(),
        rules: Rules::default(),
        epoch: EpochRule::Fixed(EPOCH),
        blocks: vec![epochs],
        skip: Nanos::from_secs(2),
        clients: vec![Some(Process::Poisson), None],
    }
}

fn steered(policy: &str) -> Steered {
    Steered { policy: PolicySource::Registered(policy.to_owned()), config: toml::Table::new() }
}

const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;

fn mean(outcome: &Outcome, policy: usize, figure: &str) -> f64 {
    let at = outcome.quantities.iter().position(|quantity| quantity.id == figure).unwrap();
    outcome.estimate(policy, at).mean
}

#[test]
fn a_simulated_run_is_reproduced_and_another_policy_is_predicted() {
    let recorded = recording("unmanaged", 5);
    let replay = Replay::new(&recorded, steered("unmanaged"), Effort::default(), NEVER).unwrap();
    let silent = Progress::silent();
    let fit = replay.calibrate(&silent).unwrap();
    let reproduction = replay.reproduce(&fit, &silent).unwrap();
    let (figure, error) = reproduction.worst().unwrap();
    assert!(error < 0.25, "{figure:?} {fit:?}");
    assert_eq!(reproduction.share, 1.0);
    let others = [steered("lc-first"), steered("even")];
    let predicted = replay.predict(&fit, &reproduction, &others, &silent).unwrap();
    for (at, policy) in [(1, "lc-first"), (2, "even")] {
        for (figure, measured) in true_figures(policy) {
            let estimated = mean(&predicted, at, figure);
            let off = (measured / estimated).max(estimated / measured) - 1.0;
            assert!(
                off < 0.35,
                "{policy} {figure}: {estimated} predicted, {measured} measured; {fit:?}"
            );
        }
    }
}

/// Returns the true results of a policy, with other requests than those recorded.
fn true_figures(policy: &str) -> [(&'static str, f64); 4] {
    let recorded = recording(policy, 6);
    let counted = &recorded.blocks[0][4..];
    let mut latency = Latency::default();
    counted.iter().for_each(|it| latency.merge(it.apps[0].latency.as_ref().unwrap()));
    let mean = |read: &dyn Fn(&RecordedEpoch) -> f64| {
        counted.iter().map(read).sum::<f64>() / counted.len() as f64
    };
    let at = |percentile| latency.quantile(percentile).unwrap().as_millis_f64();
    [
        ("p50[server]", at(Percentile::P50)),
        ("p95[server]", at(Percentile::P95)),
        ("throughput[server]", mean(&|it| it.apps[0].completed_per_s.unwrap())),
        ("progress[batch]", 50.0 * mean(&|it| it.apps[1].progress_per_s.unwrap())),
    ]
}

#[test]
fn a_long_run_is_represented_by_parts_that_cover_it() {
    let recorded = recording("unmanaged", 5);
    let effort = Effort { requests: 15_000, replications: 2, ..Effort::default() };
    let replay = Replay::new(&recorded, steered("unmanaged"), effort, NEVER).unwrap();
    let silent = Progress::silent();
    let fit = replay.calibrate(&silent).unwrap();
    let reproduction = replay.reproduce(&fit, &silent).unwrap();
    // 40 s at about 1100/s are 42 000 requests in 3 windows.
    assert!((reproduction.share - 2.0 / 3.0).abs() < 1e-9, "{}", reproduction.share);
    assert!(reproduction.worst().unwrap().1 < 0.3, "{:?}", reproduction.worst());
}

#[test]
fn what_lacks_requests_or_demands_is_refused() {
    let refused = |change: &dyn Fn(&mut Recording)| {
        let mut recorded = recording("unmanaged", 5);
        change(&mut recorded);
        Replay::new(&recorded, steered("unmanaged"), Effort::default(), NEVER).err().unwrap()
    };
    let blind = |recorded: &mut Recording, change: &dyn Fn(&mut RecordedAppEpoch)| {
        recorded.blocks[0].iter_mut().for_each(|epoch| change(&mut epoch.apps[0]));
    };
    let server = || "server".to_owned();
    let silent = refused(&|it| blind(it, &|app| app.latency = None));
    assert_eq!(silent, ReplayError::Unfit(Unfit::Silent { app: server() }));
    let unknown = refused(&|it| blind(it, &|app| app.cpu = None));
    assert_eq!(unknown, ReplayError::Unfit(Unfit::NoDemand { app: server() }));
    let short = refused(&|it| it.skip = Nanos::from_secs(60));
    assert_eq!(short, ReplayError::Unfit(Unfit::Short { skip: Nanos::from_secs(60) }));
}

#[test]
fn a_policy_is_judged_by_the_recorded_machine_first() {
    let recorded = recording("unmanaged", 5);
    let replay = Replay::new(&recorded, steered("unmanaged"), Effort::default(), NEVER).unwrap();
    let error = replay.check_policy(&steered("lcfirst")).unwrap_err().to_string();
    assert!(error.contains("lc-first"), "{error}");
    assert!(matches!(replay.check_policy(&steered("bayop")), Err(ReplayError::Policy(_))));
}

#[test]
fn whoever_asks_to_stop_is_heard() {
    let recorded = recording("unmanaged", 5);
    let stopped: &(dyn Fn() -> bool + Sync) = &|| true;
    let replay = Replay::new(&recorded, steered("unmanaged"), Effort::default(), stopped).unwrap();
    assert_eq!(replay.calibrate(&Progress::silent()).unwrap_err(), ReplayError::Stopped);
}

/// Tails that really come of a policy at a load, over several runs of other
/// requests than those recorded.
fn true_tails(times: f64, policy: &str) -> [(&'static str, f64); 3] {
    let mut latency = Latency::default();
    for seed in 6..10 {
        let recorded = recording_at(times, policy, seed);
        let counted = recorded.blocks[0][4..].iter();
        counted.for_each(|it| latency.merge(it.apps[0].latency.as_ref().unwrap()));
    }
    let at = |percentile| latency.quantile(percentile).unwrap().as_millis_f64();
    [
        ("p50[server]", at(Percentile::P50)),
        ("p95[server]", at(Percentile::P95)),
        ("p99[server]", at(Percentile::P99)),
    ]
}

/// How far the model itself may be off, at any load.
const FAR: f64 = 1.35;

/// Returns how many tails of a run at a load are not predicted; predicted ones must hold.
fn withheld(times: f64, policies: &[&str], effort: Effort) -> usize {
    let recorded = recording_at(times, "unmanaged", 5);
    let replay = Replay::new(&recorded, steered("unmanaged"), effort, NEVER).unwrap();
    let silent = Progress::silent();
    let fit = replay.calibrate(&silent).unwrap();
    let reproduction = replay.reproduce(&fit, &silent).unwrap();
    let others: Vec<Steered> = policies.iter().map(|policy| steered(policy)).collect();
    let predicted = replay.predict(&fit, &reproduction, &others, &silent).unwrap();
    let mut withheld = 0;
    for (policy, number) in policies.iter().zip(1..) {
        for (figure, measured) in true_tails(times, policy) {
            let at = predicted.quantities.iter().position(|it| it.id == figure).unwrap();
            let estimated = predicted.estimate(number, at).mean;
            if !estimated.is_finite() {
                let words = format!("policy `{policy}`: {}", predicted.quantities[at].name);
                let sentence = predicted.notices.iter().find(|it| it.starts_with(&words));
                assert!(sentence.is_some_and(|it| it.contains("saturation")), "{words}");
                withheld += 1;
                continue;
            }
            let [low, high] = predicted.interval(number, at).unwrap();
            let holds = (low / FAR..=high * FAR).contains(&measured);
            assert!(
                holds,
                "{times} {policy} {figure}: {low} to {high} predicted, {measured} measured"
            );
        }
    }
    withheld
}

#[test]
fn a_tail_near_saturation_is_withheld_and_the_error_of_the_demand_is_reported() {
    let effort = Effort { replications: 3, calibration_requests: 5_000, ..Effort::default() };
    assert!(withheld(3.0, &["even"], effort) > 0, "two cores are 96 % busy at the peak");
}
