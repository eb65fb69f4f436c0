//! Whatever a policy is shown, it answers with a plan that the machine can carry out.

use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::journal::Event;
use lull_control::{
    AppId, AppSeen, AppSpec, Capability, Coalescing, Controller, CoreSeen, DialId, EnergySeen,
    EnergySource, GateControl, KnobScope, LatencySeen, Machine, Observation, Plant, Progress,
    ProgressSource, Rng, Rules, Scheduling, Setting, Value, WayMask,
};
use lull_measure::{Joules, Latency, Missing, Nanos, Percentile};
use lull_policies::{Entry, POLICIES, PolicyKind};
use proptest::prelude::*;
use rand::SeedableRng;

const APPS: usize = 4;

fn specs() -> Vec<AppSpec> {
    let lc = |name: &str, bound| {
        AppSpec::latency_critical(name, Percentile::P95, Nanos::from_millis(bound))
    };
    let mut known = lc("known", 10);
    known.ideal = Some(Nanos::from_millis(2));
    known.threads = Some(2);
    vec![known, lc("unknown", 1), AppSpec::best_effort("be"), AppSpec::best_effort("be2")]
}

fn because() -> Missing {
    Missing::because("test")
}

prop_compose! {
    fn any_latency()(
        tails in prop::collection::vec(0u64..1 << 36, 0..5),
        rate in 0.0f64..1e6,
        outstanding in 0u64..10,
        oldest in proptest::option::of(0u64..1 << 36),
    ) -> LatencySeen {
        LatencySeen {
            window: tails.into_iter().map(Nanos).collect::<Latency>(),
            offered_per_s: rate,
            completed_per_s: rate,
            errors_per_s: 0.0,
            outstanding,
            oldest: oldest.map(Nanos),
            ..LatencySeen::default()
        }
    }
}

fn gauge<T: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Result<T, Missing>> {
    proptest::option::of(value).prop_map(|value| value.ok_or_else(because))
}

prop_compose! {
    fn any_app()(
        alive: bool,
        latency in gauge(any_latency()),
        progress in gauge(0.0f64..1e9),
        threads in gauge(0u32..20),
    ) -> AppSeen {
        let source = ProgressSource::Simulated;
        let progress = progress.map(|per_s| Progress { per_s, source });
        AppSeen { alive, latency, progress, threads, ..AppSeen::unknown(&because()) }
    }
}

prop_compose! {
    fn any_epoch()(
        epoch_ms in 0u64..2_000,
        apps in prop::collection::vec(any_app(), APPS),
        busy in prop::collection::vec(gauge(0.0f64..=1.0), 12),
        joules in gauge(0.0f64..1e4),
    ) -> Observation {
        let core = |utilisation: Result<f64, Missing>| CoreSeen {
            idle_residency: utilisation.clone().map(|busy| 1.0 - busy),
            utilisation,
            ..CoreSeen::unknown(&because())
        };
        let source = EnergySource::Modelled("test".to_owned());
        Observation {
            apps,
            cores: busy.into_iter().map(core).collect(),
            energy: joules.map(|joules| EnergySeen { energy: Joules(joules), source }),
            ..Observation::unknown(Nanos::ZERO, Nanos::from_millis(epoch_ms), &because())
        }
    }
}

/// Whether a machine could do this.
fn is_legal(setting: &Setting, machine: &Machine) -> bool {
    match setting {
        Setting::Cores(_, cores) => !cores.is_empty() && cores.is_subset(&machine.all_cores()),
        Setting::CacheWays(_, mask) => {
            let cache = machine.cache.as_ref().expect("the plant has ways");
            let all = WayMask::run(0, cache.ways).0;
            mask.count() > 0 && mask.0 & !all == 0 && (!cache.contiguous || mask.is_contiguous())
        }
        Setting::MemoryBandwidth(_, percent) => (10..=100).contains(percent),
        Setting::Scheduling(_, Scheduling::RoundRobin { priority }) => (1..=99).contains(priority),
        Setting::Frequency(domain, hertz) => {
            machine.domain(*domain).and_then(|domain| domain.nearest(*hertz)) == Some(*hertz)
        }
        Setting::Coalescing(nic, how) => machine.nic(*nic).is_some_and(|nic| match how {
            Coalescing::Adaptive => true,
            Coalescing::Delay(delay) => nic.nearest(*delay) == *delay,
        }),
        Setting::GateCap(app, _) | Setting::GateBatch(app, _) | Setting::GateDelay(app, _) => {
            machine.gate(*app).is_some_and(|gate| gate.check(setting).is_ok())
        }
        other => match (other.knob().row().scope, other.value()) {
            (KnobScope::Dial, Value::Frequency(hertz)) => {
                let dial = machine.dial(DialId(other.knob().number()));
                dial.is_some_and(|dial| dial.nearest(hertz) == hertz)
            }
            _ => true,
        },
    }
}

/// Configs that reach code the defaults do not.
fn configs(name: &str) -> Vec<&'static str> {
    match name {
        "arq" => vec![
            "",
            "ban = \"all\"\nundo = \"all\"\npriority = \"latency-critical\"",
            "period = \"2s\"\nskip_undo_on_load_change = true\nepsilon = 0.01",
        ],
        "parties" => vec!["", "mode = \"script\""],
        "heracles" => vec!["period = \"500ms\"\ngrowth_period = \"200ms\"", "mode = \"literal\""],
        "clite" => {
            vec!["starts = 2\nasks_max = 50", "window = \"200ms\"\ntrials_max = 6\nasks_max = 50"]
        }
        "bayop" => vec![
            "window = \"200ms\"\nsettle = \"0s\"\ntrials = 6\n\
             knobs = [\"frequency\", \"cores\", \"cache-ways\"]",
            "window = \"200ms\"\nsettle = \"0s\"\ntrials = 6\n\
             knobs = [\"gate-cap\", \"gate-batch\", \"gate-delay\"]",
        ],
        "static" => vec!["delay = \"101us\"\nfrequency = \"1.4GHz\""],
        "satori" => vec!["starts = 2\nasks_max = 50"],
        _ => vec![""],
    }
}

/// What happens to an app before an epoch of the churn.
#[derive(Debug, Clone, Copy)]
enum Churn {
    Ends(usize),
    Begins(usize),
}

fn any_churn() -> impl Strategy<Value = Option<Churn>> {
    let app = || 0..APPS;
    prop_oneof![
        2 => Just(None),
        1 => app().prop_map(|app| Some(Churn::Ends(app))),
        1 => app().prop_map(|app| Some(Churn::Begins(app))),
    ]
}

/// A plant with every capability that a policy may need.
fn churned(cores: u16) -> MemoryPlant {
    let app = |spec: AppSpec| MemoryApp {
        demand_cores: if spec.is_latency_critical() { 1.0 } else { 0.0 },
        spec,
        service: Nanos::from_millis(1),
        threads: 4,
    };
    MemoryPlant::new(cores, specs().into_iter().map(app).collect())
}

/// Lets a policy steer a plant whose apps come and go, as the loop of the agent does.
fn steer_through(
    entry: &'static Entry<PolicyKind>,
    config: &str,
    cores: u16,
    churn: &[Option<Churn>],
) -> Result<(), TestCaseError> {
    let table: toml::Table = config.parse().expect("a legal config");
    let mut machine = churned(cores).machine().clone();
    for capability in Capability::ALL {
        machine.capabilities = machine.capabilities.with_capability(capability, "test");
    }
    let build = move |apps: &[AppSpec]| {
        entry.build(&table, &machine, apps).map_err(|error| error.to_string())
    };
    let plant = churned(cores);
    let before = plant.settings();
    let policy = build(plant.apps()).expect("all needs are met");
    let mut controller = Controller::new(policy, Rules::default(), &plant).expect("no limits");
    controller.set_rebuild(Box::new(build));
    let (mut plant, mut rng) = (plant, Rng::seed_from_u64(1));
    let mut present = [true; APPS];
    for change in churn {
        match *change {
            Some(Churn::Ends(app)) => {
                plant.end(AppId(app as u16));
                present[app] = false;
            }
            Some(Churn::Begins(app)) => {
                plant.begin(AppId(app as u16));
                present[app] = true;
            }
            None => {}
        }
        let seen = plant.observe(Nanos::from_millis(300)).expect("a plant in memory");
        let turn = controller.turn(&seen, &mut rng);
        for wanted in &turn.changes {
            let app = wanted.knob().app();
            let is_absent = app.is_some_and(|app| !present[app.index()]);
            prop_assert!(!is_absent, "{} sets an absent app: {wanted:?}", entry.name);
        }
        let failed = turn
            .entries
            .iter()
            .find(|entry| matches!(entry.event, Event::PolicyRebuilt { failed: Some(_), .. }));
        prop_assert!(failed.is_none(), "{}: {failed:?}", entry.name);
        let applied = plant.apply(&turn.changes);
        controller.conclude(turn, applied);
    }
    let _ = plant.restore();
    (0..APPS).for_each(|app| plant.begin(AppId(app as u16)));
    prop_assert_eq!(plant.settings(), before, "{}: knobs are not as before", entry.name);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn apps_that_come_and_go_are_set_only_while_they_are_present(
        cores in 4u16..12,
        churn in prop::collection::vec(any_churn(), 1..30),
    ) {
        for entry in POLICIES.iter() {
            for config in configs(entry.name) {
                steer_through(entry, config, cores, &churn)?;
            }
        }
    }

    #[test]
    fn any_history_is_answered_with_plans_within_the_machine(
        cores in 4u16..12,
        contiguous: bool,
        history in prop::collection::vec(any_epoch(), 1..30),
    ) {
        let mut machine = MemoryPlant::new(cores, Vec::new()).machine().clone();
        for capability in Capability::ALL {
            machine.capabilities = machine.capabilities.with_capability(capability, "test");
        }
        machine.cache.as_mut().expect("the plant has ways").contiguous = contiguous;
        machine.gates = vec![GateControl {
            app: AppId(0),
            workers: None,
            cap_max: 256,
            batch_max: 1024,
            delay_max: Nanos::from_millis(100),
        }];
        for entry in POLICIES.iter() {
            for config in configs(entry.name) {
                let table = config.parse().expect("a legal config");
                let built = entry.build(&table, &machine, &specs());
                let mut policy = built.expect("all needs are met");
                let mut rng = Rng::seed_from_u64(1);
                let mut time = Nanos::ZERO;
                for epoch in &history {
                    time += epoch.epoch;
                    let seen = Observation { time, ..epoch.clone() };
                    let plan = policy.decide(&seen, &mut rng);
                    for step in plan.steps() {
                        prop_assert!(is_legal(&step.setting, &machine), "{}: {step:?}", entry.name);
                    }
                }
            }
        }
    }
}
