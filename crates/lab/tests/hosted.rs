//! Scenarios of tiers of which some are machines: both kinds of policies act, and refusals name
//! the key.

use lull_lab::progress::Progress;
use lull_lab::scenario::{AnyFile, AnyScenario, Choice, Outcome};
use std::path::Path;

const EXAMPLE: &str = include_str!("../../../examples/sim/tiers-and-machine.toml");

/// The example with something replaced.
fn but(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "the test replaces nothing: {from}");
    EXAMPLE.replacen(from, to, 1)
}

fn read(text: &str) -> Result<AnyScenario, String> {
    let file = AnyFile::Tiers(toml::from_str(text).map_err(|error| error.to_string())?);
    let read = AnyScenario::new(file, Path::new("."), &Choice::default());
    read.map_err(|wrong| wrong.to_string())
}

/// Mean of a figure under the policy of this number.
fn mean(outcome: &Outcome, policy: usize, id: &str) -> f64 {
    let number = outcome.quantities.iter().position(|quantity| quantity.id == id);
    let values = &outcome.policies[policy].values[number.unwrap_or_else(|| panic!("no {id}"))];
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn a_policy_on_a_machine_and_one_on_a_station_act_at_once() {
    let short = but("warmup = \"30s\"", "warmup = \"2s\"")
        .replace("length = \"60s\"", "length = \"8s\"")
        .replace("replications = 4", "replications = 2");
    let outcome = read(&short).unwrap().run(&Progress::silent()).unwrap();
    let labels: Vec<_> = outcome.policies.iter().map(|policy| policy.label.as_str()).collect();
    assert_eq!(labels, ["neither", "adaptive-dvfs", "arq", "both"]);
    assert_eq!(outcome.policies[3].policy, "adaptive-dvfs; arq every 500ms on shared");
    let figures = |id: &str| [0, 1, 2, 3].map(|policy| mean(&outcome, policy, id));
    let [neither, dvfs, arq, both] = figures("power");
    assert!((arq / neither - 1.0).abs() < 0.02, "power is that of the database alone");
    assert!(dvfs < 0.97 * neither && both < 0.97 * neither, "{dvfs} {both} {neither}");
    let [neither, dvfs, _, _] = figures("progress[batch]");
    assert!(neither > 30.0 && neither < 101.0, "{neither}");
    assert!((neither - dvfs).abs() < 2.0, "frequencies of the database do not slow batch work");
    let [neither, dvfs, arq, both] = figures("p95[web]");
    let protected = arq < 0.9 * neither && both < 0.9 * dvfs;
    assert!(protected, "the web server goes first: {neither} {dvfs} {arq} {both}");
    for id in ["throughput[site]", "p95[site]", "p95[web]", "over-objective[web]"] {
        assert!(figures(id).iter().all(|value| value.is_finite()), "{id}: {:?}", figures(id));
    }
    // Two pieces of work a request, all of which are answered but those of the last instants.
    let ratio = mean(&outcome, 0, "throughput[web]") / mean(&outcome, 0, "throughput[site]");
    assert!((1.97..2.03).contains(&ratio), "{ratio}");
    let utilisation = mean(&outcome, 0, "utilisation[web]");
    assert!(utilisation > 99.0, "batch work wants every core: {utilisation}");
}

#[test]
fn hosts_that_cannot_be_simulated_are_refused_by_their_key() {
    let cases = [
        (
            "activity = \"called\"",
            "activity = \"endless\"",
            "tier[0].host: the host has no app of the tier's name whose activity is `called`",
        ),
        ("cores = 6", "cores = 0", "host.shared.node.cores: must be at least 1"),
        ("high = 900.0", "high = 1e9", "run.length: a replication would take about"),
        ("threads = 6", "threads = 0", "host.shared.app[1].threads: must be at least 1"),
        ("name = \"batch\"", "name = \"site\"", "host.shared.app[1].name: the name `site`"),
        ("host = \"shared\"", "host = \"share\"", "host.shared: no tier has this host"),
        (
            "epoch = \"50ms\"",
            "epoch = \"50ms\"\ntiers = [\"web\"]",
            "policy[1].tiers[0]: the servers of this tier are machines",
        ),
        ("hosts.shared", "hosts.shard", "policy[2].hosts.shard: no tier has the host `shard`"),
        ("hosts.shared = { name = \"arq\" }", "hosts = 1", "policy[2].hosts: is no table of hosts"),
        ("{ name = \"arq\" }", "{ name = \"arc\" }", "policy[2].hosts.shared.name: no policy is"),
        ("{ name = \"arq\" }", "{ name = \"arq\", a = 1 }", "policy[2].hosts.shared.a: unknown"),
    ];
    for (from, to, wanted) in cases {
        let refused = read(&but(from, to)).err().unwrap_or_else(|| panic!("not refused: {to}"));
        assert!(refused.starts_with(wanted), "{refused}\n{wanted}");
    }
}
