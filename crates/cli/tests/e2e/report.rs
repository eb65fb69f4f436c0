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
fn a_page_shows_a_run_and_its_proof_without_external_resources() {
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

/// Renames the app `server` of a record, and writes the name into facts about its run.
fn rename_server(record: &Path, name: &str) {
    let database = Connection::open(record).unwrap();
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
}

#[test]
fn names_that_look_like_markup_are_text() {
    let scene = Scene::new();
    let record = proven(&scene);
    let name = "</td><script>alert(1)</script><img/src=x>|`*";
    rename_server(&record, name);
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
    refused(&scene.write("text.db", &"no record ".repeat(900)), "is not a record of a run");
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

#[test]
fn names_that_steer_a_terminal_or_a_spreadsheet_are_text() {
    let scene = Scene::new();
    let record = proven(&scene);
    let name = "=1+1\u{1b}[31m\u{9b}2J\u{202e}\"',y";
    rename_server(&record, name);
    let hidden = ['\u{1b}', '\u{9b}', '\u{202e}'];
    scene.run(&["entropy".as_ref(), record.as_os_str()]).well();
    let ended = report(&scene, &[record.as_os_str(), "--json".as_ref()]).well();
    assert!(!ended.out.contains(hidden) && !ended.err.contains(hidden), "{}", ended.out);
    assert!(ended.json().to_string().contains("=1+1\\u001b[31m\u{9b}2J"), "JSON has the name");
    let page = read(&record.with_extension("html"));
    assert!(!page.contains(hidden) && page.contains("=1+1\\u{1b}[31m\\u{9b}2J"));

    let to = scene.path("exported");
    let wanted = ["export".as_ref(), record.as_os_str(), "--to".as_ref(), to.as_os_str()];
    scene.run(&wanted).well();
    let text = read(&to.join("apps.csv"));
    assert!(!text.contains(hidden), "{text}");
    let mut cells = csv::Reader::from_reader(text.as_bytes());
    let row = cells.records().next().unwrap().unwrap();
    assert_eq!(&row[1], "'=1+1\\u{1b}[31m\\u{9b}2J\\u{202e}\"',y");
}

/// Opens a record after a change to it.
fn crafted(scene: &Scene, record: &Path, sql: &str) -> Ended {
    let copy = scene.path("crafted.db");
    let _ = std::fs::remove_file(&copy);
    Connection::open(record).unwrap().execute("VACUUM INTO ?1", [copy.to_str()]).unwrap();
    Connection::open(&copy).unwrap().execute_batch(sql).unwrap();
    report(scene, &[copy.as_os_str()])
}

#[test]
fn crafted_records_are_refused_at_once() {
    let scene = Scene::new();
    let record = proven(&scene);
    crafted(&scene, &record, "").well();
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i";
    let view = format!(
        "DROP TABLE latencies;
         CREATE VIEW latencies AS {endless} AS epoch, 'server' AS app, x'' AS hdr_v2_deflate FROM n"
    );
    crafted(&scene, &record, &view).refused(2, "`latencies` is not a table");
    // Cookie, length, offset, five digits, range, ratio.
    let fine = "1c849313 00000000 00000000 00000005 0000000000000001 7fffffffffffffff \
                3ff0000000000000";
    let fine = format!("UPDATE latencies SET hdr_v2_deflate = x'{}'", fine.replace(' ', ""));
    crafted(&scene, &record, &fine).refused(1, "5 significant digits, at most 3");
}
