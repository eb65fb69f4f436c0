//! `lull calibrate`: the config is written back, bad input is refused first.

use crate::support::scene::Scene;
use crate::support::{free_port, skip};
use std::path::PathBuf;

/// An options server with an easy load, and a burner.
fn config(scene: &Scene) -> PathBuf {
    let port = free_port();
    scene.config(
        "",
        &format!(
            r#"# mine
[policy]
name = "arq"

[[app]]
name = "server"        # prices options
class = "latency-critical"
objectives = [{{ p95 = "1s" }}]
ideal = "measure"      # alone
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "1"]
ready = "127.0.0.1:{port}"

[[app]]
name = "burner"
class = "best-effort"
progress = "push"
start = ["lull", "burn", "compute", "--threads", "1"]

[[load]]
app = "server"
target = "options://127.0.0.1:{port}"
rate = "200/s"
connections = 4
extra = ["--base-paths", "200"]
"#
        ),
    )
}

fn calibrate(config: &std::path::Path, more: &[&str]) -> Vec<String> {
    let fixed = ["calibrate", config.to_str().unwrap(), "--trial", "200ms", "--json"];
    fixed.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

#[test]
fn what_is_found_is_written_and_the_written_config_runs() {
    let scene = Scene::new();
    let config = config(&scene);
    let before = std::fs::read_to_string(&config).unwrap();
    let more = ["--budget", "12s", "--all-cores-only"];
    let found = scene.run(&calibrate(&config, &more)).well().json();
    let server = &found["apps"][0];
    assert_eq!(server["name"], "server");
    let trials = server["cores"][0]["curve"]["trials"].as_array().unwrap();
    assert!(trials.len() >= 3, "{server}");
    assert!(server["cores"][0]["knee"]["rate_per_s"].as_f64().unwrap() > 0.0);
    let ideal = server["ideal_seconds"].as_f64().unwrap();
    assert!(ideal > 0.0 && ideal < 1.0, "{ideal}");
    assert!(found["apps"][1]["solo_per_s"].as_f64().unwrap() > 0.0);
    let after = std::fs::read_to_string(&config).unwrap();
    for kept in ["# mine", "# prices options", "# alone"] {
        assert!(after.contains(kept), "{kept} is gone:\n{after}");
    }
    assert!(!after.contains("\"measure\"") && after.contains("max_load = "), "{after}");
    assert!(after.contains("solo = "), "{after}");
    assert_ne!(before, after);
    assert!(scene.records().is_empty(), "{:?}", scene.records());
    scene.wait_until_quiet();
    scene.run_for(&config, "1s").well();
}

#[test]
fn another_file_is_written_on_request_and_the_config_stays() {
    let scene = Scene::new();
    let config = config(&scene);
    let before = std::fs::read_to_string(&config).unwrap();
    let output = scene.path("calibrated.toml");
    let more = ["--budget", "3s", "--app", "burner", "--output", output.to_str().unwrap()];
    scene.run(&calibrate(&config, &more)).well();
    assert_eq!(std::fs::read_to_string(&config).unwrap(), before);
    assert!(std::fs::read_to_string(&output).unwrap().contains("solo = "));
}

#[test]
fn an_edit_made_meanwhile_stays_and_a_config_that_cannot_be_written_loses_no_result() {
    let scene = Scene::new();
    let config = config(&scene);
    let text = std::fs::read_to_string(&config).unwrap();
    let calibrated = |edited: &str| {
        std::fs::write(&config, &text).unwrap();
        let before = scene.records().len();
        let arguments = calibrate(&config, &["--budget", "3s", "--app", "burner"]);
        let mut agent = scene.start(scene.lull(&arguments));
        agent.wait_for("the session", || scene.records().len() > before);
        std::fs::write(&config, edited).unwrap();
        agent.wait()
    };
    calibrated(&format!("# edited\n{text}")).well();
    let after = std::fs::read_to_string(&config).unwrap();
    assert!(after.contains("# edited") && after.contains("solo = "), "{after}");
    let lost = calibrated(&text.replace("\"burner\"", "\"renamed\""));
    let lost = lost.refused(1, "no [[app]] called `burner`");
    let found = lost.json();
    assert!(found["apps"][0]["solo_per_s"].as_f64().unwrap() > 0.0, "{found}");
    assert!(found["wrote"].is_null(), "{found}");
}

#[test]
fn what_cannot_be_calibrated_is_refused_before_anything_starts() {
    let scene = Scene::new();
    let config = config(&scene);
    let text = std::fs::read_to_string(&config).unwrap();
    let without_load = text[..text.find("[[load]]").unwrap()].to_owned();
    let bad = scene.write("bad.toml", &without_load);
    scene.run(&calibrate(&bad, &[])).refused(2, "`server` has no [[load]]");
    let bad = scene.write("bad.toml", &text.replace("--base-paths", "--bass-paths"));
    scene.run(&calibrate(&bad, &[])).refused(2, "bad.toml:");
    scene.run(&calibrate(&config, &["--app", "nobody"])).refused(2, "--app nobody");
    scene.run(&calibrate(&config, &["--trial", "1ms"])).refused(2, "--trial");
    scene.run(&calibrate(&config, &["--output", "none/x.toml"])).refused(2, "no such directory");
    let own = std::process::id();
    let burner = "start = [\"lull\", \"burn\", \"compute\", \"--threads\", \"1\"]";
    assert!(text.contains(burner));
    let bad = scene.write("bad.toml", &text.replace(burner, &format!("pid = {own}")));
    scene.run(&calibrate(&bad, &[])).refused(2, "`burner` is not started by Lull");
    // The second app is checked alone, and has its own key and line in the error.
    let bad = scene.write("bad.toml", &text.replace(burner, "start = [\"/no/such/program\"]"));
    let line = 1 + text[..text.find(burner).unwrap()].lines().count();
    scene.run(&calibrate(&bad, &[])).refused(2, &format!("bad.toml:{line}: app[1].start: "));
    assert_eq!(std::fs::read_to_string(&config).unwrap(), text);
    assert!(scene.records().is_empty() && scene.processes().is_empty());
}

/// Whether this machine measures its own power; most test machines do not.
fn has_meter(scene: &Scene) -> bool {
    let found = scene.run(&["check", "--json"]).well().json();
    found["machine"]["capabilities"]["energy"]["by"].is_string()
}

#[test]
fn calibrating_a_machine_without_a_meter_fails_with_the_reason() {
    let scene = Scene::new();
    let output = scene.path("power.toml");
    let name = output.to_str().unwrap();
    let power = |more: &[&str]| {
        let fixed = ["calibrate", "power", "--output", name, "--dwell", "400ms"];
        scene.run(&[&fixed[..], more].concat())
    };
    scene.run(&["calibrate", "power", "--dwell", "1ms", "--output", name]).refused(2, "--dwell");
    scene.run(&["calibrate", "power", "--output", "no/such/dir/x"]).refused(2, "no such directory");
    scene.run(&["calibrate"]).refused(2, "CONFIG");
    if has_meter(&scene) {
        return skip("this machine measures its power");
    }
    let ended = power(&[]).refused(1, "nothing measures energy here");
    for meter in ["no RAPL", "power PMU", "no power meter"] {
        assert!(ended.err.contains(meter), "{meter}: {}", ended.err);
    }
    assert!(!output.exists());
    let idle = scene.run(&["calibrate", "idle", "--dwell", "400ms"]);
    assert!(idle.err.contains("idle states") || idle.err.contains("energy"), "{}", idle.err);
}

#[test]
fn a_models_file_is_used_and_named_with_every_figure_and_a_bad_one_is_refused() {
    let scene = Scene::new();
    let file = scene.write(
        "power.toml",
        "base_watts = 30.0\nbusy_core_watts = 2.5\n\n[calibration]\nmachine = \"a test\"\n\
         cores = 2\nmeter = \"its meter\"\nsteps = 4\noff_watts = 0.5\nresidual_watts = 0.4\n\
         explained_ratio = 0.9\nnotes = []\nversion = \"0\"\n",
    );
    let body = |more: &str| {
        format!(
            "[policy]\nname = \"unmanaged\"\n[power]\nfile = \"{}\"\n{more}\n[[app]]\n\
             name = \"burner\"\nclass = \"best-effort\"\n\
             start = [\"lull\", \"burn\", \"compute\", \"--threads\", \"1\"]\n",
            file.display()
        )
    };
    let config = scene.config("", &body("base_watts = 1.0"));
    scene.run_for(&config, "1s").refused(2, "power.file: has all constants");
    let config = scene.config("", &body(""));
    if !has_meter(&scene) {
        scene.run_for(&config, "2s").well();
        let wanted = "calibrated on a test against its meter, off by 0.50 W: 30 W";
        let report = report(&scene);
        assert!(report.contains(wanted), "{report}");
        scene.wait_until_quiet();
    }
    std::fs::write(&file, "base_watts = -1\n").unwrap();
    scene.run_for(&config, "1s").refused(2, "power.file");
}

/// The newest record as text.
fn report(scene: &Scene) -> String {
    let records = scene.records();
    let (record, table) = (records.last().unwrap(), scene.path("report.md"));
    let wanted = ["report".as_ref(), record.as_os_str(), "--markdown".as_ref(), table.as_os_str()];
    scene.run(&wanted).well();
    std::fs::read_to_string(table).unwrap()
}
