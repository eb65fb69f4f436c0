//! Conversion of a record to the input of a replay.

use super::database::{Database, fact, open};
use super::part::{in_phases, name_of};
use super::run::{AllowedCores, apps_of};
use crate::config::Config;
use crate::error::UsageError;
use crate::located::Located;
use crate::record::unpack;
use anyhow::{Context, bail};
use lull_control::{AppSpec, Machine};
use lull_lab::PolicySource;
use lull_lab::replay::{RecordedAppEpoch, RecordedEpoch, Recording, Steered};
use lull_measure::catalogue::{
    COMPLETED, CORE_UTILISATION, CPU, EPOCH, Metric, OFFERED, PROGRESS, RUN_QUEUE_WAIT, THREADS,
};
use lull_measure::{Latency, Nanos, RequestSample};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::path::Path;

/// The oldest version of records that has requests.
const WITH_REQUESTS: u32 = 2;
/// Most histograms, of 200 kB each, that are read.
const HISTOGRAMS_MAX: i64 = 20_000;
/// Default share of the shortest block that is left out at the beginning of every block.
const SETTLE: f64 = 0.25;
/// Longest time that is left out by default.
const SETTLE_MOST: Nanos = Nanos::from_secs(10);

/// The part of a record that is replayed.
#[derive(Debug)]
pub struct Recorded {
    /// The input of the replay.
    pub recording: Recording,
    /// Its config.
    pub config: Config,
    /// The policy that acted.
    pub policy: String,
    /// Notices for the user.
    pub notices: Vec<String>,
}

/// A request for a part of a record.
#[derive(Debug, Clone, Copy)]
pub struct RecordPart<'a> {
    /// The name of the part; may be absent if the record has only one.
    pub part: Option<&'a str>,
    /// Time that is left out at the beginning of every block.
    pub skip: Option<Nanos>,
}

impl Recorded {
    /// Reads a part of a record.
    ///
    /// # Errors
    /// [`UsageError`] if it is not a record, damaged, too new, too old, or has no
    /// such part.
    pub fn read(file: &Path, wanted: RecordPart<'_>) -> anyhow::Result<Self> {
        let Database { database, version } = open(file)?;
        let refuse = |why: String| UsageError(format!("{} {why}", file.display()));
        if version < WITH_REQUESTS {
            let why = format!(
                "was written by an older Lull (records of version {version}), which kept no \
                 requests: record a new run to replay it; `lull entropy` and `lull export` read \
                 this one"
            );
            return Err(refuse(why).into());
        }
        let context = || format!("{} cannot be read as a record of a run", file.display());
        let text = fact(&database, "config").with_context(context)?;
        let config = Config::from_located(Located::embedded("the recorded config", &text))
            .map_err(|error| {
                refuse(format!("has a config that is no longer understood: {error}"))
            })?;
        let policy = fact(&database, "policy").with_context(context)?;
        let mut apps = apps_of(&database).with_context(context)?;
        let machine: Machine = serde_json::from_str(&fact(&database, "machine")?)?;
        let allowed = AllowedCores::from_config(&text, &machine);
        let mut epochs = epochs(&database).with_context(context)?;
        let filling = Filling { apps: &apps, epochs: &mut epochs };
        filling.fill(&database, &allowed).with_context(context)?;
        let (part, blocks) = part_of(epochs, &policy, wanted.part).map_err(refuse)?;
        fill_solo(&mut apps, &blocks);
        let mut notices = Vec::new();
        let policy = acting(&part, &mut notices);
        let skip = wanted.skip.unwrap_or_else(|| settle(&blocks));
        let clients = apps.iter().map(|app| {
            let load = config.loads.iter().find(|load| load.app == app.name);
            load.map(|load| load.arrivals)
        });
        let clients = clients.collect();
        let limits = &config.limits;
        let machine = machine
            .restricted_to(&allowed.0)
            .within_frequencies(limits.frequency_min, limits.frequency_max);
        if machine.cores.iter().any(|core| core.smt_leader != core.id) {
            let what = "some cores share a physical core; the model treats each of them as a \
                        whole core";
            notices.push(what.to_owned());
        }
        let rules = config.rules(false);
        let epoch = config.epoch_rule();
        let recording = Recording { machine, apps, rules, epoch, blocks, skip, clients };
        Ok(Self { recording, config, policy, notices })
    }

    /// The policy that acted, with its keys.
    pub fn acted(&self) -> Steered {
        self.steered(PolicySource::Registered(self.policy.clone()))
    }

    /// A policy to predict, with the keys of the recorded config if they are its own.
    pub fn steered(&self, policy: PolicySource) -> Steered {
        let config = match &policy {
            PolicySource::Registered(name) => self.config.under(name).policy_keys,
            PolicySource::Custom(_) => toml::Table::new(),
        };
        Steered { policy, config }
    }
}

/// One epoch with the phase it is of.
type Row = (String, RecordedEpoch);

/// Returns the epochs by number, without their observations.
fn epochs(database: &Connection) -> anyhow::Result<BTreeMap<i64, Row>> {
    let sql = format!(
        "SELECT number, phase, {} FROM epochs JOIN machine_epochs ON epoch = number",
        EPOCH.json_key()
    );
    let mut query = database.prepare(&sql)?;
    let rows = query.query_map([], |row| {
        let length = Nanos::from_secs_f64(row.get::<_, Option<f64>>(2)?.unwrap_or(0.0).max(0.0));
        Ok((row.get(0)?, (row.get(1)?, RecordedEpoch { length, ..RecordedEpoch::default() })))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Epochs to be filled with the observations of the apps and the machine.
struct Filling<'a> {
    apps: &'a [AppSpec],
    epochs: &'a mut BTreeMap<i64, Row>,
}

impl Filling<'_> {
    fn fill(mut self, database: &Connection, allowed: &AllowedCores) -> anyhow::Result<()> {
        let count = self.apps.len();
        self.epochs.values_mut().for_each(|(_, epoch)| {
            epoch.apps.resize_with(count, RecordedAppEpoch::default);
        });
        self.gauges(database)?;
        self.latencies(database)?;
        self.requests(database)?;
        self.cores(database, allowed)
    }

    fn at(&mut self, epoch: i64, app: &str) -> Option<&mut RecordedAppEpoch> {
        let app = self.apps.iter().position(|spec| spec.name == app)?;
        self.epochs.get_mut(&epoch)?.1.apps.get_mut(app)
    }

    fn gauges(&mut self, database: &Connection) -> anyhow::Result<()> {
        let columns: [&Metric; 6] = [OFFERED, COMPLETED, CPU, RUN_QUEUE_WAIT, PROGRESS, THREADS];
        let names = columns.map(Metric::json_key).join(", ");
        let mut query = database.prepare(&format!("SELECT epoch, app, {names} FROM app_epochs"))?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let Some(seen) = self.at(epoch, &name) else { continue };
            seen.offered_per_s = row.get(2)?;
            seen.completed_per_s = row.get(3)?;
            seen.cpu = row.get(4)?;
            seen.waiting = row.get(5)?;
            seen.progress_per_s = row.get(6)?;
            seen.threads = row.get::<_, Option<f64>>(7)?.map(|threads| threads as u32);
        }
        Ok(())
    }

    fn latencies(&mut self, database: &Connection) -> anyhow::Result<()> {
        let sql = "SELECT count(*) FROM latencies";
        let count: i64 = database.query_row(sql, [], |row| row.get(0))?;
        if count > HISTOGRAMS_MAX {
            bail!(
                "{count} latency histograms are more than the {HISTOGRAMS_MAX} that fit into \
                 memory: replay a shorter run, or one recorded with agent.keep"
            );
        }
        let mut query = database.prepare("SELECT epoch, app, hdr_v2_deflate FROM latencies")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let latency = Latency::from_deflated(&row.get::<_, Vec<u8>>(2)?)?;
            if let Some(seen) = self.at(epoch, &name) {
                seen.latency = Some(latency);
            }
        }
        Ok(())
    }

    fn requests(&mut self, database: &Connection) -> anyhow::Result<()> {
        let mut query = database.prepare("SELECT epoch, app, one_in, packed FROM requests")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let (one_in, packed): (i64, Vec<u8>) = (row.get(2)?, row.get(3)?);
            let requests = unpack(&packed)
                .with_context(|| format!("the requests of {name} in epoch {epoch} are damaged"))?;
            if let Some(seen) = self.at(epoch, &name) {
                seen.sample = RequestSample { one_in: one_in.cast_unsigned(), requests };
            }
        }
        Ok(())
    }

    fn cores(&mut self, database: &Connection, allowed: &AllowedCores) -> anyhow::Result<()> {
        let utilisation = CORE_UTILISATION.json_key();
        let sql = format!("SELECT epoch, core, {utilisation} FROM core_epochs");
        let mut query = database.prepare(&sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, core): (i64, String) = (row.get(0)?, row.get(1)?);
            let (Some(busy), Some((_, recorded))) =
                (row.get::<_, Option<f64>>(2)?, self.epochs.get_mut(&epoch))
            else {
                continue;
            };
            if allowed.has(&core) {
                *recorded.busy_cores.get_or_insert(0.0) += busy;
            }
        }
        Ok(())
    }
}

/// Returns a part's name and its blocks; the error lists the parts if none was chosen.
fn part_of(
    epochs: BTreeMap<i64, Row>,
    policy: &str,
    wanted: Option<&str>,
) -> Result<(String, Vec<Vec<RecordedEpoch>>), String> {
    let phases = in_phases(epochs.into_values());
    let mut parts: BTreeMap<String, Vec<Vec<RecordedEpoch>>> = BTreeMap::new();
    for (phase, block) in phases {
        let name = if phase == DRY_RUN { phase } else { name_of(&phase, policy) };
        parts.entry(name).or_default().push(block);
    }
    let names = || parts.keys().cloned().collect::<Vec<_>>().join(", ");
    let name = match wanted {
        Some(name) if parts.contains_key(name) => name.to_owned(),
        Some(name) => return Err(format!("has no part `{name}`; it has: {}", names())),
        None if parts.len() == 1 => names(),
        None if parts.is_empty() => return Err("has no epoch".to_owned()),
        None => return Err(format!("has several parts: choose with --part one of {}", names())),
    };
    let blocks = parts.remove(&name).unwrap_or_default();
    Ok((name, blocks))
}

/// The phase in which nothing is set.
const DRY_RUN: &str = "dry-run";

/// The policy that acted in a part.
fn acting(part: &str, notices: &mut Vec<String>) -> String {
    if part == DRY_RUN {
        notices.push("it was a dry run: what acted is `unmanaged`".to_owned());
        return "unmanaged".to_owned();
    }
    part.to_owned()
}

/// Progress alone where it was not measured: the best epoch, as in `lull entropy`.
fn fill_solo(apps: &mut [AppSpec], blocks: &[Vec<RecordedEpoch>]) {
    for (at, spec) in apps.iter_mut().enumerate().filter(|(_, app)| !app.is_latency_critical()) {
        let all = blocks.iter().flatten().filter_map(|epoch| epoch.apps[at].progress_per_s);
        let best = all.fold(0.0, f64::max);
        spec.solo_per_s = spec.solo_per_s.or((best > 0.0).then_some(best));
    }
}

fn settle(blocks: &[Vec<RecordedEpoch>]) -> Nanos {
    let length = |block: &Vec<RecordedEpoch>| Nanos(block.iter().map(|epoch| epoch.length.0).sum());
    let shortest = blocks.iter().map(length).min().unwrap_or(Nanos::ZERO);
    shortest.scale(SETTLE).min(SETTLE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(phases: &[&str]) -> BTreeMap<i64, Row> {
        let epoch =
            || RecordedEpoch { length: Nanos::from_millis(500), ..RecordedEpoch::default() };
        (0..).zip(phases.iter().map(|phase| ((*phase).to_owned(), epoch()))).collect()
    }

    #[test]
    fn a_comparisons_blocks_are_those_of_the_chosen_policy() {
        let rows = || rows(&["even-0", "even-0", "arq-0", "even-1", "arq-1"]);
        let (name, blocks) = part_of(rows(), "unmanaged", Some("even")).unwrap();
        assert_eq!((name.as_str(), blocks.len(), blocks[0].len()), ("even", 2, 2));
        let error = part_of(rows(), "unmanaged", None).unwrap_err();
        assert!(error.contains("--part one of arq, even"), "{error}");
        let error = part_of(rows(), "unmanaged", Some("tide")).unwrap_err();
        assert!(error.contains("no part `tide`; it has: arq, even"), "{error}");
    }

    #[test]
    fn the_only_part_needs_no_name_and_a_dry_run_is_unmanaged() {
        let (name, _) = part_of(rows(&["on", "on"]), "arq", None).unwrap();
        assert_eq!(name, "arq");
        let (name, _) = part_of(rows(&["dry-run"]), "arq", None).unwrap();
        let mut notices = Vec::new();
        assert_eq!((acting(&name, &mut notices).as_str(), notices.len()), ("unmanaged", 1));
    }
}
