//! Reading records, as any user of SQLite would.

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use std::path::Path;

/// A record, open to read.
pub(crate) struct Record {
    database: Connection,
}

impl Record {
    pub(crate) fn open(file: &Path) -> Self {
        let database = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let record = Self { database };
        assert_eq!(record.text("PRAGMA integrity_check"), ["ok"], "{}", file.display());
        record
    }

    /// Returns the first column of a query's rows.
    pub(crate) fn text(&self, sql: &str) -> Vec<String> {
        let mut query = self.database.prepare(sql).unwrap();
        let rows = query.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    /// One number.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.database.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub(crate) fn epochs(&self) -> i64 {
        self.number("SELECT count(*) FROM epochs")
    }

    /// Returns a fact that the record states about the run.
    pub(crate) fn fact(&self, key: &str) -> Option<String> {
        self.text(&format!("SELECT value FROM run WHERE key = '{key}'")).pop()
    }

    /// The events of one kind (`decision`, `foreign`, `safe_begins`), oldest first.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let all = self.text("SELECT event FROM journal ORDER BY rowid");
        let all = all.iter().map(|text| serde_json::from_str::<Value>(text).unwrap());
        // An event without content is only its name.
        all.filter_map(|event| match event {
            Value::String(name) if name == kind => Some(Value::Null),
            Value::Object(mut fields) => fields.remove(kind),
            _ => None,
        })
        .collect()
    }
}

/// How many epochs the newest record of a directory holds so far; 0 while there is none.
pub(crate) fn epochs_so_far(file: Option<&std::path::PathBuf>) -> i64 {
    let Some(file) = file else { return 0 };
    let Ok(database) = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY) else {
        return 0;
    };
    let counted = database.query_row("SELECT count(*) FROM epochs", [], |row| row.get(0));
    counted.unwrap_or(0)
}
