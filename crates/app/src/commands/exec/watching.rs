//! An agent's looks at a server: what is seen is added up, and a regulator decides.

use super::UsageError;
use super::regulator::regulated;
use super::result::Seen;
use crate::cli::GateArgs;
use crate::regulated::Regulated;
use crate::say;
use lull_host::oncall::Runtime;
use lull_oncall::{Mode, Settings};
use std::sync::Arc;
use std::time::Instant;

/// What the gate does until the first look: one that a regulator is to close is open.
pub(in crate::commands) fn at_first(args: &GateArgs, settings: Settings) -> Settings {
    let mode = if args.regulator.is_some() { Mode::Stats } else { settings.mode };
    Settings { mode, ..settings }
}

/// What was seen so far, and who decides on the gate.
pub(in crate::commands) struct Watching {
    seen: Seen,
    regulated: Option<Regulated>,
    begun: Instant,
    json: bool,
}

impl Watching {
    /// Begins to look; `closed` is the gate as a regulator closes it, and `name` what
    /// the server is called unless the options say it.
    ///
    /// # Errors
    /// A regulator that is not there, or does not fit.
    pub(in crate::commands) fn new(
        args: &GateArgs,
        name: &str,
        runtime: &Arc<Runtime>,
        closed: Settings,
    ) -> Result<Self, UsageError> {
        let regulated = regulated(args, runtime, closed)?;
        let seen = Seen::new(args.name.as_deref().unwrap_or(name), runtime);
        Ok(Self { seen, regulated, begun: Instant::now(), json: args.json })
    }

    /// Looks, if it is time to; when it will be next.
    pub(in crate::commands) fn attend(&mut self, runtime: &Runtime) -> Instant {
        let reading = self.seen.attend(runtime);
        let Some(regulated) = &mut self.regulated else { return reading };
        if let Some(gate) = regulated.attend() {
            say::told(format_args!("{}: {gate}", regulated.name()));
        }
        regulated.next().min(reading)
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
