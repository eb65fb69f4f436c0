//! SIGHUP during `lull run`: the config is read again.

use crate::cli::RunArgs;
use crate::commands::reload::Answer;
use crate::say;
use lull_agent::config::Config;
use lull_agent::session::Session;
use lull_host::guard::StateDir;
use lull_host::plant::Stop;
use std::io::IsTerminal;
use std::path::Path;

/// Reads the config again after a SIGHUP.
pub(super) struct Reloads {
    stop: Stop,
    had_terminal: bool,
}

/// The meaning of a SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hangup {
    /// No signal arrived.
    None,
    /// The config was read again, and is in force or was refused.
    Reloaded,
    /// The terminal is gone.
    Ends,
}

impl Reloads {
    pub(super) fn new(stop: Stop) -> Self {
        Self { stop, had_terminal: std::io::stdin().is_terminal() }
    }

    /// Announces to `lull reload` that this run takes over configs.
    pub(super) fn announce(session: &Session) {
        if let Err(why) = in_state(session, Answer::announce) {
            say::notice(format!("`lull reload` is refused in this run: {why}"));
        }
    }

    /// Handles a SIGHUP that has arrived since the last call. One that means a closed terminal ends
    /// the run.
    pub(super) fn handle_hangup(&self, session: &mut Session, args: &RunArgs) -> Hangup {
        if !self.stop.take_nudge() {
            return Hangup::None;
        }
        if self.had_terminal && !std::io::stdin().is_terminal() {
            return Hangup::Ends;
        }
        let outcome = reload(session, args);
        let left = in_state(session, |state| Answer::leave(state, &outcome));
        say::notice(outcome.unwrap_or_else(|why| format!("not reloaded: {why}")));
        if let Err(why) = left {
            say::notice(format!("the answer to `lull reload` cannot be written: {why}"));
        }
        Hangup::Reloaded
    }
}

/// Writes into the state directory of a run.
fn in_state(
    session: &Session,
    write: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<(), String> {
    let place = StateDir::locate(session.config().agent.state.as_deref());
    let place = place.map_err(|error| error.to_string())?;
    write(place.path()).map_err(|error| error.to_string())
}

fn reload(session: &mut Session, args: &RunArgs) -> Result<String, String> {
    let mut config = Config::load(&args.config).map_err(|error| error.to_string())?;
    super::take_arguments(&mut config, args);
    let changed = session.reload(config).map_err(|error| error.to_string())?;
    Ok(match changed.as_slice() {
        [] => "nothing has changed in the config".to_owned(),
        keys => format!("reloaded: {}", keys.join(", ")),
    })
}
