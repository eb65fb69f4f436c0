//! Threads, pools and blocking between tiers.

use lull_measure::Nanos;
use lull_sim::model::{Discipline, Model, Source};
use lull_sim::plant::System;
use lull_sim::stats::{Experiment, Warmup};
use lull_sim::theory::{ClosedNetwork, mva};
use lull_sim::{Engine, Totals};

/// Two single-core servers in a row; the second takes ten times as long.
fn row(second: &str, steps: &str) -> Engine {
    let text = format!(
        r#"
        [[tier]]
        name = "front"
        [[tier]]
        name = "back"
        {second}
        [[app]]
        name = "app"
        source = {{ closed = {{ clients = 20, think = {{ mean = "1ms", shape = "constant" }} }} }}
        steps = {steps}
        "#
    );
    let model: Model = toml::from_str(&text).unwrap();
    let mut engine = Engine::new(&model, 1, 0).unwrap();
    engine.run_until(Nanos::from_secs(10)).unwrap();
    engine
}

const IN_A_ROW: &str = r#"[
    { call = { tier = "front", steps = [{ work = { mean = "1ms", shape = "constant" } }] } },
    { call = { tier = "back", steps = [{ work = { mean = "10ms", shape = "constant" } }] } } ]"#;
const NESTED: &str = r#"[{ call = { tier = "front", steps = [
    { work = { mean = "1ms", shape = "constant" } },
    { call = { tier = "back", steps = [
        { work = { mean = "10ms", shape = "constant" } }] } } ] } }]"#;

fn present(engine: &Engine) -> (u32, u32) {
    let totals = engine.totals();
    (totals.servers[0].present, totals.servers[1].present)
}

#[test]
fn without_limits_the_queue_forms_where_the_work_is() {
    let engine = row("", IN_A_ROW);
    assert!(present(&engine).1 >= 18, "{:?}", present(&engine));
}

#[test]
fn blocking_after_service_moves_the_queue_to_the_caller() {
    let blocked = row("threads = 2\nwhen_full = \"block\"", IN_A_ROW);
    let totals = blocked.totals();
    // Two in the second server; all others in front of the first, whose core is held.
    assert_eq!(totals.servers[1].present, 2);
    assert!(totals.servers[0].present >= 16, "{:?}", present(&blocked));
    let busy = totals.servers[0].utilisation(totals.span);
    assert!((busy - 0.1).abs() < 0.01, "held is not busy: {busy}");
    // The second server is the bottleneck either way.
    assert!((totals.apps[0].answered as i64 - 1000).abs() <= 3, "{}", totals.apps[0].answered);
}

#[test]
fn a_nested_call_that_blocks_holds_the_core_and_one_that_waits_does_not() {
    let blocked = row("threads = 2\nwhen_full = \"block\"", NESTED);
    let waiting = row("threads = 2", NESTED);
    assert!(present(&blocked).0 >= 16, "{:?}", present(&blocked));
    assert_eq!(present(&waiting).0, 0, "callers wait without their core");
    for engine in [blocked, waiting] {
        let totals = engine.totals();
        assert!((totals.apps[0].answered as i64 - 1000).abs() <= 3);
        // The call of the first server lasts as long as that of the second.
        assert!(totals.servers[0].pending >= totals.servers[1].pending);
    }
}

/// The tiers of the n-tier benchmark without limits.
const FOUR_TIERS: &str = r#"
    [[tier]]
    name = "apache"
    [[tier]]
    name = "tomcat"
    [[tier]]
    name = "cjdbc"
    [[tier]]
    name = "mysql"
    [[pool]]
    name = "connections"
    size = 1000000
    per = "tomcat"
    [[app]]
    name = "rubbos"
    source = { closed = { clients = 1, think = { mean = "7s" } } }
    steps = [{ call = { tier = "apache", steps = [
        { work = { mean = "150us" } },
        { call = { tier = "tomcat", steps = [
            { work = { mean = "480us" } },
            { hold = { pool = "connections", steps = [{ call = { tier = "cjdbc", steps = [
                { work = { mean = "100us" } },
                { call = { tier = "mysql", steps = [{ work = { mean = "1060us" } }] } },
            ] } }] } },
            { work = { mean = "480us" } },
        ] } },
    ] } }]
    "#;

fn throughput(model: &Model, seconds: u64) -> f64 {
    let warmup = Warmup::Fixed(Nanos::from_secs(20));
    let length = Nanos::from_secs(seconds);
    let experiment = Experiment { warmup, length, first: 0, replications: 2 };
    let runs = experiment.run(|number| Ok(System::new(model, 1, number)?)).unwrap();
    let per_s = |totals: &Totals| totals.apps[0].answered as f64 / totals.span.as_secs_f64();
    runs.estimate(per_s).unwrap().mean
}

#[test]
fn one_of_each_tier_without_pools_is_a_product_form_network() {
    let mut model: Model = toml::from_str(FOUR_TIERS).unwrap();
    for tier in &mut model.tier {
        tier.discipline = Discipline::Sharing;
    }
    // Tomcat's demand is in two slices, which processor sharing does not notice.
    let demands = [0.00015, 0.00096, 0.0001, 0.00106];
    let network = ClosedNetwork { think_s: 7.0, stations: demands.map(|work| (work, 1)).to_vec() };
    for clients in [3_000, 7_000] {
        model.app[0].source = Source::clients(clients, Nanos::from_secs(7));
        let exact = mva(&network, clients).throughput_per_s;
        let ours = throughput(&model, 30);
        assert!((ours / exact - 1.0).abs() < 0.02, "{clients}: {ours} for {exact}");
    }
}
