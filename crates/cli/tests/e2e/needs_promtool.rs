//! The rules for Prometheus, and what the page exposes, checked by Prometheus' own tool.

use crate::http::serving;
use crate::support::http::get;
use crate::support::scene::Scene;
use crate::support::wait_for;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn packaging() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus"))
}

/// Runs promtool there with this input and returns all that it prints.
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("promtool");
    command.current_dir(packaging()).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {printed}");
    printed
}

#[test]
fn the_rules_are_valid_and_fire_when_they_should() {
    let checked = promtool(&["check", "rules", "lull.rules.yaml"], "");
    assert!(checked.contains("SUCCESS"), "{checked}");
    let tested = promtool(&["test", "rules", "lull.rules.test.yaml"], "");
    assert!(tested.contains("SUCCESS"), "{tested}");
}

#[test]
fn every_metric_of_the_rules_is_one_that_the_page_has() {
    let scene = Scene::new();
    let listed = scene.run(&["metrics", "--json"]).well().json();
    let known: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|one| one["prometheus"].as_str()).collect();
    let rules = std::fs::read_to_string(packaging().join("lull.rules.yaml")).unwrap();
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let names = rules.split(|letter| !is_of_name(letter)).filter(|it| it.starts_with("lull_"));
    let mut found = 0;
    for name in names {
        let is_of_agent = ["lull_agent", "lull_epoch_age_seconds"].contains(&name);
        assert!(known.contains(&name) || is_of_agent, "{name}");
        found += 1;
    }
    assert!(found > 10, "{found}");
}

#[test]
fn the_page_is_an_exposition_without_fault_and_its_counters_grow() {
    let scene = Scene::new();
    let (agent, address) = serving(&scene, "unmanaged", "");
    let epochs = || {
        let text = get(&address, "/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix("lull_epochs_total "));
        line.map_or(0.0, |count| count.parse::<f64>().unwrap())
    };
    wait_for("an epoch", || epochs() >= 1.0);
    let first = epochs();
    wait_for("more epochs", || epochs() > first);
    promtool(&["check", "metrics"], &get(&address, "/metrics").body);
    agent.interrupt().well();
}
