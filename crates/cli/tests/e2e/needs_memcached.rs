//! The example config on a real memcached.

use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::{cores, free_port, has_ebpf, skip};
use serde_json::Value;

/// The example with a free port and this scene's directories.
fn example(scene: &Scene) -> String {
    scene.example("memcached.toml", &[scene.own_record(), ("21211", free_port().to_string())])
}

fn run(scene: &Scene, text: &str, time: &str) -> Record {
    let config = scene.write("memcached.toml", text);
    scene.run_for(&config, time).well();
    scene.wait_until_quiet();
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
    let answered = "SELECT count(*) FROM app_epochs \
                    WHERE app = 'memcached' AND completed_requests_per_second > 0";
    assert!(record.number(answered) > 0, "memcached answered nothing");
    let windows = "SELECT count(*) FROM latencies WHERE app = 'memcached'";
    assert!(record.number(windows) > 0);
    record
}

#[test]
fn the_example_runs_unchanged() {
    let scene = Scene::new();
    let record = run(&scene, &example(&scene), "8s");
    assert_eq!(record.fact("policy").as_deref(), Some("arq"));
    let specs = record.text("SELECT spec FROM apps ORDER BY id");
    let specs: Vec<Value> = specs.iter().map(|spec| serde_json::from_str(spec).unwrap()).collect();
    assert!(specs[0]["ideal"].as_u64().unwrap() > 0, "the ideal was not measured");
    assert!(specs[1]["solo_per_s"].as_f64().unwrap() > 0.0, "solo was not measured");
    let assessment = "SELECT count(*) FROM machine_epochs WHERE entropy_system_ratio IS NOT NULL";
    assert!(record.number(assessment) > 0);
}

/// A search of the cores of memcached's threads by affinity, with an objective that
/// any machine meets; `agent` are further lines of `[agent]`.
fn tuned(scene: &Scene, agent: &str) -> std::path::PathBuf {
    let port = free_port();
    let body = format!(
        r#"
[policy]
name = "bayop"
knobs = ["cores"]
settle = "400ms"
window = "2s"
trials = 5
load_change = 0.9
allow_modelled = true
[[app]]
name = "memcached"
class = "latency-critical"
objectives = [{{ p95 = "60s" }}]
start = ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", "{port}", "-t", "2", "-m", "64"]
ready = "127.0.0.1:{port}"
[[load]]
app = "memcached"
target = "memcached://127.0.0.1:{port}"
rate = "1000/s"
connections = 8
"#
    );
    scene.config(agent, &body)
}

#[test]
#[ignore = "slow: a live search, whose readings count only beside few other tests"]
fn its_cores_are_searched_live_and_what_is_found_is_used() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let scene = Scene::new();
    let store = scene.path("spots.sqlite");
    let config = tuned(&scene, &format!("spots = {store:?}"));
    let (tune, at) = ("tune".as_ref(), "--store".as_ref());
    let tune = [tune, config.as_os_str(), at, store.as_os_str(), "--json".as_ref()];
    let ended = scene.run(&tune).well();
    let found = &ended.json()[0];
    assert_eq!((&found["meets"], &found["trials"]), (&true.into(), &5.into()), "{found}");
    let chosen = found["values"][0].as_f64().unwrap();
    assert!((1.0..=cores() as f64).contains(&chosen), "{found}");
    let positive = |key: &str| found[key].as_f64().unwrap() > 0.0;
    assert!(positive("tail_us") && positive("rate_per_s"), "{found}");
    scene.wait_until_quiet();
    let record = Record::open(&scene.records()[0]);
    let moved = record.events("decision");
    let cores_of = |one: &Value| one["outcome"]["wanted"].get("cores").is_some();
    assert!(moved.iter().any(cores_of), "no trial had other cores: {moved:?}");
    // The next run reads the finding and applies it.
    let ended = scene.run_for(&config, "15s").well();
    assert!(ended.err.contains("1 settings for `memcached` are known"), "{}", ended.err);
    scene.wait_until_quiet();
    let record = Record::open(&scene.records()[1]);
    let found = "SELECT count(*) FROM plans WHERE reason LIKE '%\"found\":{%'";
    assert!(record.number(found) > 0, "{}", ended.err);
}

/// The config of a search under another policy, without the keys of the search.
fn under(text: &str, policy: &str) -> String {
    let (begin, end) = (text.find("[policy]").unwrap(), text.find("[[app]]").unwrap());
    format!("{}[policy]\nname = \"{policy}\"\n{}", &text[..begin], &text[end..])
}

#[test]
fn its_cores_are_swept_live_and_co_pi_and_static_take_the_profile() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let scene = Scene::new();
    let profile = scene.path("profile.toml");
    let config = tuned(&scene, &format!("profile = {profile:?}"));
    let text = std::fs::read_to_string(&config).unwrap().replacen("\"2s\"", "\"1s\"", 1);
    std::fs::write(&config, &text).unwrap();
    let (sweep, at) = ("sweep".as_ref(), "--profile".as_ref());
    let few = ["--settings".as_ref(), "2".as_ref(), "--json".as_ref()];
    let sweep = [&[sweep, config.as_os_str(), at, profile.as_os_str()][..], &few].concat();
    let document = scene.run(&sweep).well().json();
    assert_eq!(document["trials"], 6, "{document}");
    let best = document["best"]["values"]["cores"].as_f64().unwrap();
    let written = std::fs::read_to_string(&profile).unwrap();
    assert!(written.contains(&format!("cores = {best:?}")), "{written}");
    assert!(written.contains("[load.evidence]"), "{written}");
    scene.wait_until_quiet();
    for (policy, reason) in [("co-pi", "found"), ("static", "fixed")] {
        let before = scene.records().len();
        scene.run_for(&scene.write("profiled.toml", &under(&text, policy)), "3s").well();
        scene.wait_until_quiet();
        let sql = format!("SELECT setting FROM plans WHERE reason LIKE '%\"{reason}\"%'");
        let plans = Record::open(&scene.records()[before]).text(&sql);
        let wanted = if best > 1.0 { format!("0-{}", best - 1.0) } else { "0".to_owned() };
        let is_best = |plan: &String| plan.contains("cores") && plan.contains(&wanted);
        assert!(plans.iter().any(is_best), "{policy}: {plans:?}, not {wanted}");
    }
    // The same file on another class of machine.
    let other = written.replacen("machine = \"", "machine = \"another ", 1);
    std::fs::write(&profile, other).unwrap();
    let ended = scene.run_for(&scene.write("profiled.toml", &under(&text, "co-pi")), "3s");
    ended.refused(2, "agent.profile: ");
}

/// The example, with a policy that does nothing and nothing to measure beforehand.
fn unmanaged(scene: &Scene) -> String {
    let text = example(scene).replace("\"arq\"", "\"unmanaged\"");
    let text = text.replace("ideal = \"measure\"", "ideal = \"1ms\"");
    text.replace("solo = \"measure\"", "solo = 1e9")
}

#[test]
fn the_kernel_measures_its_latency() {
    let scene = Scene::new();
    if !has_ebpf(&scene) {
        return;
    }
    let printed = "latency = \"ebpf\"\nideal = \"1ms\"";
    let text = unmanaged(&scene).replace("ideal = \"1ms\"", printed);
    let record = run(&scene, &text, "3s");
    // Of 4000 a second: the clients' ends on the same machine are not counted as well.
    let rate = "SELECT CAST(avg(completed_requests_per_second) AS INTEGER) FROM app_epochs \
                WHERE app = 'memcached'";
    assert!((1..6000).contains(&record.number(rate)), "{}/s", record.number(rate));
}

#[test]
fn the_example_runs_unmanaged_too() {
    let scene = Scene::new();
    let text = unmanaged(&scene);
    let record = run(&scene, &text, "6s");
    assert_eq!(record.fact("policy").as_deref(), Some("unmanaged"));
    assert_eq!(record.events("decision"), Vec::<Value>::new());
}
