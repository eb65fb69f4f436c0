//! `lull replay`: its predictions and its refusals.

use crate::runs::started;
use crate::support::agent::Ended;
use crate::support::scene::Scene;
use crate::support::{free_port, wait_for};
use lull_control::{Capabilities, Capability, Machine};
use lull_measure::Missing;
use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A record of some seconds under `unmanaged`.
fn recorded(scene: &Scene) -> PathBuf {
    let config = scene.config("", &started("unmanaged", free_port()));
    scene.run_for(&config, "6s").well();
    scene.records().pop().unwrap()
}

/// Runs `lull replay` with these further arguments; [`ANY`] allows any error, because the
/// record contains the effects of other load on this machine.
fn replay(scene: &Scene, file: &Path, further: &[&str]) -> Ended {
    let arguments = [&["replay", file.to_str().unwrap()], further].concat();
    scene.run(&arguments)
}

const ANY: [&str; 2] = ["--max-error", "1000000"];

/// Returns a copy of the record that was changed by SQL.
fn changed(scene: &Scene, file: &Path, name: &str, sql: &str) -> PathBuf {
    let copy = scene.path(name);
    let database = Connection::open(file).unwrap();
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(database);
    std::fs::copy(file, &copy).unwrap();
    Connection::open(&copy).unwrap().execute_batch(sql).unwrap();
    copy
}

#[test]
fn a_short_record_is_replayed_and_another_policy_predicted() {
    let scene = Scene::new();
    let file = recorded(&scene);
    let printed = replay(&scene, &file, &[&ANY[..], &["--policy", "lc-first", "--json"]].concat());
    let printed = printed.well().json();
    assert_eq!(printed["policy"], "unmanaged");
    assert_eq!(printed["share"], 1.0);
    let figure = |of: &str| {
        let all = printed["reproduction"].as_array().unwrap().iter();
        all.clone().find(|it| it["figure"] == of).unwrap_or_else(|| panic!("{of}")).clone()
    };
    // The measured values are those of the record.
    let database = Connection::open(&file).unwrap();
    let sql = "SELECT avg(completed_requests_per_second) FROM app_epochs WHERE app = 'server'";
    let answered: f64 = database.query_row(sql, [], |row| row.get(0)).unwrap();
    let throughput = figure("throughput[server]")["measured"].as_f64().unwrap();
    assert!((throughput / answered - 1.0).abs() < 0.2, "{throughput} of {answered}");
    for of in ["p50[server]", "p95[server]", "cpu[server]", "cpu[burner]", "progress[burner]"] {
        assert!(figure(of)["measured"].as_f64().unwrap() > 0.0, "{of}");
        assert!(figure(of)["replayed"].as_f64().unwrap() > 0.0, "{of}");
    }
    let policies = printed["prediction"]["policies"].as_array().unwrap();
    assert_eq!([&policies[0]["policy"], &policies[1]["policy"]], ["unmanaged", "lc-first"]);
    let entropy = policies[1]["figures"].as_array().unwrap().iter();
    let entropy = entropy.clone().find(|it| it["figure"] == "entropy").unwrap();
    assert!(entropy["ci95"].is_array(), "{entropy}");
    assert_eq!(printed["prediction"]["differences"].as_array().unwrap().len(), 1);
    // The same to the last bit again, and as a table.
    let again = replay(&scene, &file, &[&ANY[..], &["--policy", "lc-first", "--json"]].concat());
    assert_eq!(again.well().json(), printed);
    let table = replay(&scene, &file, &[&ANY[..], &["--policy", "lc-first"]].concat()).well().out;
    for words in ["largest error", "server: p95 latency", "less `unmanaged (recorded)`"] {
        assert!(table.contains(words), "{table}");
    }
}

#[test]
fn what_is_not_reproduced_is_shown_and_not_predicted() {
    let scene = Scene::new();
    let file = recorded(&scene);
    let strict = ["--policy", "even", "--max-error", "0.000001", "--json"];
    let ended = replay(&scene, &file, &strict);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    assert!(printed["prediction"].is_null(), "{printed}");
    assert!(printed["error"].as_f64().unwrap() > 0.0);
    ended.refused(2, "above --max-error");
}

#[test]
fn a_run_that_cannot_be_replayed_is_refused_with_the_reason() {
    let scene = Scene::new();
    let file = recorded(&scene);
    let refused = |file: &Path, words: &str| {
        replay(&scene, file, &["--policy", "even"]).refused(2, words);
    };
    refused(&scene.path("missing.db"), "missing.db cannot be opened");
    refused(&scene.write("text.db", &"no record ".repeat(900)), "is not a record of a run");
    let with = |name: &str, sql: &str| changed(&scene, &file, name, sql);
    let newer = with("newer.db", "UPDATE run SET value = '99' WHERE key = 'schema'");
    refused(&newer, "was written by a newer Lull");
    let silent = with("silent.db", "DELETE FROM latencies");
    refused(&silent, "no request of `server` was recorded");
    let blind = with("blind.db", "UPDATE app_epochs SET cpu_ratio = NULL");
    refused(&blind, "what its requests demand is unknown");
    let bytes = std::fs::read(&newer).unwrap();
    let cut = scene.path("cut.db");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    refused(&cut, "cut.db is");
    replay(&scene, &file, &["--policy", "even", "--skip", "1h"]).refused(2, "no epoch is left");
}

#[test]
fn policies_that_cannot_be_are_refused_before_anything_runs() {
    let scene = Scene::new();
    let file = recorded(&scene);
    replay(&scene, &file, &["--policy", "lcfirst"]).refused(2, "lc-first");
    replay(&scene, &file, &["--policy", "bayop"]).refused(2, "bayop");
    replay(&scene, &file, &[]).refused(2, "--policy");
    let part = ["--policy", "even", "--part", "tide"];
    replay(&scene, &file, &part).refused(2, "has no part `tide`; it has: unmanaged");
    replay(&scene, &file, &["--policy", "even", "--max-error", "0"]).refused(2, "above 0");
}

/// A copy of the record in which the machine offers something else.
fn on_machine(
    scene: &Scene,
    file: &Path,
    name: &str,
    change: impl FnOnce(Capabilities) -> Capabilities,
) -> PathBuf {
    let copy = changed(scene, file, name, "");
    let database = Connection::open(&copy).unwrap();
    let sql = "SELECT value FROM run WHERE key = 'machine'";
    let text: String = database.query_row(sql, [], |row| row.get(0)).unwrap();
    let mut machine: Machine = serde_json::from_str(&text).unwrap();
    machine.capabilities = change(machine.capabilities);
    let sql = "UPDATE run SET value = ?1 WHERE key = 'machine'";
    database.execute(sql, [serde_json::to_string(&machine).unwrap()]).unwrap();
    copy
}

#[test]
fn a_policy_without_its_knob_on_the_recorded_machine_is_refused_though_the_model_has_it() {
    let scene = Scene::new();
    let file = recorded(&scene);
    let gone = || Missing::because("somebody else pins all threads");
    let bound = on_machine(&scene, &file, "bound.db", |all| all.without(Capability::Cores, gone()));
    let refused = |file: &Path, policy: &str, words: &str| {
        let ended = replay(&scene, file, &[&ANY[..], &["--policy", policy, "--json"]].concat());
        assert!(ended.out.is_empty(), "something was predicted: {}", ended.out);
        ended.refused(2, words);
    };
    let words = "bound.db: policy `arq` needs cores, which is missing here: somebody else pins";
    refused(&bound, "arq", words);
    refused(&bound, "even", "policy `even` needs cores");
    // A capability that the machine has and the model lacks gets its own message.
    let fast = on_machine(&scene, &file, "fast.db", |all| {
        all.with_capability(Capability::Frequency, "cpufreq")
            .with_capability(Capability::Utilisation, "/proc/stat")
    });
    let words = "the model of a replay cannot show policy `performance`: policy `performance` \
                 needs frequency";
    refused(&fast, "performance", words);
    // The record itself is valid: a policy that needs no knob is predicted from it.
    let predicted = replay(&scene, &bound, &[&ANY[..], &["--policy", "static", "--json"]].concat());
    assert_eq!(predicted.well().json()["prediction"]["policies"][1]["policy"], "static");
}

#[test]
fn an_interrupt_ends_it_in_order() {
    let scene = Scene::new();
    let file = recorded(&scene);
    let arguments = ["replay", file.to_str().unwrap(), "--policy", "even", "--seeds", "1000"];
    let agent = scene.start(scene.lull(&[&arguments[..], &ANY].concat()));
    // Wait for the handler: a signal before it is installed kills the process.
    let pid = agent.pid();
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        mask & 1 << (2 - 1) != 0
    };
    wait_for("the handler", catches);
    agent.signal(Signal::INT);
    let ended = agent.wait();
    assert!(ended.out.is_empty(), "{}", ended.out);
    ended.refused(1, "stopped before the end");
}

/// Undoes the changes of version 2 against version 1.
const AS_VERSION_1: &str = "
    DROP TABLE plans; DROP TABLE sources; DROP TABLE requests; DROP TABLE shadow;
    ALTER TABLE latencies RENAME COLUMN hdr_v2_deflate TO hdr_v2_base64;
    DELETE FROM latencies;
    UPDATE run SET value = '1' WHERE key = 'schema';";

#[test]
fn a_record_of_version_1_is_read_by_all_but_replay_which_says_why() {
    let scene = Scene::new();
    let file = recorded(&scene);
    let old = changed(&scene, &file, "old.db", AS_VERSION_1);
    let database = Connection::open(&old).unwrap();
    let sql = "INSERT INTO latencies VALUES ((SELECT max(number) FROM epochs), 'server', ?1)";
    let mut latency = lull_measure::Latency::default();
    latency.record_many(lull_measure::Nanos::from_millis(3), 7);
    database.execute(sql, [latency.to_base64()]).unwrap();
    drop(database);
    let words = "was written by an older Lull (records of version 1)";
    replay(&scene, &old, &["--policy", "even"]).refused(2, words);
    let entropy = scene.run(&["entropy", old.to_str().unwrap(), "--json"]).well().json();
    assert!(entropy["parts"][0]["lc"].as_f64().unwrap() > 0.9, "3 ms against 20 us: {entropy}");
    let printed = scene.run(&["export", old.to_str().unwrap(), "--json"]).well().json();
    let tables: Vec<_> = printed["tables"].as_array().unwrap().iter().map(|it| &it[0]).collect();
    assert!(tables.iter().any(|name| *name == "latencies"), "{tables:?}");
    assert!(!tables.iter().any(|name| *name == "requests"), "{tables:?}");
}
