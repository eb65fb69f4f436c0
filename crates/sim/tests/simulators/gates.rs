//! Machines with several gates, with clients at a rate behind them, and with classes of clients.

use crate::limits::{FixedLimits, Open};
use lull_control::admission::{Admission, GateLimits, GateObservation, Pace, RoundLimits};
use lull_control::{AppId, AppSpec, ApplyOutcome, Plant, Setting};
use lull_measure::{Nanos, Percentile};
use lull_sim::Replication;
use lull_sim::machine::{
    Activity, Controllers, GateClass, GateModel, LoadStep, MachineApp, MachineModel, MachinePlant,
    MachineSimulation, TurnShare,
};
use std::sync::mpsc::{Sender, channel};

/// A change that makes a good model wrong.
type Change = fn(&mut MachineModel);

/// A database behind a gate, on more cores than its workers can use at a time.
const ONE: &str = r#"
    name = "databases"
    cores = 8
    frequency = "2GHz"

    [gate]
    app = "first"
    lease = "1ns"
    device = { channels = 16, rate_per_s = 1e9, burst = 16.0, order = "fifo" }

    [gate.query]
    before = { mean = "1ms", shape = "constant" }
    io = { mean = "0s" }
    after = { mean = "0s" }
    round_trip = { mean = "1us" }

    [[app]]
    name = "first"
    threads = 8
    activity = "connections"
"#;

fn one() -> MachineModel {
    toml::from_str(ONE).unwrap()
}

/// Two such databases, each behind a gate of its own.
fn two() -> MachineModel {
    let mut model = one();
    let name = || "second".to_owned();
    model.gate.push(GateModel { app: Some(name()), ..model.gate[0].clone() });
    model.app.push(MachineApp { name: name(), ..model.app[0].clone() });
    model
}

/// A plant whose gates let this many queries run at once; 0 is no limit.
fn plant(model: &MachineModel, caps: &[u32]) -> MachinePlant {
    let names: Vec<_> = model.app.iter().map(|app| app.name.as_str()).collect();
    watching(&names, model, caps)
}

/// The same, of which only some apps are watched.
fn watching(names: &[&str], model: &MachineModel, caps: &[u32]) -> MachinePlant {
    let limits = |cap: &u32| -> Box<dyn Admission> {
        match *cap {
            0 => Box::new(Open),
            cap => Box::new(FixedLimits(GateLimits { cap, batch: 1, delay: Nanos::ZERO })),
        }
    };
    let admission = caps.iter().map(limits).collect();
    let controllers = Controllers { admission, ..Controllers::default() };
    let spec =
        |name: &str| AppSpec::latency_critical(name, Percentile::P99, Nanos::from_millis(20));
    let specs: Vec<_> = names.iter().map(|name| spec(name)).collect();
    MachinePlant::behind(model, &specs, controllers, Replication { seed: 1, number: 0 }).unwrap()
}

/// Queries that each app answers in the next second.
fn answered_in_a_second(plant: &mut MachinePlant) -> Vec<u64> {
    let answered = |plant: &MachinePlant| -> Vec<u64> {
        plant.simulation().totals().apps.iter().map(|app| app.answered).collect()
    };
    let before = answered(plant);
    plant.observe(Nanos::from_secs(1)).unwrap();
    answered(plant).iter().zip(before).map(|(now, then)| now - then).collect()
}

#[test]
fn each_gate_limits_its_own_app_and_is_a_knob_of_its_own() {
    let mut plant = plant(&two(), &[1, 3]);
    let gates: Vec<_> = plant.machine().gates.iter().map(|gate| gate.app).collect();
    assert_eq!(gates, [AppId(0), AppId(1)]);
    let near = |answered: &[u64], wanted: [u64; 2]| {
        let is_near = |(answered, wanted): (&u64, u64)| answered.abs_diff(wanted) < wanted / 10;
        assert!(answered.iter().zip(wanted).all(is_near), "{answered:?}, not {wanted:?}");
    };
    near(&answered_in_a_second(&mut plant), [1000, 3000]);
    let got = plant.apply(&[Setting::GateCap(AppId(1), 2)]).outcomes.remove(0).got;
    assert_eq!(got, ApplyOutcome::Done);
    assert!(plant.settings().contains(&Setting::GateCap(AppId(0), 1)));
    near(&answered_in_a_second(&mut plant), [1000, 2000]);
    let totals = plant.gated_totals();
    assert_eq!(totals.answers.len(), 16, "a count for each connection of both gates");
    assert!(totals.most_turns == 3 && totals.gate.turns > 5000, "{:?}", totals.gate);
}

#[test]
fn a_gate_without_an_app_that_is_watched_is_a_knob_of_none() {
    let mut model = two();
    model.app[1].threads = 5;
    let mut plant = watching(&["second"], &model, &[1, 3]);
    let gates: Vec<_> = plant.machine().gates.iter().map(|it| (it.app, it.workers)).collect();
    assert_eq!(gates, [(AppId(0), Some(5))]);
    let got = plant.apply(&[Setting::GateCap(AppId(0), 2)]).outcomes.remove(0).got;
    assert_eq!(got, ApplyOutcome::Done);
    assert!(plant.settings().contains(&Setting::GateCap(AppId(0), 2)));
}

#[test]
fn a_machine_of_which_no_gate_can_be_set_says_why() {
    let refusal = |names: &[&str], model: &MachineModel, caps: &[u32]| {
        let mut plant = watching(names, model, caps);
        match plant.apply(&[Setting::GateCap(AppId(0), 2)]).outcomes.remove(0).got {
            ApplyOutcome::Refused { why } => why,
            other => panic!("{other:?}"),
        }
    };
    let mut ungated = one();
    ungated.gate.clear();
    ungated.app[0].activity = Activity::Endless;
    assert!(refusal(&[], &ungated, &[]).contains("no gate"));
    assert!(refusal(&["first"], &one(), &[0]).contains("chooses its numbers itself"));
    let unwatched = "no app behind a gate whose numbers can be set is watched";
    assert!(refusal(&[], &one(), &[1]).contains(unwatched));
    assert!(refusal(&["first"], &two(), &[0, 1]).contains(unwatched));
}

/// An open gate whose controller compares settings up to an instant, and records whether it may.
struct Surveyor {
    until: Nanos,
    now: Nanos,
    allowed: Sender<(Nanos, bool)>,
}

impl Admission for Surveyor {
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits) {
        self.now = seen.now;
        *admission = RoundLimits::open(admission.allow.len());
        admission.pace = Pace::Open { again: Nanos::from_millis(10) };
    }

    fn wants_survey(&self) -> bool {
        self.now < self.until
    }

    fn allow_survey(&mut self, may: bool) {
        self.allowed.send((self.now, may)).unwrap();
    }
}

#[test]
fn one_gate_at_a_time_is_surveyed() {
    let half = Nanos::from_millis(500);
    let run = |model: &MachineModel| {
        let (until, now) = (half, Nanos::ZERO);
        let (admission, allowed): (Vec<Box<dyn Admission>>, Vec<_>) = (0..model.gate.len())
            .map(|gate| {
                let (allowed, seen) = channel();
                let until = if gate == 0 { until } else { Nanos::MAX };
                let surveyor = Surveyor { until, now, allowed };
                (Box::new(surveyor) as Box<dyn Admission>, seen)
            })
            .unzip();
        let controllers = Controllers { admission, ..Controllers::default() };
        let streams = Replication { seed: 1, number: 0 };
        let mut machine = MachineSimulation::behind(model, controllers, streams).unwrap();
        machine.run_until(half + half);
        let all = allowed.iter().map(|allowed| allowed.try_iter().collect());
        all.collect::<Vec<Vec<(Nanos, bool)>>>()
    };
    assert!(run(&one())[0].is_empty(), "a gate alone always may");
    let [first, second] = run(&two()).try_into().unwrap();
    assert!(first.iter().all(|(now, may)| *may == (*now < half)), "{first:?}");
    assert!(second.iter().all(|(now, may)| *may == (*now >= half)), "{second:?}");
    assert!(first.len() > 90 && second.len() > 90, "{second:?}");
}

#[test]
fn clients_at_a_rate_share_the_connections_and_wait_for_a_free_one() {
    let open = |rate_per_s: f64, caps: &[u32]| {
        let mut model = one();
        model.gate[0].load = vec![LoadStep { from: Nanos::ZERO, rate_per_s }];
        plant(&model, caps)
    };
    let mut easy = open(500.0, &[0]);
    let answered = answered_in_a_second(&mut easy)[0];
    assert!((400..600).contains(&answered), "{answered}");
    let seen = easy.observe(Nanos::from_secs(1)).unwrap();
    let latency = seen.apps[0].latency.as_ref().unwrap();
    assert!(latency.window.mean().unwrap() < Nanos::from_millis(2), "{latency:?}");
    // Two at a time answer 2000 queries a second.
    let mut full = open(3000.0, &[2]);
    let answered = answered_in_a_second(&mut full)[0];
    assert!(answered.abs_diff(2000) < 100, "{answered}");
    let seen = full.observe(Nanos::from_secs(1)).unwrap();
    let latency = seen.apps[0].latency.as_ref().unwrap();
    assert!(latency.outstanding.abs_diff(2000) < 400, "{}", latency.outstanding);
    // The latency counts from when a query was due.
    assert!(latency.window.mean().unwrap() > Nanos::from_millis(300), "{latency:?}");
    assert!(latency.oldest > Some(Nanos::from_millis(300)), "{latency:?}");
}

#[test]
fn connections_of_one_app_may_be_of_several_classes() {
    let mut model = one();
    let share = TurnShare { weight: 3, ..TurnShare::default() };
    let app = "first".to_owned();
    model.gate[0].client_class = vec![GateClass { app, connections: Some(4), share }];
    let mut plant = plant(&model, &[2]);
    plant.simulation_mut().keep_groups(&[0..4, 4..8], Nanos::ZERO);
    plant.observe(Nanos::from_secs(5)).unwrap();
    let [heavy, others] = [0, 1].map(|group| plant.simulation().of_groups()[group].count());
    let ratio = heavy as f64 / others as f64;
    assert!((ratio / 3.0 - 1.0).abs() < 0.05, "{heavy} and {others}");
}

#[test]
fn gates_that_cannot_be_simulated_are_refused_by_key() {
    let cases: [(Change, &str); 7] = [
        (|model| model.gate[1].app = None, "gate[1]: names no app"),
        (|model| model.gate[1].app = Some("first".to_owned()), "gate[0].app: the app is behind"),
        (|model| model.gate[0].app = Some("third".to_owned()), "gate[0]: nothing is behind it"),
        (|model| drop(model.gate.remove(1)), "app[1].activity: connections are served behind"),
        (|model| model.gate[1].device.channels = 0, "gate[1].device.channels: "),
        (
            |model| model.gate[1].query.round_trip.mean = Nanos(u64::MAX),
            "gate[1].query.round_trip.mean: ",
        ),
        (
            |model| {
                model.gate.truncate(1);
                model.gate[0].app = None;
                let rate_per_s = 1.0;
                model.gate[0].load = vec![LoadStep { from: Nanos::ZERO, rate_per_s }];
            },
            "gate.load: clients at a rate share",
        ),
    ];
    for (break_it, wanted) in cases {
        let mut model = two();
        break_it(&mut model);
        let error = model.check().unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{error}\n  wanted: {wanted}");
    }
}
