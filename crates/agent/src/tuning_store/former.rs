//! Stores of former versions: their tables and their names of machine classes.

use super::Store;
use super::subject::{class_of, machine_class};
use lull_control::{Capability, Machine};
use rusqlite::{Connection, params};

/// The version whose settings have no evidence, and the first that is read.
pub(super) const WITHOUT_EVIDENCE: i64 = 2;

/// Columns that former tables lack. In their rows it is NULL, because nothing is made up for them.
const ADDED: [[&str; 3]; 3] = [
    ["spot", "evidence", "TEXT"],
    ["search", "rate_per_s", "REAL"],
    ["trial", "measured_s", "INTEGER"],
];

/// Adds the columns that the tables of a former version lack.
pub(super) fn add_columns(connection: &Connection) -> rusqlite::Result<()> {
    for [table, column, kind] in ADDED {
        let sql = "SELECT count(*) FROM pragma_table_info(?) WHERE name = ?";
        let count: i64 = connection.query_row(sql, [table, column], |row| row.get(0))?;
        if count == 0 {
            connection.execute(&format!("ALTER TABLE {table} ADD COLUMN {column} {kind}"), [])?;
        }
    }
    Ok(())
}

impl Store {
    /// Gives what a former version has stored of a machine the present name of its class.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn rename_class(&self, machine: &Machine) -> anyhow::Result<()> {
        let (former, present) = (former_class(machine), machine_class(machine));
        let transaction = self.connection.unchecked_transaction()?;
        for table in ["trial", "spot", "search", "refuted"] {
            let sql = format!("UPDATE OR IGNORE {table} SET machine = ? WHERE machine = ?");
            transaction.execute(&sql, params![present, former])?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Returns the present name of a machine class that a file has stored.
pub(crate) fn present_class(stored: &str, machine: &Machine) -> String {
    if stored == former_class(machine) { machine_class(machine) } else { stored.to_owned() }
}

/// Returns the class of a machine as former versions named it, with the texts of its capabilities.
pub(super) fn former_class(machine: &Machine) -> String {
    let mut bare = Machine { gates: Vec::new(), ..machine.clone() };
    for capability in Capability::OF_GATES {
        bare.capabilities = std::mem::take(&mut bare.capabilities).unstated(capability);
    }
    class_of(&bare)
}
