//! Opens a record without trusting it: users send files along with questions, and a crafted one
//! must neither fill the memory nor keep a reader busy for ever.
//!
//! - An object under the name of a table must be a table: a view can be an endless query.
//! - Columns have no expressions (`CHECK`, `GENERATED`, `DEFAULT`), which SQLite would evaluate
//!   for each row; virtual tables, which run code, are refused.
//! - All queries of a connection share a number of steps that grows with the size of the file.
//! - Apps, epochs and the length of a cell have bounds. Histograms have theirs in
//!   [`lull_measure::Latency::from_deflated`].

use crate::error::UsageError;
use crate::record::schema;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;

/// Most bytes of a cell: a config, or the requests of an epoch.
const CELL_MAX: i32 = 64 << 20;
/// Steps of SQLite's virtual machine between two calls of the handler.
const STEPS: i32 = 10_000;
/// Calls of the handler for any file: about two seconds.
const CALLS_MIN: u64 = 20_000;
/// Bytes of a file for each further call, so twenty steps a byte. A row takes a byte a column at
/// least; the check of the whole file takes about five steps a column, and an export two.
const BYTES_PER_CALL: u64 = 500;
/// Most apps of a record.
const APPS_MAX: i64 = 1_000;
/// Most epochs times apps that are read into memory: about a gigabyte.
const CELLS_MAX: i64 = 20_000_000;

/// A checked record.
pub struct Database {
    /// The database as SQLite opened it.
    pub database: Connection,
    /// The version of its tables.
    pub version: u32,
}

/// The database of a record, checked: whole, of plain tables, and of a version that is
/// understood here.
///
/// # Errors
/// [`UsageError`] if it is not a record, damaged, crafted, or of a newer Lull.
pub fn open(file: &Path) -> anyhow::Result<Database> {
    let refuse = |why: String| UsageError(format!("{} {why}", file.display()));
    // Opened for writing too: the log beside it, which a killed agent left, belongs to the record.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(file, flags);
    let mut database = opened.map_err(|error| refuse(unopened(file, &error)))?;
    let found = |error: rusqlite::Error| refuse(reason(&error));
    protect(&mut database, file).map_err(found)?;
    if let Some(why) = find_crafted(&database).map_err(found)? {
        return Err(refuse(format!("is not a record as Lull writes it: {why}")).into());
    }
    let version = fact(&database, "schema").map_err(found)?;
    let number = version.parse::<u32>().unwrap_or(u32::MAX);
    if number > schema::VERSION {
        let by = fact(&database, "lull_version").unwrap_or_else(|_| "another version".to_owned());
        let ours = schema::VERSION;
        let why = format!(
            "was written by a newer Lull ({by}, records of version {version}); this one reads \
             them up to version {ours}: read it with that one"
        );
        return Err(refuse(why).into());
    }
    let check = "PRAGMA quick_check(1)";
    let whole = database.query_row(check, [], |row| row.get::<_, String>(0)).map_err(found)?;
    if whole != "ok" {
        return Err(refuse(damaged(&whole)).into());
    }
    if let Some(why) = find_oversized(&database).map_err(found)? {
        return Err(refuse(why).into());
    }
    Ok(Database { database, version: number })
}

/// Reads a fact about the run.
pub(super) fn fact(database: &Connection, key: &str) -> rusqlite::Result<String> {
    let sql = "SELECT value FROM run WHERE key = ?1";
    database.query_row(sql, [key], |row| row.get(0))
}

/// Sets the bounds of a connection before anything of the file is evaluated.
fn protect(database: &mut Connection, file: &Path) -> rusqlite::Result<()> {
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    database.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    database.set_limit(Limit::SQLITE_LIMIT_LENGTH, CELL_MAX)?;
    let mut wal = file.as_os_str().to_owned();
    wal.push("-wal");
    let length = |path: &Path| path.metadata().map_or(0, |found| found.len());
    let bytes = length(file) + length(Path::new(&wal));
    let mut left = CALLS_MIN + bytes / BYTES_PER_CALL;
    let is_over = move || {
        left = left.saturating_sub(1);
        left == 0
    };
    database.progress_handler(STEPS, Some(is_over))
}

/// Describes an error of SQLite on a file that may be of another kind.
fn reason(error: &rusqlite::Error) -> String {
    if matches!(error, rusqlite::Error::QueryReturnedNoRows) {
        return "is no record of a run: its table `run` names no version".to_owned();
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => damaged(&error.to_string()),
        Some(ErrorCode::OperationInterrupted) => {
            "takes far longer to read than a record of its size: it was not written by Lull".into()
        }
        Some(ErrorCode::TooBig) => format!("has a value of more than {CELL_MAX} bytes"),
        _ => format!("is not a record of a run: {error}"),
    }
}

fn damaged(why: &str) -> String {
    format!("is damaged ({why}): save what can be saved with `sqlite3 .recover`")
}

/// Why SQLite has not opened a file, which it does not say itself.
fn unopened(file: &Path, error: &rusqlite::Error) -> String {
    match std::fs::File::open(file) {
        Err(why) => format!("cannot be opened: {why}"),
        Ok(_) if file.is_dir() => "is a directory: name the records in it (*.db)".to_owned(),
        Ok(_) => format!("cannot be opened: {error}"),
    }
}

/// Returns what in the schema Lull does not write, if anything: the reader would evaluate it.
fn find_crafted(database: &Connection) -> rusqlite::Result<Option<String>> {
    let mut query = database.prepare("SELECT type, name, sql FROM sqlite_schema")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        // SQLite makes the indices of primary keys itself, without SQL.
        let sql: Option<String> = row.get(2)?;
        let is_ours = schema::tables().any(|table| table.eq_ignore_ascii_case(&name));
        let what = match kind.as_str() {
            "table" | "index" if !sql.as_deref().is_none_or(is_plain) => "has expressions",
            "table" | "index" => continue,
            // Other programs can add views of their own, which are not read here.
            _ if !is_ours => continue,
            _ => "is not a table",
        };
        return Ok(Some(format!("`{name}` {what}")));
    }
    Ok(None)
}

/// Whether the SQL of a table or an index lists columns only. Expressions of `CHECK`,
/// `GENERATED` and `DEFAULT` are in parentheses of their own.
fn is_plain(sql: &str) -> bool {
    let is_virtual = sql.split_whitespace().any(|word| word.eq_ignore_ascii_case("virtual"));
    !is_virtual && sql.matches('(').count() == 1 && sql.trim_end().ends_with(')')
}

/// Returns why a record has more apps or epochs than are read into memory, if so.
fn find_oversized(database: &Connection) -> rusqlite::Result<Option<String>> {
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table}");
        database.query_row(&sql, [], |row| row.get::<_, i64>(0))
    };
    let (apps, epochs) = (count("apps")?, count("epochs")?);
    if apps > APPS_MAX {
        return Ok(Some(format!("has {apps} apps; at most {APPS_MAX} are read")));
    }
    if apps.saturating_mul(epochs) > CELLS_MAX {
        let why = format!(
            "has {epochs} epochs of {apps} apps, more than {CELLS_MAX} values are read: record \
             with agent.keep, or read the file with sqlite3"
        );
        return Ok(Some(why));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "
        CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE apps (id INTEGER PRIMARY KEY, name TEXT NOT NULL, spec TEXT NOT NULL);
        CREATE TABLE epochs (number INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL,
                             phase TEXT NOT NULL, safe INTEGER NOT NULL);
        INSERT INTO run VALUES ('schema', '3');";
    /// A query without end.
    const ENDLESS: &str =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i";

    /// Opens a file that these statements make.
    fn opened(sql: &str) -> Result<Database, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("run.db");
        Connection::open(&file).unwrap().execute_batch(sql).unwrap();
        open(&file).map_err(|error| error.to_string())
    }

    fn refusal(sql: &str) -> String {
        opened(sql).err().expect("it was read")
    }

    #[test]
    fn endless_views_are_no_tables() {
        let view = format!("CREATE VIEW epochs AS {ENDLESS} AS number FROM n");
        let sql = SOUND.replace("CREATE TABLE epochs", "CREATE TABLE others");
        assert!(refusal(&format!("{sql} {view}")).contains("`epochs` is not a table"));
        let view = format!("CREATE VIEW Run AS {ENDLESS} AS value, 'schema' AS key FROM n");
        assert!(refusal(&view).contains("`Run` is not a table"));
        let own = format!("{SOUND} CREATE VIEW mine AS {ENDLESS} FROM n");
        assert_eq!(opened(&own).unwrap().version, 3, "a view of the user's is not read");
    }

    #[test]
    fn columns_with_expressions_are_refused() {
        for column in [
            "value TEXT CHECK (length(hex(zeroblob(400000000))) > 0)",
            "value TEXT, more TEXT AS (hex(zeroblob(400000000)))",
            "value TEXT, more TEXT GENERATED ALWAYS AS (zeroblob(400000000)) STORED",
            "value TEXT DEFAULT (hex(zeroblob(9)))",
        ] {
            // Without rows, since SQLite would evaluate the expression here already.
            let table = format!("CREATE TABLE run (key TEXT PRIMARY KEY, {column})");
            assert!(refusal(&table).contains("`run` has expressions"), "{column}");
        }
        let index = "CREATE INDEX i ON run (hex(zeroblob(length(value))))";
        assert!(refusal(&format!("{SOUND} {index}")).contains("`i` has expressions"));
        let index = "CREATE INDEX i ON run (value)";
        assert!(opened(&format!("{SOUND} {index}")).is_ok());
    }

    #[test]
    fn steps_are_bounded_by_the_size_of_the_file() {
        let record = opened(SOUND).unwrap();
        let sql = format!("{ENDLESS} FROM n WHERE i < 0");
        let error = record.database.query_row(&sql, [], |_| Ok(())).unwrap_err();
        assert!(reason(&error).contains("takes far longer"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_whole_record_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let why = |name: &str| open(&file(name)).err().unwrap().to_string();
        assert!(
            why("none.db").ends_with("cannot be opened: No such file or directory (os error 2)")
        );
        assert!(why("").ends_with("is a directory: name the records in it (*.db)"), "{}", why(""));
        let whole = file("whole.db");
        Connection::open(&whole).unwrap().execute_batch(SOUND).unwrap();
        let bytes = std::fs::read(&whole).unwrap();
        std::fs::write(file("cut.db"), &bytes[..bytes.len() / 2]).unwrap();
        assert!(why("cut.db").contains("is damaged (") && why("cut.db").contains(".recover"));
        let unnamed = refusal(&format!("{SOUND} DELETE FROM run;"));
        assert!(unnamed.ends_with("its table `run` names no version"), "{unnamed}");
    }

    #[test]
    fn long_cells_are_refused() {
        let long = format!("INSERT INTO run VALUES ('config', zeroblob({}))", CELL_MAX + 1);
        let why = match opened(&format!("{SOUND} {long}")) {
            Ok(record) => reason(&fact(&record.database, "config").unwrap_err()),
            Err(why) => why,
        };
        assert!(why.contains("more than 67108864 bytes"), "{why}");
    }

    #[test]
    fn apps_times_epochs_are_bounded() {
        let rows = |table: &str, values: &str, count: u32| {
            format!(
                "INSERT INTO {table} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 \
                 FROM n WHERE i < {count}) SELECT i, {values} FROM n;"
            )
        };
        let apps = |count| rows("apps", "'a', '{}'", count);
        let refused = refusal(&format!("{SOUND} {}", apps(1_001)));
        assert!(refused.contains("1001 apps"), "{refused}");
        let epochs = rows("epochs", "i, 'on', 0", 20_001);
        let refused = refusal(&format!("{SOUND} {} {epochs}", apps(1_000)));
        assert!(refused.contains("20001 epochs of 1000 apps"), "{refused}");
    }
}
