//! Records read again: exported, after a kill, damaged, from a newer Lull.

use crate::runs::started;
use crate::support::free_port;
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use parquet::file::reader::{FileReader, SerializedFileReader};
use rusqlite::Connection;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A record of an agent that was killed at work, with its write-ahead log.
fn of_a_killed_agent(scene: &Scene) -> PathBuf {
    let mut agent = scene.agent(&scene.config("", &started("arq", free_port())));
    agent.wait_for("some epochs", || epochs_so_far(scene.records().last()) > 8);
    agent.signal(Signal::KILL);
    agent.wait();
    scene.wait_until_quiet();
    scene.records().pop().unwrap()
}

fn rows_of(place: &Path, table: &str) -> (usize, usize) {
    let file = File::open(place.join(format!("{table}.parquet"))).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let parquet = reader.get_row_iter(None).unwrap().map(Result::unwrap).count();
    let mut csv = csv::Reader::from_path(place.join(format!("{table}.csv"))).unwrap();
    (parquet, csv.records().map(Result::unwrap).count())
}

#[test]
fn a_killed_agents_record_is_exported_whole() {
    let scene = Scene::new();
    let file = of_a_killed_agent(&scene);
    let printed =
        scene.run(&["export".as_ref(), file.as_os_str(), "--json".as_ref()]).well().json();
    let place = file.with_extension("");
    assert_eq!(printed["directory"], place.display().to_string());
    assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let record = Record::open(&file);
    for table in ["run", "apps", "epochs", "app_epochs", "core_epochs", "journal", "plans"] {
        let wanted = record.number(&format!("SELECT count(*) FROM {table}")) as usize;
        assert!(wanted > 0, "{table} is empty");
        assert_eq!(rows_of(&place, table), (wanted, wanted), "{table}");
    }
    let tables = printed["tables"].as_array().unwrap();
    for [table, rows] in tables.iter().map(|pair| [&pair[0], &pair[1]]) {
        let rows = rows.as_u64().unwrap() as usize;
        assert_eq!(rows_of(&place, table.as_str().unwrap()), (rows, rows), "{table}");
    }
    assert!(rows_of(&place, "requests").0 > 0, "no request was sampled");
    // Histogram counts equal the answered requests of each epoch.
    let mut csv = csv::Reader::from_path(place.join("latencies.csv")).unwrap();
    let counts = csv.records().map(|row| row.unwrap()[3].parse::<i64>().unwrap());
    let answered = "SELECT sum(completed_requests_per_second * epoch_seconds) \
                    FROM app_epochs JOIN machine_epochs USING (epoch)";
    let answered = record.number(&format!("SELECT cast(({answered}) AS INTEGER)"));
    let counted: i64 = counts.sum();
    assert!((counted - answered).abs() <= answered / 2 + 20, "{counted} of {answered}");
    let again = scene.run(&["export".as_ref(), file.as_os_str()]);
    again.refused(2, "is there already: name another with --to");
}

#[test]
fn sampled_requests_have_their_rate_and_lie_within_the_run() {
    let scene = Scene::new();
    let file = of_a_killed_agent(&scene);
    let to = scene.path("out");
    let arguments: [&std::ffi::OsStr; 6] = [
        "export".as_ref(),
        file.as_os_str(),
        "--to".as_ref(),
        to.as_os_str(),
        "--format".as_ref(),
        "csv".as_ref(),
    ];
    scene.run(&arguments).well();
    assert!(!to.join("requests.parquet").exists(), "only CSV was asked for");
    let mut csv = csv::Reader::from_path(to.join("requests.csv")).unwrap();
    let header: Vec<_> = csv.headers().unwrap().iter().map(str::to_owned).collect();
    let columns = ["epoch", "app", "one_in", "due_ns", "wait_ns", "latency_ns", "run", "host"];
    assert_eq!(header, columns);
    let record = Record::open(&file);
    let end = record.number("SELECT max(time_ns) FROM epochs");
    let host = record.text("SELECT value FROM run WHERE key = 'host'");
    for row in csv.records().map(Result::unwrap) {
        let number = |column: usize| row[column].parse::<i64>().unwrap();
        assert_eq!((&row[1], &row[7]), ("server", host[0].as_str()));
        assert!(row[6].starts_with("20"), "a run begins with its day: {row:?}");
        assert!(number(2) >= 1 && (number(2) as u64).is_power_of_two());
        assert!(number(3) <= end && number(5) >= number(4) && number(5) > 0, "{row:?}");
    }
}

#[test]
fn a_record_is_not_bounded_to_next_to_nothing() {
    let scene = Scene::new();
    let agent = "keep = \"9s\"";
    let config = scene.config(agent, &started("unmanaged", free_port()));
    let ended = scene.run_for(&config, "1s");
    ended.refused(2, "agent.keep: is below 10s");
}

#[test]
fn an_agent_that_keeps_the_last_while_forgets_at_a_bounded_size() {
    let scene = Scene::new();
    let config = scene.config("keep = \"10s\"", &started("unmanaged", free_port()));
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("epoch = \"200ms\"", "epoch = \"40ms\"");
    std::fs::write(&config, text).unwrap();
    let mut agent = scene.agent(&config);
    // The number of the oldest epoch shows that the agent has deleted older ones.
    let oldest_after = |agent: &mut crate::support::agent::Agent, before: i64| {
        let mut found = 0;
        agent.wait_for("epochs to be forgotten", || {
            found = scene.records().last().and_then(oldest).unwrap_or(0);
            found > before
        });
        found
    };
    let first = oldest_after(&mut agent, 0);
    let pages = |file: &Path| Record::open(file).number("PRAGMA page_count");
    let file = scene.records().pop().unwrap();
    // On a machine that was busy at first, later epochs are shorter, and more of them fit into ten
    // seconds.
    let count = |file: &Path| Record::open(file).number("SELECT count(*) FROM epochs");
    let (size, few) = (pages(&file), count(&file));
    let mut last = first;
    for _ in 0..3 {
        last = oldest_after(&mut agent, last);
    }
    agent.signal(Signal::INT);
    agent.wait().well();
    let record = Record::open(&file);
    let span = record.number("SELECT max(time_ns) - min(time_ns) FROM epochs");
    // Ten seconds, and the time between two looks.
    let between =
        64 * record.number("SELECT max(cast(epoch_seconds * 1e9 AS INTEGER)) FROM machine_epochs");
    assert!(span >= 9_000_000_000 && span <= 10_000_000_000 + between, "{span} ns");
    let (grown, many) = (pages(&file), count(&file).max(few));
    let fair = size * many / few;
    assert!(grown <= fair + fair / 4 + 8, "{size} pages of {few} epochs, {grown} of {many}");
    let oldest = record.number("SELECT min(number) FROM epochs");
    for table in ["app_epochs", "core_epochs", "machine_epochs"] {
        let kept = record.number(&format!("SELECT min(epoch) FROM {table}"));
        assert_eq!(kept, oldest, "{table}");
    }
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
    scene.run(&["entropy".as_ref(), file.as_os_str()]).well();
}

/// The number of the oldest epoch kept; `None` while there is none.
fn oldest(file: &PathBuf) -> Option<i64> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = Connection::open_with_flags(file, flags).ok()?;
    database.query_row("SELECT min(number) FROM epochs", [], |row| row.get(0)).ok().flatten()
}

#[test]
fn what_is_no_record_is_refused_with_the_reason() {
    let scene = Scene::new();
    let file = of_a_killed_agent(&scene);
    let refused = |file: &Path, words: &str| {
        for command in ["export", "entropy"] {
            let ended = scene.run(&[command.as_ref(), file.as_os_str()]);
            ended.refused(2, words);
        }
        assert!(!file.with_extension("").exists(), "half an export was left");
    };
    refused(&scene.path("missing.db"), "missing.db cannot be opened");
    refused(&scene.write("text.db", &"no record ".repeat(900)), "is not a record of a run");
    refused(&scene.write("empty.db", ""), "is not a record of a run");

    let newer = scene.path("newer.db");
    checkpointed(&file);
    std::fs::copy(&file, &newer).unwrap();
    let database = Connection::open(&newer).unwrap();
    database.execute("UPDATE run SET value = '99' WHERE key = 'schema'", []).unwrap();
    drop(database);
    refused(&newer, "was written by a newer Lull");

    let bytes = std::fs::read(&file).unwrap();
    let cut = scene.path("cut.db");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    refused(&cut, "cut.db is");
}

/// Moves the content of the write-ahead log into the file itself.
fn checkpointed(file: &Path) {
    let database = Connection::open(file).unwrap();
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}
