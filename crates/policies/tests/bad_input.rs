//! What co-location policies do with input that a user can give and a machine
//! can show: too many apps, one class only, a bound that cannot be met, no
//! answers, progress that is not a number.

use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{
    AppId, AppSpec, CoreSet, Knob, LatencyObservation, Observation, Plan, Plant, PolicyError,
    Progress, ProgressSource, Rng, Setting,
};
use lull_measure::{Missing, Nanos, Percentile};
use lull_policies::{Entry, Family, POLICIES, PolicyKind};
use rand::SeedableRng;
use std::collections::BTreeSet;

const EPOCH: Nanos = Nanos::from_millis(500);
const BOUND: Nanos = Nanos::from_millis(10);
const CORES: u16 = 8;

fn policies() -> impl Iterator<Item = &'static Entry<PolicyKind>> {
    POLICIES.iter().filter(|entry| entry.kind.family == Family::Colocation)
}

fn lc(name: &str, demand_cores: f64) -> MemoryApp {
    let spec = AppSpec::latency_critical(name, Percentile::P95, BOUND);
    MemoryApp { spec, demand_cores, service: Nanos::from_millis(1), threads: 4 }
}

fn be(name: &str) -> MemoryApp {
    let spec = AppSpec { solo_per_s: Some(8.0), ..AppSpec::best_effort(name) };
    MemoryApp { spec, demand_cores: 0.0, service: Nanos::from_millis(1), threads: 8 }
}

/// Lets a policy steer a plant whose observations are spoilt first; its plans.
fn steer(
    entry: &Entry<PolicyKind>,
    plant: &mut MemoryPlant,
    epochs: usize,
    spoil: impl Fn(&mut Observation),
) -> Vec<Plan> {
    let built = entry.build(&toml::Table::new(), plant.machine(), plant.apps());
    let mut policy = built.unwrap_or_else(|error| panic!("{}: {error}", entry.name));
    let mut rng = Rng::seed_from_u64(1);
    let one = |_| {
        let mut seen = plant.observe(EPOCH).unwrap();
        spoil(&mut seen);
        let plan = policy.decide(&seen, &mut rng);
        let applied = plant.apply(&settings(&plan));
        let is_done = applied.outcomes.iter().all(|one| one.in_force().is_some());
        assert!(is_done, "{}: {applied:?}", entry.name);
        plan
    };
    (0..epochs).map(one).collect()
}

fn settings(plan: &Plan) -> Vec<Setting> {
    plan.steps().map(|step| step.setting.clone()).collect()
}

fn cores(plan: &Plan, app: u16) -> CoreSet {
    match plan.setting(Knob::Cores(AppId(app))) {
        Some(Setting::Cores(_, cores)) => cores.clone(),
        // No plan has restricted its cores.
        _ => CoreSet::first(CORES),
    }
}

/// Names of the policies that refuse these apps, all for the same reason.
fn refusing(plant: &MemoryPlant, ways: Option<u32>, why: &[&str]) -> BTreeSet<&'static str> {
    let mut machine = plant.machine().clone();
    if let (Some(ways), Some(cache)) = (ways, &mut machine.cache) {
        cache.ways = ways;
    }
    let refused = policies().filter(|entry| {
        let error = entry.build(&toml::Table::new(), &machine, plant.apps()).err();
        error.is_some_and(|error| {
            let text = error.to_string();
            assert!(matches!(error, PolicyError::Apps { .. }), "{}: {text}", entry.name);
            assert!(why.iter().all(|word| text.contains(word)), "{}: {text}", entry.name);
            true
        })
    });
    refused.map(|entry| entry.name).collect()
}

#[test]
fn policies_that_give_every_app_a_core_refuse_more_apps_than_cores_with_both_numbers() {
    let apps = || vec![lc("a", 0.2), lc("b", 0.2), be("c"), be("d"), be("e")];
    let refused = refusing(&MemoryPlant::new(2, apps()), None, &["2", "cores"]);
    // PARTIES puts best-effort apps together, which still makes three parties.
    assert_eq!(refused, BTreeSet::from(["clite", "even", "parties", "satori"]));
    for entry in policies().filter(|entry| !refused.contains(entry.name)) {
        let last = steer(entry, &mut MemoryPlant::new(2, apps()), 20, |_| ()).pop().unwrap();
        for app in 0..5 {
            assert!(!cores(&last, app).is_empty(), "{}: app {app} has no core", entry.name);
        }
    }
}

#[test]
fn policies_that_divide_the_cache_refuse_more_apps_than_ways_with_both_numbers() {
    let apps = vec![lc("a", 0.2), lc("b", 0.2), be("c"), be("d"), be("e")];
    let plant = MemoryPlant::new(CORES, apps);
    let refused = refusing(&plant, Some(4), &["5", "4", "ways"]);
    assert_eq!(refused, BTreeSet::from(["clite", "even", "satori"]));
}

#[test]
fn without_a_best_effort_app_objectives_that_can_be_met_are_met() {
    // Heracles protects the strictest alone, SATORI knows no objectives.
    for entry in policies().filter(|entry| !matches!(entry.name, "heracles" | "satori")) {
        let mut plant = MemoryPlant::new(CORES, vec![lc("a", 1.0), lc("b", 0.3)]);
        steer(entry, &mut plant, 80, |_| ());
        let seen = plant.observe(EPOCH).unwrap();
        for app in &seen.apps {
            let tail = app.latency.as_ref().unwrap().tail(Percentile::P95).unwrap();
            assert!(tail <= BOUND, "{}: {tail}", entry.name);
        }
    }
}

#[test]
fn without_a_latency_critical_app_no_core_lies_idle() {
    for entry in policies() {
        let mut plant = MemoryPlant::new(CORES, vec![be("a"), be("b")]);
        let last = steer(entry, &mut plant, 40, |_| ()).pop().unwrap();
        let used = cores(&last, 0).union(&cores(&last, 1));
        assert_eq!(used, CoreSet::first(CORES), "{}", entry.name);
    }
}

#[test]
fn policies_that_go_by_tails_refuse_an_ideal_above_its_bound_by_name() {
    let mut slow = lc("slow", 1.0);
    slow.spec.ideal = Some(BOUND * 2);
    let plant = MemoryPlant::new(CORES, vec![lc("good", 1.0), slow, be("c")]);
    let refused = refusing(&plant, None, &["slow", "20ms", "10ms"]);
    assert_eq!(refused, BTreeSet::from(["arq", "clite", "heracles", "parties", "tide"]));
}

#[test]
fn epochs_without_completed_requests_take_nothing_from_any_app() {
    let silence = |seen: &mut Observation| {
        for app in &mut seen.apps {
            app.latency = app.latency.clone().map(|_| LatencyObservation::default());
            app.progress = Err(Missing::because("test"));
        }
    };
    for entry in policies() {
        let mut plant = MemoryPlant::new(CORES, vec![lc("a", 1.0), lc("b", 1.0), be("c")]);
        let plans = steer(entry, &mut plant, 60, silence);
        let last = plans.last().unwrap();
        for app in 0..3 {
            assert!(!cores(last, app).is_empty(), "{}: app {app}", entry.name);
        }
        // To CLITE and Heracles idle apps have met their bounds, to SATORI no answers are a speed
        // of 0: they continue.
        if !matches!(entry.name, "clite" | "heracles" | "satori") {
            let later = plans[2..].iter().map(settings).collect::<Vec<_>>();
            assert!(later.windows(2).all(|pair| pair[0] == pair[1]), "{}", entry.name);
        }
    }
}

#[test]
fn progress_that_is_no_number_is_missing_progress() {
    let with = |per_s: Option<f64>| {
        move |seen: &mut Observation| {
            let missing = Missing::because("test");
            let source = ProgressSource::Simulated;
            let progress = per_s.map(|per_s| Progress { per_s, source });
            seen.apps[2].progress = progress.ok_or(missing);
        }
    };
    for entry in policies() {
        let plans = |per_s| {
            let mut plant = MemoryPlant::new(CORES, vec![lc("a", 2.5), lc("b", 1.0), be("c")]);
            steer(entry, &mut plant, 60, with(per_s)).iter().map(settings).collect::<Vec<_>>()
        };
        let missing = plans(None);
        for strange in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(plans(Some(strange)) == missing, "{}: {strange}", entry.name);
        }
    }
}
