//! Tiers of which some are machines with cores: calls cross, and each part has its controller.

use lull_control::admission::{Admission, Allowance, GateObservation, Pace, RoundLimits};
use lull_control::dispatcher::{Answer, DispatchRequest, Dispatcher};
use lull_control::{
    AppId, AppSpec, Limits, Observation, Plan, Plant, Policy, Reason, Rng, Rules, Scheduling,
    Setting,
};
use lull_measure::{Nanos, Percentile};
use lull_sim::hosts::{Host, HostedSystem};
use lull_sim::machine::Controllers;
use lull_sim::model::Model;
use lull_sim::plant::{PlantSpec, System};
use lull_sim::{Replication, Totals};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A web server that computes before and after a query of its database.
const TIERS: &str = r#"
    [[tier]]
    name = "web"

    [[tier]]
    name = "data"
    machine = "dvfs"

    [[machine.dvfs.cores]]
    count = 1
    pstates = [{ frequency = "2GHz", volts = 1.2 }, { frequency = "1GHz", volts = 0.9 }]

    [[app]]
    name = "site"
    source = { open = { rate_per_s = 400.0 } }
    steps = [{ call = { tier = "web", steps = [
        { work = { mean = "1ms" } },
        { call = { tier = "data", steps = [{ work = { mean = "0.8ms" } }] } },
        { work = { mean = "0.5ms" } },
    ] } }]
"#;

/// A core with one thread for the web server, and nothing that costs time.
const ONE_CORE: &str = r#"
    name = "one core"
    cores = 1
    frequency = "2GHz"
    scheduler = { switch-cost = "0s" }

    [[app]]
    name = "web"
    threads = 1
    activity = "called"
"#;

const STREAMS: Replication = Replication { seed: 7, number: 3 };
const LONG: Nanos = Nanos::from_secs(60);

fn tiers() -> Model {
    toml::from_str(TIERS).unwrap()
}

/// The same, whose web servers are machines.
fn hosted() -> Model {
    let mut model = tiers();
    model.tier[0].host = Some("box".to_owned());
    model
}

fn host(machine: &str) -> Host {
    let model: lull_sim::machine::MachineModel = toml::from_str(machine).unwrap();
    let bound = Nanos::from_millis(10);
    let spec = |app: &lull_sim::machine::MachineApp| match app.serves() {
        true => AppSpec::latency_critical(&app.name, Percentile::P95, bound),
        false => AppSpec::best_effort(&app.name),
    };
    Host { apps: model.app.iter().map(spec).collect(), model }
}

fn hosts(machine: &str) -> BTreeMap<String, Host> {
    [("box".to_owned(), host(machine))].into()
}

fn system(model: &Model, machine: &str) -> HostedSystem {
    HostedSystem::new(model, &hosts(machine), STREAMS).unwrap()
}

fn mean_ns(totals: &Totals) -> f64 {
    totals.apps[0].response_ns as f64 / totals.apps[0].answered as f64
}

#[test]
fn a_machine_of_one_core_and_thread_is_a_station_but_for_rounding() {
    let mut stations = System::new(&tiers(), STREAMS.seed, STREAMS.number).unwrap();
    stations.run_until(LONG).unwrap();
    let stations = stations.engine().totals();
    let mut hosted = system(&hosted(), ONE_CORE);
    hosted.run_until(LONG).unwrap();
    let totals = hosted.totals();
    let answered = [&stations, &totals].map(|totals| totals.apps[0].answered);
    assert!(answered[0] > 20_000 && answered[0] == answered[1], "{answered:?}");
    // An end of work is rounded to a nanosecond, and an error lasts for a busy period.
    let apart_ns = mean_ns(&totals) - mean_ns(&stations);
    assert!(apart_ns.abs() < 50.0, "{apart_ns}");
    for (ours, theirs) in totals.servers.iter().zip(&stations.servers) {
        assert_eq!((ours.departures, ours.answers), (theirs.departures, theirs.answers));
        let [ours, theirs] = [ours, theirs].map(|server| server.utilisation(LONG));
        assert!((ours - theirs).abs() < 1e-6, "{ours} {theirs}");
    }
}

#[test]
fn every_call_reaches_the_machine_of_its_server_and_comes_back_once() {
    let mut model = hosted();
    model.tier[0].servers = 2;
    model.tier[0].threads = Some(4);
    let mut system = system(&model, ONE_CORE);
    system.run_until(Nanos::from_secs(5)).unwrap();
    system.forget();
    let in_flight = system.engine().in_flight();
    system.run_until(LONG).unwrap();
    let totals = system.totals();
    let app = &totals.apps[0];
    let left = u64::from(system.engine().in_flight());
    assert_eq!(app.arrived + u64::from(in_flight), app.answered + app.lost + left);
    let machines: Vec<usize> = system.machines_of("box").collect();
    assert_eq!(machines, [0, 1]);
    for (machine, server) in machines.into_iter().zip(&totals.servers) {
        let served = system.machine(machine).simulation().totals().apps[0].answered;
        assert_eq!(served, server.departures, "each piece of work is one task of the machine");
        assert!(served > 15_000, "the load is shared: {served}");
        assert!(server.present <= 4, "the tier admits as many as it has threads");
    }
    assert_eq!(system.machines_of("other").count(), 0);
}

#[test]
fn the_same_replication_of_a_system_with_machines_has_the_same_figures() {
    let run = || {
        let mut system = system(&hosted(), SHARED);
        // In parts, whose number changes nothing.
        for second in 1..=10 {
            system.run_until(Nanos::from_secs(second)).unwrap();
        }
        (system.totals(), system.machine(0).simulation().totals())
    };
    let mut whole = system(&hosted(), SHARED);
    whole.run_until(Nanos::from_secs(10)).unwrap();
    let first = run();
    assert_eq!(first, run());
    let (totals, machine) = first;
    assert_eq!(totals.apps, whole.totals().apps);
    assert_eq!(machine, whole.machine(0).simulation().totals());
}

/// Two cores that the web server shares with batch work.
const SHARED: &str = r#"
    name = "shared"
    cores = 2
    frequency = "2GHz"

    [[app]]
    name = "web"
    threads = 4
    activity = "called"

    [[app]]
    name = "batch"
    threads = 4
    activity = "endless"
"#;

/// Always the same settings; counts its decisions.
struct Same(Vec<Setting>, Arc<AtomicU64>);

impl Policy for Same {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.1.fetch_add(1, Ordering::Relaxed);
        let mut plan = Plan::keep();
        for setting in &self.0 {
            plan.set(setting.clone(), Reason::Fixed);
        }
        plan
    }
}

fn rules() -> Rules {
    Rules { limits: Limits { dwell: Nanos::ZERO, ..Limits::default() }, ..Rules::default() }
}

#[test]
fn a_policy_on_a_machine_and_one_on_a_station_decide_at_their_own_epochs() {
    let run = |behind: Scheduling| {
        let (model, counts) = (hosted(), [(); 2].map(|()| Arc::new(AtomicU64::new(0))));
        let mut system = system(&model, SHARED);
        let batch = Setting::Scheduling(AppId(1), behind);
        let of_machine = Same(vec![batch], Arc::clone(&counts[0]));
        let epoch = Nanos::from_millis(500);
        system.manage_machine(0, Box::new(of_machine), rules(), epoch).unwrap();
        let spec = PlantSpec { tier: "data".to_owned(), server: 0, apps: Vec::new() };
        let plant = system.plant(&model, &spec).unwrap();
        let slow = plant.machine().domains[0].steps[0];
        let domain = plant.machine().domains[0].id;
        let of_station = Same(vec![Setting::Frequency(domain, slow)], Arc::clone(&counts[1]));
        let epoch = Nanos::from_millis(50);
        system.manage(plant, Box::new(of_station), rules(), epoch).unwrap();
        system.run_until(Nanos::from_secs(20)).unwrap();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        let batch = system.machine(0).simulation().totals().apps[1].work_per_s;
        (system.totals(), counts, batch)
    };
    let (beside, counts, _) = run(Scheduling::Normal { nice: 0 });
    // The turns at the very end are the next run's.
    assert_eq!(counts, [39, 399]);
    let busy = beside.servers[1].utilisation(beside.span);
    assert!((0.58..0.7).contains(&busy), "at half the frequency a load of 0.32 is 0.64: {busy}");
    let (behind, _, batch) = run(Scheduling::Idle);
    assert!(mean_ns(&behind) < mean_ns(&beside), "idle-class batch work gives way");
    // 400 calls a second of 1.5 ms leave 1.4 of two cores.
    assert!((1.2..1.5).contains(&batch), "{batch}");
}

/// Keeps the lengths of the epochs that it sees.
struct Epochs(Arc<Mutex<Vec<Nanos>>>);

impl Policy for Epochs {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        self.0.lock().unwrap().push(seen.epoch);
        Plan::keep()
    }
}

#[test]
fn an_epoch_that_ends_with_the_warm_up_is_seen_whole() {
    let (mut system, epochs) = (system(&hosted(), SHARED), Arc::new(Mutex::new(Vec::new())));
    let epoch = Nanos::from_millis(500);
    let policy = Box::new(Epochs(Arc::clone(&epochs)));
    system.manage_machine(0, policy, rules(), epoch).unwrap();
    system.run_until(Nanos::from_secs(1)).unwrap();
    system.forget();
    system.run_until(Nanos::from_secs(2)).unwrap();
    assert_eq!(*epochs.lock().unwrap(), [epoch; 3], "at 0.5, 1 and 1.5 s");
}

#[test]
fn a_machine_shows_its_calls_to_its_policy() {
    let mut system = system(&hosted(), SHARED);
    system.run_until(Nanos::from_secs(4)).unwrap();
    let seen = system.machine_mut(0).observe(Nanos::ZERO).unwrap();
    let latency = seen.apps[0].latency.as_ref().unwrap();
    assert!((latency.offered_per_s - 800.0).abs() < 80.0, "two pieces of work a request");
    assert!(latency.tail(Percentile::P95).unwrap() > Nanos::from_micros(500));
    assert!(seen.apps[1].progress.as_ref().unwrap().per_s > 1.0);
    // The tier's server cannot be steered as a station, too.
    let spec = PlantSpec { tier: "web".to_owned(), server: 0, apps: Vec::new() };
    assert!(system.plant(&hosted(), &spec).is_err());
}

/// A machine that also has a database behind a gate, and a server whose requests are dispatched.
const FULL: &str = r#"
    name = "full"
    cores = 4
    frequency = "2GHz"
    dispatch = { app = "search" }

    [gate]
    device = { channels = 8, rate_per_s = 5000.0, burst = 12.0, order = "fifo" }

    [gate.query]
    before = { mean = "180us" }
    io = { mean = "250us" }
    after = { mean = "115us" }
    round_trip = { mean = "5ms" }

    [[app]]
    name = "web"
    threads = 4
    activity = "called"

    [[app]]
    name = "database"
    threads = 8
    activity = "connections"

    [[app]]
    name = "search"
    threads = 4
    [app.activity.requests]
    work = { mean = "1ms" }
    load = [{ from = "0s", rate-per-s = 300.0 }]
"#;

/// Two queries at a time.
struct TwoTurns;

impl Admission for TwoTurns {
    fn decide(&mut self, _: &GateObservation<'_>, limits: &mut RoundLimits) {
        limits.allow.fill(Allowance::turns_of(1));
        limits.cap = 2;
        limits.pace = Pace::Flow { again: Nanos::from_secs(1) };
    }
}

/// Starts each request on a free core.
struct FirstFree;

impl Dispatcher for FirstFree {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        if request.on.is_none() && request.free[0] > 0 {
            Answer::on(0, None)
        } else {
            Answer::stay(None)
        }
    }
}

#[test]
fn a_machine_under_a_tier_may_have_a_gate_and_a_dispatcher() {
    let (model, hosts) = (hosted(), hosts(FULL));
    let controllers = |_: &str| Controllers {
        admission: vec![Box::new(TwoTurns)],
        dispatcher: Some(Box::new(FirstFree)),
    };
    let mut system = HostedSystem::behind(&model, &hosts, STREAMS, controllers).unwrap();
    system.run_until(Nanos::from_secs(5)).unwrap();
    let totals = system.machine(0).simulation().totals();
    let [web, database, search] = [0, 1, 2].map(|app| totals.apps[app].answered);
    assert!(web > 3000 && database > 3000 && search > 1200, "{web} {database} {search}");
    let counts = system.machine_mut(0).simulation_mut().take_dispatch_counts();
    assert!(counts.decisions > search, "{counts:?}");
    let refused = HostedSystem::new(&model, &hosts, STREAMS).err().unwrap().to_string();
    assert!(refused.starts_with("host.box.gate: the gate has no admission"), "{refused}");
}

#[test]
fn tiers_and_hosts_that_do_not_fit_are_refused_by_their_key() {
    let refused = |change: &dyn Fn(&mut Model, &mut BTreeMap<String, Host>)| {
        let (mut model, mut hosts) = (hosted(), hosts(SHARED));
        change(&mut model, &mut hosts);
        HostedSystem::new(&model, &hosts, STREAMS).err().unwrap().to_string()
    };
    let starts = |text: String, start: &str| assert!(text.starts_with(start), "{text}");
    starts(refused(&|_, hosts| hosts.clear()), "tier[0].host: there is no host `box`");
    starts(
        refused(&|model, _| model.tier[0].name = "front".to_owned()),
        "host.box.app[0].name: no tier of this name",
    );
    starts(refused(&|model, _| model.tier[0].host = None), "host.box: no tier has this host");
    starts(
        refused(&|model, _| model.tier[0].machine = Some("dvfs".to_owned())),
        "tier[0].machine: the tier runs on its `host`",
    );
    starts(
        refused(&|model, _| model.tier[0].discipline = lull_sim::model::Discipline::Sharing),
        "tier[0].discipline: the `host` schedules its threads",
    );
    starts(
        refused(&|model, _| {
            model.tier[1].threads = Some(1);
            model.tier[1].when_full = lull_sim::model::WhenFull::Block;
        }),
        "tier[1].when_full: threads of machines keep no core",
    );
    starts(
        refused(&|_, hosts| hosts.get_mut("box").unwrap().model.cores = 0),
        "host.box.cores: must be at least 1",
    );
    starts(
        refused(&|model, _| {
            model.tier[1].host = Some("box".to_owned());
            model.tier[1].servers = 2;
        }),
        "host.box: tiers on one host",
    );
    let alone = System::new(&hosted(), 1, 0).err().unwrap().to_string();
    starts(alone, "tier[0].host: servers that are machines run in a system with hosts");
}
