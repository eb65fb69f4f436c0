//! `--area`: the cores of the threads that serve a class of clients.

use super::UsageError;
use super::admission::table;
use super::gate::inline_table;
use crate::cli::{ExecArgs, GateArgs};
use crate::say;
use lull_agent::areas::{Area, AreaError, AreaPlan, AreasSummary, LiveAreas, shared_threads};
use lull_host::oncall::Runtime;
use std::sync::Arc;

/// The areas of a server while it runs.
pub(super) struct ServerAreas(LiveAreas);

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
        let live = LiveAreas::start(&plan, runtime).map_err(|error| match &error {
            AreaError::Area(at, message) => wrong(&args.areas[*at], message),
            AreaError::Policy(_) | AreaError::Other(_) => UsageError(format!("--area: {error}")),
        })?;
        Ok(Some(Self(live)))
    }

    /// Prints the changes.
    pub(super) fn poll(&mut self) {
        if let Some(change) = self.0.take_change() {
            say::notice(format_args!("{}: {change}", self.0.name()));
        }
        self.0.take_pool_report().into_iter().for_each(say::notice);
    }

    /// Restores the threads' own cores, and returns the counts.
    pub(super) fn finish(self) -> AreasSummary {
        let summary = self.0.finish();
        summary.refusals().into_iter().for_each(say::notice);
        summary
    }
}

/// Reads an area in the form of a config, an inline table in its argument.
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
pub(super) fn check(args: &ExecArgs) -> Result<(), UsageError> {
    if args.gate.areas.is_empty() {
        return Ok(());
    }
    let Some(reason) = shared_threads(&args.command) else { return Ok(()) };
    Err(UsageError(format!(
        "--area: {reason}, which are of several classes; servers with a thread or a process for \
         each connection can have areas: MariaDB, MySQL, PostgreSQL"
    )))
}
