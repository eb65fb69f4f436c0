//! `lull exec --dispatch`: the requests of an unmodified server on cores of several speeds.

use super::UsageError;
use super::objective::objectives;
use crate::cli::ExecArgs;
use crate::say;
use anyhow::Context;
use lull_agent::areas::shared_threads;
use lull_agent::located::Located;
use lull_control::dispatcher::Dispatcher;
use lull_control::{CoreSet, Machine, Objective};
use lull_host::dispatch::{Floor, Spent, UnmodifiedDispatch, UnmodifiedTally, UnmodifiedThread};
use lull_host::guard::GuardCommand;
use lull_host::oncall::Runtime;
use lull_host::{Roots, probe};
use lull_marks::{Config, ConfigError, CoreType};
use lull_measure::Nanos;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// The power of a busy core over that of one half as fast: EETL's table 4. It is for the
/// modelled energy of a dispatcher that weighs it.
const POWER_OF_TWICE_THE_SPEED: f64 = 6.8;

/// A dispatcher and its cores, before the server is started.
pub(in crate::commands) struct Dispatching {
    pub(in crate::commands) config: Config,
    pub(in crate::commands) floor: Floor,
    pub(in crate::commands) dispatcher: Box<dyn Dispatcher>,
}

impl Dispatching {
    /// Returns what `--dispatch` names: a file of docs/dispatch.md, or a dispatcher for the core
    /// types that the kernel knows.
    ///
    /// # Errors
    /// If the file or the dispatcher cannot be used, or the machine has no cores of two speeds.
    pub(super) fn new(args: &ExecArgs) -> anyhow::Result<Option<Self>> {
        let Some(name) = args.dispatch.as_deref() else { return Ok(None) };
        let path = Path::new(name);
        if name.contains('/') || path.extension().is_some_and(|it| it == "toml") {
            return Self::from_file(path).map(Some);
        }
        let config = named(name, &args.gate.objectives)?;
        let dispatching = Self::from_config(config).map_err(|error| {
            UsageError(format!("--dispatch {name}: {}: {}", error.key(), error.message()))
        })?;
        Ok(Some(dispatching))
    }

    /// Reads a file of docs/dispatch.md.
    ///
    /// # Errors
    /// If the file cannot be used, by its key.
    pub(in crate::commands) fn from_file(file: &Path) -> anyhow::Result<Self> {
        let located = Located::read(file)?;
        let wrong = |error: ConfigError| located.error(error.key(), error.message());
        Ok(Self::from_config(located.parse()?).map_err(wrong)?)
    }

    fn from_config(config: Config) -> Result<Self, ConfigError> {
        let floor = config.floor()?;
        let dispatcher = config.dispatcher(&floor.ladder)?;
        Ok(Self { config, floor, dispatcher })
    }

    /// Starts to dispatch a server that has just been started.
    ///
    /// # Errors
    /// If the machine refuses cores, frequencies or a thread.
    pub(super) fn start(self, server: u32, runtime: &Arc<Runtime>) -> anyhow::Result<Dispatched> {
        let Self { config, floor, dispatcher } = self;
        let kinds = floor.ladder.types().iter().map(|kind| kind.name.clone()).collect();
        let speeds = config.speeds(&floor, GuardCommand::default())?;
        let roots = Roots::default();
        let dispatch = UnmodifiedDispatch::new(floor, dispatcher, speeds, server, &roots)?;
        let thread = UnmodifiedThread::start(dispatch, Arc::clone(runtime))?;
        Ok(Dispatched { thread, kinds })
    }
}

/// Returns a config for a dispatcher by its name.
fn named(name: &str, written: &[String]) -> anyhow::Result<Config> {
    let tail = objectives(written)?.into_iter().find_map(|objective| match objective {
        Objective::Tail { percentile, bound } => Some((percentile, bound)),
        _ => None,
    });
    let Some((percentile, target)) = tail else {
        let what = format!("--dispatch {name}: needs a bound of latency: --objective p99=100ms");
        return Err(UsageError(what).into());
    };
    let machine = probe::machine(&Roots::default()).context("cannot read the cores")?;
    let core = core_types(&machine).ok_or_else(|| {
        UsageError(format!(
            "--dispatch {name}: the kernel lists cores of one speed only; write a file that names \
             slow and fast cores (docs/dispatch.md): --dispatch FILE.toml"
        ))
    })?;
    let mut dispatcher = toml::Table::new();
    dispatcher.insert("name".to_owned(), name.into());
    Ok(Config {
        percentile,
        target,
        abandon: Nanos::from_secs(60).max(Nanos(target.0.saturating_mul(10))),
        profile: Vec::new(),
        dispatcher,
        core,
        cores: None,
        guard: "lull".into(),
        state: None,
    })
}

/// Returns the core types of a machine, slowest first; `None` if all cores are of one speed.
fn core_types(machine: &Machine) -> Option<Vec<CoreType>> {
    let exponent = POWER_OF_TWICE_THE_SPEED.log2();
    let cores = |index: usize| -> CoreSet {
        let those = machine.cores.iter().filter(|core| core.core_type == index);
        those.map(|core| core.id).collect()
    };
    let kind = |(index, kind): (usize, &lull_control::CoreType)| CoreType {
        name: kind.name.clone(),
        speed: kind.speed,
        watts: kind.speed.powf(exponent),
        cores: Some(cores(index)),
        frequency: None,
    };
    let types: Vec<CoreType> = machine.core_types.iter().enumerate().map(kind).collect();
    (types.len() > 1).then_some(types)
}

/// A server whose requests are dispatched.
pub(super) struct Dispatched {
    thread: UnmodifiedThread,
    kinds: Vec<String>,
}

/// The result in its printed form.
#[derive(Debug, Serialize)]
pub(super) struct DispatchResult {
    requests: u64,
    /// Requests that began and ended between two readings of the page.
    brief: u64,
    moves: u64,
    abandoned: u64,
    /// Readings of requests that were left alone: their thread serves several connections.
    shared: u64,
    refused: u64,
    busy_seconds: Vec<(String, f64)>,
}

impl Dispatched {
    /// Prints pending notices.
    pub(super) fn poll(&self) {
        self.thread.take_notices().iter().for_each(say::notice);
    }

    /// Ends the dispatching, and returns the counts.
    pub(super) fn finish(self) -> Option<DispatchResult> {
        let kinds = self.kinds;
        let Some(counted) = self.thread.stop() else {
            say::notice("the dispatcher failed: requests ran where the kernel put them");
            return None;
        };
        let UnmodifiedTally { tally, brief, shared, foreign, refused } = counted;
        let Spent { busy_s } = tally.spent;
        let requests = tally.latency.count();
        say::notice(format_args!(
            "dispatched {requests} requests, {brief} of them too short to be moved; {} moves; core \
             time by type {busy_s:.2?} s",
            tally.moves
        ));
        if shared > 0 {
            say::notice(
                "threads of the server serve several connections each: moving a thread would move \
                 other requests with its own, so that such requests were not dispatched",
            );
        }
        if foreign + refused > 0 {
            say::notice(format_args!(
                "{} orders for threads or cores were refused: those requests ran where they were",
                foreign + refused
            ));
        }
        Some(DispatchResult {
            requests,
            brief,
            moves: tally.moves,
            abandoned: tally.abandoned,
            shared,
            refused: foreign + refused,
            busy_seconds: kinds.into_iter().zip(busy_s).collect(),
        })
    }
}

/// Refuses servers of which it is known beforehand that a thread serves many connections.
///
/// # Errors
/// If the server is one, or runs without the library.
pub(super) fn check(args: &ExecArgs) -> Result<(), UsageError> {
    let Some(name) = args.dispatch.as_deref() else { return Ok(()) };
    let Some(reason) = shared_threads(&args.command) else { return Ok(()) };
    Err(UsageError(format!(
        "--dispatch {name}: {reason}, and moving it would move other requests, too; servers with a \
         thread or a process for each connection can be dispatched: MariaDB, MySQL, PostgreSQL"
    )))
}
