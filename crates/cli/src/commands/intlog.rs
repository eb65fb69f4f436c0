//! `lull lab interrupts`: one row for each interrupt of a simulated or live server.
//!
//! The rows have the columns of the kernel log of BayOp (Dong et al. 2026, section 3.4),
//! without the instructions, cache misses and joules of single interrupts. A live kernel
//! reports neither bytes, frames sent nor cycles of one interrupt without hooks in the
//! driver: those cells are empty for a live server.

mod live;
mod simulated;

use super::save::{self, Destination};
use crate::cli::IntlogArgs;
use crate::text::{number, table};
use lull_lab::figure::{Axis, CurveStyle, Figure, Point, svg};
use lull_measure::Nanos;
use lull_measure::escape::csv_text;
use serde::Serialize;
use std::path::PathBuf;

/// Most interrupts stored for each core.
const MOST: usize = 1_000_000;

/// Interrupts of some cores.
struct Log {
    /// Names of the idle states.
    states: Vec<String>,
    cores: Vec<(usize, Vec<Row>)>,
    /// How long they were recorded.
    span: Nanos,
    /// Columns that a live machine has behind those of the schema.
    is_live: bool,
    /// Descriptions of missing events.
    notes: Vec<String>,
}

/// One interrupt; unknown fields are `None`.
struct Row {
    time: Nanos,
    /// Frames and bytes received, frames and bytes sent.
    counts: [Option<u64>; 4],
    cycles: Option<f64>,
    idle: Vec<Nanos>,
    delay: Option<Nanos>,
    interrupt: Option<u32>,
    handler: Option<Nanos>,
}

/// One core's interrupts in sum.
#[derive(Debug, Serialize)]
struct CoreLog {
    core: usize,
    interrupts: usize,
    /// Median time between two of them, in microseconds.
    gap_us: Option<f64>,
    /// Mean frames received by one.
    rx_frames: f64,
    /// Mean cycles of the core between two; absent for a live server.
    cycles: Option<f64>,
    /// Share of time in idle states, by state.
    idle: Vec<f64>,
}

pub(crate) fn run(args: &IntlogArgs) -> anyhow::Result<()> {
    let to = |path: &Option<PathBuf>| path.as_deref().map(Destination::new).transpose();
    // Check the destinations first, so that a path that cannot be written fails early.
    let (out, figure) = (to(&args.out)?, to(&args.figure)?);
    let log = match &args.scenario {
        Some(scenario) => simulated::log(scenario, args)?,
        None => live::log(args.live.unwrap_or_default(), args.core)?,
    };
    let mut files = Vec::new();
    if let Some(to) = &out {
        files.push((to, csv(&log)?));
    }
    if let Some(to) = &figure {
        files.push((to, svg(&figures(&log))?.into_bytes()));
    }
    save::all(&files)?;
    let sums: Vec<CoreLog> =
        log.cores.iter().map(|(core, rows)| CoreLog::from_rows(*core, rows, &log)).collect();
    log.notes.iter().for_each(crate::say::line);
    if args.json {
        return super::print_json(&sums);
    }
    show(&log, &sums);
    Ok(())
}

impl CoreLog {
    fn from_rows(core: usize, rows: &[Row], log: &Log) -> Self {
        let count = rows.len().max(1) as f64;
        let frames: u64 = rows.iter().filter_map(|row| row.counts[0]).sum();
        let cycles: Option<f64> = rows.iter().map(|row| row.cycles).sum();
        let mut gaps: Vec<f64> = rows.windows(2).map(|pair| gap_us(&pair[0], &pair[1])).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let share = |state: usize| {
            let idle = rows.iter().filter_map(|row| row.idle.get(state));
            idle.map(|it| it.as_secs_f64()).sum::<f64>() / log.span.as_secs_f64()
        };
        Self {
            core,
            interrupts: rows.len(),
            gap_us: gaps.get(gaps.len() / 2).copied(),
            rx_frames: frames as f64 / count,
            cycles: cycles.filter(|_| !log.is_live).map(|cycles| cycles / count),
            idle: (0..log.states.len()).map(share).collect(),
        }
    }
}

fn gap_us(before: &Row, after: &Row) -> f64 {
    after.time.saturating_sub(before.time).as_micros_f64()
}

/// A row an interrupt, core by core.
fn csv(log: &Log) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let fixed = ["core", "i", "time_us", "rx_desc", "rx_bytes", "tx_desc", "tx_bytes", "cycles"];
    let idle = log.states.iter().map(|state| csv_text(&format!("{state}_us")).into_owned());
    let live: &[&str] = if log.is_live { &["irq", "handler_us"] } else { &[] };
    let behind = ["delay_us"].iter().chain(live).map(|name| (*name).to_owned());
    let head = fixed.map(str::to_owned).into_iter().chain(idle);
    writer.write_record(head.chain(behind))?;
    for (core, rows) in &log.cores {
        for (number, row) in rows.iter().enumerate() {
            writer.write_record(cells(log, *core, number, row))?;
        }
    }
    Ok(writer.into_inner()?)
}

fn cells(log: &Log, core: usize, number: usize, row: &Row) -> Vec<String> {
    let mut cells = vec![core.to_string(), number.to_string(), us(row.time)];
    cells.extend(row.counts.map(|count| cell(count, |count| count.to_string())));
    cells.push(cell(row.cycles, |cycles| format!("{cycles:.0}")));
    let idle = |state: usize| us(row.idle.get(state).copied().unwrap_or_default());
    cells.extend((0..log.states.len()).map(idle));
    cells.push(cell(row.delay, us));
    if log.is_live {
        cells.push(cell(row.interrupt, |number| number.to_string()));
        cells.push(cell(row.handler, us));
    }
    cells
}

/// Formats a value; an unknown one is an empty cell, not a zero.
fn cell<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(String::new, text)
}

fn us(time: Nanos) -> String {
    time.as_micros_f64().to_string()
}

/// Draws the gaps between interrupts and the frames of each, for all cores.
fn figures(log: &Log) -> Vec<Figure> {
    let all = || log.cores.iter().flat_map(|(_, rows)| rows.windows(2));
    let mut gaps: Vec<f64> = all().map(|pair| gap_us(&pair[0], &pair[1])).collect();
    gaps.sort_unstable_by(f64::total_cmp);
    let count = gaps.len().max(1);
    // A thousand points draw a distribution as well as a million.
    let step = count.div_ceil(1000);
    let shares = gaps.iter().enumerate().step_by(step);
    let shares: Vec<_> =
        shares.map(|(at, gap)| Point::at(*gap, 100.0 * at as f64 / count as f64)).collect();
    let frames = all()
        .step_by(step)
        .filter_map(|pair| Some(Point::at(gap_us(&pair[0], &pair[1]), pair[1].counts[0]? as f64)));
    let mut frames: Vec<_> = frames.collect();
    frames.sort_by(|a, b| a.x.total_cmp(&b.x));
    let axis = || Axis::linear("time since the interrupt before (us)");
    vec![
        Figure::new("How far apart interrupts are", axis(), Axis::linear("share no farther (%)"))
            .with_curve("interrupts", CurveStyle::Line, shares),
        Figure::new("What they bring", axis(), Axis::linear("frames received")).with_curve(
            "interrupts",
            CurveStyle::Points,
            frames,
        ),
    ]
}

fn show(log: &Log, sums: &[CoreLog]) {
    let states = log.states.iter().map(|state| format!("{state} (%)"));
    let head: Vec<String> = ["core", "interrupts", "median gap (us)", "frames", "cycles"]
        .map(str::to_owned)
        .into_iter()
        .chain(states)
        .collect();
    let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let row = |core: &CoreLog| {
        let mut row = vec![
            core.core.to_string(),
            core.interrupts.to_string(),
            or_dash(core.gap_us),
            number(core.rx_frames),
            or_dash(core.cycles),
        ];
        row.extend(core.idle.iter().map(|share| number(100.0 * share)));
        row
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    println!("{}", table(&head, sums.iter().map(row)));
}
