//! The simulator as a plant, and many plants on one clock.

use lull_control::{
    AppSpec, ApplyOutcome, Capability, Class, ControlLoop, Controller, EnergySource, Limits,
    Observation, Plan, Plant, Policy, Reason, Rng, Rules, Setting, conformance,
};
use lull_measure::{Hertz, Nanos, Percentile};
use lull_sim::model::Model;
use lull_sim::plant::{PlantSpec, SimPlant, System};
use rand::SeedableRng;

const MODEL: &str = r#"
[machine.xeon]
static_watts = 10.0
cores = [{ count = 4, domain = 2, static_watts = 0.5, pstates = [
    { frequency = "2.26GHz", volts = 1.35 },
    { frequency = "1.729GHz", volts = 1.05 },
    { frequency = "1.197GHz", volts = 0.75 } ] }]

[[tier]]
name = "web"
machine = "xeon"
servers = 2
routing = "round-robin"

[[tier]]
name = "plain"

[[app]]
name = "site"
source = { open = { rate_per_s = 2000.0 } }
steps = [{ call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } }]

[[app]]
name = "batch"
source = { closed = { clients = 1, think = { mean = "2ms" } } }
steps = [{ call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } },
         { call = { tier = "plain", steps = [{ work = { mean = "1ms" } }] } }]
"#;

fn model() -> Model {
    toml::from_str(MODEL).unwrap()
}

fn spec(tier: &str) -> PlantSpec {
    let bound = Nanos::from_millis(20);
    let mut apps = vec![AppSpec::best_effort("batch")];
    if tier == "web" {
        apps.push(AppSpec::latency_critical("site", Percentile::P99, bound));
    }
    PlantSpec { tier: tier.to_owned(), server: 0, apps }
}

fn plant(tier: &str) -> SimPlant {
    SimPlant::new(&model(), &spec(tier), 1).unwrap()
}

#[test]
fn a_simulated_server_is_a_plant() {
    conformance::check(Nanos::from_millis(50), || plant("web"));
}

#[test]
fn a_server_without_p_states_is_a_plant() {
    conformance::check(Nanos::from_millis(50), || plant("plain"));
}

#[test]
fn a_plant_shows_load_latency_and_energy() {
    let mut plant = plant("web");
    plant.observe(Nanos::from_secs(1)).unwrap();
    let seen = plant.observe(Nanos::from_secs(10)).unwrap();
    // 1000 of the 2000 requests per second arrive here, each 1 ms on one of four
    // cores at full speed; the batch app adds a little.
    let used: f64 = seen.cores.iter().map(|core| core.utilisation.as_ref().unwrap()).sum();
    assert!((1.0..1.3).contains(&used), "{used}");
    let latency = seen.apps[1].latency.as_ref().unwrap();
    assert!((latency.completed_per_s - 1000.0).abs() < 50.0, "{}", latency.completed_per_s);
    assert!(latency.tail(Percentile::P99).unwrap() > Nanos::from_millis(4));
    assert!(seen.apps[0].progress.as_ref().unwrap().per_s > 50.0);
    let energy = seen.energy.unwrap();
    // Static 10 + 4 * 0.5 W, and C*V²*f for the busy share.
    let expected = 10.0 * (12.0 + used * 1.35 * 1.35 * 2.26);
    assert!((energy.energy.0 / expected - 1.0).abs() < 1e-6, "{energy:?} {expected}");
    assert!(matches!(energy.source, EnergySource::Modelled(_)));
}

#[test]
fn a_slower_domain_works_at_its_pace_and_draws_its_power() {
    let mut plant = plant("web");
    let full = plant.observe(Nanos::from_secs(5)).unwrap();
    let slow: Vec<Setting> = plant
        .machine()
        .domains
        .iter()
        .map(|domain| Setting::Frequency(domain.id, Hertz::from_khz(1_200_000)))
        .collect();
    for outcome in plant.apply(&slow).outcomes {
        assert!(matches!(outcome.got, ApplyOutcome::Clamped { .. }), "{outcome:?}");
    }
    let slowed = plant.observe(Nanos::from_secs(5)).unwrap();
    assert_eq!(slowed.cores[0].frequency, Ok(Hertz::from_khz(1_197_000)));
    assert!(slowed.energy.as_ref().unwrap().energy.0 < full.energy.as_ref().unwrap().energy.0);
    let used = |seen: &Observation| -> f64 {
        seen.cores.iter().map(|core| core.utilisation.as_ref().unwrap()).sum()
    };
    let ratio = used(&slowed) / used(&full);
    assert!((ratio / (2.26 / 1.197) - 1.0).abs() < 0.1, "{ratio}");
}

/// Half a second at full speed, half a second at the slowest, and so on.
struct Seesaw {
    domain: lull_control::DomainId,
    low: Hertz,
    high: Hertz,
}

impl Policy for Seesaw {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        let second_half = seen.time.0 % 1_000_000_000 >= 500_000_000;
        let wanted = if second_half { self.low } else { self.high };
        let mut plan = Plan::keep();
        plan.set(Setting::Frequency(self.domain, wanted), Reason::Fixed);
        plan
    }
}

fn seesaw(machine: &lull_control::Machine) -> Box<Seesaw> {
    let domain = &machine.domains[0];
    let (low, high) = (domain.steps[0], domain.steps[domain.steps.len() - 1]);
    Box::new(Seesaw { domain: domain.id, low, high })
}

fn rules() -> Rules {
    let limits = Limits { dwell: Nanos::ZERO, ..Limits::default() };
    Rules { limits, ..Rules::default() }
}

#[test]
fn one_plant_runs_under_the_control_loop_as_a_host_does() {
    let plant = plant("web");
    let policy = seesaw(plant.machine());
    let controller = Controller::new(policy, rules(), &plant).unwrap();
    let rng = Rng::seed_from_u64(1);
    let mut control = ControlLoop::new(plant, controller, Nanos::from_millis(100), rng);
    let mut changes = 0;
    for _ in 0..40 {
        changes += control.turn().unwrap().entries.len();
    }
    let plant = control.finish().0;
    let domain = plant.engine().domain_totals(0, 0);
    // The last switch back is the loop's own, at its end.
    assert_eq!((changes, domain.switches), (8, 8), "{domain:?}");
    assert_eq!(domain.residency[2], Nanos::from_millis(2000));
    assert_eq!(domain.residency[0], Nanos::from_millis(2000));
}

#[test]
fn a_system_steers_each_server_at_its_own_epoch() {
    let model = model();
    let mut system = System::new(&model, 1, 0).unwrap();
    for (server, epoch_ms) in [(0, 100), (1, 250)] {
        let spec = PlantSpec { server, apps: Vec::new(), ..spec("web") };
        let side = system.plant(&model, &spec).unwrap();
        let policy = seesaw(side.machine());
        system.manage(side, policy, rules(), Nanos::from_millis(epoch_ms)).unwrap();
    }
    let mut turns = [0, 0];
    system
        .run_with(Nanos::from_secs(2), |turned| {
            turns[turned.plant] += 1;
            assert!(turned.seen.cores[0].utilisation.is_ok());
        })
        .unwrap();
    assert_eq!(turns, [19, 7]);
    assert!(system.engine().domain_totals(0, 0).switches >= 3);
    assert!(system.engine().domain_totals(1, 0).switches >= 3);
    assert_eq!(system.engine().domain_totals(1, 1).switches, 0, "the other domain is left alone");
}

#[test]
fn a_plant_states_what_it_lacks() {
    let plant = plant("plain");
    let capabilities = &plant.machine().capabilities;
    assert!(!capabilities.has(Capability::Frequency));
    assert!(!capabilities.has(Capability::TailLatency));
    assert!(capabilities.has(Capability::Progress));
    let why = capabilities.get(Capability::Energy).unwrap_err().to_string();
    assert!(why.contains("modelled"), "{why}");
    assert_eq!(plant.apps()[0].class, Class::BestEffort);
}

#[test]
fn a_plant_that_does_not_exist_is_refused_by_name() {
    let missing = PlantSpec { server: 2, ..spec("web") };
    let error = SimPlant::new(&model(), &missing, 1).unwrap_err().to_string();
    assert_eq!(error, "tier `web` has no server 2");
    let mut stranger = spec("web");
    stranger.apps[0].name = "stranger".to_owned();
    let error = SimPlant::new(&model(), &stranger, 1).unwrap_err().to_string();
    assert_eq!(error, "the model has no app `stranger`");
}
