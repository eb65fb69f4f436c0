//! How long the queries of `examples/fleet` take on the records of a day of many hosts.
//!
//! The record is a real one of half a minute, its epochs repeated until there is a day of them.
//! The files that its export writes are copied for each host, so that every host has as many
//! rows as a real one; only that their values are the same is not real.

use super::process::{cost, printed};
use super::python::Python;
use super::replay;
use super::stats::Summary;
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, ensure};
use rusqlite::Connection;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const BENCH: Bench = Bench {
    name: "fleet",
    about: "Queries of DuckDB over the records of a day of 1,000 hosts, and what the export of \
            such a record takes",
    run,
};

const HOSTS: usize = 1_000;
const ROUNDS: usize = 3;
const DAY_S: i64 = 86_400;
const QUERIES_MAX_S: f64 = 10.0;

/// The script's timings of a query.
#[derive(Debug, Deserialize)]
struct QueryTime {
    seconds: f64,
    rows: u64,
}

fn run(context: &Context) -> Result<Report> {
    let python = Python::install("fleet", &context.root)?;
    let lull = context.program_with("parquet")?;
    let place = tempfile::tempdir_in(context.target())?;
    let record = record_of_a_day(&lull, place.path())?;
    let dataset = place.path().join("dataset");
    let mut export = Command::new(&lull);
    export.arg("export").arg(&record).args(["--host", "host-0", "--dataset"]).arg(&dataset);
    let exported = cost(export.stdout(Stdio::null()))?;
    let files = copy_for_hosts(&dataset, HOSTS)?;
    let mut totals = Vec::new();
    let mut by_query: BTreeMap<String, Vec<QueryTime>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut script = python.script("queries.py");
        let text = printed(script.arg(&dataset).arg(context.root.join("examples/fleet")))?.text;
        let took: BTreeMap<String, QueryTime> = serde_json::from_str(&text)?;
        totals.push(took.values().map(|query| query.seconds).sum::<f64>());
        for (name, query) in took {
            ensure!(query.rows as usize >= rows_min(&name), "{name} lacks rows");
            by_query.entry(name).or_default().push(query);
        }
    }
    let mut report = Report::default();
    report.bounded("all queries", Summary::new(totals), "s", 0.0..=QUERIES_MAX_S);
    for (name, all) in &by_query {
        let seconds = Summary::new(all.iter().map(|query| query.seconds));
        report.reported(&format!("`{name}.sql`"), seconds, "s");
    }
    report.reported("export of a record: CPU time", Summary::new([exported.cpu_s]), "s");
    let peak = Summary::new([exported.rss_peak_mib]);
    report.reported("export of a record: peak resident", peak, "MiB");
    report.reported("the dataset", Summary::new([megabytes(&dataset)?]), "MB");
    report.note(format!(
        "{HOSTS} hosts of a day each, {DAY_S} epochs of one second, a server at 10,000 \
         requests/s and a burner; {files} files in a directory, in the page cache. {ROUNDS} \
         rounds, each in a new process; queries run one after the other on all cores. {}",
        python.versions(&["duckdb"])?
    ));
    Ok(report)
}

/// Fewest rows of a query's result.
fn rows_min(query: &str) -> usize {
    match query {
        "checks" => 0,
        // The server is one workload on all hosts.
        "workloads" => 1,
        _ => HOSTS,
    }
}

/// The record of a short real run, repeated to the length of a day that ended this midnight.
fn record_of_a_day(lull: &Path, place: &Path) -> Result<PathBuf> {
    let record = replay::recorded(lull, place)?;
    let database = Connection::open(&record)?;
    let epochs: i64 = database.query_row("SELECT count(*) FROM epochs", [], |row| row.get(0))?;
    ensure!(epochs > 10, "only {epochs} epochs were recorded");
    drop(database);
    replay::stretched(&record, DAY_S / epochs + 1)?;
    let database = Connection::open(&record)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let midnight_s = now.as_secs() as i64 / DAY_S * DAY_S;
    // Epochs are as long as they were, and end a second after each other.
    database.execute_batch(&format!(
        "DELETE FROM epochs WHERE number >= {DAY_S};
         UPDATE epochs SET time_ns = number * 1000000000;
         UPDATE machine_epochs SET energy_joules = 50 * epoch_seconds;
         INSERT INTO pods VALUES (0, 'server', 'shop', 'server-0', '', 'server', '0');
         UPDATE run SET value = '{}000000000' WHERE key = 'started_unix_ns';",
        midnight_s - DAY_S
    ))?;
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(record)
}

/// Copies the files of the first host until there are this many hosts; returns the number of files.
fn copy_for_hosts(dataset: &Path, hosts: usize) -> Result<usize> {
    let mut count = 0;
    for table in folders(dataset)? {
        let days = folders(&table.join("host=host-0"))?;
        for (day, host) in days.iter().flat_map(|day| (0..hosts).map(move |host| (day, host))) {
            let to = table.join(format!("host=host-{host}"));
            let to = to.join(day.file_name().context("a day has a name")?);
            std::fs::create_dir_all(&to)?;
            for file in std::fs::read_dir(day)? {
                let file = file?;
                let copy = to.join(file.file_name());
                if host > 0 {
                    std::fs::copy(file.path(), copy)?;
                }
                count += 1;
            }
        }
    }
    Ok(count)
}

fn folders(of: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(of)?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

fn megabytes(dataset: &Path) -> Result<f64> {
    let size = printed(Command::new("du").args(["--summarize", "--bytes"]).arg(dataset))?;
    let bytes = size.text.split_whitespace().next().context("du prints a size")?;
    Ok(bytes.parse::<f64>()? / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_gets_the_files_of_the_first() {
        let place = tempfile::tempdir().unwrap();
        for table in ["minutes", "runs"] {
            let day = place.path().join(table).join("host=host-0/day=2026-11-26");
            std::fs::create_dir_all(&day).unwrap();
            std::fs::write(day.join("a.parquet"), table).unwrap();
        }
        assert_eq!(copy_for_hosts(place.path(), 3).unwrap(), 2 * 3);
        let last = place.path().join("runs/host=host-2/day=2026-11-26/a.parquet");
        assert_eq!(std::fs::read_to_string(last).unwrap(), "runs");
    }
}
