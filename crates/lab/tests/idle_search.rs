//! The search over idle states, on a simulated server whose deepest state saves power and adds
//! its exit latency to requests that wake a core.

mod discovery;

use discovery::{EPOCH, discover};
use lull_control::{AppSpec, Discovery, Plant, Setting};
use lull_measure::{Nanos, Percentile};
use lull_sim::netserver::{MachinePlant, NetServerModel};

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
    discover(server(bound), SEARCH, 1000)
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
