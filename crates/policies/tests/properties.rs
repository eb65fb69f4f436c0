//! Whatever a policy is shown, it answers with a plan that the machine can carry out.

use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::journal::Event;
use lull_control::{
    AppId, AppObservation, AppSpec, Capability, Coalescing, ControlLoop, Controller,
    CoreObservation, CoreSet, DialId, EnergyObservation, EnergySource, GateControl, Knob,
    KnobScope, LatencyObservation, Machine, Objective, Observation, Plant, Policy, PolicyError,
    Progress, ProgressSource, Rng, Rules, Scheduling, Setting, Value, WayMask,
    build_without_removed, in_force,
};
use lull_measure::{Joules, Latency, Missing, Nanos, Percentile};
use lull_policies::{Entry, Family, POLICIES, PolicyKind};
use proptest::prelude::*;
use rand::SeedableRng;
use std::collections::BTreeMap;

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
    ) -> LatencyObservation {
        LatencyObservation {
            window: tails.into_iter().map(Nanos).collect::<Latency>(),
            offered_per_s: rate,
            completed_per_s: rate,
            errors_per_s: 0.0,
            outstanding,
            oldest: oldest.map(Nanos),
            ..LatencyObservation::default()
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
    ) -> AppObservation {
        let source = ProgressSource::Simulated;
        let progress = progress.map(|per_s| Progress { per_s, source });
        AppObservation { alive, latency, progress, threads, ..AppObservation::unknown(&because()) }
    }
}

prop_compose! {
    fn any_epoch()(
        epoch_ms in 0u64..2_000,
        apps in prop::collection::vec(any_app(), APPS),
        busy in prop::collection::vec(gauge(0.0f64..=1.0), 12),
        joules in gauge(0.0f64..1e4),
    ) -> Observation {
        let core = |utilisation: Result<f64, Missing>| CoreObservation {
            idle_residency: utilisation.clone().map(|busy| 1.0 - busy),
            utilisation,
            ..CoreObservation::unknown(&because())
        };
        let source = EnergySource::Modelled("test".to_owned());
        Observation {
            apps,
            cores: busy.into_iter().map(core).collect(),
            energy: joules.map(|joules| EnergyObservation { energy: Joules(joules), source }),
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
            (KnobScope::Machine, Value::Time(latency)) => machine.idle_latencies.contains(&latency),
            (_, Value::EnergyPreference(to)) => machine.energy_preferences.contains(&to),
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
            "window = \"200ms\"\nsettle = \"0s\"\ntrials = 6\n\
             knobs = [\"idle-latency\", \"energy-preference\"]",
        ],
        "static" => vec!["delay = \"101us\"\nfrequency = \"1.4GHz\""],
        "satori" => vec!["starts = 2\nasks_max = 50"],
        _ => vec![""],
    }
}

/// An event before an epoch of the churn.
#[derive(Debug, Clone, Copy)]
enum Churn {
    Nothing,
    Ends(usize),
    /// An app arrives, or is restarted if it is present.
    Begins(usize),
    /// The bound of an app changes by this factor.
    Respecifies(usize, f64),
    /// The last best-effort app is removed from the run, and another one is added.
    Replaces,
}

fn any_churn() -> impl Strategy<Value = Churn> {
    let app = || 0..APPS;
    prop_oneof![
        2 => Just(Churn::Nothing),
        2 => app().prop_map(Churn::Ends),
        2 => app().prop_map(Churn::Begins),
        1 => (app(), 0.2f64..5.0).prop_map(|(app, factor)| Churn::Respecifies(app, factor)),
        1 => Just(Churn::Replaces),
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

/// Builds a policy as the agent does, of the apps that were not removed.
fn build_of(
    entry: &'static Entry<PolicyKind>,
    table: &toml::Table,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<Box<dyn Policy>, PolicyError> {
    build_without_removed(machine, apps, |machine, apps| entry.build(table, machine, apps))
}

fn by_knob(settings: impl IntoIterator<Item = Setting>) -> BTreeMap<Knob, Setting> {
    settings.into_iter().map(|setting| (setting.knob(), setting)).collect()
}

/// A policy that steers a plant whose apps come and go, as in the agent.
struct Churned {
    entry: &'static Entry<PolicyKind>,
    table: toml::Table,
    machine: Machine,
    apps: Vec<AppSpec>,
    control: ControlLoop<MemoryPlant>,
    present: Vec<bool>,
    before: BTreeMap<Knob, Setting>,
}

impl Churned {
    fn new(entry: &'static Entry<PolicyKind>, config: &str, cores: u16) -> Self {
        let table: toml::Table = config.parse().expect("a legal config");
        let plant = churned(cores);
        let mut machine = plant.machine().clone();
        for capability in Capability::ALL {
            machine.capabilities = machine.capabilities.with_capability(capability, "test");
        }
        let apps = plant.apps().to_vec();
        let policy = entry.build(&table, &machine, &apps).expect("all needs are met");
        let mut controller = Controller::new(policy, Rules::default(), &plant).expect("no limits");
        let (config, on) = (table.clone(), machine.clone());
        controller.set_rebuild(Box::new(move |apps| {
            build_of(entry, &config, &on, apps).map_err(|error| error.to_string())
        }));
        let before = by_knob(plant.settings());
        let rng = Rng::seed_from_u64(1);
        let control = ControlLoop::new(plant, controller, Nanos::from_millis(300), rng);
        Self { entry, table, machine, apps, control, present: vec![true; APPS], before }
    }

    /// The last best-effort app that was not removed.
    fn best_effort(&self) -> usize {
        let is_one = |app: &AppSpec| !app.is_removed() && !app.is_latency_critical();
        self.apps.iter().rposition(is_one).expect("one is left")
    }

    fn change(&mut self, change: Churn) {
        match change {
            Churn::Nothing => {}
            Churn::Replaces => self.replace(),
            Churn::Ends(app) | Churn::Begins(app) | Churn::Respecifies(app, _)
                if self.apps[app].is_removed() => {}
            Churn::Ends(app) => {
                self.control.plant_mut().end(AppId(app as u16));
                self.present[app] = false;
            }
            Churn::Begins(app) => {
                self.control.plant_mut().begin(AppId(app as u16));
                self.present[app] = true;
            }
            Churn::Respecifies(app, factor) => self.respecify(app, factor),
        }
    }

    fn respecify(&mut self, app: usize, factor: f64) {
        for objective in &mut self.apps[app].objectives {
            if let Objective::Tail { bound, .. } = objective {
                *bound = bound.scale(factor).clamp(Nanos::from_millis(3), Nanos::from_millis(100));
            }
        }
        self.reconfigure();
    }

    fn reconfigure(&mut self) {
        if !self.control.reconfigure(Rules::default(), &self.apps) {
            let policy = build_of(self.entry, &self.table, &self.machine, &self.apps);
            self.control.replace_policy(policy.expect("all needs are met"));
        }
    }

    fn replace(&mut self) {
        let former = AppId(self.best_effort() as u16);
        let plant = self.control.plant_mut();
        plant.remove(former);
        let added = plant.add(MemoryApp {
            spec: AppSpec::best_effort(&format!("added{}", self.apps.len())),
            demand_cores: 0.0,
            service: Nanos::from_millis(1),
            threads: 4,
        });
        self.apps = plant.apps().to_vec();
        let of_added = |setting: &Setting| setting.knob().app() == Some(added);
        self.before.retain(|knob, _| knob.app() != Some(former));
        self.before.extend(by_knob(plant.settings().into_iter().filter(of_added)));
        self.present[former.index()] = false;
        self.present.push(true);
        self.reconfigure();
        self.control.exchange_apps(&[former, added]);
    }

    /// One epoch: no plan names an absent app, and every plan is legal.
    fn turn(&mut self) -> Result<(), TestCaseError> {
        let name = self.entry.name;
        let epoch = self.control.turn().expect("a plant in memory");
        for step in epoch.plan.steps() {
            let app = step.setting.knob().app();
            let is_absent = app.is_some_and(|app| !self.present[app.index()]);
            prop_assert!(!is_absent, "{name} plans for an absent app: {step:?}");
            prop_assert!(is_legal(&step.setting, &self.machine), "{name}: {step:?}");
        }
        let is_failure = |event: &Event| match event {
            Event::PolicyRebuilt { failed, .. } => failed.is_some(),
            Event::Decision(decision) => decision.outcome.in_force().is_none(),
            _ => false,
        };
        let failed = epoch.entries.iter().find(|entry| is_failure(&entry.event));
        prop_assert!(failed.is_none(), "{name}: {failed:?}");
        Ok(())
    }

    /// Cores, and cache ways, that some present app may use.
    fn reached(&self) -> (usize, u32) {
        let (mut cores, mut ways) = (CoreSet::default(), 0);
        for setting in self.control.plant().settings() {
            match setting {
                Setting::Cores(_, more) => cores = cores.union(&more),
                Setting::CacheWays(_, mask) => ways |= mask.0,
                _ => {}
            }
        }
        (cores.len(), ways.count_ones())
    }

    /// After some epochs without a change, what absent apps had is in use again: under policies
    /// that divide the machine between apps. Others may leave cores without work to save power,
    /// as `demeter` does.
    ///
    /// `parties` is exempt: as in its paper (Chen et al. 2019, section 4) an app grows by one
    /// unit when it misses its bound, and surplus units without a best-effort app stay idle.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        if !self.present.contains(&true) {
            self.change(Churn::Begins(self.best_effort()));
        }
        let may_leave_some =
            self.entry.kind.family != Family::Colocation || self.entry.name == "parties";
        let all = (self.machine.cores.len(), 20);
        for _ in 0..SETTLED {
            self.turn()?;
            if may_leave_some || self.reached() == all {
                return Ok(());
            }
        }
        let (name, present) = (self.entry.name, &self.present);
        prop_assert_eq!(self.reached(), all, "{} with present {:?}", name, present);
        Ok(())
    }

    fn finish(self) -> Result<(), TestCaseError> {
        let (mut plant, _) = self.control.finish();
        let left = in_force(&self.apps).map(|(app, _)| app);
        left.for_each(|app| plant.begin(app));
        let (name, now) = (self.entry.name, by_knob(plant.settings()));
        prop_assert_eq!(now, self.before, "{}: knobs are not as before", name);
        Ok(())
    }
}

/// Epochs after which what absent apps had is in use again.
const SETTLED: usize = 60;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn apps_that_come_and_go_are_set_only_while_they_are_present(
        cores in 4u16..12,
        churn in prop::collection::vec(any_churn(), 1..30),
    ) {
        for entry in POLICIES.iter() {
            for config in configs(entry.name) {
                let mut run = Churned::new(entry, config, cores);
                for change in &churn {
                    run.change(*change);
                    run.turn()?;
                }
                run.settle()?;
                run.finish()?;
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
