//! `lull calibrate`: the performance of each app of a config alone, and the power of the machine
//! (`power.rs`, `idle.rs`).
//!
//! One app of the config runs at a time. A latency-critical app gets the load of its
//! `[[load]]`, except for the rate: a search finds the load knee and the tail there, first
//! with all cores and then with fewer. The ideal tail is the tail at a fifth of the knee with
//! all cores (Ah-Q, Liu et al. 2024, Table II). For a best-effort app the progress is
//! measured. The findings are written into the config: `ideal`, `max_load`, `solo`. The
//! client runs on the same machine and takes core time from the server.

mod idle;
mod machine;
mod power;
mod write;

use crate::cli::{CalibrateApps, CalibrateArgs, CalibrateMachine, Cli, Command, LoadArgs};
use crate::commands::save::{self, Destination};
use crate::commands::{UsageError, load};
use crate::signals;
use crate::signals::stop_request;
use crate::text::{number, table};
use crate::{progress, say};
use anyhow::{Context, bail};
use clap::Parser;
use indicatif::ProgressBar;
use lull_agent::config::{AppSection, Config, MeasureWord, Reference};
use lull_agent::load_knee::{LoadCurve, LoadKnee, LoadTrial, find_curve};
use lull_agent::located::Located;
use lull_agent::session::{Agent, Session};
use lull_control::{
    AppId, Capability, Class, CoreSet, Observation, Plan, Plant, Policy, Reason, Rng, Setting,
};
use lull_measure::escape::visible_line;
use lull_measure::{Latency, Nanos};
use lull_workload::arrivals::Rate;
use lull_workload::client::{LoadConfig, run_watched};
use serde::Serialize;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use write::Keys;

/// The app under test is the only one of its session.
const APP: AppId = AppId(0);
/// Load at which an app is at ease, as a share of its knee (Ah-Q, Table II).
const EASE: f64 = 0.2;
/// Share of a trial that is left out while things settle.
const SETTLE: f64 = 0.25;

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Report {
    apps: Vec<AppCalibration>,
    /// The config that was written; absent if it could not be.
    wrote: Option<String>,
}

/// The findings of one app.
#[derive(Debug, Clone, Default, Serialize)]
struct AppCalibration {
    name: String,
    /// Tail at a fifth of the knee, all cores.
    ideal_seconds: Option<f64>,
    /// The percentile of all tails here.
    percentile: Option<String>,
    bound_seconds: Option<f64>,
    /// Indexed by number of cores, all first.
    cores: Vec<Cores>,
    /// Progress per second, of a best-effort app.
    solo_per_s: Option<f64>,
    /// Notes for the user.
    notes: Vec<String>,
}

/// Tail over load with this many cores.
#[derive(Debug, Clone, Serialize)]
struct Cores {
    cores: usize,
    /// The load at which the curve of tails is farthest below its chord.
    knee: Option<LoadKnee>,
    /// The load before the tail's first rise by a quarter.
    jump: Option<LoadKnee>,
    /// The highest load within the bound.
    within_bound: Option<LoadKnee>,
    curve: LoadCurve,
}

pub(crate) fn run(args: &CalibrateArgs) -> anyhow::Result<()> {
    match &args.machine {
        Some(CalibrateMachine::Power(args)) => power::run(args),
        Some(CalibrateMachine::Idle(args)) => idle::run(args),
        None => apps(&args.apps),
    }
}

fn apps(args: &CalibrateApps) -> anyhow::Result<()> {
    let path = args.config.as_ref().context("name a config")?;
    let config = Config::load(path)?;
    let wanted = wanted(&config, args)?;
    let file = args.output.as_ref().unwrap_or(path);
    let to = Destination::new(file)?;
    let mut bench = Bench {
        args,
        stop: signals::stop_flag()?,
        begun: Instant::now(),
        bar: progress::seconds(args.budget.as_secs_f64() as u64),
        until: Nanos::ZERO,
        records: RefCell::default(),
    };
    let mut apps = Vec::new();
    for (number, app) in wanted.iter().enumerate() {
        // The next apps get the time that one app does not use.
        let left = args.budget.saturating_sub(bench.elapsed());
        bench.until = bench.elapsed() + left / (wanted.len() - number) as u64;
        apps.push(bench.calibrate(&config, app)?);
    }
    bench.bar.finish_and_clear();
    let written = write_found(path, &to, &apps);
    if written.is_ok() {
        // The config has what was measured. A record that cannot be removed does no harm.
        bench.records.take().iter().for_each(|record| drop(std::fs::remove_file(record)));
    }
    let wrote = written.is_ok().then(|| file.display().to_string());
    let report = Report { apps, wrote };
    // No app runs: from here on a closed pipe may end the process.
    sigpipe::reset();
    if args.json {
        super::print_json(&report)?;
    } else {
        print(&report);
    }
    written
}

/// Writes the results into the config as it is now, because it may have been edited meanwhile.
fn write_found(config: &Path, to: &Destination, apps: &[AppCalibration]) -> anyhow::Result<()> {
    let now = Located::read(config)?;
    let keys: Vec<_> = apps.iter().map(|found| (found.name.clone(), found.keys())).collect();
    let text = write::with_keys(now.text(), &keys)?;
    save::all(&[(to, text.into_bytes())])
}

/// The apps to calibrate, checked before anything starts.
fn wanted<'a>(config: &'a Config, args: &CalibrateApps) -> anyhow::Result<Vec<&'a AppSection>> {
    if let Some(name) =
        args.app.iter().find(|name| config.apps.iter().all(|app| app.name != **name))
    {
        return Err(UsageError(format!("--app {name}: the config has no such app")).into());
    }
    if args.trial.0 < 200_000_000 {
        return Err(
            UsageError(format!("--trial {}: too short, write 200ms or more", args.trial)).into()
        );
    }
    let is_wanted = |app: &&AppSection| args.app.is_empty() || args.app.contains(&app.name);
    let wanted: Vec<_> = config.apps.iter().filter(is_wanted).collect();
    for app in wanted.iter().filter(|app| app.class == Class::LatencyCritical) {
        load_of(config, app)?;
    }
    for app in &wanted {
        check_alone(config, app)?;
    }
    Ok(wanted)
}

/// Checks that an app can be measured alone, so that the measurements of others are not lost.
fn check_alone(config: &Config, app: &AppSection) -> anyhow::Result<()> {
    if app.class == Class::BestEffort && app.start.is_none() {
        let name = &app.name;
        let what = format!(
            "`{name}` is not started by Lull, which cannot measure its progress alone: name the \
             other apps by --app"
        );
        return Err(UsageError(what).into());
    }
    Agent::new(alone(config, app)).check()
}

/// Returns the load of a latency-critical app as arguments of `lull load`.
fn load_of(config: &Config, app: &AppSection) -> anyhow::Result<Box<LoadArgs>> {
    let Some(load) = config.loads.iter().find(|load| load.app == app.name) else {
        let message = format!("`{}` has no [[load]], so nothing says how to load it", app.name);
        return Err(config.source.error("load", message).into());
    };
    let words = load.arguments();
    let parsed = Cli::try_parse_from(words.iter().map(String::as_str));
    match parsed.map(|cli| cli.command) {
        Ok(Command::Load(args)) => Ok(args),
        Ok(_) => bail!("`lull load` is another command"),
        Err(error) => Err(config.source.error("load", error.to_string()).into()),
    }
}

/// A calibration under way.
struct Bench<'a> {
    args: &'a CalibrateApps,
    stop: Arc<AtomicBool>,
    begun: Instant,
    bar: ProgressBar,
    /// When this app's time is over.
    until: Nanos,
    /// The records of its runs.
    records: RefCell<Vec<PathBuf>>,
}

impl Bench<'_> {
    fn elapsed(&self) -> Nanos {
        Nanos::from_secs_f64(self.begun.elapsed().as_secs_f64())
    }

    fn calibrate(&self, config: &Config, app: &AppSection) -> anyhow::Result<AppCalibration> {
        self.bar.set_message(format!("{}, starting", visible_line(&app.name)));
        let is_critical = app.class == Class::LatencyCritical;
        let say = |text: &str| self.bar.suspend(|| say::notice(text));
        let agent = Agent::new(alone(config, app)).stop(stop_request()?).notify(&say);
        let mut session = agent.start()?;
        let found = match is_critical {
            true => self.critical(config, app, &mut session),
            false => Ok(best_effort(&session)),
        };
        let ended = found
            .as_ref()
            .map(|_| ())
            .map_err(|error| anyhow::Error::msg(lull_agent::error::describe(error)));
        self.records.borrow_mut().push(session.record().to_owned());
        session.close()?.report_notices(&ended, &say)?;
        found
    }

    fn critical(
        &self,
        config: &Config,
        app: &AppSection,
        session: &mut Session,
    ) -> anyhow::Result<AppCalibration> {
        let spec = session.apps()[0].clone();
        let Some((percentile, bound)) = spec.tail() else { bail!("`{}` has no bound", app.name) };
        let mut load = load::config(*load_of(config, app)?);
        load.push = None;
        let mut found = AppCalibration {
            name: app.name.clone(),
            percentile: Some(percentile.to_string()),
            bound_seconds: Some(bound.as_secs_f64()),
            ..AppCalibration::default()
        };
        let all = session.plant().machine().all_cores();
        let has_knob = session.plant().machine().capabilities.has(Capability::Cores);
        let fewest = if self.args.all_cores_only || !has_knob { all.len() } else { 1 };
        let rate = load.rate.as_ref().context("a config's load has a rate")?;
        let mut first_per_s = rate.schedule()?.peak() / 4.0;
        for count in (fewest..=all.len()).rev() {
            let cores: CoreSet = all.iter().take(count).collect();
            self.give(session, &cores, has_knob)?;
            let curve = self.curve(app, &mut load, count, first_per_s)?;
            let part = Cores::from_curve(count, curve, bound);
            first_per_s = part.knee.map_or(first_per_s, |knee| knee.rate_per_s / 4.0);
            if !part.curve.is_complete {
                let why =
                    format!("with {count} cores the search was cut short: allow more --budget");
                found.notes.push(why);
            }
            found.cores.push(part);
            if self.elapsed() >= self.until {
                break;
            }
        }
        self.give(session, &all, has_knob)?;
        found.ideal_seconds = self.ideal(&mut load, &found)?.map(Nanos::as_secs_f64);
        found.judge(bound);
        Ok(found)
    }

    /// The app gets these cores; an epoch passes with them.
    fn give(&self, session: &mut Session, cores: &CoreSet, has_knob: bool) -> anyhow::Result<()> {
        if has_knob {
            session.switch("calibrate", Box::new(Pinned(cores.clone())));
            session.turn("calibrate")?;
        }
        // Load is measured for minutes before the next epoch.
        Ok(session.hold()?)
    }

    fn curve(
        &self,
        app: &AppSection,
        load: &mut LoadConfig,
        cores: usize,
        first_per_s: f64,
    ) -> anyhow::Result<LoadCurve> {
        let percentile = app.spec().tail().map(|(percentile, _)| percentile);
        let percentile = percentile.context("checked with the config")?;
        let mut measure = |rate_per_s: f64| -> anyhow::Result<Option<LoadTrial>> {
            if self.elapsed() >= self.until {
                return Ok(None);
            }
            self.bar.set_position(self.elapsed().as_secs_f64() as u64);
            let name = visible_line(&app.name);
            let what = format!("{name}, {cores} cores, {}/s", number(rate_per_s));
            self.bar.set_message(what);
            let (latency, answered) = self.trial(load, rate_per_s, self.args.trial)?;
            Ok(Some(LoadTrial { rate_per_s, tail: latency.quantile(percentile), answered }))
        };
        find_curve(first_per_s.max(1.0), &mut measure)
    }

    /// Runs one trial at one load; returns the latencies and the share of requests answered.
    fn trial(
        &self,
        load: &mut LoadConfig,
        rate_per_s: f64,
        length: Nanos,
    ) -> anyhow::Result<(Latency, f64)> {
        load.rate = Some(Rate::constant(rate_per_s));
        load.duration = Some(length);
        load.warmup = length.scale(SETTLE);
        let report = run_watched(load, &self.stop, |_, _| {})?;
        // Keys are stored once; the server keeps them.
        load.preload = false;
        if self.stop.load(Ordering::Relaxed) {
            bail!("stopped before the end; the config is as it was");
        }
        let answered =
            report.completed_requests_per_second / report.offered_requests_per_second.max(1e-9);
        Ok((Latency::from_base64(&report.histogram)?, answered))
    }

    /// The tail at ease with all cores, over a trial of twice the length.
    fn ideal(
        &self,
        load: &mut LoadConfig,
        found: &AppCalibration,
    ) -> anyhow::Result<Option<Nanos>> {
        let knee = found.cores.first().and_then(|all| all.knee);
        let Some(knee) = knee else { return Ok(None) };
        let percentile = found.percentile.as_deref().unwrap_or("p95").parse()?;
        let (latency, _) = self.trial(load, EASE * knee.rate_per_s, self.args.trial * 2)?;
        Ok(latency.quantile(percentile))
    }
}

/// Returns a config of this app alone under `unmanaged`, which at its start measures no
/// more than the solo progress of a best-effort app. Its errors name the app's key in the file.
fn alone(config: &Config, app: &AppSection) -> Config {
    let mut alone = config.under("unmanaged");
    if let Some(index) = config.apps.iter().position(|one| one.name == app.name) {
        alone.source = alone.source.section_at("app[0]", &app.entry(index));
    }
    let mut app = app.clone();
    app.ideal = None;
    let measured = (app.class == Class::BestEffort).then_some(MeasureWord::Measure);
    app.solo = measured.map(Reference::Measure);
    alone.apps = vec![app];
    alone.loads.clear();
    alone
}

fn best_effort(session: &Session) -> AppCalibration {
    let spec = &session.apps()[0];
    AppCalibration {
        name: spec.name.clone(),
        solo_per_s: spec.solo_per_s,
        ..AppCalibration::default()
    }
}

impl Cores {
    fn from_curve(cores: usize, curve: LoadCurve, bound: Nanos) -> Self {
        let (knee, jump) = (curve.chord_knee(), curve.jump_knee());
        Self { cores, knee, jump, within_bound: curve.within(bound), curve }
    }
}

impl AppCalibration {
    /// Adds notes on the objective.
    fn judge(&mut self, bound: Nanos) {
        let Some(ideal) = self.ideal_seconds.map(Nanos::from_secs_f64) else {
            self.notes.push("no knee was found, so no ideal was measured".to_owned());
            return;
        };
        if ideal > bound {
            self.notes.push(format!(
                "`{}` takes {ideal:.2} alone at a fifth of its knee, above its bound {bound}: no \
                 policy can meet it; raise the bound (its `ideal` was not written)",
                self.name
            ));
        }
    }

    /// Returns the keys for the config.
    fn keys(&self) -> Keys {
        let bound = self.bound_seconds.unwrap_or(f64::INFINITY);
        let ideal = self.ideal_seconds.filter(|ideal| *ideal <= bound);
        let all = self.cores.first();
        let knee = all.and_then(|all| all.knee).map(|knee| knee.rate_per_s);
        let within = all.and_then(|all| all.within_bound).map(|within| within.rate_per_s);
        // A knee above the bound is load that cannot be served.
        let max_load = knee.map(|knee| within.map_or(knee, |within| within.min(knee)));
        Keys { ideal: ideal.map(Nanos::from_secs_f64), max_load, solo: self.solo_per_s }
    }
}

/// Gives the app these cores.
struct Pinned(CoreSet);

impl Policy for Pinned {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        let mut plan = Plan::keep();
        plan.set(Setting::Cores(APP, self.0.clone()), Reason::Fixed);
        plan
    }
}

fn print(report: &Report) {
    let point = |knee: Option<LoadKnee>| match knee {
        Some(knee) => format!("{}/s at {:.2}", number(knee.rate_per_s), knee.tail),
        None => "-".to_owned(),
    };
    for found in &report.apps {
        if let Some(solo) = found.solo_per_s {
            println!("{}: {} a second alone", found.name, number(solo));
        }
        if !found.cores.is_empty() {
            let percentile = found.percentile.as_deref().unwrap_or_default();
            let ideal = found.ideal_seconds.map(Nanos::from_secs_f64);
            let ideal = ideal.map_or_else(|| "not measured".to_owned(), |it| format!("{it:.2}"));
            println!("{}: ideal {percentile} {ideal}", found.name);
            let rows = found.cores.iter().map(|one| {
                let cells = [one.knee, one.jump, one.within_bound].map(point);
                [one.cores.to_string()].into_iter().chain(cells).collect()
            });
            let header = ["cores", "knee", "before a jump", "most within the bound"];
            println!("{}", table(&header, rows));
        }
        for note in &found.notes {
            println!("  {note}");
        }
        println!();
    }
    match &report.wrote {
        Some(file) => println!("written: {file}"),
        None => println!("nothing was written"),
    }
}
