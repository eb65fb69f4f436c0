//! Scenarios of a shared machine and of placed requests: figures against what
//! is known, the same bytes on any number of threads, refusals by key.

use lull_lab::progress::Progress;
use lull_lab::scenario::{AnyFile, AnyScenario, Choice, InvalidKey, Kind, Outcome};
use std::path::Path;

/// One server with a core of its own to spare, and a neighbour that never sleeps.
const NODE: &str = r#"
title = "two neighbours"
[run]
warmup = "2s"
length = "20s"
replications = 4
[node]
cores = 2
frequency = "2GHz"
[[app]]
name = "search"
class = "latency-critical"
threads = 1
objectives = [{ p95 = "20ms" }]
activity.requests.work = { mean = "1ms" }
activity.requests.load = [{ from = "0s", rate-per-s = 500.0 }]
[[app]]
name = "batch"
class = "best-effort"
threads = 1
activity = "endless"
[[policy]]
name = "unmanaged"
[[policy]]
name = "lc-first"
"#;

/// One core of speed 1: an M/M/1 queue.
const PLACED: &str = r#"
title = "one core"
objective = { p99 = "200ms" }
[run]
warmup = "20s"
length = "1000s"
replications = 4
[dispatch]
types = [{ name = "slow", speed = 1.0, watts = 3.0 }]
supply = { any = 1 }
load = [{ rate_per_s = 50.0 }]
work = { drawn = { mean = "10ms" } }
[[dispatcher]]
name = "level"
"#;

fn read(text: &str, choice: &Choice) -> Result<AnyScenario, InvalidKey> {
    let file = match Kind::from_table(&toml::from_str(text).unwrap()) {
        Kind::Tiers => panic!("of tiers: {text}"),
        Kind::Node => AnyFile::Node(toml::from_str(text).unwrap()),
        Kind::Dispatch => AnyFile::Dispatch(toml::from_str(text).unwrap()),
        Kind::Gated => AnyFile::Gated(toml::from_str(text).unwrap()),
        Kind::NetServer => AnyFile::NetServer(toml::from_str(text).unwrap()),
    };
    AnyScenario::new(file, Path::new("."), choice)
}

fn run(text: &str) -> Outcome {
    let scenario = read(text, &Choice::default()).unwrap_or_else(|wrong| panic!("{wrong}"));
    scenario.run(&Progress::silent()).unwrap()
}

fn mean(outcome: &Outcome, policy: usize, id: &str) -> f64 {
    let found = outcome.quantities.iter().position(|quantity| quantity.id == id);
    let at = found.unwrap_or_else(|| panic!("no figure {id}: {:?}", outcome.quantities));
    outcome.estimate(policy, at).mean
}

/// The refusal of a scenario with something replaced, as `key: message`.
fn refusal(whole: &str, (from, to): (&str, &str)) -> String {
    assert!(whole.contains(from), "the test replaces nothing: {from}");
    match read(&whole.replacen(from, to, 1), &Choice::default()) {
        Err(wrong) => wrong.to_string(),
        Ok(_) => panic!("not refused: {to}"),
    }
}

#[test]
fn neighbours_with_a_core_each_do_not_harm_each_other() {
    let outcome = run(NODE);
    for policy in 0..2 {
        let rate = mean(&outcome, policy, "throughput[search]");
        assert!((rate / 500.0 - 1.0).abs() < 0.05, "{rate}");
        // M/M/1 at load 0.5: 2 ms, and a little for switches.
        let response_ms = mean(&outcome, policy, "mean[search]");
        assert!((1.8..2.4).contains(&response_ms), "{response_ms}");
        let progress = mean(&outcome, policy, "progress[batch]");
        assert!((90.0..=100.5).contains(&progress), "{progress}");
        assert!(mean(&outcome, policy, "entropy") < 0.1);
        assert_eq!(mean(&outcome, policy, "over-objective[search]"), 0.0);
    }
    // Values that the scenario leaves out are measured and reported.
    let notices = outcome.notices.join("\n");
    assert!(
        notices.contains("`search` alone has a p95 of 5") || notices.contains("`search` alone"),
        "{notices}"
    );
    assert!(notices.contains("`batch` does 1 seconds of work a second alone"), "{notices}");
}

#[test]
fn a_placed_core_is_the_queue_that_theory_knows() {
    let outcome = run(PLACED);
    // M/M/1 at load 0.5 and 10 ms of work: a mean of 20 ms.
    let response_ms = mean(&outcome, 0, "mean[requests]");
    assert!((response_ms / 20.0 - 1.0).abs() < 0.05, "{response_ms}");
    let p99_ms = mean(&outcome, 0, "p99[requests]");
    assert!((p99_ms / (20.0 * 100.0_f64.ln()) - 1.0).abs() < 0.08, "{p99_ms}");
    let (power_w, energy_mj) =
        (mean(&outcome, 0, "power"), mean(&outcome, 0, "energy-per-request"));
    // Busy half of the time at 3 W, and 10 ms of that for each request.
    assert!(
        (power_w - 1.5).abs() < 0.06 && (energy_mj - 30.0).abs() < 1.0,
        "{power_w} {energy_mj}"
    );
    assert!((mean(&outcome, 0, "utilisation[slow]") - 50.0).abs() < 2.0);
    assert!(outcome.notices.is_empty(), "{:?}", outcome.notices);
}

/// The neighbours on two slow cores and a fast one, the server under a dispatcher as well.
fn dispatched() -> String {
    let cores = "cores = 3\n\
        core-types = { types = [\n\
            { name = \"slow\", speed = 1.0, watts = 1.0 },\n\
            { name = \"fast\", speed = 2.0, watts = 6.0 },\n\
        ], supply = { fixed = [2, 1] } }\n\
        dispatch = { app = \"search\", move-cost = \"10us\" }";
    let text = NODE.replacen("cores = 2", cores, 1).replacen("threads = 1", "threads = 3", 1);
    format!("{text}dispatcher = {{ name = \"eetl\", start = 0.1 }}\n")
}

#[test]
fn a_dispatcher_acts_on_a_node_beside_a_policy() {
    let text = dispatched();
    let outcome = run(&text);
    for policy in 0..2 {
        let rate = mean(&outcome, policy, "throughput[search]");
        assert!((rate / 500.0 - 1.0).abs() < 0.05, "{rate}");
    }
    // The dispatcher's first threshold is 2 ms.
    let response = |policy| mean(&outcome, policy, "mean[search]");
    assert!(response(0) != response(1), "the dispatcher moves requests");
    assert!(mean(&outcome, 1, "p95[search]") < 20.0);
    let cases = [
        ("{ name = \"eetl\", start = 0.1 }", "3", "policy[1].dispatcher: is not a table"),
        ("\"eetl\"", "\"etel\"", "policy[1].dispatcher.name: "),
        ("start = 0.1", "strat = 0.1", "policy[1].dispatcher.strat: "),
        ("dispatch = {", "# ", "policy[1].dispatcher: the machine dispatches no app"),
        ("app = \"search\", move", "app = \"batch\", move", "node.dispatch.app: the activity"),
        ("fixed = [2, 1]", "fixed = [2, 2]", "node.core-types.supply: the numbers of cores"),
    ];
    for (from, to, wanted) in cases {
        let refused = refusal(&text, (from, to));
        assert!(refused.starts_with(wanted), "{refused}");
    }
}

#[test]
fn abandoned_requests_of_a_dispatched_app_are_a_figure() {
    let kept = run(&dispatched());
    assert!(kept.quantities.iter().all(|quantity| quantity.id != "lost[search]"));
    let abandon = "move-cost = \"10us\", abandon = \"3ms\"";
    let outcome = run(&dispatched().replacen("move-cost = \"10us\"", abandon, 1));
    // Without a dispatcher no request is abandoned. With it those are that need more than 3 ms on
    // a slow core, one of twenty, unless they move to the fast core in time.
    assert_eq!(mean(&outcome, 0, "lost[search]"), 0.0);
    let lost = mean(&outcome, 1, "lost[search]");
    assert!((0.2..15.0).contains(&lost), "{lost} %");
}

#[test]
fn workers_that_would_look_too_often_for_a_run_are_refused_by_key() {
    let gate = "[node.gate]\n\
        polling = { every = \"10us\", work = \"1us\" }\n\
        device = { channels = 8, rate_per_s = 5000.0, burst = 12.0, order = \"fifo\" }\n\
        [node.gate.query]\n\
        before = { mean = \"180us\" }\n\
        io = { mean = \"250us\" }\n\
        after = { mean = \"115us\" }\n\
        round_trip = { mean = \"20ms\" }\n\
        [[app]]\n\
        name = \"database\"\n\
        class = \"latency-critical\"\n\
        threads = 32\n\
        objectives = [{ p99 = \"20ms\" }]\n\
        ideal = \"2ms\"\n\
        activity = \"connections\"\n\
        [[app]]\n";
    let error =
        refusal(&NODE.replacen("[[app]]\n", gate, 1), ("length = \"20s\"", "length = \"1000s\""));
    assert!(error.starts_with("node.gate.polling.every: a replication of 1002s would"), "{error}");
    assert!(error.contains("3.2e9 looks of workers, at most 1e9"), "{error}");
}

#[test]
fn cores_that_would_pause_too_often_for_a_run_are_refused_by_key() {
    let cycle = "frequency = \"2GHz\"\n\
        duty-cycle = { cores = [0, 1], share = 0.5, period = \"10us\" }";
    let cycled = NODE.replacen("frequency = \"2GHz\"", cycle, 1);
    let error = refusal(&cycled, ("length = \"20s\"", "length = \"5998s\""));
    assert!(error.starts_with("node.duty-cycle.period: a replication of 6000s would"), "{error}");
    assert!(error.contains("1.2e9 pauses of cores, at most 1e9"), "{error}");
}

#[test]
fn both_kinds_write_the_same_bytes_on_any_number_of_threads() {
    for text in [NODE, PLACED] {
        let written = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut csv = Vec::new();
            pool.install(|| run(text)).write_csv(&mut csv).unwrap();
            csv
        };
        let one = written(1);
        assert!(one.len() > 500);
        assert_eq!(one, written(2));
        assert_eq!(one, written(4));
    }
}

#[test]
fn a_node_that_cannot_be_simulated_is_refused_by_key() {
    let cases = [
        ("cores = 2", "cores = 0", "node.cores: "),
        ("threads = 1", "threads = 0", "app[0].threads: "),
        ("mean = \"1ms\"", "mean = \"0s\"", "app[0].activity.requests.work"),
        ("rate-per-s = 500.0", "rate-per-s = nan", "app[0].activity.requests.load"),
        ("objectives = [{ p95 = \"20ms\" }]", "", "app[0].objectives: "),
        ("p95 = \"20ms\"", "p95 = \"100us\"", "app[0].ideal: "),
        ("name = \"lc-first\"", "name = \"unmanaged\"", "policy[1].label: two policies"),
        ("name = \"lc-first\"", "name = \"lcfirst\"", "policy[1].name: "),
        ("name = \"lc-first\"", "name = \"step-dvfs\"", "policy[1].name: policy `step-dvfs` needs"),
        ("name = \"lc-first\"", "name = \"arq\"\nperiod = 1", "policy[1].period: "),
        (
            "name = \"lc-first\"",
            "name = \"lc-first\"\nepoch = \"21s\"",
            "policy[1].epoch: an epoch of 21s is longer than run.length, 20s",
        ),
        (
            "name = \"lc-first\"",
            "name = \"lc-first\"\nepoch = \"1ns\"",
            "policy[1].epoch: epochs of 1ns on 1 servers make 2.2e10 decisions",
        ),
        ("threads = 1", "threads = 1\nmax_load = -1.0", "app[0].max_load: is -1: write a rate"),
        ("activity = \"endless\"", "activity = \"endless\"\nsolo = 0.0", "app[1].solo: is 0: "),
        ("name = \"lc-first\"", "name = \"arq\"\ntiers = [\"web\"]", "policy[1].tiers: "),
        ("length = \"20s\"", "length = \"0s\"", "run.length: is zero"),
        ("replications = 4", "replications = 0", "run.replications: is 0"),
    ];
    for (from, to, wanted) in cases {
        let error = refusal(NODE, (from, to));
        assert!(error.starts_with(wanted), "{to}: {error}");
    }
    let endless = NODE.replace(
        "class = \"best-effort\"",
        "class = \"latency-critical\"\nobjectives = [{ p95 = \"1s\" }]",
    );
    let error = read(&endless, &Choice::default()).unwrap_err().to_string();
    assert!(error.starts_with("app[1].activity: is not `requests`"), "{error}");
    let error = refusal(NODE, ("activity = \"endless\"", "activity = \"called\""));
    assert!(error.starts_with("app[1].activity: only an app of a host under tiers"), "{error}");
}

#[test]
fn placed_requests_that_cannot_be_simulated_are_refused_by_key() {
    let cases = [
        ("p99 = \"200ms\"", "throughput = 5", "objective: is not a latency"),
        ("speed = 1.0", "speed = 0.0", "dispatch.types: "),
        ("speed = 1.0", "speed = 1e308", "dispatch.types[0].speed: is "),
        ("any = 1", "any = 65", "dispatch.supply: 65 cores, at most 64 fit"),
        ("any = 1 }", "any = 1 }\nstatic_watts = 1e308", "dispatch.static_watts: is "),
        (
            "types = [",
            "types = [{ name = \"slow\", speed = 0.5, watts = 1.0 }, ",
            "dispatch.types[1].name: the name `slow` is taken",
        ),
        ("rate_per_s = 50.0", "rate_per_s = 0.0", "dispatch.load[0].rate_per_s: is 0"),
        ("name = \"level\"", "name = \"levle\"", "dispatcher[0].name: "),
        ("name = \"level\"", "name = \"level\"\nlevle = 1", "dispatcher[0].levle: unknown"),
        ("name = \"level\"", "label = \"x\"", "dispatcher[0]: has no name"),
        ("[[dispatcher]]\nname = \"level\"", "", "dispatcher: there is none"),
    ];
    for (from, to, wanted) in cases {
        let error = refusal(PLACED, (from, to));
        assert!(error.starts_with(wanted), "{to}: {error}");
    }
}

#[test]
fn an_overloaded_machine_is_reported_before_and_after_the_run() {
    let outcome =
        run(&PLACED.replace("rate_per_s = 50.0", "rate_per_s = 150.0").replace("1000s", "100s"));
    let notices = outcome.notices.join("\n");
    assert!(notices.contains("unstable: the requests ask for 1.500 times"), "{notices}");
    assert!(notices.contains("were not answered before the end"), "{notices}");
}

#[test]
fn policies_can_be_chosen_on_the_command_line() {
    let choice = Choice { policies: vec!["lc-first".into(), "even".into()], ..Choice::default() };
    assert_eq!(read(NODE, &choice).unwrap().labels(), ["lc-first", "even"]);
    let choice = Choice { policies: vec!["no-such".into()], ..Choice::default() };
    let error = read(NODE, &choice).unwrap_err().to_string();
    assert!(error.contains("of the file: unmanaged, lc-first"), "{error}");
}
