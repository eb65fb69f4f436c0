//! Policies on a simulated server behind a network card, over a day of 24 short hours.

use lull_lab::progress::Progress;
use lull_lab::scenario::{AnyFile, AnyScenario, Choice, Outcome};
use std::path::Path;

/// The example, with hours of a tenth, and searches that fit into them.
fn short() -> String {
    let example = include_str!("../../../examples/sim/network-day.toml");
    let changes = [
        ("hour = \"2s\"", "hour = \"200ms\""),
        ("replications = 2", "replications = 1"),
        ("peak-per-s = 20000.0", "peak-per-s = 10000.0"),
        ("trials = 16", "trials = 4"),
        ("window = \"40ms\"", "window = \"20ms\""),
        ("load_change = 0.25", "load_change = 0.5"),
        ("objective = { p99 = \"500us\" }", "objective = { p95 = \"1ms\" }"),
    ];
    changes.iter().fold(example.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the example has no {from}");
        text.replacen(from, to, 1)
    })
}

fn scenario(text: &str) -> Result<AnyScenario, String> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim");
    let file = toml::from_str(text).map_err(|error| error.to_string())?;
    let scenario = AnyScenario::new(AnyFile::NetServer(file), &base, &Choice::default());
    scenario.map_err(|wrong| wrong.to_string())
}

fn run(text: &str) -> Outcome {
    let scenario = scenario(text).unwrap_or_else(|wrong| panic!("{wrong}"));
    scenario.run(&Progress::silent()).unwrap()
}

fn mean(outcome: &Outcome, policy: &str, id: &str) -> f64 {
    let at = outcome.quantities.iter().position(|quantity| quantity.id == id);
    let policy = outcome.policies.iter().position(|one| one.label == policy);
    outcome.estimate(policy.unwrap(), at.unwrap_or_else(|| panic!("no figure {id}"))).mean
}

#[test]
fn an_epoch_is_no_longer_than_an_hour_of_the_day() {
    for (epoch, why) in [
        ("201ms", "epoch: an epoch of 201ms is longer than day.hour, 200ms"),
        ("1ns", "epoch: epochs of 1ns on 1 servers make 4.8e9 decisions"),
    ] {
        let text = short().replacen("epoch = \"5ms\"", &format!("epoch = {epoch:?}"), 1);
        let wrong = scenario(&text).unwrap_err();
        assert!(wrong.starts_with(why), "{wrong}");
    }
}

#[test]
fn a_day_has_its_load_and_each_policy_its_settings() {
    let outcome = run(&short());
    // The trace's mean is 0.66 of its peak.
    for policy in ["linux-default", "static", "co-pi", "bayop"] {
        let rate = mean(&outcome, policy, "throughput[memcached]");
        assert!((5000.0..8000.0).contains(&rate), "{policy}: {rate}");
        let [all, held] =
            ["missed-hours", "held-missed-hours"].map(|figure| mean(&outcome, policy, figure));
        assert!((0.0..=24.0).contains(&all) && held <= all, "{policy}: {all} {held}");
    }
    // Longer delays are fewer interrupts, and lower frequencies less power.
    let of = |figure: &str| {
        ["linux-default", "static", "co-pi"].map(|policy| mean(&outcome, policy, figure))
    };
    let [_, fixed, looked_up] = of("interrupts");
    assert!(looked_up < fixed, "{looked_up} {fixed}");
    let [_, fixed, looked_up] = of("power");
    assert!(looked_up < fixed, "{looked_up} {fixed}");
    assert_eq!(of("searching"), [0.0; 3]);
    // It searches, and not for ever: known loads have their settings without a trial.
    let searching = mean(&outcome, "bayop", "searching");
    assert!((1.0..60.0).contains(&searching), "{searching}");
}

#[test]
fn later_days_at_the_same_loads_have_no_trial() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace.csv");
    // Six days of four hours, at two loads.
    let rates = [5000, 5000, 20_000, 20_000];
    let hour = |hour: usize| format!("{},{}\n", 3600 * hour, rates[hour % 4]);
    let hours: String = (0..24).map(hour).collect();
    std::fs::write(&trace, format!("time_s,rate_per_s\n{hours}")).unwrap();
    let changes = [
        ("../../traces/synthetic-day.csv", trace.to_str().unwrap()),
        ("hour = \"200ms\"", "hour = \"500ms\""),
        ("peak-per-s = 10000.0", "peak-per-s = 20000.0"),
        ("trials = 4", "trials = 12"),
    ];
    let text = changes.iter().fold(short(), |text, (from, to)| text.replacen(from, to, 1));
    let searching = mean(&run(&text), "bayop", "searching");
    // Two searches of twelve trials of 25 ms are 5 % of 12 s, of which a part is warm-up.
    assert!((4.0..=5.0).contains(&searching), "{searching}");
}

#[test]
fn what_cannot_be_simulated_is_refused_by_key() {
    let cases = [
        ("hour = \"200ms\"", "hour = \"0s\"", "day.hour: "),
        ("peak-per-s = 10000.0", "peak-per-s = 0.0", "day.peak-per-s: "),
        ("synthetic-day.csv", "no-such.csv", "day.trace: cannot read"),
        ("epoch = \"5ms\"", "epoch = \"0s\"", "epoch: "),
        ("cores = 2", "cores = 0", "server.cores: "),
        ("p95 = \"1ms\"", "throughput = 5.0", "objective: "),
        ("name = \"co-pi\"", "name = \"arq\"", "policy[2]."),
        ("trials = 4", "trials = 0", "policy[3].trials: "),
    ];
    for (from, to, key) in cases {
        let text = short();
        assert!(text.contains(from), "{from}");
        let refused = scenario(&text.replacen(from, to, 1)).err().unwrap_or_default();
        assert!(refused.starts_with(key), "{to}: {refused}");
    }
}
