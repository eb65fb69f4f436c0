//! `lull demo` from start to end, and interrupted.

use crate::support::is_root;
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn demo(scene: &Scene, pairs: &str) -> Command {
    let (state, records) = (scene.path("state"), scene.records_dir());
    let mut command = scene.lull(&["demo", "--pairs", pairs, "--block", "2s", "--json"]);
    command.arg("--state").arg(state).arg("--record").arg(records);
    command
}

/// Asserts that what a demo has printed is what it says.
pub(crate) fn assert_findings(found: &Value, base: &Path, as_root: bool) {
    assert_eq!(found["policy"], "arq");
    // Going first is a scheduling class, and taking that back needs root.
    let first = ["priority = \"latency-critical\""];
    let keys = if as_root { &first[..] } else { &[] };
    assert_eq!(found["keys"], serde_json::json!(keys));
    assert_eq!(found["pairs"], 1);
    let rows = found["rows"].as_array().unwrap();
    assert!(rows.len() >= 6, "{rows:?}");
    for row in rows {
        assert!(row["quantity"].as_str().is_some_and(|quantity| !quantity.is_empty()));
        assert_eq!(row["clear"], false, "one pair shows no difference: {row}");
        assert!(row["difference"]["half_width"].is_null());
    }
    let answered = rows.iter().find(|row| row["quantity"] == "requests answered, 1/s").unwrap();
    assert!(answered["off"]["mean"].as_f64().unwrap() > 0.0);
    let power = rows.iter().find(|row| row["quantity"] == "power, W").unwrap();
    assert!(power["on"]["mean"].as_f64().unwrap() > 0.0);
    let file = |key: &str| base.join(found[key].as_str().unwrap());
    let figure = std::fs::read_to_string(file("figure")).unwrap();
    assert!(figure.contains("<svg") && figure.contains("</svg>"));
    let record = Record::open(&file("record"));
    assert_eq!(record.text("SELECT DISTINCT phase FROM epochs ORDER BY 1"), ["off-0", "on-0"]);
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
}

#[test]
fn a_demo_ends_with_a_table_a_record_and_a_figure() {
    let scene = Scene::new();
    let ended = scene.start(demo(&scene, "1")).wait().well();
    assert_findings(&ended.json(), &scene.path(""), is_root());
    scene.wait_until_quiet();
}

#[test]
fn an_interrupted_demo_leaves_nothing_running_and_claims_nothing() {
    let scene = Scene::new();
    let mut agent = scene.start(demo(&scene, "50"));
    agent.wait_for("some epochs", || epochs_so_far(scene.records().last()) > 2);
    let ended = agent.interrupt().refused(1, "stopped before the end");
    assert_eq!(ended.out, "", "a table of half a demo");
    scene.wait_until_quiet();
    let records: Vec<PathBuf> = scene.records();
    assert_eq!(Record::open(&records[0]).fact("ended").as_deref(), Some("orderly"));
}

#[test]
fn a_wrong_key_of_the_demos_policy_is_refused_by_name() {
    let scene = Scene::new();
    let mut command = demo(&scene, "1");
    command.args(["--key", "no-such = 1"]);
    scene.start(command).wait().refused(2, "policy.no-such");
    scene.wait_until_quiet();
}
