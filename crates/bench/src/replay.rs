//! The cost of replaying a long record on one core.
//!
//! The record is a real one of half a minute at 10,000 requests/s, its epochs
//! repeated until there are ten minutes of them: a replay reads, samples and
//! simulates the same amount as of ten recorded minutes, and no user waits for
//! them. One policy is predicted.

use super::process::{cost, printed};
use super::server::free_address;
use super::stats::Summary;
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, ensure};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const BENCH: Bench = Bench {
    name: "replay",
    about: "lull replay of 10 recorded minutes at 10,000 requests/s, one policy predicted: CPU \
            time on one core, and memory",
    run,
};

const ROUNDS: usize = 3;
const RATE_PER_S: u32 = 10_000;
/// Recorded for real, and what the record is stretched to.
const RECORDED_S: u32 = 30;
const REPLAYED_S: u32 = 600;
const CPU_MAX_S: f64 = 20.0;
/// Share of the generated requests that must be in the record.
const KEPT_MIN: f64 = 0.9;

/// Tables of a record by the column that numbers their epochs.
const TABLES: [(&str, &str); 6] = [
    ("epochs", "number"),
    ("machine_epochs", "epoch"),
    ("app_epochs", "epoch"),
    ("core_epochs", "epoch"),
    ("latencies", "epoch"),
    ("requests", "epoch"),
];

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    let place = tempfile::tempdir()?;
    let record = recorded(&lull, place.path())?;
    let epochs = stretched(&record, i64::from(REPLAYED_S / RECORDED_S))?;
    let mut costs = Vec::new();
    for round in 0..=ROUNDS {
        let mut command = Command::new(&lull);
        command.arg("replay").arg(&record);
        // Whether this machine was quiet enough to be predicted is another question.
        command.args(["--policy", "even", "--max-error", "1e12", "--json"]);
        command.env("RAYON_NUM_THREADS", "1").stdout(Stdio::null()).stderr(Stdio::null());
        let now = cost(&mut command)?;
        // The first one warms caches.
        costs.extend((round > 0).then_some(now));
    }
    let mut report = Report::default();
    let cpu = Summary::new(costs.iter().map(|cost| cost.cpu_s));
    report.bounded("replay and one prediction: CPU time", cpu, "s", 0.0..=CPU_MAX_S);
    let peak = Summary::new(costs.iter().map(|cost| cost.rss_peak_mib));
    report.reported("the same: peak resident", peak, "MiB");
    let size_mb = std::fs::metadata(&record)?.len() as f64 / 1e6;
    report.reported("the record", Summary::new([size_mb]), "MB");
    report.note(format!(
        "{ROUNDS} rounds on one thread; the record is {RECORDED_S} s of the built-in options \
         server under `lull load` at {RATE_PER_S} requests/s beside a burner, repeated to \
         {REPLAYED_S} s ({epochs} epochs). All steps count: reading, calibration, \
         reproduction, the prediction of `even`, and both with demands smaller and larger."
    ));
    Ok(report)
}

/// The record of a short real run.
pub(super) fn recorded(lull: &Path, place: &Path) -> Result<PathBuf> {
    let config = place.join("agent.toml");
    std::fs::write(&config, config_text(place, free_address()?.port()))?;
    let length = format!("{RECORDED_S}s");
    let mut command = Command::new(lull);
    command.arg("run").arg(&config).args(["--for", &length, "--json"]);
    printed(command.stderr(Stdio::null()))?;
    let mut files = std::fs::read_dir(place.join("runs"))?.flatten().map(|file| file.path());
    let record = files.find(|path| path.extension().is_some_and(|end| end == "db"));
    record.context("the agent left no record")
}

/// Repeats the epochs of a record this many times in all; how many there are then.
pub(super) fn stretched(record: &Path, times: i64) -> Result<i64> {
    let database = Connection::open(record)?;
    let whole = "SELECT max(number) + 1, avg(offered_requests_per_second)
                 FROM epochs JOIN app_epochs ON epoch = number WHERE app = 'server'";
    let (epochs, rate): (i64, f64) =
        database.query_row(whole, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    ensure!(
        rate >= KEPT_MIN * f64::from(RATE_PER_S),
        "only {rate:.0} requests/s arrived: the machine is too busy for this benchmark"
    );
    let transaction = database.unchecked_transaction()?;
    for (table, column) in TABLES {
        let named = transaction.prepare(&format!("SELECT * FROM {table} LIMIT 0"))?;
        let shifted = |name: &&str| match *name == column {
            true => format!("{name} + {epochs} * copy"),
            false => (*name).to_owned(),
        };
        let columns: Vec<String> = named.column_names().map(|name| shifted(&name)).collect();
        transaction.execute_batch(&format!(
            "WITH RECURSIVE copies (copy) AS
               (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < {times} - 1)
             INSERT INTO {table} SELECT {} FROM {table}, copies
             WHERE {table}.{column} < {epochs};",
            columns.join(", ")
        ))?;
    }
    transaction.commit()?;
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(database.query_row("SELECT count(*) FROM epochs", [], |row| row.get(0))?)
}

fn config_text(place: &Path, port: u16) -> String {
    let place = place.display();
    format!(
        r#"[agent]
record = "{place}/runs"
state = "{place}/state"

[policy]
name = "unmanaged"

[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "20ms" }}]
ideal = "1ms"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}"]
ready = "127.0.0.1:{port}"

[[app]]
name = "burner"
class = "best-effort"
progress = "push"
start = ["lull", "burn", "compute", "--threads", "1"]

[[load]]
app = "server"
target = "options://127.0.0.1:{port}"
rate = "{RATE_PER_S}/s"
connections = 64
extra = ["--base-paths", "1"]
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_repeated_whole_and_its_epochs_numbered_on() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("run.db");
        let database = Connection::open(&file).unwrap();
        let tables = "
            CREATE TABLE epochs (number INTEGER PRIMARY KEY, phase TEXT);
            CREATE TABLE machine_epochs (epoch INTEGER);
            CREATE TABLE app_epochs (epoch INTEGER, app TEXT, offered_requests_per_second REAL);
            CREATE TABLE core_epochs (epoch INTEGER, core TEXT);
            CREATE TABLE latencies (epoch INTEGER, app TEXT);
            CREATE TABLE requests (epoch INTEGER, packed BLOB);
            INSERT INTO epochs VALUES (0, 'on'), (1, 'on');
            INSERT INTO app_epochs VALUES (0, 'server', 10000), (1, 'server', 9999);
            INSERT INTO core_epochs VALUES (1, '0');";
        database.execute_batch(tables).unwrap();
        assert_eq!(stretched(&file, 3).unwrap(), 6);
        let numbers = "SELECT group_concat(epoch) FROM (SELECT epoch FROM core_epochs ORDER BY 1)";
        let numbers: String = database.query_row(numbers, [], |row| row.get(0)).unwrap();
        assert_eq!(numbers, "1,3,5");
        let sum = "SELECT sum(offered_requests_per_second) FROM app_epochs WHERE app = 'server'";
        assert_eq!(database.query_row(sum, [], |row| row.get::<_, f64>(0)).unwrap(), 59_997.0);
        database.execute("UPDATE app_epochs SET offered_requests_per_second = 9", []).unwrap();
        assert!(stretched(&file, 3).unwrap_err().to_string().contains("too busy"));
    }

    #[test]
    fn the_config_is_toml_at_the_rate_that_is_meant() {
        let config: toml::Table = config_text(Path::new("/tmp/x"), 7300).parse().unwrap();
        assert_eq!(config["load"][0]["rate"].as_str(), Some("10000/s"));
    }
}
