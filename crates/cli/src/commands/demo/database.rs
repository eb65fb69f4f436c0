//! `lull demo database`: a real database with and without a concurrency limit.
//!
//! Starts MariaDB or PostgreSQL on an empty temporary directory under the preloaded gate and
//! loads it in closed loop over its unix socket. `auto` first decides on a limit; then blocks
//! with the gate open and with that limit alternate in random order, on one server process and
//! with the same connections. Where `auto` keeps the gate open or has no result in time, a
//! fixed limit is compared instead, and the output says so.

mod measured;
mod result;

use crate::cli::DatabaseDemoArgs;
use crate::{progress, say, signals};
use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use lull_agent::admission::{AdmissionSetup, LiveAdmission};
use lull_agent::temporary_database::{DatabasePrograms, TemporaryDatabase};
use lull_host::oncall::Runtime;
use lull_measure::Nanos;
use lull_oncall::{Mode, Settings};
use lull_policies::admission::Workers;
use lull_workload::client::{self, LoadConfig, LoadReport};
use lull_workload::target::ScriptSource;
use lull_workload::{Generator, clock};
use measured::{Block, Windows};
use rand::{RngExt, SeedableRng};
use result::{Findings, Limit};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pairs of an open and a limited block.
const PAIRS: u32 = 6;
/// Share of a block that is left out, in which transactions of the block before end.
const SETTLE: f64 = 0.3;
/// The time before measurements.
const WARM_UP: Nanos = Nanos::from_secs(1);
/// Longest time without a check of the stop request.
const LOOK: Duration = Duration::from_millis(20);
/// The limit that is compared where `auto` found none, times the cores.
const FIXED_LIMIT_PER_CORE: u32 = 8;

pub(super) fn run(args: &DatabaseDemoArgs) -> anyhow::Result<()> {
    let programs = DatabasePrograms::find(args.engine.map(Into::into))?;
    // A place that the picture cannot have must not cost the measurement.
    std::fs::create_dir_all(&args.record)
        .with_context(|| format!("cannot make {}", args.record.display()))?;
    let stop = signals::stop_flag()?;
    say::notice(format_args!("starting {} on an empty directory", programs.name()));
    let server = TemporaryDatabase::start(&programs, args.connections, &stop)?;
    let findings = measure(args, &programs, &server, &stop);
    // The server is removed before anything is printed: a closed pipe may end the process.
    drop(server);
    let findings = findings?;
    sigpipe::reset();
    if args.json {
        return crate::commands::print_json(&findings);
    }
    findings.print();
    Ok(())
}

fn measure(
    args: &DatabaseDemoArgs,
    programs: &DatabasePrograms,
    server: &TemporaryDatabase,
    stop: &AtomicBool,
) -> anyhow::Result<Findings> {
    let mut load = LoadConfig::closed(server.address());
    load.target.database.script = ScriptSource::HotRows;
    load.target.database.tries = 10;
    load.connections = args.connections.into();
    load.window = Nanos::from_millis(250);
    load.drain = Nanos::from_millis(100);
    load.seed = args.seed;
    let (windows, load_stop) = (Windows::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            client::run_watched(&load, &load_stop, |window, latencies| {
                windows.push(window, latencies);
            })
        });
        let mut demo = Demo {
            runtime: Arc::clone(server.runtime()),
            windows: &windows,
            stop,
            has_client_ended: &|| client.is_finished(),
            bar: progress::seconds(args.seconds.into()),
            begun: clock::now(),
            shaded: Vec::new(),
        };
        let compared = demo.compare(args);
        demo.bar.finish_and_clear();
        let begun = demo.begun;
        drop(demo);
        load_stop.store(true, Ordering::Relaxed);
        let report = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let report = report.context("cannot load the database")?;
        let compared = compared?;
        check(&report)?;
        let version = programs.version()?;
        Findings::new(args, programs.name(), version, &report, compared, begun)
    })
}

/// Refuses figures of a load that lost connections.
fn check(report: &LoadReport) -> anyhow::Result<()> {
    if let Some(loss) = &report.last_connection_loss {
        bail!(
            "the load lost {} connections, the last one because {loss}: nothing is claimed",
            report.connection_losses
        );
    }
    ensure!(report.completed_requests > 0, "no transaction was done: nothing is claimed");
    Ok(())
}

/// The comparison's raw data.
struct Compared {
    limit: Limit,
    pairs: Vec<(Block, Block)>,
    block: Nanos,
    windows: Vec<measured::Point>,
    /// When the limit was in force, on the clock of `windows`.
    shaded: Vec<Range<Nanos>>,
    /// When `auto` tried limits, on the same clock.
    trials: Range<Nanos>,
}

/// A demo under load.
struct Demo<'d> {
    runtime: Arc<Runtime>,
    windows: &'d Windows,
    stop: &'d AtomicBool,
    has_client_ended: &'d dyn Fn() -> bool,
    bar: ProgressBar,
    begun: Nanos,
    shaded: Vec<Range<Nanos>>,
}

impl Demo<'_> {
    fn compare(&mut self, args: &DatabaseDemoArgs) -> anyhow::Result<Compared> {
        self.bar.set_message("connecting, creating tables");
        while self.windows.is_empty() {
            self.wait_until(clock::now() + Nanos::from_millis(100))?;
        }
        self.begun = clock::now();
        let end = self.begun + Nanos::from_secs(args.seconds.into());
        self.bar.set_message("warming up");
        self.wait_until(self.begun + WARM_UP)?;
        let began = clock::now();
        let limit = self.decide(args, end)?;
        let trials = began..clock::now();
        let block = end.saturating_sub(clock::now()).scale(0.5 / f64::from(PAIRS));
        let mut rng = Generator::seed_from_u64(args.seed);
        let mut pairs = Vec::new();
        for pair in 0..PAIRS {
            let mut order = [false, true];
            if rng.random_bool(0.5) {
                order.reverse();
            }
            let mut halves = (Block::default(), Block::default());
            for is_limited in order {
                let what = if is_limited { limit.title() } else { "open".to_owned() };
                self.bar.set_message(format!("pair {} of {PAIRS}, {what}", pair + 1));
                let half = self.block(block, is_limited.then_some(&limit))?;
                if is_limited { halves.1 = half } else { halves.0 = half }
            }
            pairs.push(halves);
        }
        let shaded = std::mem::take(&mut self.shaded);
        Ok(Compared { limit, pairs, block, windows: self.windows.points(), shaded, trials })
    }

    /// Lets `auto` decide in the first half of the time.
    fn decide(&self, args: &DatabaseDemoArgs, end: Nanos) -> anyhow::Result<Limit> {
        self.bar.set_message("auto decides");
        let closed = Settings { mode: Mode::Post, ..Settings::default() };
        let setup = AdmissionSetup {
            name: "auto".to_owned(),
            keys: toml::Table::new(),
            closed,
            workers: Workers::Wait,
            objectives: Vec::new(),
            promises: Vec::new(),
            seed: args.seed,
        };
        let mut auto = LiveAdmission::new(&setup, Arc::clone(&self.runtime))?;
        let half = self.begun + end.saturating_sub(self.begun).scale(0.5);
        while auto.decision().is_none() && clock::now() < half {
            auto.poll();
            self.wait_until((clock::now() + Nanos::from_millis(10)).min(half))?;
        }
        let settings = self.runtime.settings();
        let decision = auto.decision().map(str::to_owned);
        if decision.is_some() && settings.mode.gates() {
            return Ok(Limit { settings, decision, is_fixed: false });
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let cap = (FIXED_LIMIT_PER_CORE * cores).min(u32::from(args.connections) / 2).clamp(1, 64);
        Ok(Limit { settings: Settings { cap, ..closed }, decision, is_fixed: true })
    }

    /// Runs one block with this limit, or with the gate open.
    fn block(&mut self, length: Nanos, limit: Option<&Limit>) -> anyhow::Result<Block> {
        let open = Settings { mode: Mode::Stats, ..Settings::default() };
        self.runtime.set(&limit.map_or(open, |limit| limit.settings));
        let begin = clock::now();
        self.wait_until(begin + length)?;
        let end = clock::now();
        if limit.is_some() {
            self.shaded.push(begin..end);
        }
        // The last window of the block is handed over a moment after it has ended.
        Ok(self.windows.block(begin + length.scale(SETTLE), end))
    }

    /// Waits until an instant.
    ///
    /// # Errors
    /// If a stop is requested, or the client has ended before.
    fn wait_until(&self, until: Nanos) -> anyhow::Result<()> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                bail!("stopped before the end: there is nothing to compare");
            }
            ensure!(!(self.has_client_ended)(), "the load ended before the comparison");
            let now = clock::now();
            if now >= until {
                return Ok(());
            }
            let elapsed = now.saturating_sub(self.begun).as_secs_f64();
            self.bar.set_position(elapsed as u64);
            std::thread::sleep(Duration::from(until.saturating_sub(now)).min(LOOK));
        }
    }
}
