//! A record of a run, read.

use anyhow::{Context, bail};
use lull_control::{AppSpec, CoreSet, Machine};
use lull_measure::catalogue::PROGRESS;
use lull_measure::{Latency, Nanos};
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};

/// One epoch of one app.
#[derive(Debug, Clone, Default)]
pub(super) struct AppEpoch {
    pub(super) latency: Option<Latency>,
    pub(super) progress_per_s: Option<f64>,
}

/// One epoch.
#[derive(Debug, Clone)]
pub(super) struct EpochRow {
    pub(super) time: Nanos,
    pub(super) phase: String,
    /// By app, in the order of the record.
    pub(super) apps: Vec<AppEpoch>,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(super) file: PathBuf,
    pub(super) policy: String,
    /// Cores that the run might use.
    pub(super) cores: usize,
    pub(crate) apps: Vec<AppSpec>,
    pub(super) epochs: Vec<EpochRow>,
}

impl Run {
    /// Reads a record whole.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let said = || format!("{} cannot be read as a record of a run", file.display());
        // Read-write: what a killed agent left in the log beside it belongs to the record.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = Connection::open_with_flags(file, flags).with_context(said)?;
        let fact = |key: &str| {
            let sql = "SELECT value FROM run WHERE key = ?1";
            database.query_row(sql, [key], |row| row.get::<_, String>(0)).with_context(said)
        };
        let machine: Machine = serde_json::from_str(&fact("machine")?).with_context(said)?;
        let allowed = allowed_cores(&fact("config")?).unwrap_or_else(|| machine.all_cores());
        let apps = apps(&database).with_context(said)?;
        if apps.is_empty() {
            bail!("{} names no apps: the run ended before it began", file.display());
        }
        let mut epochs = epochs(&database, apps.len()).with_context(said)?;
        fill(&database, &apps, &mut epochs).with_context(said)?;
        let (file, policy) = (file.to_owned(), fact("policy")?);
        Ok(Self { file, policy, cores: allowed.len(), apps, epochs })
    }
}

/// `limits.cores` of a config.
fn allowed_cores(config: &str) -> Option<CoreSet> {
    let table: toml::Table = config.parse().ok()?;
    table.get("limits")?.get("cores")?.as_str()?.parse().ok()
}

fn apps(database: &Connection) -> anyhow::Result<Vec<AppSpec>> {
    let mut query = database.prepare("SELECT spec FROM apps ORDER BY id")?;
    let texts = query.query_map([], |row| row.get::<_, String>(0))?;
    texts.map(|text| Ok(serde_json::from_str(&text?)?)).collect()
}

fn epochs(database: &Connection, apps: usize) -> anyhow::Result<Vec<EpochRow>> {
    let mut query = database.prepare("SELECT time_ns, phase FROM epochs ORDER BY number")?;
    let rows = query.query_map([], |row| {
        let time = Nanos(row.get::<_, i64>(0)? as u64);
        Ok(EpochRow { time, phase: row.get(1)?, apps: vec![AppEpoch::default(); apps] })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Latencies and progress of every app into its epochs.
fn fill(database: &Connection, apps: &[AppSpec], epochs: &mut [EpochRow]) -> anyhow::Result<()> {
    let place = |name: &str| apps.iter().position(|app| app.name == name);
    let mut query = database.prepare("SELECT epoch, app, hdr_v2_base64 FROM latencies")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (epoch, name, text): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let Some(app) = place(&name) else { continue };
        if let Some(epoch) = epochs.get_mut(epoch as usize) {
            epoch.apps[app].latency = Some(Latency::from_base64(&text)?);
        }
    }
    let sql = format!("SELECT epoch, app, {} FROM app_epochs", PROGRESS.json_key());
    let mut query = database.prepare(&sql)?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (epoch, name, progress): (i64, String, Option<f64>) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let Some(app) = place(&name) else { continue };
        if let Some(epoch) = epochs.get_mut(epoch as usize) {
            epoch.apps[app].progress_per_s = progress;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_of_a_run_are_those_it_was_limited_to() {
        assert_eq!(allowed_cores("[limits]\ncores = \"0,2-3\"").unwrap().len(), 3);
        assert_eq!(allowed_cores("[policy]\nname = \"arq\""), None);
        assert_eq!(allowed_cores("not toml"), None);
    }
}
