//! Observation of a server: statistics are summed, and an admission controller decides.

use super::admission::live_admission;
use super::areas::ServerAreas;
use super::dispatch::DispatchResult;
use super::result::ServerStatistics;
use crate::cli::GateArgs;
use crate::say;
use lull_agent::admission::LiveAdmission;
use lull_host::oncall::{Runtime, describe_bypass};
use lull_oncall::{Mode, Settings};
use std::sync::Arc;
use std::time::Instant;

/// Returns the settings of the gate until the first observation: open if an admission
/// controller decides on it later.
pub(in crate::commands) fn at_first(args: &GateArgs, settings: Settings) -> Settings {
    let mode = if args.controller().is_some() { Mode::Stats } else { settings.mode };
    Settings { mode, ..settings }
}

/// The statistics so far, and the admission controller of the gate.
pub(in crate::commands) struct Watching {
    seen: ServerStatistics,
    admission: Option<LiveAdmission>,
    areas: Option<ServerAreas>,
    /// The time since which an operator bypasses a gate that has no admission controller.
    bypassed_since_s: Option<u64>,
    /// Whether the gate may close, and no connection was found that it does not apply to.
    may_gate: bool,
    begun: Instant,
    json: bool,
    dispatch: Option<DispatchResult>,
}

impl Watching {
    /// Starts the observation. `closed` are the settings with which an admission controller
    /// closes the gate; `name` names the server unless the options do.
    ///
    /// # Errors
    /// If the admission controller does not exist or does not fit the gate; if areas do not; the
    /// kernel's error.
    pub(in crate::commands) fn new(
        args: &GateArgs,
        name: &str,
        runtime: &Arc<Runtime>,
        closed: Settings,
    ) -> anyhow::Result<Self> {
        let admission = live_admission(args, runtime, closed)?;
        let areas = ServerAreas::start(args, runtime)?;
        let seen = ServerStatistics::new(args.name.as_deref().unwrap_or(name), runtime)?;
        let may_gate = closed.mode.gates();
        let (begun, json) = (Instant::now(), args.json);
        let (bypassed_since_s, dispatch) = (None, None);
        Ok(Self { seen, admission, areas, bypassed_since_s, may_gate, begun, json, dispatch })
    }

    /// Adds what the dispatching of its requests has counted to the results.
    pub(super) fn set_dispatch(&mut self, dispatch: Option<DispatchResult>) {
        self.dispatch = dispatch;
    }

    /// Observes the server if an observation is due; returns the time of the next one.
    pub(in crate::commands) fn poll(&mut self, runtime: &Runtime) -> Instant {
        let reading = self.seen.poll(runtime);
        if let Some(areas) = &mut self.areas {
            areas.poll();
        }
        if self.may_gate && self.seen.has_shared() {
            self.may_gate = false;
            say::notice(
                "a thread of the server serves many connections by an event loop, and all of them \
                 would wait with it: these connections are watched and not gated",
            );
        }
        let Some(admission) = &mut self.admission else {
            self.report_bypass(runtime);
            return reading;
        };
        if let Some(gate) = admission.poll() {
            say::notice(format_args!("{}: {gate}", admission.name()));
        }
        admission.next().min(reading)
    }

    /// Reports that an operator has bypassed the gate, or ended that.
    fn report_bypass(&mut self, runtime: &Runtime) {
        let now = runtime.bypassed_since_s();
        let before = std::mem::replace(&mut self.bypassed_since_s, now);
        match now {
            Some(since_s) if before != now => {
                say::notice(format_args!("the gate is {}", describe_bypass(since_s)));
            }
            None if before.is_some() => say::notice("the gate is no longer bypassed"),
            _ => {}
        }
    }

    /// Prints the statistics.
    pub(in crate::commands) fn finish(self, runtime: &Runtime) -> anyhow::Result<()> {
        let mut result = self.seen.finish(runtime, self.begun.elapsed());
        result.dispatch = self.dispatch;
        result.areas = self.areas.map(ServerAreas::finish);
        if self.json {
            return crate::commands::print_json(&result);
        }
        say::line(&result);
        Ok(())
    }
}
