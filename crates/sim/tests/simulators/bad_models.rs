//! Models that cannot be simulated are refused by key, or stopped at a bound.

use lull_measure::Nanos;
use lull_sim::model::Model;
use lull_sim::{Engine, Stop};

const GOOD: &str = r#"
[machine.small]
cores = [{ count = 2, pstates = [
    { frequency = "2GHz", volts = 1.2 }, { frequency = "1GHz", volts = 0.8 } ] }]
[[tier]]
name = "web"
machine = "small"
threads = 8
backlog = 4
[[tier]]
name = "db"
servers = 2
routing = { probabilities = [0.5, 0.5] }
[[pool]]
name = "connections"
size = 5
per = "web"
[[app]]
name = "site"
source = { open = { rate_per_s = 100.0 } }
steps = [{ call = { tier = "web", steps = [
    { work = { mean = "1ms" } },
    { hold = { pool = "connections", steps = [
        { choose = [
            { probability = 0.5, steps = [
                { call = { tier = "db", steps = [{ work = { mean = "2ms" } }] } }] },
            { probability = 0.5 } ] } ] } } ] } }]
"#;

fn refusal(from: &str, to: &str) -> String {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "nothing replaced: {from}");
    let model: Model = toml::from_str(&text).unwrap_or_else(|error| panic!("{to}: {error}"));
    model.check().expect_err(to).to_string()
}

#[test]
fn the_model_that_the_others_spoil_is_good() {
    let model: Model = toml::from_str(GOOD).unwrap();
    assert_eq!(model.check(), Ok(()));
    let load = model.offered_load();
    assert!((load[0] - 0.05).abs() < 1e-12 && (load[1] - 0.05).abs() < 1e-12, "{load:?}");
}

#[test]
fn every_mistake_is_refused_at_its_key() {
    let cases = [
        ("size = 5", "size = 0", "pool[0].size: must be at least 1"),
        ("threads = 8", "threads = 0", "tier[0].threads: must be at least 1"),
        ("servers = 2", "servers = 0", "tier[1].servers: must be at least 1"),
        (
            "tier = \"db\"",
            "tier = \"bd\"",
            "choose[0].steps[0].call.tier: there is no tier `bd`; there are: web, db",
        ),
        ("pool = \"conn", "pool = \"kon", "hold.pool: there is no pool `konections`"),
        ("per = \"web\"", "per = \"wap\"", "pool[0].per: there is no tier `wap`"),
        ("per = \"web\"", "per = \"db\"", "hold: `db` is not being called here"),
        ("rate_per_s = 100.0", "rate_per_s = nan", "app[0].source.open.rate_per_s: is NaN"),
        ("rate_per_s = 100.0", "rate_per_s = -1.0", "rate_per_s: is -1, must be above 0"),
        ("rate_per_s = 100.0", "rate_per_s = inf", "rate_per_s: is inf"),
        ("[0.5, 0.5]", "[0.5, 0.4]", "tier[1].routing: probabilities sum to 0.9"),
        ("[0.5, 0.5]", "[1.0]", "tier[1].routing: has 1 entries, must have 2"),
        ("[0.5, 0.5]", "[1.5, -0.5]", "tier[1].routing[0]: is 1.5, must be from 0 to 1"),
        ("{ probability = 0.5 }", "{ probability = 0.6 }", "choose: probabilities sum to 1.1"),
        ("machine = \"small\"", "machine = \"big\"", "tier[0].machine: there is no machine `big`"),
        ("mean = \"1ms\"", "mean = \"0ms\"", "steps[0].work.mean: must be at least 1"),
        ("name = \"db\"", "name = \"web\"", "tier[1].name: the name `web` is taken"),
        ("threads = 8\n", "", "tier[0].backlog: has no effect without `threads`"),
        ("\"1GHz\"", "\"3GHz\"", "machine.small.cores[0].pstates: list P-states from the fastest"),
        ("volts = 0.8", "volts = 0.0", "machine.small.cores[0].pstates[1].volts: is 0"),
        ("count = 2", "count = 9999", "machine.small: 9999 cores, at most 4096 fit"),
        ("servers = 2", "servers = 4000000000", "tier[1].routing: has 2 entries"),
        (
            "steps = [{ call = { tier = \"web\"",
            "steps = [{ work = { mean = \"1ms\" } }, { call = { tier = \"web\"",
            "app[0].steps[0].work: work needs a server",
        ),
        ("{ work = { mean = \"1ms\" } },", "", "app[0].steps: no work is certain"),
    ];
    for (from, to, wanted) in cases {
        let error = refusal(from, to);
        assert!(error.contains(wanted), "{to}: {error}");
    }
}

#[test]
fn a_shape_out_of_range_is_refused() {
    for (shape, wanted) in [
        ("{ hyper-exponential = { cv2 = 0.5 } }", "from 1 to 1e6"),
        ("{ erlang = { stages = 0 } }", "shape.stages: must be at least 1"),
        ("{ gamma = { cv2 = nan } }", "is NaN"),
        ("{ lognormal = { cv2 = -1.0 } }", "above 1e-6"),
    ] {
        let error = refusal("mean = \"1ms\"", &format!("mean = \"1ms\", shape = {shape}"));
        assert!(error.contains(wanted), "{shape}: {error}");
    }
}

#[test]
fn a_blocking_tier_behind_a_shared_one_is_refused() {
    let text = GOOD
        .replacen("name = \"web\"", "name = \"web\"\ndiscipline = \"sharing\"", 1)
        .replacen("servers = 2", "servers = 2\nthreads = 3\nwhen_full = \"block\"", 1)
        .replacen("per = \"web\"", "", 1);
    let steps = text.find("steps = [").unwrap();
    let text = format!(
        "{}steps = [{{ call = {{ tier = \"web\", steps = [{{ work = {{ mean = \"1ms\" }} }}] }} }},
            {{ call = {{ tier = \"db\", steps = [{{ work = {{ mean = \"1ms\" }} }}] }} }}]",
        &text[..steps]
    );
    let error = toml::from_str::<Model>(&text).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("app[0].steps[1].call: a `when_full = \"block\"` tier"), "{error}");
}

#[test]
fn a_huge_scenario_is_refused_before_anything_is_built() {
    let text = GOOD.replacen(
        "servers = 2\nrouting = { probabilities = [0.5, 0.5] }",
        "servers = 4000000000",
        1,
    );
    let error = toml::from_str::<Model>(&text).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("at most 524288 fit"), "{error}");
}

#[test]
fn an_unknown_key_is_refused() {
    let error = toml::from_str::<Model>(&GOOD.replacen("threads", "treads", 1)).unwrap_err();
    assert!(error.to_string().contains("treads"), "{error}");
}

#[test]
fn an_unstable_open_system_says_so_and_stops_at_its_bound() {
    let mut model: Model =
        toml::from_str(&GOOD.replacen("rate_per_s = 100.0", "rate_per_s = 9000.0", 1)).unwrap();
    model.tier[0].backlog = None;
    model.limits.in_flight = 1000;
    assert!(model.offered_load()[0] > 1.0, "the overload is known before the run");
    let mut engine = Engine::new(&model, 1, 0).unwrap();
    let stop = engine.run_until(Nanos::from_secs(1000)).unwrap_err();
    assert!(matches!(stop, Stop::Overrun { in_flight: 1000, .. }), "{stop}");
    assert!(stop.to_string().contains("app `site` sends more than is served"), "{stop}");
    assert_eq!(engine.run_until(Nanos::MAX), Err(stop), "a stopped engine stays stopped");
}

#[test]
fn a_run_without_end_stops_at_its_bound() {
    let mut model: Model = toml::from_str(GOOD).unwrap();
    model.limits.events = 10_000;
    let mut engine = Engine::new(&model, 1, 0).unwrap();
    let stop = engine.run_until(Nanos::MAX).unwrap_err();
    assert!(matches!(stop, Stop::Events { events: 10_000, .. }), "{stop}");
}
