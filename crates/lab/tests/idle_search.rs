//! The search over idle states, on a simulated server whose deepest state saves power and adds
//! its exit latency to requests that wake a core.

use lull_control::{AppSpec, Discovery, Plant, Rng, Setting};
use lull_measure::{Nanos, Percentile};
use lull_policies::POLICIES;
use lull_sim::netserver::{MachinePlant, NetServerModel};
use rand::SeedableRng;

const EPOCH: Nanos = Nanos::from_millis(100);
const SEARCH: &str = r#"
knobs = ["idle-latency"]
trials = 8
settle = "100ms"
window = "2s"
harm_max = 1.0
load_change = 1.0
"#;

/// Two cores that sleep between most requests, in C1 (2 us) or C6 (104 us).
fn server(bound: Nanos) -> MachinePlant {
    let text = include_str!("../../sim/src/netserver/example.toml");
    let model: NetServerModel = toml::from_str(text).unwrap();
    let app = AppSpec::latency_critical("cache", Percentile::P99, bound);
    model.at_rate(500.0).plant(&app, 1, 0).unwrap()
}

/// The p99 of ten seconds with idle states up to this exit latency.
fn p99(limit: Nanos) -> Nanos {
    let mut plant = server(Nanos::from_millis(1));
    let outcomes = plant.apply(&[Setting::IdleLatency(limit)]).outcomes;
    assert!(outcomes[0].in_force().is_some(), "{outcomes:?}");
    plant.observe(EPOCH).unwrap();
    let seen = plant.observe(Nanos::from_secs(10)).unwrap();
    seen.apps[0].latency.as_ref().unwrap().window.quantile(Percentile::P99).unwrap()
}

fn search(bound: Nanos) -> Discovery {
    let mut plant = server(bound);
    let keys = SEARCH.parse().unwrap();
    let mut policy = POLICIES.build("bayop", &keys, plant.machine(), plant.apps()).unwrap();
    let mut rng = Rng::seed_from_u64(7);
    for _ in 0..1000 {
        let seen = plant.observe(EPOCH).unwrap();
        let plan = policy.decide(&seen, &mut rng);
        let wanted: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        for outcome in plant.apply(&wanted).outcomes {
            assert!(outcome.in_force().is_some(), "{outcome:?}");
        }
        if let Some(found) = policy.discoveries().pop() {
            return found;
        }
    }
    panic!("the search has no end");
}

#[test]
fn deep_idle_states_are_allowed_where_the_bound_allows_them_and_only_there() {
    let [shallow, deep] = [2, 104].map(Nanos::from_micros);
    let (quick, slow) = (p99(shallow), p99(deep));
    assert!(slow > quick.scale(1.2), "{slow} {quick}");
    let between = Nanos::from_secs_f64((quick.as_secs_f64() * slow.as_secs_f64()).sqrt());
    for (bound, limit) in [(between, shallow), (slow.scale(3.0), deep)] {
        let found = search(bound);
        assert!(found.meets, "{bound}: {found:?}");
        assert_eq!(found.settings, [Setting::IdleLatency(limit)], "{bound}: {found:?}");
    }
}
