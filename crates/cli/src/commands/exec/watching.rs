//! An agent's looks at a server: what is seen is added up, and an admission controller decides.

use super::UsageError;
use super::admission::live_admission;
use super::result::Seen;
use crate::cli::GateArgs;
use crate::say;
use lull_agent::admission::LiveAdmission;
use lull_host::oncall::Runtime;
use lull_oncall::{Mode, Settings};
use std::sync::Arc;
use std::time::Instant;

/// What the gate does until the first look: one that an admission controller is to close is open.
pub(in crate::commands) fn at_first(args: &GateArgs, settings: Settings) -> Settings {
    let mode = if args.controller().is_some() { Mode::Stats } else { settings.mode };
    Settings { mode, ..settings }
}

/// What was seen so far, and who decides on the gate.
pub(in crate::commands) struct Watching {
    seen: Seen,
    admission: Option<LiveAdmission>,
    begun: Instant,
    json: bool,
}

impl Watching {
    /// Begins to look; `closed` is the gate as an admission controller closes it, and `name` what
    /// the server is called unless the options say it.
    ///
    /// # Errors
    /// An admission controller that is not there, or does not fit.
    pub(in crate::commands) fn new(
        args: &GateArgs,
        name: &str,
        runtime: &Arc<Runtime>,
        closed: Settings,
    ) -> Result<Self, UsageError> {
        let admission = live_admission(args, runtime, closed)?;
        let seen = Seen::new(args.name.as_deref().unwrap_or(name), runtime);
        Ok(Self { seen, admission, begun: Instant::now(), json: args.json })
    }

    /// Looks, if it is time to; when it will be next.
    pub(in crate::commands) fn attend(&mut self, runtime: &Runtime) -> Instant {
        let reading = self.seen.attend(runtime);
        let Some(admission) = &mut self.admission else { return reading };
        if let Some(gate) = admission.attend() {
            say::notice(format_args!("{}: {gate}", admission.name()));
        }
        admission.next().min(reading)
    }

    /// Prints what was seen.
    pub(in crate::commands) fn finish(self, runtime: &Runtime) -> anyhow::Result<()> {
        let result = self.seen.finish(runtime, self.begun.elapsed());
        if self.json {
            return crate::commands::print_json(&result);
        }
        say::line(&result);
        Ok(())
    }
}
