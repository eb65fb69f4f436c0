//! Scenarios end to end: figures against theory, records that do not depend on
//! threads, refusals by key, the worst burst cycle, and the docs' examples.

use lull_lab::cycles::Cycle;
use lull_lab::progress::Progress;
use lull_lab::scenario::{
    AnyFile, AnyScenario, Choice, InvalidKey, Kind, Outcome, RunError, Scenario, ScenarioFile,
    Search,
};
use lull_measure::Nanos;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Two servers under three policies, with bursts: short enough for a test.
const SMALL: &str = r#"
title = "small"

[run]
warmup = "1s"
length = "8s"
replications = 6

[[machine.dvfs.cores]]
pstates = [{ frequency = "2GHz", volts = 1.2 }, { frequency = "1GHz", volts = 0.8 }]
start = 1

[[tier]]
name = "web"
servers = 2
machine = "dvfs"
routing = "round-robin"

[[pool]]
name = "tokens"
size = 8

[[app]]
name = "site"
class = "latency-critical"
objectives = [{ p95 = "8ms" }]
source = { open = { bursts = { high = 900.0, low = 300.0, cycle = "2s" } } }
steps = [{ hold = { pool = "tokens", steps = [
    { call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } },
] } }]

[[policy]]
name = "full-speed"

[[policy]]
name = "powersave"

[[policy]]
label = "slow steps"
name = "step-dvfs"
epoch = "50ms"
"#;

fn read(text: &str, choice: &Choice) -> Result<Scenario, InvalidKey> {
    let file: ScenarioFile = toml::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Scenario::new(file, Path::new(ROOT), choice)
}

/// A scenario of any kind, which is found by its sections as in the command.
fn any(text: &str) -> Result<AnyScenario, InvalidKey> {
    let file = match Kind::from_table(&toml::from_str(text).unwrap()) {
        Kind::Tiers => AnyFile::Tiers(toml::from_str(text).unwrap()),
        Kind::Node => AnyFile::Node(toml::from_str(text).unwrap()),
        Kind::Dispatch => AnyFile::Dispatch(toml::from_str(text).unwrap()),
        Kind::Gated => AnyFile::Gated(toml::from_str(text).unwrap()),
        Kind::NetServer => AnyFile::NetServer(toml::from_str(text).unwrap()),
    };
    // Traces are looked for from the file.
    AnyScenario::new(file, &Path::new(ROOT).join("examples/sim"), &Choice::default())
}

fn scenario(text: &str) -> Scenario {
    read(text, &Choice::default()).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
}

fn run(scenario: &Scenario) -> Result<Outcome, RunError> {
    scenario.run(&Progress::silent())
}

/// `SMALL` with something replaced.
fn replaced(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "the test replaces nothing: {from}");
    SMALL.replacen(from, to, 1)
}

/// The refusal of `SMALL` with something replaced, as `key: message`.
fn refusal(from: &str, to: &str) -> String {
    match read(&replaced(from, to), &Choice::default()) {
        Err(wrong) => wrong.to_string(),
        Ok(_) => panic!("not refused: {to}"),
    }
}

fn number(outcome: &Outcome, id: &str) -> usize {
    let found = outcome.quantities.iter().position(|quantity| quantity.id == id);
    found.unwrap_or_else(|| panic!("no figure {id}: {:?}", outcome.quantities))
}

/// Mean response in an M/M/c queue, by Erlang's formula C.
fn erlang_c_response_ms(servers: u32, rate_per_ms: f64, work_ms: f64) -> f64 {
    let offered = rate_per_ms * work_ms;
    // B(0) = 1, B(n) = a B(n-1) / (n + a B(n-1)); C = c B / (c - a (1 - B)).
    let blocked = (1..=servers).fold(1.0, |b, n| offered * b / (f64::from(n) + offered * b));
    let count = f64::from(servers);
    let waits = count * blocked / (count - offered * (1.0 - blocked));
    work_ms + waits * work_ms / (count - offered)
}

#[test]
fn the_mmc_example_agrees_with_erlang_c() {
    let text = std::fs::read_to_string(format!("{ROOT}/examples/sim/mmc.toml")).unwrap();
    let outcome = run(&scenario(&text)).unwrap();
    let exact = erlang_c_response_ms(4, 3.2, 1.0);
    assert!((exact - 1.7455).abs() < 1e-3, "{exact}");
    let mean = outcome.estimate(0, number(&outcome, "mean[site]"));
    assert!(mean.covers(exact), "{mean:?} misses {exact}");
    assert!(mean.relative() <= 0.005, "the precision asked for: {mean:?}");
    let busy = outcome.estimate(0, number(&outcome, "utilisation[web]"));
    assert!(busy.near(80.0, 2.0), "{busy:?}");
    assert_eq!(outcome.notices, Vec::<String>::new());
}

#[test]
fn the_same_seed_writes_the_same_bytes_on_any_number_of_threads() {
    let scenario = scenario(SMALL);
    let written = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let outcome = pool.install(|| run(&scenario).unwrap());
        let (mut csv, mut parquet) = (Vec::new(), Vec::new());
        outcome.write_csv(&mut csv).unwrap();
        outcome.write_parquet(&mut parquet).unwrap();
        (csv, parquet)
    };
    let one = written(1);
    assert!(
        one.0.starts_with(b"scenario,policy,replication,figure,unit,value\nsmall,full-speed,0,")
    );
    for threads in [2, 4] {
        assert!(written(threads) == one, "{threads} threads");
    }
    let other = Choice { seed: Some(2), ..Choice::default() };
    let outcome = run(&read(SMALL, &other).unwrap()).unwrap();
    let mut csv = Vec::new();
    outcome.write_csv(&mut csv).unwrap();
    assert!(csv != one.0, "another seed gives other figures");
}

#[test]
fn policies_meet_the_same_requests_so_that_differences_are_sharp() {
    let outcome = run(&scenario(SMALL)).unwrap();
    let at = number(&outcome, "mean[site]");
    let slow = outcome.compare(1, at);
    assert!(slow.is_clear() && slow.difference.mean > 0.0, "half the speed: {slow:?}");
    let apart = outcome.estimate(0, at).half_width.hypot(outcome.estimate(1, at).half_width);
    assert!(slow.difference.half_width < apart, "pairing helps: {slow:?}, {apart}");
    let compared = outcome.compare(1, number(&outcome, "throughput[site]"));
    assert!(compared.percent.abs() < 0.5, "an open source sends as much: {compared:?}");
    // 2 GHz at 1.2 V against 1 GHz at 0.8 V: C V² f is 2.88 against 0.64 W, a
    // request takes twice as long at the lower, so that energies are as 1.44 to 0.64.
    let energy = outcome.compare(1, number(&outcome, "energy-per-request"));
    assert!((energy.percent + 100.0 * (1.0 - 0.64 / 1.44)).abs() < 1.0, "{energy:?}");
    let itself = outcome.compare(0, at);
    assert_eq!((itself.difference.mean, itself.is_clear()), (0.0, false));
}

#[test]
fn a_precision_is_reached_or_reported_as_missed() {
    let precise = |relative: f64, most: u64| {
        let precision = format!("{{ figure = \"mean\", relative = {relative}, most = {most} }}");
        let wanted = format!("replications = 2\nprecision = {precision}");
        run(&scenario(&replaced("replications = 6", &wanted))).unwrap()
    };
    let rough = precise(0.5, 50);
    assert!(rough.replications() < 10 && rough.notices.is_empty(), "{:?}", rough.notices);
    let vain = precise(1e-6, 7);
    assert_eq!(vain.replications(), 7);
    assert!(vain.notices[0].contains("mean[site] is not known to ±0.0001 %"), "{:?}", vain.notices);
}

#[test]
fn the_command_line_chooses_policies_seeds_and_replications() {
    let choice = Choice {
        policies: vec!["slow steps".into(), "ondemand".into()],
        replications: Some(3),
        seed: Some(9),
        ..Choice::default()
    };
    let scenario = read(SMALL, &choice).unwrap();
    assert_eq!((scenario.seed, scenario.replications), (9, 3));
    let labels: Vec<_> = scenario.variants.iter().map(|variant| &*variant.label).collect();
    assert_eq!(labels, ["slow steps", "ondemand"]);
    assert_eq!(scenario.variants[1].control.tiers, ["web"]);
    let unknown = |name: &str| {
        let choice = Choice { policies: vec![name.into()], ..Choice::default() };
        read(SMALL, &choice).unwrap_err().to_string()
    };
    let text = unknown("ondemnad");
    assert!(text.starts_with("--policy: no policy is called `ondemnad`. Did you mean `ondemand`?"));
    assert!(text.ends_with("of the file: full-speed, powersave, slow steps"), "{text}");
}

/// The text to replace in `SMALL`, its replacement, and the beginning of the refusal.
type Case = (&'static str, &'static str, &'static str);

const BAD_SYSTEMS: &[Case] = &[
    ("size = 8", "size = 0", "pool[0].size: must be at least 1"),
    ("tier = \"web\"", "tier = \"wbe\"", "app[0].steps[0].hold.steps[0].call.tier: there is no"),
    ("high = 900.0", "high = nan", "app[0].source.open.bursts.high: is NaN"),
    ("high = 900.0", "high = inf", "app[0].source.open.bursts.high: is inf"),
    ("low = 300.0", "low = -1.0", "app[0].source.open.bursts.low: is -1"),
    ("cycle = \"2s\"", "cycle = \"0s\"", "app[0].source.open.bursts.cycle: must be at least"),
    (
        "bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }",
        "rate_per_s = nan",
        "app[0].source.open.rate_per_s: is NaN, must be above 0",
    ),
    (
        "bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }",
        "rate_per_s = -5.0",
        "app[0].source.open.rate_per_s: is -5, must be above 0",
    ),
    (
        "bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }",
        "",
        "app[0].source.open: give the arrival rate",
    ),
    (
        "bursts =",
        "rate_per_s = 1.0, bursts =",
        "app[0].source.open.bursts: cannot be combined with `rate_per_s`",
    ),
    (
        "bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }",
        "trace = \"no.csv\"",
        "app[0].source.open.trace: cannot read the rate trace",
    ),
    (
        "\"round-robin\"",
        "{ probabilities = [0.5, 0.4] }",
        "tier[0].routing: probabilities sum to 0.9",
    ),
    ("servers = 2", "servers = 1000000000", "tier[0].servers: 1000000000 frequency domains"),
];

const BAD_RUNS: &[Case] = &[
    ("length = \"8s\"", "length = \"0s\"", "run.length: is zero"),
    ("length = \"8s\"", "length = \"100000h\"", "run.length: "),
    ("length = \"8s\"", "length = \"50000h\"", "run.length: a replication would take about"),
    ("replications = 6", "replications = 0", "run.replications: is 0"),
    ("replications = 6", "replications = 1000000000", "run.replications: is 1000000000"),
    (
        "replications = 6",
        "precision = { figure = \"p42\", relative = 0.1 }",
        "run.precision.figure: there is no figure `p42`; there are: throughput[site]",
    ),
    (
        "replications = 6",
        "precision = { figure = \"p95\", relative = 0.0 }",
        "run.precision.relative: is 0",
    ),
    (
        "replications = 6",
        "precision = { figure = \"p95\", relative = 0.1, most = 2 }",
        "run.precision.most: is 2",
    ),
];

const BAD_POLICIES: &[Case] = &[
    ("class = \"latency-critical\"\n", "", "app[0].class: an app with objectives needs a class"),
    ("objectives = [{ p95 = \"8ms\" }]", "", "app[0].objectives: `site` is latency-critical"),
    ("name = \"powersave\"", "name = \"powersvae\"", "policy[1].name: no policy is called"),
    ("name = \"powersave\"", "label = \"p\"", "policy[1]: has no name"),
    ("name = \"powersave\"", "name = \"full-speed\"", "policy[1].label: two policies are called"),
    ("name = \"powersave\"", "name = \"arq\"", "policy[1].name: policy `arq` needs cores"),
    ("epoch = \"50ms\"", "epoch = \"0s\"", "policy[2].epoch: "),
    ("epoch = \"50ms\"", "epoch = 50", "policy[2].epoch: "),
    ("epoch = \"50ms\"", "epoch = \"1ns\"", "policy[2].epoch: epochs of 1ns on 2 servers make"),
    ("epoch = \"50ms\"", "peroid = \"50ms\"", "policy[2].peroid: "),
    ("epoch = \"50ms\"", "down = \"up\"", "policy[2].down: "),
    ("epoch = \"50ms\"", "adaptive_epoch = { swing = 2.0 }", "policy[2].adaptive_epoch: "),
    ("epoch = \"50ms\"", "tiers = [\"wbe\"]", "policy[2].tiers[0]: there is no tier `wbe`"),
    ("epoch = \"50ms\"", "tiers = []", "policy[2].tiers: is empty"),
];

#[test]
fn what_cannot_be_simulated_is_refused_by_its_key() {
    for (from, to, begin) in [BAD_SYSTEMS, BAD_RUNS, BAD_POLICIES].into_iter().flatten() {
        let refused = refusal(from, to);
        assert!(refused.starts_with(begin), "{to}\n  got:  {refused}\n  want: {begin}");
    }
}

#[test]
fn a_scenario_without_policies_needs_some_on_the_command_line() {
    let (system, _) = SMALL.split_once("[[policy]]").unwrap();
    let error = read(system, &Choice::default()).unwrap_err();
    assert!(error.to_string().starts_with("policy: there is none: write [[policy]]"), "{error}");
    let choice = Choice { policies: vec!["schedutil".into()], ..Choice::default() };
    assert_eq!(read(system, &choice).unwrap().variants[0].control.tiers, ["web"]);
}

#[test]
fn a_policy_that_lacks_a_capability_is_refused_before_anything_runs() {
    let fixed = SMALL.replace("machine = \"dvfs\"\n", "");
    let error = read(&fixed, &Choice::default()).unwrap_err().to_string();
    assert!(error.starts_with("policy[0].name: policy `full-speed` needs frequency"), "{error}");
    assert!(error.contains("no P-states"), "{error}");
}

#[test]
fn an_overloaded_system_is_reported_before_it_runs_and_stops_at_its_bound() {
    let over = replaced("high = 900.0, low = 300.0", "high = 3000.0, low = 2000.0");
    let over = over.replace("size = 8\n", "size = 8000\n");
    let scenarios = scenario(&over);
    assert!(
        scenarios.notices[0].contains("tier `web` is offered 1.250 times"),
        "{:?}",
        scenarios.notices
    );
    let outcome = run(&scenarios).unwrap();
    let doubt = "policy `full-speed`: 2";
    assert!(outcome.notices.iter().any(|it| it.starts_with(doubt)), "{:?}", outcome.notices);
    let bounded = scenario(&format!("{over}\n[limits]\nin_flight = 1000\n"));
    let stopped = run(&bounded).unwrap_err().to_string();
    assert!(stopped.starts_with("policy `full-speed`: replication 0: stopped at "), "{stopped}");
    assert!(stopped.contains("`limits.in_flight`"), "{stopped}");
    // One that refuses what it cannot serve is not overloaded: it loses.
    let loses = over.replace("size = 8000\n", "size = 8\nbacklog = 2\n");
    let outcome = run(&scenario(&loses)).unwrap();
    assert!(outcome.notices.is_empty(), "{:?}", outcome.notices);
    let lost = outcome.estimate(0, number(&outcome, "lost[site]"));
    assert!((19.0..35.0).contains(&lost.mean), "{lost:?}");
}

#[test]
fn a_system_that_is_too_slow_under_one_policy_only_is_reported_for_that_policy() {
    // 1.5 requests per ms for two servers at half speed, which serve 1 per ms.
    let text = replaced("high = 900.0, low = 300.0", "high = 1800.0, low = 1200.0");
    let outcome = run(&scenario(&text.replace("size = 8\n", "size = 8000\n"))).unwrap();
    let scenarios: Vec<_> =
        outcome.notices.iter().filter(|it| it.contains("not answered")).collect();
    assert!(scenarios[0].starts_with("policy `powersave`: 3"), "{scenarios:?}");
    assert!(!scenarios.iter().any(|it| it.contains("full-speed")), "{scenarios:?}");
}

#[test]
fn a_billion_clients_stop_at_a_bound() {
    let closed = replaced(
        "source = { open = { bursts = { high = 900.0, low = 300.0, cycle = \"2s\" } } }",
        "source = { closed = { clients = 1000000000, think = { mean = \"7s\" } } }",
    );
    let stopped = run(&scenario(&closed)).unwrap_err().to_string();
    assert!(stopped.contains("the bound `limits.in_flight`"), "{stopped}");
}

#[test]
fn a_run_of_hours_is_reported_as_such() {
    let long = replaced("length = \"8s\"", "length = \"1000h\"");
    assert!(scenario(&long).notices.is_empty());
    let longer = long.replace("replications = 6", "replications = 100");
    assert!(scenario(&longer).notices[0].starts_with("long: up to 1.3e12 events in all"));
}

#[test]
fn requests_come_at_the_rates_of_a_trace() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("rates.csv"), "time_s,rate_per_s\n0,100\n3,700\n").unwrap();
    let text =
        replaced("bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }", "trace = \"rates.csv\"");
    let file: ScenarioFile = toml::from_str(&text).unwrap();
    let scenario = Scenario::new(file, place.path(), &Choice::default()).unwrap();
    let outcome = run(&scenario).unwrap();
    // Counted from 1 s to 9 s: two seconds of 100 and six of 700.
    let rate = outcome.estimate(0, number(&outcome, "throughput[site]"));
    assert!(rate.near((200.0 + 4200.0) / 8.0, 2.0), "{rate:?}");
}

#[test]
fn a_warm_up_is_found_where_none_is_given() {
    let steady =
        replaced("bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }", "rate_per_s = 500.0");
    let found = steady.replace("warmup = \"1s\"", "warmup = \"mser\"");
    let outcome = run(&scenario(&found)).unwrap();
    assert!(outcome.warmup <= Nanos::from_secs(4), "{}", outcome.warmup);
    assert_eq!(outcome.replications(), 6);
}

#[test]
fn a_search_needs_one_app_with_bursts() {
    let search = Search::default();
    assert_eq!(scenario(SMALL).bursty_app(&search), Ok(0));
    let steady =
        replaced("bursts = { high = 900.0, low = 300.0, cycle = \"2s\" }", "rate_per_s = 500.0");
    let error = scenario(&steady).bursty_app(&search).unwrap_err();
    assert!(error.to_string().starts_with("app: no app has bursts"), "{error}");
    let shortest = Search { shortest: Nanos::from_secs(99), ..search };
    assert_eq!(scenario(SMALL).bursty_app(&shortest).unwrap_err().key, "--longest");
    let bounded = format!("{SMALL}\n[limits]\nevents = 1000000\n");
    let longest = Search { longest: Nanos::from_secs(3600), ..search };
    let error = scenario(&bounded).bursty_app(&longest).unwrap_err().to_string();
    assert!(error.starts_with("--longest: a replication would take about 8.6e6 events"), "{error}");
}

#[test]
fn a_search_goes_over_the_grid_and_closes_in_on_its_worst() {
    let choice = Choice { policies: vec!["slow steps".into()], ..Choice::default() };
    let scenario = read(SMALL, &choice).unwrap();
    let search = Search { grid: 4, refine: 2, longest: Nanos::from_secs(8), ..Search::default() };
    let found = scenario.find_worst_cycle(0, &search, &Progress::silent()).unwrap();
    let sweep = &found.policies[0];
    assert_eq!(sweep.cycles.len(), 6);
    assert!(sweep.cycles.windows(2).all(|pair| pair[0].cycle < pair[1].cycle));
    let highest = sweep.cycles.iter().map(|cycle| cycle.response_ms().mean).fold(0.0, f64::max);
    assert_eq!(sweep.worst().response_ms().mean, highest);
    assert!(sweep.times_shortest().mean >= 1.0 && sweep.times_longest().mean >= 1.0);
    let (mut csv, mut parquet) = (Vec::new(), Vec::new());
    found.write_csv(&mut csv).unwrap();
    found.write_parquet(&mut parquet).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + 6 * 6 * 4, "cycles, replications, figures");
    assert!(csv.starts_with("scenario,policy,replication,figure,unit,value,cycle_s\n"));
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    assert_eq!(found.panels().len(), 2);
}

#[test]
fn every_example_and_every_scenario_of_the_docs_can_be_run() {
    let mut texts = Vec::new();
    for file in std::fs::read_dir(format!("{ROOT}/examples/sim")).unwrap().flatten() {
        if file.path().extension().is_some_and(|end| end == "toml") {
            texts.push(std::fs::read_to_string(file.path()).unwrap());
        }
    }
    assert_eq!(texts.len(), 15);
    let page = std::fs::read_to_string(format!("{ROOT}/docs/scenario.md")).unwrap();
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).collect();
    assert!(!blocks.is_empty());
    texts.extend(blocks.iter().map(|block| block.split("```").next().unwrap().to_owned()));
    for text in texts {
        let scenario = any(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert!(scenario.notices().is_empty(), "{:?}\n{text}", scenario.notices());
    }
}

#[test]
#[ignore = "slow: fifteen burst cycles of six replications"]
fn the_worst_burst_cycle_of_the_example_is_that_of_the_paper() {
    let text = std::fs::read_to_string(format!("{ROOT}/examples/sim/bursts.toml")).unwrap();
    let choice = Choice { policies: vec!["step-dvfs".into()], ..Choice::default() };
    let scenario = read(&text, &choice).unwrap();
    let search = Search::default();
    let app = scenario.bursty_app(&search).unwrap();
    let found = scenario.find_worst_cycle(app, &search, &Progress::silent()).unwrap();
    let sweep = &found.policies[0];
    for (what, worst) in [("response", sweep.worst()), ("error", sweep.largest_error())] {
        assert!((1.5..=4.0).contains(&worst.seconds()), "{what}: {}", worst.seconds());
    }
    let times = |other: &Cycle| sweep.worst().response_ms().mean / other.response_ms().mean;
    let (shortest, longest) = (&sweep.cycles[0], &sweep.cycles[sweep.cycles.len() - 1]);
    assert!(times(shortest) > 2.0 && times(longest) > 1.25, "{sweep:?}");
}

/// A service beside work that visits, with something replaced.
fn visited(from: &str, to: &str) -> String {
    let text = std::fs::read_to_string(format!("{ROOT}/examples/sim/visitors.toml")).unwrap();
    let text = text.replace("length = \"60s\"", "length = \"25s\"");
    assert!(text.contains(from), "the test replaces nothing: {from}");
    text.replacen(from, to, 1)
}

#[test]
fn an_app_is_counted_while_it_is_present() {
    let node = |text: &str| {
        let scenario = any(text).unwrap_or_else(|wrong| panic!("{wrong}"));
        scenario.run(&Progress::silent()).unwrap()
    };
    let mean = |outcome: &Outcome, id: &str| outcome.estimate(0, number(outcome, id)).mean;
    let text = visited("", "");
    let always =
        text.replace("arrives = [\"15s\", \"28s\"]\n", "").replace("leaves = \"22s\"\n", "");
    let (visits, always) = (node(&text), node(&always));
    // The visitor has the same pace while it is there; the service answers as many requests.
    for (id, tolerance) in [("progress[batch]", 0.1), ("throughput[search]", 0.1)] {
        let (found, wanted) = (mean(&visits, id), mean(&always, id));
        assert!((found / wanted - 1.0).abs() < tolerance, "{id}: {found}, always {wanted}");
    }
    let idle = |outcome: &Outcome| 100.0 - mean(outcome, "utilisation");
    assert!(idle(&visits) > idle(&always) + 10.0, "half of the time it is away");
    assert!(mean(&visits, "lost[search]") >= 0.0, "a restart may lose requests");
}

#[test]
fn changes_of_an_app_that_cannot_happen_are_refused_by_key() {
    let leaves = "leaves = \"22s\"";
    let cases = [
        ("leaves = \"22s\"\nrestarts = \"2h\"", "app[1].restarts: 7200s is not before the end"),
        ("leaves = \"30s\"", "app[1].arrives: the app arrives while it is present"),
        ("leaves = [\"15s\"]", "each change of an app must be later"),
        ("leaves = \"22s\"\nrestarts = [\"23s\"]", "app[1].restarts: the app restarts while"),
    ];
    for (to, wanted) in cases {
        let error = any(&visited(leaves, to)).err().unwrap().to_string();
        assert!(error.contains(wanted), "{to}: {error}");
    }
    let text = visited(leaves, "leaves = 22");
    let error = toml::from_str::<lull_lab::scenario::ColocatedFile>(&text).unwrap_err().to_string();
    assert!(error.contains("a time such as"), "{error}");
}
