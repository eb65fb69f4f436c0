//! `lull intlog`: what every interrupt of a simulated server brought.
//!
//! The rows are those of the authors' kernel log (seed 001, section 3.4), but
//! for instructions, cache misses and joules of single interrupts, which the
//! simulator does not have.

use super::UsageError;
use super::save::{self, Destination};
use super::sweep::read;
use crate::cli::IntlogArgs;
use crate::located::Located;
use crate::text::{number, table};
use lull_lab::figure::{Axis, Figure, Look, Point, svg};
use lull_lab::server::{ServerScenario, ServerSetting};
use lull_measure::Nanos;
use lull_sim::netserver::{Interrupt, NetServer};
use serde::Serialize;
use std::path::PathBuf;

/// Interrupts kept of every core.
const MOST: usize = 1_000_000;

/// One core's interrupts in sum.
#[derive(Debug, Serialize)]
struct CoreLog {
    core: usize,
    interrupts: usize,
    /// Median time between two of them, in microseconds.
    gap_us: Option<f64>,
    /// Mean frames received by one.
    rx_frames: f64,
    /// Mean cycles of the core between two.
    cycles: f64,
    /// Share of time in idle states, by state.
    idle: Vec<f64>,
}

pub(crate) fn run(args: &IntlogArgs) -> anyhow::Result<()> {
    let source = Located::read(&args.scenario)?;
    let scenario = read(&source)?;
    let to = |path: &Option<PathBuf>| path.as_deref().map(Destination::new).transpose();
    let (out, figure) = (to(&args.out)?, to(&args.figure)?);
    let server = simulated(&scenario, args)?;
    let cores = usize::from(server.model().cores);
    let mut files = Vec::new();
    if let Some(to) = &out {
        files.push((to, csv(&server, cores)?));
    }
    if let Some(to) = &figure {
        files.push((to, svg(&figures(&server, cores))?.into_bytes()));
    }
    save::all(&files)?;
    let span = scenario.run.length;
    let logs: Vec<CoreLog> =
        (0..cores).map(|core| CoreLog::of(core, server.log(core), &server, span)).collect();
    if args.json {
        return super::print_json(&logs);
    }
    show(&server, &logs);
    Ok(())
}

/// The server after the scenario's length, with its log from the warm-up on.
fn simulated(scenario: &ServerScenario, args: &IntlogArgs) -> anyhow::Result<NetServer> {
    let rates: Vec<f64> = args.rate.into_iter().chain(scenario.rates_per_s.clone()).collect();
    super::check_rates(&rates)?;
    let Some(rate_per_s) = rates.first() else {
        return Err(UsageError("no load: give --rate".to_owned()).into());
    };
    let run = scenario.run;
    let model = scenario.model.at_rate(*rate_per_s);
    let mut server = NetServer::new(&model, run.seed, run.replication)?;
    let setting = ServerSetting {
        delay_us: args.delay.map(Nanos::as_micros_f64),
        frequency_ghz: args.frequency.map(lull_measure::Hertz::as_ghz),
    };
    setting.put(&mut server);
    server.run_until(run.warmup);
    server.keep_log(MOST);
    server.run_until(run.warmup + run.length);
    Ok(server)
}

impl CoreLog {
    fn of(core: usize, log: &[Interrupt], server: &NetServer, span: Nanos) -> Self {
        let count = log.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Interrupt) -> f64| log.iter().map(of).sum::<f64>() / count;
        let mut gaps: Vec<f64> = log.windows(2).map(|pair| gap_us(&pair[0], &pair[1])).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let states = server.model().idle.len();
        let share = |state: usize| {
            let idle = log.iter().filter_map(|it| it.idle.get(state)).map(|it| it.as_secs_f64());
            idle.sum::<f64>() / span.as_secs_f64()
        };
        Self {
            core,
            interrupts: log.len(),
            gap_us: gaps.get(gaps.len() / 2).copied(),
            rx_frames: mean(&|it| it.rx_packets as f64),
            cycles: mean(&|it| it.cycles),
            idle: (0..states).map(share).collect(),
        }
    }
}

fn gap_us(before: &Interrupt, after: &Interrupt) -> f64 {
    after.time.saturating_sub(before.time).as_micros_f64()
}

/// A row an interrupt, core by core.
fn csv(server: &NetServer, cores: usize) -> anyhow::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let fixed = ["core", "i", "time_us", "rx_desc", "rx_bytes", "tx_desc", "tx_bytes", "cycles"];
    let idle = server.model().idle.iter().map(|state| format!("{}_us", state.name));
    let head = fixed.map(str::to_owned).into_iter().chain(idle);
    writer.write_record(head.chain(["delay_us".to_owned()]))?;
    for core in 0..cores {
        for (number, it) in server.log(core).iter().enumerate() {
            let counts = [it.rx_packets, it.rx_bytes, it.tx_packets, it.tx_bytes];
            let mut row = vec![core.to_string(), number.to_string(), us(it.time)];
            row.extend(counts.map(|count| count.to_string()));
            row.push(format!("{:.0}", it.cycles));
            row.extend(it.idle.iter().copied().map(us));
            row.push(us(it.delay));
            writer.write_record(row)?;
        }
    }
    Ok(writer.into_inner()?)
}

fn us(time: Nanos) -> String {
    time.as_micros_f64().to_string()
}

/// How far apart interrupts are and what they bring, of all cores.
fn figures(server: &NetServer, cores: usize) -> Vec<Figure> {
    let all = || (0..cores).flat_map(|core| server.log(core).windows(2));
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
        .map(|pair| Point::at(gap_us(&pair[0], &pair[1]), pair[1].rx_packets as f64));
    let mut frames: Vec<_> = frames.collect();
    frames.sort_by(|a, b| a.x.total_cmp(&b.x));
    let axis = || Axis::linear("time since the interrupt before (us)");
    vec![
        Figure::new("How far apart interrupts are", axis(), Axis::linear("share no farther (%)"))
            .with("interrupts", Look::Line, shares),
        Figure::new("What they bring", axis(), Axis::linear("frames received")).with(
            "interrupts",
            Look::Points,
            frames,
        ),
    ]
}

fn show(server: &NetServer, logs: &[CoreLog]) {
    let states = server.model().idle.iter().map(|state| format!("{} (%)", state.name));
    let head: Vec<String> = ["core", "interrupts", "median gap (us)", "frames", "cycles"]
        .map(str::to_owned)
        .into_iter()
        .chain(states)
        .collect();
    let row = |log: &CoreLog| {
        let mut row = vec![
            log.core.to_string(),
            log.interrupts.to_string(),
            log.gap_us.map_or_else(|| "-".to_owned(), number),
            number(log.rx_frames),
            number(log.cycles),
        ];
        row.extend(log.idle.iter().map(|share| number(100.0 * share)));
        row
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    println!("{}", table(&head, logs.iter().map(row)));
}
