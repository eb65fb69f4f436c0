//! `--area`: the cores of the threads that serve a class of clients.

use super::UsageError;
use super::admission::table;
use super::dispatch::shares_threads;
use super::gate::inline_table;
use crate::cli::{ExecArgs, GateArgs};
use crate::say;
use lull_agent::areas::{Area, AreaPlan, AreasSeen, ClassArea, LiveAreas};
use lull_control::CoreSet;
use lull_host::oncall::Runtime;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt;
use std::sync::Arc;

/// The areas of a server while it runs.
pub(super) struct ServerAreas {
    live: LiveAreas,
    has_reported_pool: bool,
}

/// The areas of a server in their printed form.
#[derive(Debug, Serialize)]
pub(super) struct AreasResult {
    /// What decided on them: `fixed` or the policy.
    by: &'static str,
    moves: u64,
    refused: u64,
    /// Processes whose threads serve several connections each, and were not moved.
    pools: u64,
    classes: Vec<AreaResult>,
}

/// The area of a class: the last one.
#[derive(Debug, Serialize)]
struct AreaResult {
    client_class: String,
    cores: Option<CoreSet>,
    /// The most threads that were in it at a time.
    threads_most: usize,
}

impl ServerAreas {
    /// Starts to keep the areas that the options request, if any.
    ///
    /// # Errors
    /// If an area or a key is invalid, or does not fit the classes or the machine.
    pub(super) fn start(
        args: &GateArgs,
        runtime: &Arc<Runtime>,
    ) -> Result<Option<Self>, UsageError> {
        if args.areas.is_empty() {
            return Ok(None);
        }
        let areas = args.areas.iter().map(|text| read(text)).collect::<Result<Vec<Area>, _>>()?;
        let keys = table("--area-key", &args.area_keys)?;
        let plan = AreaPlan::new(&areas, keys)
            .map_err(|(at, message)| wrong(&args.areas[at], &message))?;
        let live = LiveAreas::start(&plan, runtime)
            .map_err(|message| UsageError(format!("--area: {message}")))?;
        Ok(Some(Self { live, has_reported_pool: false }))
    }

    /// Prints what has changed.
    pub(super) fn attend(&mut self) {
        if let Some(change) = self.live.take_change() {
            say::notice(format_args!("{}: {change}", self.live.name()));
        }
        if !self.has_reported_pool && self.live.seen().tally.pools > 0 {
            self.has_reported_pool = true;
            say::notice(
                "threads of the server serve several connections each: moving one would move other \
                 connections with it, so that threads of that process are in no area",
            );
        }
    }

    /// Gives threads their own cores back, and reports what was counted.
    pub(super) fn finish(self) -> AreasResult {
        let by = self.live.name();
        let AreasSeen { classes, tally } = self.live.stop();
        let refused = tally.refused + tally.foreign;
        if refused > 0 {
            say::notice(format_args!(
                "{refused} moves to areas were refused: those threads ran on their own cores"
            ));
        }
        let class = |ClassArea { client_class, cores, threads_most }: ClassArea| AreaResult {
            client_class,
            cores,
            threads_most,
        };
        let classes = classes.into_iter().map(class).collect();
        AreasResult { by, moves: tally.moves, refused, pools: tally.pools, classes }
    }
}

impl fmt::Display for AreasResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for AreaResult { client_class, cores, threads_most } in &self.classes {
            if let Some(cores) = cores {
                write!(out, "\n  area of {client_class} ({}): cores {cores}", self.by)?;
                write!(out, ", {threads_most} threads at most")?;
            }
        }
        Ok(())
    }
}

/// An area as a config would have it, an inline table in its argument.
fn read(text: &str) -> Result<Area, UsageError> {
    inline_table(text).map_err(|error: toml::de::Error| wrong(text, error.message()))
}

fn wrong(text: &str, message: &str) -> UsageError {
    UsageError(format!("--area {text}: {message}"))
}

/// Refuses servers of which it is known beforehand that a thread serves many connections.
///
/// # Errors
/// If the server is one.
pub(super) fn check(args: &ExecArgs, program: &OsStr) -> Result<(), UsageError> {
    if args.gate.areas.is_empty() {
        return Ok(());
    }
    let Some(reason) = shares_threads(args, program) else { return Ok(()) };
    Err(UsageError(format!(
        "--area: {reason}, which are of several classes; servers with a thread or a process for \
         each connection can have areas: MariaDB, MySQL, PostgreSQL"
    )))
}
