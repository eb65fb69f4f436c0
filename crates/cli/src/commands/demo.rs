//! `lull demo`: shows the program at work on this machine, without root and without packages.
//!
//! Starts the built-in options server with an open-loop load and a
//! memory-bound best-effort app, measures both alone, and then alternates
//! blocks without and with a policy. Pairs are in random order, each order equally
//! often, so that drift favours neither.
//!
//! `lull demo database` (`database`) compares a real database with and without a
//! concurrency limit.

mod block;
mod database;
mod figure;
mod result;

use super::UsageError;
use crate::cli::{DemoArgs, DemoSubject, PolicyDemoArgs};
use crate::signals::stop_request;
use crate::{progress, say};
use anyhow::Context;
use block::Block;
use figure::{Figure, Panel, axis_top};
use indicatif::ProgressBar;
use lull_agent::config::Config;
use lull_agent::located::Located;
use lull_agent::proof::order;
use lull_agent::session::{Agent, Session, TurnError, bound_by_ideal, policy_of};
use lull_control::{AppId, AppSpec, Capability, Epoch, Plant, Rng};
use lull_host::plant::HostPlant;
use lull_host::{Roots, probe};
use lull_measure::{Nanos, Percentile};
use lull_workload::Generator;
use lull_workload::apps::options::calibrate;
use rand::SeedableRng;
use result::Findings;
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};

const SERVER: AppId = AppId(0);
const BURNER: AppId = AppId(1);
/// Median service time of a request, undisturbed.
const SERVICE: Nanos = Nanos::from_micros(500);
/// Share of the machine's cores that the server's load keeps busy.
const LOAD: f64 = 0.25;
/// The objective is this many times the tail that the server has alone.
const ROOM: f64 = 2.0;
/// Share of a block that is left out while things settle.
const SETTLE: f64 = 0.25;
const STEPS: u32 = 252;
/// The shortest block: two epochs, of which one and a half count.
const BLOCK_MIN: Nanos = Nanos::from_secs(1);

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    match &args.subject {
        Some(DemoSubject::Database(args)) => database::run(args),
        None => compare_policy(&args.policy),
    }
}

fn compare_policy(args: &PolicyDemoArgs) -> anyhow::Result<()> {
    if args.block < BLOCK_MIN {
        return Err(UsageError(format!("--block {}: write {BLOCK_MIN} or more", args.block)).into());
    }
    let keys = keys(args)?;
    let config = config(args, &keys)?;
    let say = |text: &str| say::notice(text);
    say("starting the options server, its load and a memory-bound best-effort app");
    // The objective follows from the tail that was just measured alone.
    let bound = |plant: &mut HostPlant| bound_by_ideal(plant, ROOM);
    let agent = Agent::new(config).stop(stop_request()?).notify(&say).adjust(&bound);
    let session = agent.start()?;
    let cores = session.plant().machine().cores.len();
    let mut demo = Demo::new(args, keys, session);
    let alternated = demo.alternate();
    let (session, findings) = demo.conclude(cores);
    session.close()?.report_notices(&alternated, &say)?;
    alternated?;
    // All knobs are restored: from here on a closed pipe may end the process.
    sigpipe::reset();
    if args.json {
        return super::print_json(&findings);
    }
    findings.print();
    Ok(())
}

/// The config of the demo: what a user would write, with this machine's numbers.
fn config(args: &PolicyDemoArgs, keys: &[String]) -> anyhow::Result<Config> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let found = calibrate(SERVICE, STEPS, &mut Generator::seed_from_u64(1));
    let mean_s = found.demand.mean_paths() * found.path_ns / 1e9;
    let rate = (LOAD * cores as f64 / mean_s).round();
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let state = args.state.as_ref().map(|state| quoted(&state.to_string_lossy()));
    let state = state.map(|state| format!("state = {state}")).unwrap_or_default();
    let text = include_str!("demo/demo.toml")
        .replace("{policy}", &quoted(&args.policy))
        .replace("{keys}", &keys.join("\n"))
        .replace("{record}", &quoted(&args.record.to_string_lossy()))
        .replace("{state}", &state)
        .replace("{port}", &port.to_string())
        .replace("{cores}", &cores.to_string())
        .replace("{rate}", &rate.to_string())
        .replace("{base_paths}", &found.demand.base_paths.to_string());
    Ok(Config::from_located(Located::embedded("demo.toml", &text))?)
}

/// Returns the policy's keys. On few cores ARQ's shared region without priorities changes
/// little; with priorities, if they can be set, it shows the purpose of the policy.
fn keys(args: &PolicyDemoArgs) -> anyhow::Result<Vec<String>> {
    if args.policy != "arq" || !args.keys.is_empty() {
        return Ok(args.keys.clone());
    }
    let may = probe::machine(&Roots::default())?.capabilities.has(Capability::Scheduling);
    Ok(may.then(|| "priority = \"latency-critical\"".to_owned()).into_iter().collect())
}

/// Quotes a text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// One epoch in the picture.
struct Point {
    /// Seconds since the first block.
    time_s: f64,
    /// Tail latency in milliseconds, if requests were answered.
    tail_ms: Option<f64>,
    /// Progress of the best-effort app per second.
    progress_per_s: Option<f64>,
}

/// A demo under way.
struct Demo {
    session: Session,
    policy: String,
    keys: Vec<String>,
    blocks: u32,
    block: Nanos,
    pairs: Vec<(Block, Block)>,
    points: Vec<Point>,
    on: Vec<Range<f64>>,
    begin: Option<Nanos>,
    energy_source: String,
    bar: ProgressBar,
}

impl Demo {
    fn new(args: &PolicyDemoArgs, keys: Vec<String>, session: Session) -> Self {
        let total = f64::from(2 * args.pairs) * args.block.as_secs_f64();
        Self {
            session,
            policy: args.policy.clone(),
            keys,
            blocks: args.pairs,
            block: args.block,
            pairs: Vec::new(),
            points: Vec::new(),
            on: Vec::new(),
            begin: None,
            energy_source: "unknown: no epoch was seen".to_owned(),
            bar: progress::seconds(total as u64),
        }
    }

    fn alternate(&mut self) -> anyhow::Result<()> {
        let mut rng = Rng::seed_from_u64(self.session.config().agent.seed());
        for (pair, on_first) in (0..).zip(order(self.blocks as usize, &mut rng)) {
            let mut halves = (Block::default(), Block::default());
            for on in [on_first, !on_first] {
                let half = self.one_block(pair, on)?;
                if on { halves.1 = half } else { halves.0 = half }
            }
            self.pairs.push(halves);
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    fn one_block(&mut self, pair: u32, on: bool) -> Result<Block, anyhow::Error> {
        let config = self.session.config();
        let config = if on { config.clone() } else { config.under("unmanaged") };
        let plant = self.session.plant();
        let policy = policy_of(&config, plant.machine(), plant.apps())?;
        self.session.switch(&config.policy, policy);
        let phase = format!("{}-{pair}", if on { "on" } else { "off" });
        self.bar.set_message(format!("pair {} of {}, {}", pair + 1, self.blocks, config.policy));
        let mut block = Block::default();
        let (mut begin, settle) = (None, self.block.scale(SETTLE));
        loop {
            // A table of half the data would mislead.
            let epoch = self.session.turn(&phase).map_err(TurnError::cut_short)?;
            let start = epoch.seen.time.saturating_sub(epoch.seen.epoch);
            let elapsed = epoch.seen.time.saturating_sub(*begin.get_or_insert(start));
            self.note(&epoch);
            if elapsed > settle {
                block.add(&epoch, SERVER, BURNER);
            }
            if elapsed >= self.block {
                let end = self.points.last().map_or(0.0, |point| point.time_s);
                self.on.extend(on.then_some(end - elapsed.as_secs_f64()..end));
                return Ok(block);
            }
        }
    }

    /// Stores the points of the picture, and advances the bar.
    fn note(&mut self, epoch: &Epoch) {
        let begin = *self.begin.get_or_insert(epoch.seen.time.saturating_sub(epoch.seen.epoch));
        let time_s = epoch.seen.time.saturating_sub(begin).as_secs_f64();
        let stand = &epoch.assessment.apps;
        let fresh = stand[SERVER.index()].tail.filter(|tail| !tail.stale);
        let progress = stand[BURNER.index()].be;
        self.points.push(Point {
            time_s,
            tail_ms: fresh.map(|tail| tail.latency.as_millis_f64()),
            progress_per_s: progress.map(|be| be.real),
        });
        self.energy_source = match &epoch.seen.energy {
            Ok(energy) => energy.source.to_string(),
            Err(why) => format!("unknown: {why}"),
        };
        self.bar.set_position(time_s as u64);
        progress::print_notices(&self.session, epoch, &self.bar);
    }

    fn conclude(self, cores: usize) -> (Session, Findings) {
        let spec = &self.session.apps()[SERVER.index()];
        let rows = result::rows(&self.pairs, spec, self.solo_per_s());
        let record = self.session.record().to_owned();
        let drawn = self.draw(&record, spec);
        let findings = Findings {
            objective: objective(spec),
            policy: self.policy,
            keys: self.keys,
            pairs: self.pairs.len(),
            rows,
            energy_source: self.energy_source,
            record,
            figure: drawn.inspect_err(|error| say::notice(lull_agent::error::describe(error))).ok(),
            caveat: caveat(cores),
        };
        (self.session, findings)
    }

    /// Solo progress of the best-effort app, as corrected in the run.
    fn solo_per_s(&self) -> f64 {
        self.session.apps()[BURNER.index()].solo_per_s.unwrap_or(f64::NAN)
    }

    fn draw(&self, record: &Path, server: &AppSpec) -> anyhow::Result<PathBuf> {
        let file = record.with_extension("svg");
        let (at, bound) = server.tail().unwrap_or((Percentile::P95, Nanos::ZERO));
        let bound_ms = bound.as_millis_f64();
        let series = |value: &dyn Fn(&Point) -> Option<f64>| -> Vec<(f64, f64)> {
            self.points.iter().filter_map(|one| Some((one.time_s, value(one)?))).collect()
        };
        let percent = 100.0 / self.solo_per_s();
        let tails = series(&|point| point.tail_ms);
        let tails = Panel {
            caption: format!("{at} of the server, policy {} in shaded blocks", self.policy),
            axis: "ms",
            top: axis_top(&tails, bound_ms),
            points: tails,
            mark: Some((bound_ms, format!("objective {bound_ms:.2} ms"))),
        };
        let progress = Panel {
            caption: "Best-effort progress, in percent of its progress alone".to_owned(),
            axis: "%",
            top: 110.0,
            points: series(&|point| Some(percent * point.progress_per_s?)),
            mark: None,
        };
        let end_s = self.points.last().map_or(1.0, |point| point.time_s);
        let panels = [tails, progress];
        let figure = Figure { shaded: &self.on, trials: None, end_s, panels };
        let drawn = figure.write(&file).map_err(|error| anyhow::anyhow!("{error}"));
        drawn.with_context(|| format!("the figure {} cannot be written", file.display()))?;
        Ok(file)
    }
}

/// Describes the server's objective and its ideal, which the run may have corrected after the bound
/// was set.
fn objective(server: &AppSpec) -> String {
    let (percentile, bound) = server.tail().unwrap_or((Percentile::P95, Nanos::ZERO));
    let ideal = server.ideal.unwrap_or_default();
    let room = bound.as_secs_f64() / ideal.as_secs_f64();
    format!(
        "{percentile} at most {bound:.2}, which is {room:.1} times the {ideal:.2} that the server \
         has alone at this load"
    )
}

/// Returns notes on what this machine is too small to show.
fn caveat(cores: usize) -> Option<String> {
    match cores {
        1 => Some(
            "This machine has one core: there is nothing to divide, so cores make no difference."
                .to_owned(),
        ),
        2 | 3 => Some(format!(
            "This machine has {cores} cores, which server, load client and best-effort app share: \
             a core given to one is half or a third of the machine taken from the others."
        )),
        _ => None,
    }
}
