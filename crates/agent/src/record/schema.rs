//! The tables of a record. Epoch columns derive from the metric catalogue.

use super::{Head, host_and_versions};
use lull_control::{AppId, AppSpec};
use lull_measure::catalogue::{Metric, Scope, gauges};
use rusqlite::{Connection, OpenFlags, params};
use std::path::Path;

/// Raised when a reader of older records would misread a new one.
///
/// 2: histograms are bytes and no text, `plans`, `sources`, `requests`, `shadow`.
/// 3: the event `regulated` is `gate_changed`, its `regulator` is `admission`; readers take both.
pub const VERSION: u32 = 3;

/// The metrics of one scope, in the order of the columns.
pub(super) fn metrics_of(scope: Scope) -> Vec<&'static Metric> {
    gauges().filter(|metric| metric.scope == scope).collect()
}

/// Returns the table of a scope's metrics, and the expression of a row's label in it.
pub(crate) const fn table_of(scope: Scope) -> (&'static str, &'static str) {
    match scope {
        Scope::Machine => ("machine_epochs", "''"),
        Scope::App => ("app_epochs", "app"),
        Scope::Core => ("core_epochs", "core"),
        Scope::ClientClass => ("client_class_epochs", "app || '/' || client_class"),
        Scope::ClientAccount => ("client_account_epochs", "app || '/' || client_account"),
    }
}

fn create_of(scope: Scope) -> String {
    let labels: String =
        scope.label_names().iter().map(|label| format!(", {label} TEXT NOT NULL")).collect();
    let columns: String =
        metrics_of(scope).iter().map(|metric| format!(", {} REAL", metric.json_key())).collect();
    let (table, _) = table_of(scope);
    format!("CREATE TABLE {table} (epoch INTEGER NOT NULL{labels}{columns});")
}

/// The statement that adds one row of a scope.
pub(super) fn insert_of(scope: Scope) -> String {
    let columns = 1 + scope.label_names().len() + metrics_of(scope).len();
    let marks = vec!["?"; columns].join(", ");
    format!("INSERT INTO {} VALUES ({marks})", table_of(scope).0)
}

const FIXED_TABLES: &str = "
    CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE apps (id INTEGER PRIMARY KEY, name TEXT NOT NULL, spec TEXT NOT NULL);
    CREATE TABLE epochs (number INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL,
                         phase TEXT NOT NULL, safe INTEGER NOT NULL);
    CREATE TABLE latencies (epoch INTEGER NOT NULL, app TEXT NOT NULL,
                            hdr_v2_deflate BLOB NOT NULL);
    CREATE TABLE requests (epoch INTEGER NOT NULL, app TEXT NOT NULL, one_in INTEGER NOT NULL,
                           packed BLOB NOT NULL);
    CREATE TABLE plans (epoch INTEGER NOT NULL, knob TEXT NOT NULL, setting TEXT NOT NULL,
                        reason TEXT NOT NULL, expected TEXT);
    CREATE TABLE journal (epoch INTEGER NOT NULL, time_ns INTEGER NOT NULL, event TEXT NOT NULL);
    CREATE TABLE shadow (epoch INTEGER NOT NULL, time_ns INTEGER NOT NULL, event TEXT NOT NULL);
    CREATE TABLE missing (epoch INTEGER NOT NULL, metric TEXT NOT NULL, label TEXT NOT NULL,
                          reason TEXT NOT NULL);
    CREATE TABLE sources (epoch INTEGER NOT NULL, metric TEXT NOT NULL, label TEXT NOT NULL,
                          source TEXT NOT NULL);
    CREATE TABLE pods (epoch INTEGER NOT NULL, app TEXT NOT NULL, namespace TEXT NOT NULL,
                       pod TEXT NOT NULL, container TEXT NOT NULL, workload TEXT NOT NULL,
                       uid TEXT NOT NULL);
";

/// Tables whose rows are valid for one epoch.
pub(super) const BY_EPOCH: [&str; 9] = [
    "machine_epochs",
    "app_epochs",
    "core_epochs",
    "client_class_epochs",
    "client_account_epochs",
    "latencies",
    "requests",
    "journal",
    "shadow",
];
/// Tables whose rows are valid from their epoch on, with the columns of their keys.
pub(super) const FROM_EPOCH: [(&str, &[&str]); 4] = [
    ("plans", &["knob"]),
    ("missing", &["metric", "label"]),
    ("sources", &["metric", "label"]),
    ("pods", &["app"]),
];

/// Returns the names of all tables of a record.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    let of_run = ["run", "apps", "epochs"];
    of_run.into_iter().chain(BY_EPOCH).chain(FROM_EPOCH.map(|(table, _)| table))
}

/// Fills an empty file with the head of a record. SQLite makes the files of its write-ahead log
/// with the permissions of this file.
pub(super) fn create(file: &Path, head: &Head<'_>) -> rusqlite::Result<Connection> {
    // One thread at a time uses a connection, so SQLite need not lock it at each of the forty
    // values of a row.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(file, flags)?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "synchronous", "NORMAL")?;
    // The agent's memory is bounded; 256 KiB of pages are plenty for appending.
    database.pragma_update(None, "cache_size", -256)?;
    // The write-ahead log has about four megabytes, more after a large transaction. Each checkpoint
    // waits for the disk twice, and writes a page once that several epochs have changed.
    database.pragma_update(None, "wal_autocheckpoint", 1000)?;
    let transaction = database.unchecked_transaction()?;
    transaction.execute_batch(FIXED_TABLES)?;
    for scope in Scope::ALL {
        transaction.execute_batch(&create_of(scope))?;
    }
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    let facts = [
        ("config", head.config.to_owned()),
        ("machine", json(serde_json::to_string(head.machine))),
        ("policy", head.policy.to_owned()),
        ("seed", head.seed.to_string()),
        ("started_unix_ns", head.started_unix_ns.to_string()),
    ];
    for (key, value) in facts.into_iter().chain(host_and_versions()) {
        transaction.execute("INSERT INTO run VALUES (?1, ?2)", params![key, value])?;
    }
    transaction.commit()?;
    Ok(database)
}

/// Writes apps to their table, each in the place of the one that had its id.
pub(super) fn insert_apps<'a>(
    database: &Connection,
    apps: impl Iterator<Item = (AppId, &'a AppSpec)>,
) -> rusqlite::Result<()> {
    for (id, app) in apps {
        let spec = serde_json::to_string(app).unwrap_or_default();
        let row = params![i64::from(id.0), app.name, spec];
        database.execute("INSERT OR REPLACE INTO apps VALUES (?1, ?2, ?3)", row)?;
    }
    Ok(())
}
