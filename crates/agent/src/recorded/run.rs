//! A record of a run, read.

use super::database::{Database, fact, open};
use anyhow::{Context, bail};
use lull_control::{AppSpec, CoreId, CoreSet, Machine};
use lull_measure::catalogue::PROGRESS;
use lull_measure::{Latency, LatencyError, Nanos};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A histogram as it is recorded. Unpacked it takes 200 kB, which a run of a day has half a
/// million times.
#[derive(Debug, Clone)]
pub(super) struct PackedLatency(Box<[u8]>);

impl PackedLatency {
    /// Takes the bytes of a histogram, checked.
    pub(super) fn new(bytes: Vec<u8>) -> Result<Self, LatencyError> {
        Latency::from_deflated(&bytes)?;
        Ok(Self(bytes.into()))
    }

    /// Returns the histogram.
    pub(super) fn unpack(&self) -> Latency {
        Latency::from_deflated(&self.0).expect("these bytes were read before")
    }
}

/// One epoch of one app.
#[derive(Debug, Clone, Default)]
pub(super) struct AppEpoch {
    pub(super) latency: Option<PackedLatency>,
    pub(super) progress_per_s: Option<f64>,
}

/// One epoch.
#[derive(Debug, Clone)]
pub(super) struct EpochRow {
    /// Its number in the record.
    pub number: i64,
    pub(super) time: Nanos,
    pub(super) phase: String,
    /// Indexed by app, in the order of the record.
    pub(super) apps: Vec<AppEpoch>,
}

/// A run.
#[derive(Debug)]
pub struct Run {
    /// The record.
    pub file: PathBuf,
    /// The policy that the config names.
    pub policy: String,
    /// Cores that the run might use.
    pub(super) cores: AllowedCores,
    /// The apps as policies knew them.
    pub apps: Vec<AppSpec>,
    pub(super) epochs: Vec<EpochRow>,
}

impl Run {
    /// Reads a record whole.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let context = || format!("{} cannot be read as a record of a run", file.display());
        let Database { database, version } = open(file)?;
        let fact = |key: &str| fact(&database, key).with_context(context);
        let machine: Machine = serde_json::from_str(&fact("machine")?).with_context(context)?;
        let cores = AllowedCores::from_config(&fact("config")?, &machine);
        let apps = apps_of(&database).with_context(context)?;
        if apps.is_empty() {
            bail!("{} has no apps: the run ended before its first epoch", file.display());
        }
        let (numbers, mut epochs) = epochs(&database, apps.len()).with_context(context)?;
        let mut filling = Filling { apps: &apps, numbers: &numbers, epochs: &mut epochs };
        filling.latencies(&database, version).with_context(context)?;
        filling.progress(&database).with_context(context)?;
        let (file, policy) = (file.to_owned(), fact("policy")?);
        Ok(Self { file, policy, cores, apps, epochs })
    }
}

/// `limits.cores` of a config.
fn allowed_cores(config: &str) -> Option<CoreSet> {
    let table: toml::Table = config.parse().ok()?;
    table.get("limits")?.get("cores")?.as_str()?.parse().ok()
}

/// The cores that a run was allowed to use.
#[derive(Debug)]
pub(super) struct AllowedCores(pub(super) CoreSet);

impl AllowedCores {
    /// Reads the allowed cores from the text of the config; all cores if it names none.
    pub(super) fn from_config(config: &str, machine: &Machine) -> Self {
        Self(allowed_cores(config).unwrap_or_else(|| machine.all_cores()))
    }

    /// Returns whether the core of this label is allowed.
    pub(super) fn has(&self, label: &str) -> bool {
        label.parse().is_ok_and(|core| self.0.contains(CoreId(core)))
    }
}

/// Reads the apps as policies knew them.
pub(super) fn apps_of(database: &Connection) -> anyhow::Result<Vec<AppSpec>> {
    let mut query = database.prepare("SELECT spec FROM apps ORDER BY id")?;
    let texts = query.query_map([], |row| row.get::<_, String>(0))?;
    texts.map(|text| Ok(serde_json::from_str(&text?)?)).collect()
}

/// Reads the epochs and the index of each epoch number. The two differ in a record of bounded
/// length, which does not begin at epoch 0.
fn epochs(
    database: &Connection,
    apps: usize,
) -> anyhow::Result<(BTreeMap<i64, usize>, Vec<EpochRow>)> {
    let mut query =
        database.prepare("SELECT number, time_ns, phase FROM epochs ORDER BY number")?;
    let rows = query.query_map([], |row| {
        let time = Nanos(row.get::<_, i64>(1)? as u64);
        let (number, phase) = (row.get(0)?, row.get(2)?);
        let epoch = EpochRow { number, time, phase, apps: vec![AppEpoch::default(); apps] };
        Ok((number, epoch))
    })?;
    let (mut numbers, mut epochs) = (BTreeMap::new(), Vec::new());
    for row in rows {
        let (number, epoch): (i64, EpochRow) = row?;
        numbers.insert(number, epochs.len());
        epochs.push(epoch);
    }
    Ok((numbers, epochs))
}

/// Epochs to be filled with the observations of their apps.
struct Filling<'a> {
    apps: &'a [AppSpec],
    numbers: &'a BTreeMap<i64, usize>,
    epochs: &'a mut [EpochRow],
}

impl Filling<'_> {
    fn at(&mut self, epoch: i64, app: &str) -> Option<&mut AppEpoch> {
        let app = self.apps.iter().position(|spec| spec.name == app)?;
        let place = *self.numbers.get(&epoch)?;
        self.epochs[place].apps.get_mut(app)
    }

    fn latencies(&mut self, database: &Connection, version: u32) -> anyhow::Result<()> {
        let is_text = version < 2;
        let column = if is_text { "hdr_v2_base64" } else { "hdr_v2_deflate" };
        let mut query = database.prepare(&format!("SELECT epoch, app, {column} FROM latencies"))?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let bytes = match is_text {
                true => Latency::from_base64(&row.get::<_, String>(2)?)?.to_deflated(),
                false => row.get::<_, Vec<u8>>(2)?,
            };
            let latency = PackedLatency::new(bytes)?;
            if let Some(seen) = self.at(epoch, &name) {
                seen.latency = Some(latency);
            }
        }
        Ok(())
    }

    fn progress(&mut self, database: &Connection) -> anyhow::Result<()> {
        let sql = format!("SELECT epoch, app, {} FROM app_epochs", PROGRESS.json_key());
        let mut query = database.prepare(&sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, name): (i64, String) = (row.get(0)?, row.get(1)?);
            if let Some(seen) = self.at(epoch, &name) {
                seen.progress_per_s = row.get(2)?;
            }
        }
        Ok(())
    }
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
