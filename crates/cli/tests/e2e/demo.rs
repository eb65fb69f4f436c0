//! `lull demo` and `lull demo database` from start to end, interrupted and killed.

use crate::support::is_root;
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn demo(scene: &Scene, pairs: &str) -> Command {
    let (state, records) = (scene.path("state"), scene.records_dir());
    let mut command = scene.lull(&["demo", "--pairs", pairs, "--block", "2s", "--json"]);
    command.arg("--state").arg(state).arg("--record").arg(records);
    command
}

/// Asserts that the printed findings of a demo are those of its results.
pub(crate) fn assert_findings(found: &Value, base: &Path, as_root: bool) {
    assert_eq!(found["policy"], "arq");
    // Priority is a scheduling class, and restoring it needs root.
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
    scene.run(&["demo", "--block", "999ms"]).refused(2, "--block 999ms: write 1s or more");
    let mut command = demo(&scene, "1");
    command.args(["--key", "no-such = 1"]);
    scene.start(command).wait().refused(2, "policy.no-such");
    scene.wait_until_quiet();
}

/// `lull demo database` with its temporary files in a directory of the scene.
fn database(scene: &Scene, engine: &str, seconds: &str) -> Command {
    use std::os::unix::fs::PermissionsExt;
    let temporary = scene.path("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o755)).unwrap();
    let options = ["--engine", engine, "--seconds", seconds, "--connections", "32", "--json"];
    let mut command = scene.lull(&[&["demo", "database"][..], &options].concat());
    command.env("TMPDIR", temporary).arg("--record").arg(scene.records_dir());
    command
}

/// Directories of the database demo of this process, on disk and in memory.
fn left(scene: &Scene, pid: i32) -> Vec<PathBuf> {
    let places = [scene.path("tmp"), PathBuf::from("/dev/shm")];
    let entries = places.iter().filter_map(|place| std::fs::read_dir(place).ok());
    let paths = entries.flatten().flatten().map(|entry| entry.path());
    let names = [format!("lull-demo-{pid}-"), format!("lull-preload-{pid}-")];
    let is_of_pid = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        names.iter().any(|prefix| name.starts_with(prefix))
    };
    paths.filter(is_of_pid).collect()
}

fn assert_database_is_compared(engine: &str, name: &str) {
    let scene = Scene::with_program_for_all();
    let agent = scene.start(database(&scene, engine, "24"));
    let pid = agent.pid();
    let found = agent.wait().well().json();
    assert_eq!((&found["engine"], &found["pairs"]), (&name.into(), &6.into()), "{found}");
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{found}");
    for row in rows {
        for side in ["off", "on"] {
            assert!(row[side]["mean"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row[side]["values"], 6, "{row}");
        }
    }
    assert_eq!(found["failed_transactions"], 0, "{found}");
    let figure = scene.path("").join(found["figure"].as_str().unwrap());
    assert!(std::fs::read_to_string(figure).unwrap().contains("</svg>"));
    scene.wait_until_quiet();
    assert!(left(&scene, pid).is_empty(), "{:?}", left(&scene, pid));
}

/// Interrupts one demo while its server runs, and kills another, which the next one cleans.
fn assert_nothing_is_left(engine: &str) {
    let scene = Scene::with_program_for_all();
    let start = || {
        let mut agent = scene.start(database(&scene, engine, "600"));
        let pid = agent.pid();
        let has_socket = |place: &PathBuf| {
            let entries = std::fs::read_dir(place.join("run"));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        };
        agent.wait_for("the server", || left(&scene, pid).iter().any(has_socket));
        (agent, pid)
    };
    let (interrupted, pid) = start();
    let ended = interrupted.interrupt().refused(1, "stopped before the end");
    assert_eq!(ended.out, "", "a table of half a demo");
    scene.wait_until_quiet();
    assert!(left(&scene, pid).is_empty(), "{:?}", left(&scene, pid));
    let (killed, pid) = start();
    killed.signal(Signal::KILL);
    drop(killed);
    assert_eq!(left(&scene, pid).len(), 3, "data, page and library");
    let (terminated, own) = start();
    assert!(left(&scene, pid).is_empty(), "{:?}", left(&scene, pid));
    terminated.signal(Signal::TERM);
    terminated.wait().refused(1, "stopped before the end");
    scene.wait_until_quiet();
    assert!(left(&scene, own).is_empty(), "{:?}", left(&scene, own));
}

mod needs_mariadbd {
    #[test]
    fn a_place_that_cannot_be_made_is_refused_before_the_server_starts() {
        let scene = super::Scene::new();
        let arguments = ["demo", "database", "--engine", "mariadb", "--record", "/dev/null/runs"];
        let ended = scene.run(&arguments).refused(1, "cannot make /dev/null/runs");
        assert!(!ended.err.contains("starting"), "{}", ended.err);
    }

    #[test]
    #[ignore = "slow: 24 s of load on a database"]
    fn a_database_is_compared_with_and_without_a_limit() {
        super::assert_database_is_compared("mariadb", "MariaDB");
    }

    #[test]
    #[ignore = "slow: three databases are installed"]
    fn a_demo_that_is_interrupted_or_killed_leaves_nothing() {
        super::assert_nothing_is_left("mariadb");
    }
}

mod needs_postgres {
    #[test]
    #[ignore = "slow: 24 s of load on a database"]
    fn a_database_is_compared_with_and_without_a_limit() {
        super::assert_database_is_compared("postgresql", "PostgreSQL");
    }

    #[test]
    #[ignore = "slow: three databases are installed"]
    fn a_demo_that_is_interrupted_or_killed_leaves_nothing() {
        super::assert_nothing_is_left("postgresql");
    }
}
