//! Files of former versions, which docs/compatibility.md promises to read.
//!
//! Each folder of `tests/former/` has the name of a version and its commit, and holds what that
//! version wrote: the names of its config keys and metrics, configs, scenarios, lines of push
//! clients, and a record. These files never change: what a test here refuses is a break, which
//! needs a line in CHANGELOG.md and, for a key, an error that names the new one.

use crate::support::scene::Scene;
use lull_agent::config::Config;
use lull_measure::push::Message;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The versions, oldest first.
const VERSIONS: [&str; 1] = ["0.1.0-041a7d70433b"];

/// Versions of which the keys of `--json` are kept, each after the name of its command.
const JSON_VERSIONS: [&str; 1] = ["0.1.0-da35d60d6eb6"];

/// E_S, E_LC and E_BE of the record of each version.
const ENTROPIES: [[f64; 3]; 1] = [[0.871_665_673, 0.983_385_465, 0.424_786_504]];

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/former").join(version)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.is_empty(), "{}", folder.display());
    files
}

/// Checks that each line of a former version's file is among the present names.
fn check_kept(file: &str, present: &[String]) {
    for version in VERSIONS {
        let former = std::fs::read_to_string(folder(version).join(file)).unwrap();
        let gone: Vec<_> =
            former.lines().filter(|name| !present.iter().any(|it| it == name)).collect();
        assert!(gone.is_empty(), "{file} of {version} has names that are gone: {gone:?}");
        assert!(former.lines().count() > 40, "{file} of {version} is cut");
    }
}

#[test]
fn keys_of_a_former_version_are_still_keys() {
    let sections = Scene::new().run(&["keys", "--json"]).well().json();
    let mut present = Vec::new();
    for section in sections.as_array().unwrap() {
        let name = section["name"].as_str().unwrap();
        let is_list = section["is_list"].as_bool().unwrap();
        let head = if is_list { format!("[[{name}]]") } else { format!("[{name}]") };
        let keys = section["keys"].as_array().unwrap();
        present.extend(keys.iter().map(|key| format!("{head} {}", key["name"].as_str().unwrap())));
    }
    check_kept("keys.txt", &present);
}

#[test]
fn metrics_of_a_former_version_keep_their_names() {
    let metrics = Scene::new().run(&["metrics", "--json"]).well().json();
    // A counter has no key in records.
    let name = |metric: &Value| {
        Some(format!("{} {}", metric["key"].as_str()?, metric["prometheus"].as_str()?))
    };
    let present: Vec<_> = metrics.as_array().unwrap().iter().filter_map(name).collect();
    check_kept("metrics.txt", &present);
}

#[test]
fn configs_and_scenarios_of_a_former_version_are_accepted() {
    let scene = Scene::new();
    for version in VERSIONS {
        for file in files_in(&folder(version).join("configs")) {
            if let Err(error) = Config::load(&file) {
                panic!("{}: {error}", file.display());
            }
        }
        for file in files_in(&folder(version).join("scenarios")) {
            let printed = scene.run(&["sim", "--check", file.to_str().unwrap()]).well();
            assert!(printed.out.contains("can be run"), "{}: {}", file.display(), printed.out);
        }
    }
}

#[test]
fn push_lines_of_former_and_of_newer_clients_are_understood() {
    for version in VERSIONS {
        let lines = std::fs::read_to_string(folder(version).join("push.jsonl")).unwrap();
        let apps: Vec<_> = lines.lines().map(understood).collect();
        assert_eq!(apps, ["memcached", "burner"]);
    }
}

/// The app of a line, which is the same with a field that this version does not know.
fn understood(line: &str) -> String {
    let message = Message::decode(line.as_bytes()).unwrap();
    let newer = line.replacen('{', r#"{"later":[1],"#, 1);
    assert_eq!(Message::decode(newer.as_bytes()).unwrap(), message);
    message.app().to_owned()
}

/// A copy of a version's record: readers include the content of a log beside it.
fn copy_record(scene: &Scene, version: &str) -> PathBuf {
    let copy = scene.path(&format!("{version}.db"));
    std::fs::copy(folder(version).join("arq.db"), &copy).unwrap();
    copy
}

#[test]
fn a_record_of_a_former_version_gives_the_same_figures() {
    let scene = Scene::new();
    for (version, expected) in VERSIONS.into_iter().zip(ENTROPIES) {
        let record = copy_record(&scene, version);
        let record = record.to_str().unwrap();
        let entropy = scene.run(&["entropy", record, "--json"]).well().json();
        let part = &entropy["parts"][0];
        for (key, expected) in ["system", "lc", "be"].into_iter().zip(expected) {
            let found = part[key].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-6, "{key} of {version}: {found}");
        }
        let page = scene.path("report.html");
        scene.run(&["report", record, "--html", page.to_str().unwrap()]).well();
        assert!(std::fs::read_to_string(&page).unwrap().contains("0.872"), "no E_S in the report");
        let arguments = ["replay", record, "--policy", "even", "--max-error", "1000000", "--json"];
        let replayed = scene.run(&arguments).well().json();
        assert_eq!(replayed["prediction"]["policies"][1]["policy"], "even");
    }
}

/// The columns of a table, as the former version named them.
fn columns(record: &Path, table: &str) -> Vec<String> {
    let database = Connection::open_with_flags(record, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut query = database.prepare("SELECT name FROM pragma_table_info(?1)").unwrap();
    let names = query.query_map([table], |row| row.get(0)).unwrap();
    names.collect::<Result<_, _>>().unwrap()
}

#[test]
fn exports_of_a_former_record_have_its_columns() {
    let scene = Scene::new();
    for version in VERSIONS {
        let record = copy_record(&scene, version);
        let to = scene.path(version);
        let arguments = ["export", "--format", "csv", "--to", to.to_str().unwrap()];
        scene.run(&[&arguments[..], &[record.to_str().unwrap()]].concat()).well();
        for table in ["machine_epochs", "app_epochs", "core_epochs", "plans", "missing"] {
            let text = std::fs::read_to_string(to.join(format!("{table}.csv"))).unwrap();
            let mut lines = text.lines();
            let exported: Vec<&str> = lines.next().unwrap().split(',').collect();
            assert!(lines.next().is_some(), "{table} of {version} is empty");
            for column in columns(&record, table) {
                assert!(exported.contains(&column.as_str()), "{table} has no {column}");
            }
        }
    }
}

/// Adds the path of each key in a value; the elements of a list have one path.
fn collect_paths(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect_paths(inner, &path, paths);
                paths.insert(path);
            }
        }
        Value::Array(elements) => {
            elements.iter().for_each(|one| collect_paths(one, &format!("{path}[]"), paths));
        }
        _ => {}
    }
}

#[test]
fn keys_of_json_of_a_former_version_are_still_printed() {
    let scene = Scene::new();
    let record = copy_record(&scene, VERSIONS[0]);
    let (record, to) = (record.to_str().unwrap(), scene.path("tables"));
    let commands: [(&str, Vec<&str>); 7] = [
        ("entropy", vec![record]),
        ("report", vec![record]),
        ("export", vec![record, "--format", "csv", "--to", to.to_str().unwrap()]),
        ("replay", vec![record, "--policy", "even", "--max-error", "1000000"]),
        ("policies", vec![]),
        ("metrics", vec![]),
        ("keys", vec![]),
    ];
    let mut present = BTreeSet::new();
    for (command, arguments) in commands {
        let all = [&[command][..], &arguments, &["--json"]].concat();
        let mut paths = BTreeSet::new();
        collect_paths(&scene.run(&all).well().json(), "", &mut paths);
        present.extend(paths.iter().map(|path| format!("{command} {path}")));
    }
    for version in JSON_VERSIONS {
        let former = std::fs::read_to_string(folder(version).join("json.txt")).unwrap();
        let gone: Vec<_> = former.lines().filter(|path| !present.contains(*path)).collect();
        assert!(gone.is_empty(), "--json of {version} has keys that are gone: {gone:?}");
    }
}
