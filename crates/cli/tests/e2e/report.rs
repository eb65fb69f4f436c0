//! `lull report`: one page of recorded runs that loads nothing else.

use crate::runs::started;
use crate::support::agent::Ended;
use crate::support::free_port;
use crate::support::scene::Scene;
use rusqlite::Connection;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A short run's record, with a proof in it.
pub(crate) fn proven(scene: &Scene) -> PathBuf {
    let config = scene.config("", &started("arq", free_port()));
    let wanted = ["--prove", "12s", "--block", "1s"].map(OsStr::new);
    let arguments = [OsStr::new("run"), config.as_os_str()].into_iter().chain(wanted);
    scene.start(scene.lull(&arguments.collect::<Vec<_>>())).wait().well();
    scene.wait_until_quiet();
    scene.records().pop().unwrap()
}

pub(crate) fn report(scene: &Scene, arguments: &[&OsStr]) -> Ended {
    let all: Vec<&OsStr> = [OsStr::new("report")].iter().chain(arguments).copied().collect();
    scene.run(&all)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Returns the external resources that a page would load.
fn references(page: &str) -> Vec<&str> {
    let starts = ["src=", "href=", "url(", "@import", "<script", "<link", "<iframe", "<img"];
    starts.into_iter().filter(|start| page.contains(start)).collect()
}

#[test]
fn a_page_tells_a_run_and_its_proof_and_asks_nobody() {
    let scene = Scene::new();
    let record = proven(&scene);
    let table = scene.path("report.md");
    let wanted = [record.as_os_str(), "--markdown".as_ref(), table.as_os_str()];
    report(&scene, &wanted).well();
    let page = read(&record.with_extension("html"));
    assert_eq!(references(&page), Vec::<&str>::new());
    let wanted = [
        "What ran where",
        "What the policy changes",
        "server: p95 latency",
        "Entropy: 0 best, 1 worst",
        "Cores that each app may use",
        "pairs of blocks of 1s",
        "bound 20.00us",
        "Journal",
        "<svg",
    ];
    for words in wanted {
        assert!(page.contains(words), "no {words}");
    }
    let text = read(&table);
    assert!(text.contains("| E\\_S |") && text.contains("server: p95 latency, ms"), "{text}");
    assert!(text.contains("| | arq | unmanaged |"), "a column a part: {text}");
}

#[test]
fn names_that_look_like_markup_are_text() {
    let scene = Scene::new();
    let record = proven(&scene);
    let name = "</td><script>alert(1)</script><img/src=x>|`*";
    let database = Connection::open(&record).unwrap();
    let spec: String =
        database.query_row("SELECT spec FROM apps WHERE id = 0", [], |row| row.get(0)).unwrap();
    let mut spec: serde_json::Value = serde_json::from_str(&spec).unwrap();
    spec["name"] = name.into();
    let change = "UPDATE apps SET name = ?1, spec = ?2 WHERE id = 0";
    database.execute(change, [name, &spec.to_string()]).unwrap();
    for table in ["app_epochs", "latencies", "requests"] {
        let change = format!("UPDATE {table} SET app = ?1 WHERE app = 'server'");
        database.execute(&change, [name]).unwrap();
    }
    let change = "UPDATE run SET value = ?1 WHERE key IN ('policy', 'kernel', 'ended')";
    database.execute(change, [name]).unwrap();
    drop(database);
    let (page, table) = (scene.path("x.html"), scene.path("x.md"));
    let wanted = [
        record.as_os_str(),
        record.as_os_str(),
        "--html".as_ref(),
        page.as_os_str(),
        "--markdown".as_ref(),
        table.as_os_str(),
    ];
    report(&scene, &wanted).well();
    for text in [read(&page), read(&table)] {
        assert!(text.contains("&lt;script&gt;alert(1)"), "the name is not there");
        assert!(!text.contains("<script") && !text.contains("<img"), "markup came through");
        assert!(!text.contains("</td><s"));
    }
}

#[test]
fn runs_stand_side_by_side_and_what_is_no_record_is_refused() {
    let scene = Scene::new();
    for policy in ["unmanaged", "even"] {
        let config = scene.config("", &started(policy, free_port()));
        scene.run_for(&config, "3s").well();
    }
    let records = scene.records();
    let both: Vec<&OsStr> = records.iter().map(|record| record.as_os_str()).collect();
    let ended = report(&scene, &both).well();
    assert_eq!(ended.out.trim(), "report.html");
    let page = read(&scene.path("report.html"));
    assert!(page.contains("Side by side") && page.contains("server: latency by percentile"));
    assert!(page.contains("unmanaged (") && page.contains("even ("), "a column each");

    let refused = |file: &Path, words: &str| {
        report(&scene, &[both[0], file.as_os_str()]).refused(2, words);
        assert_eq!(read(&scene.path("report.html")), page, "a page that was good is gone");
    };
    refused(&scene.path("missing.db"), "missing.db cannot be opened");
    refused(&scene.write("text.db", &"no record ".repeat(900)), "is no record of a run");
    let newer = scene.path("newer.db");
    std::fs::copy(&records[0], &newer).unwrap();
    let database = Connection::open(&newer).unwrap();
    database.execute("UPDATE run SET value = '99' WHERE key = 'schema'", []).unwrap();
    drop(database);
    refused(&newer, "was written by a newer Lull");
    let bytes = std::fs::read(&records[1]).unwrap();
    let cut = scene.path("cut.db");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    refused(&cut, "cut.db is");
    let into = scene.path("no/such/x.html");
    report(&scene, &[both[0], "--html".as_ref(), into.as_os_str()])
        .refused(2, "there is no such directory");
}
