//! The example config on a real memcached.

use crate::support::free_port;
use crate::support::record::Record;
use crate::support::scene::Scene;
use serde_json::Value;

/// The example with a free port and this scene's directories.
fn example(scene: &Scene) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/memcached.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let (state, records) = (scene.path("state"), scene.records_dir());
    let replaced = [
        ("record = \"runs\"", format!("record = {records:?}\nstate = {state:?}")),
        ("21211", free_port().to_string()),
    ];
    replaced.into_iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "the example has no {from}");
        text.replace(from, &to)
    })
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
fn the_example_runs_as_it_stands() {
    let scene = Scene::new();
    let record = run(&scene, &example(&scene), "8s");
    assert_eq!(record.fact("policy").as_deref(), Some("arq"));
    let specs = record.text("SELECT spec FROM apps ORDER BY id");
    let specs: Vec<Value> = specs.iter().map(|spec| serde_json::from_str(spec).unwrap()).collect();
    assert!(specs[0]["ideal"].as_u64().unwrap() > 0, "the ideal was not measured");
    assert!(specs[1]["solo_per_s"].as_f64().unwrap() > 0.0, "solo was not measured");
    let standing = "SELECT count(*) FROM machine_epochs WHERE entropy_system_ratio IS NOT NULL";
    assert!(record.number(standing) > 0);
}

#[test]
fn the_example_runs_unmanaged_too() {
    let scene = Scene::new();
    let text = example(&scene);
    let text = text.replace("\"arq\"", "\"unmanaged\"");
    let text = text.replace("ideal = \"measure\"", "ideal = \"1ms\"");
    let text = text.replace("solo = \"measure\"", "solo = 1e9");
    let record = run(&scene, &text, "3s");
    assert_eq!(record.fact("policy").as_deref(), Some("unmanaged"));
    assert_eq!(record.events("decision"), Vec::<Value>::new());
}
