//! Scenarios of tiers of which some are machines: both kinds of policies act, and refusals name
//! the key.

use lull_lab::progress::Progress;
use lull_lab::scenario::{AnyFile, AnyScenario, Choice, Outcome};
use std::path::Path;

const EXAMPLE: &str = include_str!("../../../examples/sim/tiers-and-machine.toml");

/// The example with something replaced.
fn replaced(from: &str, to: &str) -> String {
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
    let short = replaced("warmup = \"30s\"", "warmup = \"2s\"")
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
fn an_app_of_a_host_is_counted_while_it_is_present() {
    let search = "[[host.shared.app]]\nname = \"search\"\nclass = \"latency-critical\"\n\
        threads = 2\nobjectives = [{ p95 = \"50ms\" }]\nideal = \"3ms\"\n\
        activity.requests.work = { mean = \"1ms\" }\n\
        activity.requests.load = [{ from = \"0s\", rate-per-s = 400.0 }]\n";
    let run = |arrives: &str| {
        let text = replaced("[[policy]]", &format!("{search}{arrives}\n[[policy]]"))
            .replace("warmup = \"30s\"", "warmup = \"2s\"")
            .replace("length = \"60s\"", "length = \"8s\"")
            .replace("replications = 4", "replications = 1")
            .replace("solo = 4.6 ", &format!("solo = 4.6\n{arrives} "));
        let (one, _) = text.split_once("[[policy]]\nlabel = \"adaptive-dvfs\"").unwrap();
        read(one).unwrap().run(&Progress::silent()).unwrap()
    };
    let (always, half) = (run(""), run("arrives = \"6s\""));
    for id in ["progress[batch]", "throughput[search]"] {
        let ratio = mean(&half, 0, id) / mean(&always, 0, id);
        assert!((0.75..1.33).contains(&ratio), "{id}: {ratio}");
    }
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
        (
            "activity = \"endless\"",
            "activity = \"endless\"\narrives = \"500s\"",
            "host.shared.app[1].arrives: 500s is not before the end of a replication",
        ),
        (
            "activity = \"endless\"",
            "activity.requests.work = { mean = \"1ms\" }\n\
             activity.requests.load = [{ from = \"0s\", rate-per-s = 2e7 }]",
            "host.shared.app[1].activity.requests.load: a replication of 90s would take",
        ),
        (
            "class = \"latency-critical\"\nthreads = 4\nobjectives = [{ p95 = \"4ms\" }]",
            "class = \"best-effort\"\nthreads = 4",
            "host.shared.app[0].solo: must be given",
        ),
        ("threads = 6", "threads = 0", "host.shared.app[1].threads: must be at least 1"),
        ("name = \"batch\"", "name = \"site\"", "host.shared.app[1].name: the name `site`"),
        ("host = \"shared\"", "host = \"share\"", "host.shared: no tier has this host"),
        (
            "epoch = \"50ms\"",
            "epoch = \"50ms\"\ntiers = [\"web\"]",
            "policy[1].tiers[0]: the servers of this tier are machines",
        ),
        ("hosts.shared", "hosts.shard", "policy[2].hosts.shard: no tier has the host `shard`"),
        ("hosts.shared = { name = \"arq\" }", "hosts = 1", "policy[2].hosts: is not a table"),
        ("{ name = \"arq\" }", "{ name = \"arc\" }", "policy[2].hosts.shared.name: no policy is"),
        ("{ name = \"arq\" }", "{ name = \"arq\", a = 1 }", "policy[2].hosts.shared.a: unknown"),
    ];
    for (from, to, wanted) in cases {
        let refused =
            read(&replaced(from, to)).err().unwrap_or_else(|| panic!("not refused: {to}"));
        assert!(refused.starts_with(wanted), "{refused}\n{wanted}");
    }
}
