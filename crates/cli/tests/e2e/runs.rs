//! Whole runs: their records, the changes during them, and the state after them.

use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::threads::cores_of;
use crate::support::victim::Victim;
use crate::support::{cores, free_port, is_root, skip};
use serde_json::Value;
use std::path::PathBuf;

/// The built-in server, load and burner, started by the agent. The objective
/// cannot be met, so that a policy that adjusts has a reason to.
pub(crate) fn started(policy: &str, port: u16) -> String {
    format!(
        r#"
[policy]
name = "{policy}"
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "20us" }}]
ideal = "10us"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "2"]
ready = "127.0.0.1:{port}"
[[app]]
name = "burner"
class = "best-effort"
progress = "push"
solo = 1e9
start = ["lull", "burn", "memory:8MiB", "--threads", "2"]
[[load]]
app = "server"
target = "options://127.0.0.1:{port}"
rate = "100/s"
connections = 4
"#
    )
}

/// Runs it for a while and reads the burner's cores meanwhile.
fn run_started(policy: &str) -> (Scene, Record, Vec<String>) {
    let scene = Scene::new();
    let config = scene.config("", &started(policy, free_port()));
    let arguments = ["run".as_ref(), config.as_os_str(), "--for".as_ref(), "6s".as_ref()];
    let mut seen = Vec::new();
    let look = || {
        let burner = scene.process_with(&["burn"]);
        seen.extend(burner.map(cores_of).filter(|cores| !cores.is_empty()));
    };
    let ended = scene.start(scene.lull(&arguments)).wait_while(look).well();
    assert!(ended.err.contains("knobs are as they were"), "{}", ended.err);
    seen.dedup();
    let file = scene.records().pop().unwrap();
    (scene, Record::open(&file), seen)
}

#[test]
fn a_run_without_latency_and_progress_shows_no_entropy() {
    let scene = Scene::new();
    let body = r#"
[policy]
name = "unmanaged"
[[app]]
name = "batch"
class = "best-effort"
progress = "push"
start = ["sleep", "600"]
"#;
    let ended = scene.run_for(&scene.config("", body), "1s").well();
    assert!(ended.err.contains("unmanaged  E_S -  | batch"), "{}", ended.err);
}

#[test]
fn arq_takes_cores_from_best_effort_work_and_the_record_says_why() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let (_scene, record, burner_cores) = run_started("arq");
    assert!(record.epochs() >= 3);
    assert!(burner_cores.len() > 1, "the burner was only ever on {burner_cores:?}");
    assert!(record.number("SELECT count(*) FROM latencies WHERE app = 'server'") > 0);
    let decisions = record.events("decision");
    let lowered = |decision: &Value| !decision["reason"]["threshold"].is_null();
    assert!(decisions.iter().any(lowered), "{decisions:?}");
    assert!(decisions.iter().all(|decision| !decision["outcome"]["got"].is_null()));
    let tail = "SELECT count(*) FROM app_epochs WHERE app = 'server' AND tail_latency_seconds > 0";
    assert!(record.number(tail) > 0);
    let progress = "SELECT count(*) FROM app_epochs WHERE progress_per_second > 0";
    assert!(record.number(progress) > 0);
    assert_eq!(record.fact("policy").as_deref(), Some("arq"));
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
}

#[test]
fn references_that_a_run_refutes_are_replaced_in_record_and_journal() {
    let scene = Scene::new();
    let text = started("unmanaged", free_port()).replace("\"20us\"", "\"10s\"");
    let text = text.replace("\"10us\"", "\"5s\"").replace("solo = 1e9", "solo = 1.0");
    // Twenty epochs of 200 ms are needed.
    let ended = scene.run_for(&scene.config("", &text), "20s").well();
    assert!(ended.err.contains("server: its tail beside other apps is below its ideal 5.00s"));
    let record = Record::open(&scene.records()[0]);
    let corrected = record.events("reference_corrected");
    let of = |app: &str| corrected.iter().find(|event| event["app"] == app).unwrap();
    assert_eq!(of("server")["correction"]["ideal"]["was"], 5_000_000_000_u64);
    assert_eq!(of("burner")["correction"]["solo"]["was"], 1.0);
    let specs = record.text("SELECT spec FROM apps ORDER BY id");
    let specs: Vec<Value> = specs.iter().map(|spec| serde_json::from_str(spec).unwrap()).collect();
    assert!(specs[0]["ideal"].as_u64().unwrap() < 5_000_000_000, "{specs:?}");
    assert!(specs[1]["solo_per_s"].as_f64().unwrap() > 1.0, "{specs:?}");
}

#[test]
fn unmanaged_touches_nothing() {
    let (_scene, record, burner_cores) = run_started("unmanaged");
    assert_eq!(burner_cores.len(), 1, "{burner_cores:?}");
    assert_eq!(record.events("decision"), Vec::<Value>::new());
    assert!(record.epochs() >= 3);
}

/// A config of two processes that the agent did not start, under a policy.
pub(crate) fn attached(policy: &str, server: &Victim, batch: &Victim) -> String {
    format!(
        r#"
[policy]
name = "{policy}"
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "20us" }}]
ideal = "10us"
pid = {}
[[app]]
name = "batch"
class = "best-effort"
solo = 1.0
pid = {}
"#,
        server.pid(),
        batch.pid()
    )
}

/// Two attached victims, of which an agent changes both at its first epoch.
pub(crate) struct Two {
    pub(crate) server: Victim,
    pub(crate) batch: Victim,
}

impl Two {
    pub(crate) fn new() -> Self {
        Self { server: Victim::server(), batch: Victim::sleeper() }
    }

    /// A config with further lines of `[agent]`.
    pub(crate) fn config(&self, scene: &Scene, agent: &str) -> PathBuf {
        let agent = format!("silence = \"1h\"\n{agent}");
        scene.config(&agent, &attached("even", &self.server, &self.batch))
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.server.is_changed() && self.batch.is_changed()
    }

    pub(crate) fn assert_as_before(&self) {
        self.server.assert_as_before();
        self.batch.assert_as_before();
    }
}

#[test]
fn attached_apps_are_divided_evenly_and_then_as_before() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let mut agent = scene.agent(&config);
    agent.wait_for("a change of both", || server.is_changed() && batch.is_changed());
    let halves = |victim: &Victim| {
        let states = victim.now().into_values();
        let mut cores: Vec<_> = states.map(|state| state.cores).collect();
        cores.dedup();
        cores
    };
    agent.wait_for("all threads on one half", || halves(&server).len() == 1);
    assert_ne!(halves(&server), halves(&batch));
    agent.interrupt().well();
    server.assert_as_before();
    batch.assert_as_before();
    scene.wait_until_quiet();
}

#[test]
fn lc_first_makes_every_thread_real_time_and_then_as_before() {
    if !is_root() {
        return skip("only root may make threads real-time");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("lc-first", &server, &batch));
    let mut agent = scene.agent(&config);
    let real_time = || server.now().values().all(|state| state.policy == "2");
    // The sleeper begins with the nice value that these tests are run with.
    let usual = || batch.now().values().all(|it| it.policy == "0" && it.nice == "0");
    agent.wait_for("SCHED_RR and the usual class", || real_time() && usual());
    agent.interrupt().well();
    server.assert_as_before();
    batch.assert_as_before();
    scene.wait_until_quiet();
}

#[test]
fn a_dry_run_plans_and_changes_nothing() {
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let arguments = ["run".as_ref(), config.as_os_str(), "--dry-run".as_ref()];
    let mut agent = scene.start(scene.lull(&arguments));
    agent.wait_for("some epochs", || {
        assert!(!server.is_changed() && !batch.is_changed());
        crate::support::record::epochs_so_far(scene.records().last()) > 3
    });
    agent.interrupt().well();
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("decision"), Vec::<Value>::new());
    let held = record.events("held");
    assert!(held.iter().any(|held| held["why"] == "dry run"), "{held:?}");
    assert_eq!(record.text("SELECT DISTINCT phase FROM epochs"), ["dry-run"]);
}

#[test]
fn a_shadow_says_what_it_would_do_and_touches_nothing() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("unmanaged", &server, &batch));
    let arguments = ["run".as_ref(), config.as_os_str(), "--shadow".as_ref(), "even".as_ref()];
    let mut agent = scene.start(scene.lull(&arguments));
    agent.wait_for("some epochs", || {
        assert!(!server.is_changed() && !batch.is_changed());
        crate::support::record::epochs_so_far(scene.records().last()) > 5
    });
    let ended = agent.interrupt().well();
    assert!(ended.err.contains("even would: server: cores"), "{}", ended.err);
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("decision"), Vec::<Value>::new());
    assert_eq!(record.fact("shadow").as_deref(), Some("even"));
    let decisions = record.text("SELECT event FROM shadow ORDER BY rowid");
    assert_eq!(decisions.len(), 2, "each app once: {decisions:?}");
    assert!(decisions[0].contains("decision") && decisions[0].contains("cores"), "{decisions:?}");
    let arguments = ["run".as_ref(), config.as_os_str(), "--shadow".as_ref(), "evne".as_ref()];
    scene.run(&arguments).refused(2, "agent.shadow: `evne` cannot be the shadow");
}

#[test]
fn json_is_one_object_an_epoch_with_the_keys_of_the_catalogue() {
    let scene = Scene::new();
    let config = scene.config("", &started("arq", free_port()));
    let arguments = ["run".as_ref(), config.as_os_str(), "--json".as_ref()];
    let mut agent = scene.start(scene.lull(&arguments));
    let out = scene.path("said-0.out");
    let lines = || std::fs::read_to_string(&out).unwrap().lines().count();
    agent.wait_for("lines", || lines() > 5);
    let ended = agent.interrupt().well();
    let listed = scene.run(&["metrics", "--json"]).well().json();
    let known: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|metric| metric["key"].as_str()).collect();
    for (number, line) in ended.out.lines().enumerate() {
        let epoch: Value = serde_json::from_str(line).unwrap();
        assert_eq!(epoch["epoch"], number);
        assert!(epoch["time_ns"].as_u64().unwrap() > 0 && epoch["safe"].is_boolean());
        assert!(epoch["journal"].is_array());
        let metrics = &epoch["metrics"];
        for scope in [&metrics["machine"], &metrics["apps"]["server"], &metrics["cores"]["0"]] {
            for (key, value) in scope.as_object().unwrap() {
                assert!(known.contains(&key.as_str()), "{key} is not in the catalogue");
                assert!(value.is_number() || value["missing"].is_string(), "{key}: {value}");
            }
        }
    }
    assert!(!ended.err.contains("E_S"), "the status line is shown beside JSON: {}", ended.err);
    scene.wait_until_quiet();
}

#[test]
fn apps_that_have_all_exited_end_the_run() {
    let scene = Scene::new();
    let app = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"brief\"\nclass = \"best-effort\"\n\
               start = [\"sleep\", \"3\"]\n";
    let ended = scene.run_for(&scene.config("", app), "1h");
    ended.refused(1, "all apps have exited");
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("app_exited").len(), 1);
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
    scene.wait_until_quiet();
}
