//! `lull report`: one page of figures and tables of recorded runs, side by side.
//!
//! The page is one file that loads nothing else: it contains its figures as SVG and has
//! no script. All text from a record is escaped, so that none of it is read as HTML.

mod charts;
mod html;
mod journal;
mod markdown;
mod summary;

use super::save::{self, Destination};
use crate::cli::ReportArgs;
use anyhow::Context;
use lull_agent::proof::Proof;
use lull_agent::recorded::{Run, Series, open};
use lull_measure::catalogue::{
    APP_CORES, COMPLETED, ENTROPY_BE, ENTROPY_LC, ENTROPY_SYSTEM, EPOCH, Metric, POWER,
    TAIL_LATENCY,
};
use rusqlite::OptionalExtension;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use summary::Summary;

/// The metrics that are drawn, averaged, or part of the length of a run.
const METRICS: [&Metric; 8] =
    [TAIL_LATENCY, APP_CORES, COMPLETED, ENTROPY_SYSTEM, ENTROPY_LC, ENTROPY_BE, POWER, EPOCH];

/// A run, and all parts of its record that a report shows.
struct RecordedRun {
    /// The record's name.
    name: String,
    run: Run,
    series: Series,
    /// The facts that the record states about the run.
    facts: BTreeMap<String, String>,
    /// The source of the power.
    power_source: Option<String>,
    /// Why there is no power, if so.
    power_missing: Option<String>,
    journal: journal::Highlights,
    proof: Option<Proof>,
}

impl RecordedRun {
    fn read(file: &Path) -> anyhow::Result<Self> {
        let run = Run::read(file)?;
        let record = open(file)?;
        let database = &record.database;
        let mut query = database.prepare("SELECT key, value FROM run")?;
        let facts = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let facts = facts.collect::<Result<BTreeMap<String, String>, _>>()?;
        let power = |table: &str, column: &str| {
            let sql = format!(
                "SELECT {column} FROM {table} WHERE metric = ?1 AND {column} != '' \
                 ORDER BY rowid DESC LIMIT 1"
            );
            let found = database.query_row(&sql, [POWER.json_key()], |row| row.get(0));
            // Older records have no table of sources.
            found.optional().unwrap_or_default()
        };
        let proof = facts.get("prove").map(|text| serde_json::from_str(text)).transpose();
        let which = || format!("{} cannot be read as a record of a run", file.display());
        Ok(Self {
            name: file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            series: Series::read(&record, &run, &METRICS).with_context(which)?,
            power_source: power("sources", "source"),
            power_missing: power("missing", "reason"),
            journal: journal::Highlights::read(database, &run.apps).with_context(which)?,
            proof: proof.with_context(|| format!("the proof in {}", file.display()))?,
            facts,
            run,
        })
    }
}

/// The files that were written.
#[derive(Debug, Serialize)]
struct Written {
    html: PathBuf,
    markdown: Option<PathBuf>,
    summary: Summary,
}

pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let html = args.html.clone().unwrap_or_else(|| match args.runs.as_slice() {
        [only] => only.with_extension("html"),
        _ => PathBuf::from("report.html"),
    });
    let read: Vec<&Path> = args.runs.iter().map(PathBuf::as_path).collect();
    let to = |path: &Path| Destination::new(path).and_then(|to| to.apart_from(&read));
    let page_at = to(&html)?;
    let table_at = args.markdown.as_deref().map(to).transpose()?;
    let recorded =
        args.runs.iter().map(|file| RecordedRun::read(file)).collect::<Result<Vec<_>, _>>()?;
    let summary = Summary::from_runs(&recorded, args.skip)?;
    let mut files = vec![(&page_at, html::page(&recorded, &summary)?.into_bytes())];
    if let Some(to) = &table_at {
        files.push((to, markdown::page(&recorded, &summary).into_bytes()));
    }
    save::all(&files)?;
    if args.json {
        return super::print_json(&Written { html, markdown: args.markdown.clone(), summary });
    }
    println!("{}", html.display());
    args.markdown.iter().for_each(|file| println!("{}", file.display()));
    Ok(())
}
