//! `lull reload`: a running agent takes over its changed config.
//!
//! The agent is signalled by SIGHUP and leaves its answer in its state directory.

use crate::cli::ReloadArgs;
use anyhow::{Context, bail};
use lull_host::guard::{StateDir, running_agent};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

/// The agent's reply to a request to reload.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// How many times the config was to be read again.
    number: u64,
    /// Whether the config in the file is in force now.
    done: bool,
    /// What has changed, or why nothing has.
    text: String,
}

impl Answer {
    fn file(state: &Path) -> PathBuf {
        state.join("reload.json")
    }

    /// The last answer in a state directory.
    fn read(state: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(Self::file(state)).ok()?).ok()
    }

    /// Leaves the outcome of a reload for the command that requested it.
    pub(super) fn leave(state: &Path, outcome: &Result<String, String>) -> std::io::Result<()> {
        let number = Self::read(state).map_or(0, |last| last.number) + 1;
        let text = outcome.as_ref().unwrap_or_else(|why| why).clone();
        let answer = Self { number, done: outcome.is_ok(), text };
        // A reader never sees half an answer.
        let new = state.join("reload.json.new");
        std::fs::write(&new, serde_json::to_string(&answer)?)?;
        std::fs::rename(new, Self::file(state))
    }
}

pub(crate) fn run(args: &ReloadArgs) -> anyhow::Result<()> {
    let place = StateDir::locate(args.state.as_deref())?;
    let path = place.path();
    let none = || format!("no agent runs with the state directory {}", path.display());
    let agent = running_agent(&place)?.with_context(none)?;
    let before = Answer::read(path).map_or(0, |last| last.number);
    let pid = Pid::from_raw(agent).with_context(none)?;
    kill_process(pid, Signal::HUP)
        .with_context(|| format!("cannot signal the agent, process {agent}"))?;
    let begun = Instant::now();
    loop {
        match Answer::read(path).filter(|answer| answer.number > before) {
            Some(answer) if answer.done => {
                println!("{}", answer.text);
                return Ok(());
            }
            Some(answer) => bail!("{}", answer.text),
            None if running_agent(&place)? != Some(agent) => {
                bail!("the agent ended before it answered")
            }
            None if begun.elapsed() >= PATIENCE => {
                bail!("the agent, process {agent}, has not answered for {} s", PATIENCE.as_secs())
            }
            None => std::thread::sleep(PAUSE),
        }
    }
}
