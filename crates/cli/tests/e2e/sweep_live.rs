//! `lull sweep` on a running server: knobs are restored however it ends, the same command goes
//! on with the rows, and rows or profiles of another machine are refused.

use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{cores, skip};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes a config of a server that another process started, with a light load and a power model.
fn config(scene: &Scene, server: &Victim, objective: &str) -> PathBuf {
    let (pid, address) = (server.pid(), server.address());
    scene.config(
        "",
        &format!(
            r#"
[policy]
name = "bayop"
knobs = ["cores"]
settle = "200ms"
window = "1s"
load_change = 0.9
allow_modelled = true
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ {objective} }}]
pid = {pid}
[[load]]
app = "server"
target = "options://{address}"
rate = "40/s"
arrivals = "constant"
connections = 2
"#
        ),
    )
}

/// A sweep of two settings in two blocks.
fn sweep(scene: &Scene, config: &Path, further: &[&OsStr]) -> Command {
    blocks(scene, config, "2", further)
}

/// A sweep of two settings in this many blocks.
fn blocks(scene: &Scene, config: &Path, blocks: &str, further: &[&OsStr]) -> Command {
    let mut all: Vec<&OsStr> = vec!["sweep".as_ref(), config.as_os_str()];
    all.extend(["--settings", "2", "--blocks", blocks].map(OsStr::new));
    all.extend(further);
    scene.lull(&all)
}

/// The whole lines of a file of rows behind its two head lines.
fn rows(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole.lines().skip(2).map(str::to_owned).collect()
}

#[test]
fn a_sweep_that_is_killed_and_interrupted_restores_the_server_and_goes_on_with_its_rows() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let config = config(&scene, &server, "p90 = \"60s\"");
    let (out, figure) = (scene.path("rows.csv"), scene.path("front.svg"));
    let further = ["--out".as_ref(), out.as_os_str(), "--json".as_ref()];
    let mut killed = scene.start(sweep(&scene, &config, &further));
    killed.wait_for("a row, and fewer cores", || rows(&out).len() == 1 && server.is_changed());
    killed.signal(Signal::KILL);
    drop(killed);
    server.wait_until_as_before();
    scene.wait_until_quiet();
    let kept = rows(&out);
    let mut stopped = scene.start(sweep(&scene, &config, &further));
    stopped.wait_for("another row", || rows(&out).len() > kept.len());
    let ended = stopped.interrupt().refused(1, "stopped before the end");
    assert!(ended.err.contains(&format!("continues with {} trials", kept.len())), "{}", ended.err);
    server.assert_as_before();
    scene.wait_until_quiet();
    let further = [&further[..], &["--figure".as_ref(), figure.as_os_str()]].concat();
    let document = scene.start(sweep(&scene, &config, &further)).wait().well().json();
    assert_eq!((&document["trials"], rows(&out).len()), (&4.into(), 4), "{document}");
    assert!(rows(&out).starts_with(&kept), "rows that were kept are not measured again");
    let settings = document["settings"].as_array().unwrap();
    let of = |index: usize| settings[index]["values"]["cores"].as_f64().unwrap();
    assert_eq!((settings.len(), of(0), of(1)), (2, 1.0, cores() as f64), "{document}");
    assert!(settings.iter().any(|it| it["on_front"] == true), "{document}");
    assert!(document["energy"].as_str().unwrap().contains("modelled"), "{document}");
    assert!(std::fs::read_to_string(&figure).unwrap().contains("</svg>"));
    server.assert_as_before();
    of_another_machine(&scene, &config, &out);
    server.assert_as_before();
}

/// Rows of another machine class are refused and left alone.
fn of_another_machine(scene: &Scene, config: &Path, out: &Path) {
    let text = std::fs::read_to_string(out).unwrap();
    let other = text.replacen("{\"machine\":\"", "{\"machine\":\"another ", 1);
    assert_ne!(text, other);
    std::fs::write(out, &other).unwrap();
    let further = ["--out".as_ref(), out.as_os_str()];
    let ended = scene.start(sweep(scene, config, &further)).wait();
    ended.refused(2, "holds a sweep on the machine class `another ");
    assert_eq!(std::fs::read_to_string(out).unwrap(), other);
}

#[test]
fn a_bound_that_no_setting_meets_is_an_answer_with_its_evidence() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let config = config(&scene, &server, "p90 = \"1us\"");
    let command = blocks(&scene, &config, "1", &["--json".as_ref()]);
    let ended = scene.start(command).wait().well();
    assert!(ended.err.contains("is shown to meet p90 < 1us; the lowest tail"), "{}", ended.err);
    let document = ended.json();
    assert_eq!(document["best"], serde_json::Value::Null, "{document}");
    assert_eq!(document["settings"][0]["meets"], false, "{document}");
    server.assert_as_before();
}

#[test]
fn what_a_sweep_of_a_running_server_cannot_use_is_refused_before_it_starts() {
    let (scene, server) = (Scene::new(), Victim::server());
    let config = config(&scene, &server, "p90 = \"60s\"");
    let refused = |further: &[&str], words: &str| {
        let further: Vec<&OsStr> = further.iter().map(OsStr::new).collect();
        scene.start(sweep(&scene, &config, &further)).wait().refused(2, words);
    };
    refused(&["--parts", "cells"], "--parts is for a simulated server");
    refused(&["--profile", "profile.toml"], "fewer than 3 trials");
    refused(&["--out", "rows.csv", "--figure", "no/such/place.svg"], "no such directory");
    assert!(scene.records().is_empty(), "refused before anything starts");
    server.assert_as_before();
}
