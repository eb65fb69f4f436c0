//! `lull run --prove`: blocks in random order, figures with intervals, restored knobs.

use crate::runs::{attached, started};
use crate::support::free_port;
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

fn arguments<'a>(config: &'a Path, more: &[&'a str]) -> Vec<&'a OsStr> {
    let more = more.iter().map(|argument| OsStr::new(*argument));
    [OsStr::new("run"), config.as_os_str()].into_iter().chain(more).collect()
}

/// The last line of what was printed: the proof.
fn proof_of(out: &str) -> Value {
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert!(last["prove"].is_object(), "{last}");
    last["prove"].clone()
}

#[test]
fn a_short_proof_has_every_figure_and_is_in_the_record() {
    let scene = Scene::new();
    let config = scene.config("", &started("arq", free_port()));
    let wanted = ["--prove", "12s", "--block", "1s", "--json"];
    let ended = scene.start(scene.lull(&arguments(&config, &wanted))).wait().well();
    let proof = proof_of(&ended.out);
    assert_eq!(proof["pairs"], 6);
    let record = Record::open(&scene.records()[0]);
    let stands: Value = serde_json::from_str(&record.fact("prove").unwrap()).unwrap();
    assert_eq!(stands, proof);
    // Blocks go in pairs, each with one of either kind, in no fixed order.
    let phases = record.text("SELECT phase FROM epochs GROUP BY phase ORDER BY min(number)");
    let pair = |phase: &str| phase.rsplit_once('-').unwrap().1.to_owned();
    let numbers: Vec<_> = phases.iter().map(|phase| pair(phase)).collect();
    let wanted: Vec<_> = (0..6).flat_map(|pair| [pair.to_string(), pair.to_string()]).collect();
    assert_eq!(numbers, wanted, "{phases:?}");
    let on_first = phases.iter().step_by(2).filter(|phase| phase.starts_with("arq-")).count();
    assert_eq!(on_first, 3, "{phases:?}");

    let figures = proof["figures"].as_array().unwrap();
    let figure = |app: &Value, quantity: &str| {
        let is = |one: &&Value| one["app"] == *app && one["quantity"] == quantity;
        figures.iter().find(is).unwrap_or_else(|| panic!("no {quantity} of {app}: {figures:?}"))
    };
    let server = Value::from("server");
    for quantity in ["p50 latency", "p95 latency", "p99 latency", "requests answered"] {
        let found = figure(&server, quantity);
        assert!(found["off"].as_f64().unwrap() > 0.0 && found["on"].as_f64().unwrap() > 0.0);
        let interval = found["difference"]["interval"].as_array().unwrap();
        let [low, high] = [0, 1].map(|end: usize| interval[end].as_f64().unwrap());
        let mean = found["difference"]["mean"].as_f64().unwrap();
        assert!(low <= mean && mean <= high, "{found}");
    }
    assert!(figure(&Value::from("burner"), "progress")["on"].as_f64().unwrap() > 0.0);
    let power = figure(&Value::Null, "power");
    let is_known = proof["energy_source"].is_string();
    assert_eq!(power["on"].is_number(), is_known, "{proof}");
    assert_ne!(is_known, proof["energy_missing"].is_string(), "{proof}");
    scene.wait_until_quiet();
}

#[test]
fn an_interrupted_proof_says_what_whole_pairs_there_are_and_puts_all_back() {
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let wanted = arguments(&config, &["--prove", "1h", "--block", "1s"]);
    let mut agent = scene.start(scene.lull(&wanted));
    agent.wait_for("the third pair", || {
        let records = scene.records();
        let Some(file) = records.last() else { return false };
        let database = rusqlite::Connection::open(file).unwrap();
        let sql = "SELECT count(*) FROM epochs WHERE phase LIKE '%-2'";
        database.query_row(sql, [], |row| row.get(0)).is_ok_and(|count: i64| count > 0)
    });
    agent.signal(Signal::INT);
    let ended = agent.wait().well();
    assert!(ended.out.contains("2 of 1800 pairs of blocks of 1s"), "{}", ended.out);
    assert!(ended.out.contains("6 pairs are the least"), "{}", ended.out);
    assert!(!ended.out.contains("yes:"), "{}", ended.out);
    assert!(ended.err.contains("knobs are as they were"), "{}", ended.err);
    server.assert_as_before();
    batch.assert_as_before();
    let record = Record::open(&scene.records()[0]);
    assert!(record.fact("prove").unwrap().contains("\"pairs\":2"));
    scene.wait_until_quiet();
}

#[test]
fn a_proof_that_could_show_nothing_is_refused_before_anything_starts() {
    let scene = Scene::new();
    let config = scene.config("", &started("arq", free_port()));
    let refused = |more: &[&str], words: &str| {
        scene.start(scene.lull(&arguments(&config, more))).wait().refused(2, words);
        assert_eq!(scene.records().len(), 0, "{more:?}");
    };
    refused(&["--prove", "1m"], "with blocks of 30s at least 360s (6 pairs)");
    refused(&["--prove", "30m", "--block", "500ms"], "--block 500ms has less than 4 epochs");
    refused(&["--prove", "0s", "--block", "0s"], "has less than 4 epochs");
    refused(&["--prove", "30m", "--for", "30m"], "cannot be used with");
    refused(&["--block", "30s"], "--prove");
    scene.config("", &started("unmanaged", free_port()));
    refused(
        &["--prove", "30m"],
        "--prove compares policy and admission controllers with `unmanaged`",
    );
}
