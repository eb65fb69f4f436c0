//! Cells: the independent units of a command, which processes and machines share by a directory
//! of finished cells.
//!
//! Each cell is a file `cell-NUMBER.csv`, written under a temporary name, synchronised and
//! renamed: a file with such a name is complete. Every row begins with the key (scenario,
//! version of lull, seed, cell), so that files of several machines can be copied into one
//! directory and the rows of all of them concatenated.

mod choice;
mod lab;

pub use choice::CellChoice;
pub use lab::LabCells;

use crate::error::UsageError;
use crate::scratch;
use anyhow::Context;
use csv::StringRecord;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The columns of the key, which begin every row.
const KEY: [&str; 4] = ["scenario", "version", "seed", "cell"];

/// The run that a directory of cells belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Hash of everything that the user has written: [`scenario_hash`].
    pub scenario: String,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The directory of `--parts`, and which cells this process is to have.
pub struct Parts {
    directory: PathBuf,
    key: [String; 3],
    columns: Vec<String>,
    total: u64,
    wanted: BTreeSet<u64>,
    found: AtomicU64,
    written: AtomicU64,
}

impl Parts {
    /// Opens a directory, which is made if it is missing. There are `total` cells, whose rows
    /// have `columns` behind the key; this process is to have the `wanted` ones, or all.
    ///
    /// # Errors
    /// If the directory cannot be made, or has cells of another run.
    pub fn open(
        directory: &Path,
        key: &Key,
        columns: &[&str],
        total: u64,
        wanted: Option<BTreeSet<u64>>,
    ) -> anyhow::Result<Self> {
        let wanted = wanted.unwrap_or_else(|| (0..total).collect());
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
        let parts = Self {
            directory: directory.to_owned(),
            key: [key.scenario.clone(), crate::VERSION.to_owned(), key.seed.to_string()],
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            total,
            wanted,
            found: AtomicU64::new(0),
            written: AtomicU64::new(0),
        };
        parts.check_directory()?;
        Ok(parts)
    }

    /// Refuses a directory whose first cell is of another run, before anything is simulated.
    /// Every further cell is checked when it is read.
    fn check_directory(&self) -> anyhow::Result<()> {
        let files = std::fs::read_dir(&self.directory)
            .with_context(|| format!("cannot list {}", self.directory.display()))?;
        for file in files {
            let name = file?.file_name();
            let number = name.to_str().and_then(|name| {
                name.strip_prefix("cell-")?.strip_suffix(".csv")?.parse::<u64>().ok()
            });
            if let Some(number) = number.and_then(|number| number.checked_sub(1)) {
                self.read(number)?;
                return Ok(());
            }
        }
        Ok(())
    }

    fn path(&self, cell: u64) -> PathBuf {
        self.directory.join(format!("cell-{:06}.csv", cell + 1))
    }

    /// Whether this process is to have a cell.
    pub fn is_wanted(&self, cell: u64) -> bool {
        self.wanted.contains(&cell)
    }

    /// Returns the rows of a finished cell without their keys; `None` if there is none.
    ///
    /// # Errors
    /// If the file is damaged, or of another run.
    pub fn load(&self, cell: u64) -> anyhow::Result<Option<Vec<StringRecord>>> {
        let rows = self.read(cell)?;
        if rows.is_some() {
            self.found.fetch_add(1, Ordering::Relaxed);
        }
        Ok(rows)
    }

    fn read(&self, cell: u64) -> anyhow::Result<Option<Vec<StringRecord>>> {
        let path = self.path(cell);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header: Vec<_> = KEY.into_iter().chain(self.columns.iter().map(|it| &**it)).collect();
        let is_headed = reader.headers().is_ok_and(|found| found.iter().eq(header));
        // A file that was only partly copied ends within a line.
        if !is_headed || !text.ends_with('\n') {
            return Err(damaged(&path));
        }
        let mut rows = Vec::new();
        for row in reader.records() {
            let row = row.map_err(|_| damaged(&path))?;
            self.check_key(&row, cell, &path)?;
            rows.push(row.iter().skip(KEY.len()).collect());
        }
        if rows.is_empty() { Err(damaged(&path)) } else { Ok(Some(rows)) }
    }

    fn check_key(&self, row: &StringRecord, cell: u64, path: &Path) -> anyhow::Result<()> {
        if row.iter().take(self.key.len()).ne(self.key.iter().map(|it| &**it)) {
            let of = |key: [&str; 3]| {
                format!("scenario {} by lull {} with seed {}", key[0], key[1], key[2])
            };
            let found = of([&row[0], &row[1], &row[2]]);
            let ours = of([&self.key[0], &self.key[1], &self.key[2]]);
            let message = format!(
                "{}: is a cell of {found}; this run is {ours}: give another directory to --parts",
                path.display()
            );
            return Err(UsageError(message).into());
        }
        if row[3] != (cell + 1).to_string() { Err(damaged(path)) } else { Ok(()) }
    }

    /// Writes the rows of a cell; the file is complete or absent, even after a power failure.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, cell: u64, rows: &[Vec<String>]) -> anyhow::Result<()> {
        let path = self.path(cell);
        self.write(cell, rows, &path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, cell: u64, rows: &[Vec<String>], path: &Path) -> anyhow::Result<()> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        csv.write_record(KEY.into_iter().chain(self.columns.iter().map(|it| &**it)))?;
        let number = (cell + 1).to_string();
        let key: Vec<&str> = self.key.iter().chain([&number]).map(|it| &**it).collect();
        for row in rows {
            csv.write_record(key.iter().copied().chain(row.iter().map(|it| &**it)))?;
        }
        let bytes = csv.into_inner()?;
        let beside = scratch::temporary_file(&self.directory, 0o666, &bytes)?;
        beside.as_file().sync_all()?;
        beside.persist(path)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(())
    }

    /// Returns how many cells were run and how many were found.
    pub fn summary(&self) -> String {
        let [found, written] = [&self.found, &self.written].map(|it| it.load(Ordering::Relaxed));
        format!(
            "{written} cells run, {found} were in {} already; this part has {} of {} cells",
            self.directory.display(),
            self.wanted.len(),
            self.total
        )
    }

    /// The error of a complete file whose rows are not those that the command writes.
    pub fn damaged(&self, cell: u64) -> anyhow::Error {
        damaged(&self.path(cell))
    }
}

fn damaged(path: &Path) -> anyhow::Error {
    let message = format!(
        "{}: is damaged or no cell of this command: delete it and run again",
        path.display()
    );
    UsageError(message).into()
}

/// Returns a hash of a scenario: of its text, the files that it names, and whatever else the
/// command line says about it.
pub fn scenario_hash(text: &str, base: &Path, further: &[&str]) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        // The length keeps the boundaries of parts.
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(text.as_bytes());
    further.iter().for_each(|part| add(part.as_bytes()));
    let mut named = Vec::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        collect_texts(&toml::Value::Table(table), &mut named);
    }
    for name in named {
        // A trace is named with a prefix, as in `trace:day.csv`.
        let file = name.rsplit_once(':').map_or(&*name, |(_, file)| file);
        if let Ok(bytes) = std::fs::read(base.join(file)) {
            add(&bytes);
        }
    }
    let digest = hash.finalize();
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Collects all texts of a value, in the order of its keys.
fn collect_texts(value: &toml::Value, found: &mut Vec<String>) {
    match value {
        toml::Value::String(text) => found.push(text.clone()),
        toml::Value::Array(values) => values.iter().for_each(|it| collect_texts(it, found)),
        toml::Value::Table(table) => table.values().for_each(|it| collect_texts(it, found)),
        _ => {}
    }
}
