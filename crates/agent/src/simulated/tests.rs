//! Live configs with a gated server, simulated.

use super::DescriptionFiles;
use crate::located::Located;
use crate::scenario_file::read_with;
use lull_control::PolicyError;
use lull_lab::CustomPolicy;
use lull_lab::progress::Progress;
use lull_lab::scenario::{AnyScenario, Choice, Outcome};
use std::path::Path;

/// A database on two cores whose workers slow each other down, and nothing else.
const GATED: &str = r#"[policy]
name = "unmanaged"

[[app]]
name = "db"
class = "latency-critical"
objectives = [{ p95 = "50ms" }]
start = ["mariadbd"]
latency = "preload"
concurrency = 4

[[client]]
app = "db"
clients = 24
think = { mean = "2ms" }
work = { mean = "1ms" }
contention = { kappa = 0.01 }

[machine]
cores = [{ count = 2 }]

[run]
warmup = "1s"
length = "3s"
replications = 2
"#;

/// The activity of its clients.
const WAITING: &str = "clients = 24\nthink = { mean = \"2ms\" }";
/// A second database, without a client.
const SECOND: &str = "[[app]]\nname = \"db2\"\nclass = \"best-effort\"\nstart = [\"mariadbd\"]\n\
                      latency = \"preload\"\nconcurrency = 4\n";

fn read_choice(config: &str, choice: &Choice) -> Result<AnyScenario, String> {
    let source = Located::embedded("c.toml", config);
    let read = read_with(&source, &DescriptionFiles::default(), Path::new("."), choice);
    read.map_err(|error| error.to_string())
}

fn read(config: &str, policies: &[&str]) -> Result<AnyScenario, String> {
    let policies = policies.iter().map(|name| (*name).to_owned()).collect();
    read_choice(config, &Choice { policies, ..Choice::default() })
}

/// The example with one text in place of another.
fn replaced(from: &str, to: &str) -> String {
    assert!(GATED.contains(from), "the case replaces nothing: {from}");
    GATED.replacen(from, to, 1)
}

fn simulate(config: &str) -> Outcome {
    read(config, &[]).unwrap().run(&Progress::silent()).unwrap()
}

fn figure(outcome: &Outcome, policy: usize, kind: &str) -> f64 {
    figure_of(outcome, policy, &format!("{kind}[db]"))
}

fn figure_of(outcome: &Outcome, policy: usize, id: &str) -> f64 {
    let number = outcome.quantities.iter().position(|quantity| quantity.id == id);
    outcome.estimate(policy, number.unwrap_or_else(|| panic!("no {id}"))).mean
}

/// Returns the notice about a key.
fn notice<'a>(notices: &'a [String], key: &str) -> Option<&'a str> {
    let of_key = format!(": {key}: ");
    notices.iter().find_map(|notice| Some(notice.split_once(&of_key)?.1))
}

#[test]
fn a_number_and_an_admission_controller_limit_the_simulated_server_as_the_live_one() {
    for (concurrency, label) in [
        ("4", "unmanaged + manual"),
        ("{ name = \"gate-fifo\", cap = 4 }", "unmanaged + gate-fifo"),
    ] {
        let outcome =
            simulate(&replaced("concurrency = 4", &format!("concurrency = {concurrency}")));
        let misses =
            |notice: &String| notice.contains("with an open gate, above its bound of 50ms");
        assert!(outcome.notices.iter().any(misses), "{:?}", outcome.notices);
        let labels = outcome.policies.iter().map(|policy| policy.label.as_str());
        assert_eq!(labels.collect::<Vec<_>>(), ["unmanaged", label]);
        let [open, gated] = [0, 1].map(|policy| figure(&outcome, policy, "throughput"));
        // Four at a time take 1.12 times the work of one alone, two dozen several times as much.
        assert!(gated > 2.0 * open, "{label}: {gated} and open {open}");
        assert!((1400.0..1800.0).contains(&gated), "{label}: {gated} of 2000/1.12");
    }
}

#[test]
fn auto_finds_by_itself_that_a_limit_helps() {
    let outcome = simulate(
        &replaced("concurrency = 4", "concurrency = \"auto\"")
            .replace("warmup = \"1s\"\nlength = \"3s\"", "warmup = \"240s\"\nlength = \"20s\"")
            .replace("replications = 2", "replications = 1"),
    );
    let [open, gated] = [0, 1].map(|policy| figure(&outcome, policy, "throughput"));
    assert!(gated > 1.5 * open, "{gated} and open {open}");
}

#[test]
fn a_policy_of_the_command_line_acts_behind_the_gate_of_the_config() {
    let scenario = read(GATED, &["unmanaged", "even"]).unwrap();
    let outcome = scenario.run(&Progress::silent()).unwrap();
    let [open, gated] = [0, 1].map(|policy| figure(&outcome, policy, "throughput"));
    assert!(gated > 2.0 * open, "{gated} and open {open}");
}

#[test]
fn promises_are_kept_for_the_first_clients() {
    let promised = replaced(
        "concurrency = 4",
        "concurrency = { name = \"pslo\", cap = 2 }\n[[app.promise]]\nconnections = 2\n\
         objective = { p95 = \"20ms\" }",
    );
    let scenario = read(&promised, &[]).unwrap();
    let key = "app[0].promise";
    assert!(notice(scenario.notices(), key).unwrap().starts_with("assumed: the first clients"));
    let outcome = scenario.run(&Progress::silent()).unwrap();
    let late = |policy| figure_of(&outcome, policy, "over-objective[db promise 1]");
    let [open, kept] = [0, 1].map(late);
    assert!(kept < 5.0 && open > 50.0, "% of answers beyond 20 ms: {kept}, open {open}");
}

#[test]
fn what_the_simulated_gate_lacks_is_listed_by_key() {
    let listed = |config: &str, key: &str, why: &str| {
        let scenario = read(config, &[]).unwrap();
        let notice = notice(scenario.notices(), key).map(str::to_owned);
        let notice = notice.unwrap_or_else(|| panic!("{key}: {:?}", scenario.notices()));
        assert!(notice.contains(why), "{key}: {notice}");
    };
    listed(GATED, "app[0].concurrency", "assumed: a worker for each of the 24 clients");
    let bare = replaced("contention = { kappa = 0.01 }\n", "");
    listed(&bare, "app[0].concurrency", "(client.contention)");
    for (keys, key, why) in [
        ("gate = { mode = \"epoll\" }", "app[0].gate.mode", "rounds of the queries"),
        ("gate.exempt_ports = [3307]", "app[0].gate.exempt_ports", "is left out: all simulated"),
        ("gate.bypass = [{ user = \"a\" }]", "app[0].gate.bypass", "is left out: all simulated"),
        ("threads = 2", "app[0].threads", "a worker for each connection"),
        (
            "client_class = [{ name = \"a\" }]",
            "app[0].client_class",
            "give the clients of each class",
        ),
    ] {
        listed(&replaced("concurrency = 4", &format!("concurrency = 4\n{keys}")), key, why);
    }
    let open = replaced(WAITING, "rate = \"100/s\"\nthreads = 4");
    listed(&open, "app[0].concurrency", "assumed: a worker for each of the 4 connections, which");
    let second = replaced("[[client]]\n", &format!("{SECOND}threads = 2\n\n[[client]]\n"));
    listed(&second, "app[1].concurrency", "is left out: the simulated gate needs queries");
}

#[test]
fn each_app_with_a_gate_is_simulated_behind_a_gate_of_its_own() {
    let config = format!(
        "{GATED}{SECOND}[[client]]\napp = \"db2\"\nclients = 8\nwork = {{ mean = \"10ms\" }}\n"
    )
    .replace("count = 2", "count = 40");
    let scenario = read(&config, &[]).unwrap();
    assert_eq!(scenario.labels(), ["unmanaged", "unmanaged + manual + manual"]);
    let outcome = scenario.run(&Progress::silent()).unwrap();
    // A best-effort database makes progress by its queries: four at a time, of eight alone.
    let progress = figure_of(&outcome, 1, "progress[db2]");
    assert!((40.0..60.0).contains(&progress), "{progress} %");
    assert!(figure_of(&outcome, 0, "progress[db2]") > 90.0);
    let error = config.replace("work = { mean = \"10ms\" }", "work = { mean = \"3000000h\" }");
    let error = read(&error, &[]).err().unwrap_or_default();
    assert!(error.starts_with("c.toml:35: client[1].work.mean: "), "{error}");
}

#[test]
fn clients_at_a_rate_wait_at_the_gate_as_those_that_wait_for_answers() {
    // Two cores answer 1786 queries a second at most where four run at a time.
    let open = replaced(WAITING, "rate = \"1500/s\"\nthreads = 24");
    let outcome = simulate(&open);
    let [over, gated] = [0, 1].map(|policy| figure(&outcome, policy, "over-objective"));
    assert!(over > 90.0 && gated < 20.0, "% of answers beyond 50 ms: {gated}, open {over}");
    let shared = "[[load]]\napp = \"db\"\ntarget = \"http://127.0.0.1:80/\"\nrate = \"9/s\"\n\
                  connections = 7\n\n[machine]\n";
    let loaded = replaced(WAITING, "").replace("[machine]\n", shared);
    let scenario = read(&loaded, &[]).unwrap();
    let assumed = notice(scenario.notices(), "app[0].concurrency").unwrap();
    assert!(assumed.contains("each of the 7 connections, which all clients share"), "{assumed}");
}

#[test]
fn classes_of_clients_share_the_turns_and_have_figures_of_their_own() {
    let classes = "concurrency = 4\nclient_class = [\n\
                   { name = \"web\", weight = 3, match = [{ user = \"web\" }] },\n\
                   { name = \"batch\" }]";
    let config = replaced("concurrency = 4", classes);
    let config = config.replace("clients = 24", "clients = 24\nclasses = { web = 12 }");
    let scenario = read(&config, &[]).unwrap();
    assert_eq!(notice(scenario.notices(), "app[0].client_class"), None);
    let outcome = scenario.run(&Progress::silent()).unwrap();
    let of = |class| figure_of(&outcome, 1, &format!("throughput[db class {class}]"));
    let ratio = of("web") / of("batch");
    assert!((ratio / 3.0 - 1.0).abs() < 0.1, "{ratio}");
    for (classes, wanted) in [
        ("{ shop = 1 }", "classes.shop: is not a client_class of the app"),
        ("{ batch = 1 }", "classes.batch: is the class of all other clients"),
        ("{ web = 0 }", "classes.web: has no clients"),
        ("{ web = 25 }", "classes: are of 25 clients, and there are 24"),
    ] {
        let config = config.replace("{ web = 12 }", classes);
        let error = read(&config, &[]).err().unwrap_or_default();
        assert!(error.starts_with(&format!("c.toml:18: client[0].{wanted}")), "{error}");
    }
}

#[test]
fn a_gate_that_cannot_be_simulated_is_refused_by_line_and_key() {
    for (from, to, wanted) in [
        ("kappa = 0.01", "kappa = -1.0", "c.toml:17: client[0].contention.kappa: "),
        ("kappa = 0.01", "kapa = 0.01", "c.toml:17: client[0].contention.kapa: unknown field"),
        ("clients = 24", "clients = 0", "c.toml:14: client[0].clients: "),
        ("\"2ms\"", "\"3000000h\"", "c.toml:15: client[0].think.mean: "),
        (WAITING, "rate = \"9/s\"", "c.toml:16: client[0].contention: applies to a simulated gate"),
        (WAITING, "rate = \"0/s\"\nthreads = 2", "c.toml:14: client[0].rate: "),
        (
            "think = { mean = \"2ms\" }\nwork = { mean = \"1ms\" }",
            "work = { mean = \"1ns\" }",
            "c.toml:14: client[0].clients: ",
        ),
        (
            "[machine]\n",
            "[limits]\ncores = \"0-7\"\n\n[machine]\n",
            "c.toml:20: limits.cores: `0-7` is not part of this machine's `0-1`",
        ),
    ] {
        let error = read(&replaced(from, to), &[]).err().unwrap_or_default();
        assert!(error.starts_with(wanted), "{to}\n  {error}\n  wanted: {wanted}");
    }
}

#[test]
fn a_simulated_policy_is_built_for_the_cores_and_frequencies_of_the_limits() {
    let cores = "cores = [{ count = 2, steps = [\"1GHz\", \"2GHz\", \"3GHz\"] }]";
    let config = replaced("cores = [{ count = 2 }]", cores);
    let config = format!("{config}\n[limits]\ncores = \"0\"\nfrequency_max = \"2GHz\"\n");
    let seen = CustomPolicy::new("seen", |machine, _| {
        let steps = machine.domains[0].steps.iter().map(ToString::to_string).collect::<Vec<_>>();
        let message = format!("{} core at {}", machine.cores.len(), steps.join(", "));
        Err(PolicyError::Config { key: "name".to_owned(), message })
    });
    let policies = vec!["seen".to_owned()];
    let choice = Choice { policies, custom: vec![seen], ..Choice::default() };
    let error = read_choice(&config, &choice).err().unwrap_or_default();
    assert!(error.contains("1 core at 1GHz, 2GHz"), "{error}");
}

#[test]
fn a_power_model_of_the_config_is_listed_as_left_out() {
    let config = format!("[power]\nbase_watts = 30.0\n{GATED}");
    let scenario = read(&config, &[]).unwrap();
    assert!(notice(scenario.notices(), "power").unwrap().starts_with("is left out: "));
    assert_eq!(notice(read(GATED, &[]).unwrap().notices(), "power"), None);
}

#[test]
fn a_policy_sets_the_number_of_a_gate_and_none_that_a_controller_chooses() {
    let search = "name = \"bayop\"\nknobs = [\"gate-cap\"]";
    let power = "cores = [{ count = 2 }]\nidle = [{ name = \"C1\", exit = \"2us\", watts = 1.0 }]\n\
                 power = { base_watts = 10.0, busy_core_watts = 4.0 }";
    let config = replaced("name = \"unmanaged\"", search).replace("cores = [{ count = 2 }]", power);
    let scenario = read(&config, &[]).unwrap();
    let missing = notice(scenario.notices(), "policy.name").unwrap();
    assert!(missing.contains("coalescing") && !missing.contains("gate"), "{missing}");
    let controlled = config.replace("concurrency = 4", "concurrency = \"auto\"");
    let error = read(&controlled, &[]).err().unwrap_or_default();
    assert!(error.starts_with("c.toml:3: policy.knobs"), "{error}");
}
