//! `lull sweep`: every setting of a server, which runs here ([`live`]) or is simulated.
//!
//! Of a simulated server it measures every setting at every load.
//! Each row is written as soon as it is measured, and rows that are in the file are not
//! measured again: a killed sweep resumes where it stopped. With `--parts` a cell is one setting
//! at one load; cells are numbered by setting, then load, so that parts take equally long.

mod live;

use super::UsageError;
use super::save::{self, Destination};
use crate::cli::SweepArgs;
use crate::progress::parts;
use crate::say::notice;
use crate::text::{number, table};
use anyhow::Context;
use lull_agent::cells::{Key, Parts, scenario_hash};
use lull_agent::located::Located;
use lull_lab::figure::{Axis, CurveStyle, Figure, Point, svg};
use lull_lab::server::{Cell, ServerFile, ServerScenario, ServerSetting, pareto, write_parquet};
use rayon::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The columns of the file of rows: the fields of [`Cell`].
const HEADER: &str = "rate_per_s,delay_us,frequency_ghz,arrived,answered,p50_us,p90_us,p99_us,\
                      percentile,tail_us,watts,cycles_a_request,interrupts_per_s,busy\n";

pub(crate) fn run(args: &SweepArgs) -> anyhow::Result<()> {
    let source = Located::read(&args.config)?;
    let has_apps = source.text().parse::<toml::Table>().is_ok_and(|it| it.contains_key("app"));
    if has_apps {
        return live::run(source, args);
    }
    // The command changes nothing that must be restored, so it ends when the reader of its output
    // ends.
    sigpipe::reset();
    if args.live.is_given() {
        let what = "--profile, --settings, --blocks and --seed are for a running server";
        return Err(UsageError(format!("{what}: a simulated one has its grid and seed")).into());
    }
    simulate(&source, args)
}

/// Sweeps a simulated server.
fn simulate(source: &Located, args: &SweepArgs) -> anyhow::Result<()> {
    let scenario = read(source)?;
    let read = [args.config.as_path()];
    let one = |path: &Path| Destination::new(path).and_then(|to| to.apart_from(&read));
    let to = |path: &Option<PathBuf>| path.as_deref().map(one).transpose();
    let (parquet, figure) = (to(&args.parquet)?, to(&args.figure)?);
    let parts = open_parts(source, &scenario, args)?;
    let mut out = match &args.out {
        Some(path) => Some(RowFile::open(path, source.text())?),
        None => None,
    };
    let done = out.as_mut().map_or(Vec::new(), |out| std::mem::take(&mut out.done));
    if !done.is_empty() {
        notice(format_args!(
            "{} settings are there already and are not measured again",
            done.len()
        ));
    }
    let mut cells = measure(&scenario, &done, out.as_ref(), parts.as_ref())?;
    if let Some(parts) = &parts {
        notice(parts.summary());
    }
    if args.cells.cells.is_some() {
        return Ok(());
    }
    let key = |cell: &Cell| (cell.rate_per_s, cell.delay_us, cell.frequency_ghz);
    cells.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
    let mut files = Vec::new();
    if let Some(to) = &parquet {
        let mut bytes = Vec::new();
        write_parquet(&cells, objective(&scenario).0, &mut bytes)?;
        files.push((to, bytes));
    }
    if let Some(to) = &figure {
        files.push((to, svg(&figures(&scenario, &cells))?.into_bytes()));
    }
    save::all(&files)?;
    show(&scenario, &cells, args.json)
}

/// Reads a server and its grid; every error names file, line and key.
pub(super) fn read(source: &Located) -> anyhow::Result<ServerScenario> {
    let file: ServerFile = source.parse()?;
    Ok(file.check().map_err(|wrong| source.error(&wrong.key, &wrong.message))?)
}

/// Opens the directory of `--parts`, if there is one.
fn open_parts(
    source: &Located,
    scenario: &ServerScenario,
    args: &SweepArgs,
) -> anyhow::Result<Option<Parts>> {
    let base = args.config.parent().unwrap_or(Path::new("."));
    let hash = scenario_hash(source.text(), base, &["sweep"]);
    let key = Key { scenario: hash, seed: scenario.run.seed };
    let columns: Vec<&str> = HEADER.trim_end().split(',').collect();
    let total = scenario.rates_per_s.len() * scenario.grid.settings().len();
    let Some(directory) = &args.cells.parts else { return Ok(None) };
    let wanted = args.cells.wanted(total as u64)?;
    Parts::open(directory, &key, &columns, total as u64, wanted).map(Some)
}

/// Returns a row from the finished cells, or measures it and keeps it there.
fn load_or_measure(
    scenario: &ServerScenario,
    rate: f64,
    setting: ServerSetting,
    cell: u64,
    parts: Option<&Parts>,
) -> anyhow::Result<Cell> {
    if let Some(parts) = parts
        && let Some(rows) = parts.load(cell)?
    {
        let row: Option<Cell> = match rows.as_slice() {
            [row] => row.deserialize(None).ok(),
            _ => None,
        };
        let row = row.filter(|row| is_of(row, rate, setting));
        return row.ok_or_else(|| parts.damaged(cell));
    }
    let row = Cell::measure(&scenario.model, rate, setting, scenario.run)?;
    if let Some(parts) = parts {
        let fields = line(&row)?.trim_end().split(',').map(str::to_owned).collect();
        parts.save(cell, &[fields])?;
    }
    Ok(row)
}

/// Measures the missing rows in parallel, and writes each as soon as it is measured.
fn measure(
    scenario: &ServerScenario,
    done: &[Cell],
    out: Option<&RowFile>,
    kept: Option<&Parts>,
) -> anyhow::Result<Vec<Cell>> {
    let settings = scenario.grid.settings();
    let rates = &scenario.rates_per_s;
    let all = settings.iter().flat_map(|it| rates.iter().map(|rate| (*rate, *it)));
    let all = all.enumerate().map(|(cell, (rate, setting))| (cell as u64, rate, setting));
    let all = all.filter(|it| kept.is_none_or(|parts| parts.is_wanted(it.0)));
    let is_done = |it: &(u64, f64, ServerSetting)| done.iter().any(|row| is_of(row, it.1, it.2));
    let (there, missing): (Vec<_>, Vec<_>) = all.partition(is_done);
    let bar = parts().with_message("sweep");
    bar.set_length((there.len() + missing.len()) as u64);
    bar.set_position(there.len() as u64);
    let one = |(cell, rate, setting): &(u64, f64, ServerSetting)| -> anyhow::Result<Cell> {
        let row = load_or_measure(scenario, *rate, *setting, *cell, kept)?;
        if let Some(out) = out {
            out.write(&row)?;
        }
        bar.inc(1);
        Ok(row)
    };
    let mut rows: Vec<Cell> = missing.par_iter().map(one).collect::<Result<_, _>>()?;
    bar.finish_and_clear();
    let wanted = |row: &&Cell| there.iter().any(|(_, rate, setting)| is_of(row, *rate, *setting));
    rows.extend(done.iter().filter(wanted).cloned());
    Ok(rows)
}

/// The file of rows.
struct RowFile {
    file: Mutex<File>,
    done: Vec<Cell>,
}

impl RowFile {
    /// Opens a file to append rows. Its first line identifies the scenario; an incomplete
    /// last line, which a kill leaves, is removed.
    fn open(path: &Path, scenario: &str) -> anyhow::Result<Self> {
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.with_context(|| format!("cannot write {}", path.display()))?;
        // Files of earlier versions lack the columns of the objective's percentile.
        let identity = format!("{HEADER}{scenario}");
        let head = format!("# lull sweep of {:08x}\n", crc32fast::hash(identity.as_bytes()));
        let mut text = String::new();
        file.read_to_string(&mut text)
            .with_context(|| format!("{} is not a file of `lull sweep`", path.display()))?;
        if text.is_empty() {
            file.write_all(head.as_bytes())?;
            file.write_all(HEADER.as_bytes())?;
            return Ok(Self { file: Mutex::new(file), done: Vec::new() });
        }
        if !text.starts_with(&head) {
            let what = "holds something other than this scenario's sweep: name another file";
            return Err(UsageError(format!("{}: {what}", path.display())).into());
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        let mut reader =
            csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(&text.as_bytes()[..whole]);
        let done: Result<Vec<Cell>, csv::Error> = reader.deserialize().collect();
        let done = done.map_err(|error| UsageError(format!("{}: {error}", path.display())))?;
        Ok(Self { file: Mutex::new(file), done })
    }

    /// Writes one row, whole.
    fn write(&self, row: &Cell) -> anyhow::Result<()> {
        let line = line(row)?;
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.write_all(line.as_bytes()).context("cannot write a row of the sweep")
    }
}

fn line(row: &Cell) -> anyhow::Result<String> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.serialize(row)?;
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn is_of(cell: &Cell, rate_per_s: f64, setting: ServerSetting) -> bool {
    cell.rate_per_s == rate_per_s && cell.setting() == setting
}

/// The percentile and the bound in microseconds of a scenario.
fn objective(scenario: &ServerScenario) -> (f64, f64) {
    let tail = scenario.app.tail();
    tail.map_or((99.0, f64::MAX), |(at, bound)| (at.percent(), bound.as_micros_f64()))
}

fn front(scenario: &ServerScenario, cells: &[Cell], rate: f64) -> Vec<Cell> {
    let of_rate: Vec<_> = cells.iter().filter(|it| it.rate_per_s == rate).cloned().collect();
    pareto(&of_rate, objective(scenario).0).into_iter().cloned().collect()
}

fn show(scenario: &ServerScenario, cells: &[Cell], json: bool) -> anyhow::Result<()> {
    let (percentile, bound_us) = objective(scenario);
    let fronts: Vec<Cell> =
        scenario.rates_per_s.iter().flat_map(|rate| front(scenario, cells, *rate)).collect();
    if json {
        return super::print_json(&fronts);
    }
    let row = |cell: &Cell| {
        let tail_us = cell.tail_at(percentile);
        let met = if tail_us <= bound_us { "met" } else { "missed" };
        vec![
            format!("{}", cell.rate_per_s),
            cell.delay_us.map_or("-".to_owned(), |us| us.to_string()),
            cell.frequency_ghz.map_or("-".to_owned(), |ghz| ghz.to_string()),
            number(tail_us),
            met.to_owned(),
            number(cell.watts),
        ]
    };
    let tail = format!("p{percentile} (us)");
    let head = ["requests/s", "delay (us)", "GHz", &tail, "objective", "power (W)"];
    println!("{}", table(&head, fronts.iter().map(row)));
    println!(
        "{} settings; shown are those that no other beats in both tail and power",
        cells.len()
    );
    Ok(())
}

fn figures(scenario: &ServerScenario, cells: &[Cell]) -> Vec<Figure> {
    let (percentile, bound_us) = objective(scenario);
    let point = |cell: &Cell| Point::at(cell.tail_at(percentile), cell.watts);
    let panel = |rate: &f64| {
        let tail = format!("p{percentile} (us), bound {bound_us} us");
        let of_rate = cells.iter().filter(|it| it.rate_per_s == *rate && it.keeps_up());
        let mut all: Vec<_> = of_rate.map(point).collect();
        all.sort_by(|a, b| a.x.total_cmp(&b.x));
        let title = format!("{rate} requests/s");
        Figure::new(title, Axis::log(tail), Axis::linear("power (W)"))
            .with_curve("settings", CurveStyle::Points, all)
            .with_curve("front", CurveStyle::Line, front(scenario, cells, *rate).iter().map(point))
    };
    scenario.rates_per_s.iter().map(panel).collect()
}
