//! `lull reload`: a running agent takes over its changed config.
//!
//! The agent is signalled by SIGHUP and leaves its answer in its state directory. It announces
//! there that it takes over configs: SIGHUP ends everything else that can have a state directory,
//! such as a search, a proof, or a program that embeds the agent.

use crate::cli::ReloadArgs;
use anyhow::{Context, bail};
use lull_host::Roots;
use lull_host::apps::ProcessId;
use lull_host::guard::{StateDir, running_agent};
use lull_host::own_directory::replace_file;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// The reply of an agent to the last request to reload its config.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Its process, with its start: the file outlives the agent, and a later process can have the
    /// same number. In a container every agent is process 1.
    agent: Option<ProcessId>,
    /// How many times the config was to be read again.
    number: u64,
    /// Whether the config in the file is in force now.
    done: bool,
    /// The changes, or the reason why nothing changed.
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

    /// Announces that this process takes over a changed config.
    pub(super) fn announce(state: &Path) -> std::io::Result<()> {
        Self::read(state).unwrap_or_default().write(state)
    }

    /// Leaves the outcome of a reload for the command that requested it.
    pub(super) fn leave(state: &Path, outcome: &Result<String, String>) -> std::io::Result<()> {
        let number = Self::read(state).map_or(0, |last| last.number) + 1;
        let text = outcome.as_ref().unwrap_or_else(|why| why).clone();
        Self { agent: None, number, done: outcome.is_ok(), text }.write(state)
    }

    /// Writes it as this process's.
    fn write(self, state: &Path) -> std::io::Result<()> {
        let answer = Self { agent: Some(ProcessId::own(&Roots::default())?), ..self };
        // A reader never sees half an answer.
        let new = state.join("reload.json.new");
        replace_file(&new)?.write_all(&serde_json::to_vec(&answer)?)?;
        std::fs::rename(new, Self::file(state))
    }

    /// Whether the process that has this number now wrote it.
    fn is_of(&self, pid: i32) -> bool {
        let is_same =
            |agent: ProcessId| agent.pid == pid && agent.facts(&Roots::default()).is_some();
        self.agent.is_some_and(is_same)
    }
}

pub(crate) fn run(args: &ReloadArgs) -> anyhow::Result<()> {
    let path = StateDir::path_of(args.state.as_deref())?;
    let none = || format!("no agent runs with the state directory {}", path.display());
    if path.try_exists().is_ok_and(|exists| !exists) {
        bail!(none());
    }
    let place = StateDir::locate(args.state.as_deref())?;
    let path = place.path();
    let agent = running_agent(&place)?.with_context(none)?;
    let before = Answer::read(path).unwrap_or_default();
    if !before.is_of(agent) {
        bail!(
            "process {agent}, which has the state directory {}, does not reload its config: only \
             `lull run` does, without --prove and once its apps have started",
            path.display()
        );
    }
    let pid = Pid::from_raw(agent).with_context(none)?;
    kill_process(pid, Signal::HUP)
        .with_context(|| format!("cannot signal the agent, process {agent}"))?;
    let begun = Instant::now();
    loop {
        match Answer::read(path).filter(|answer| answer.number > before.number) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn only_the_owner_of_the_agent_can_read_an_answer() {
        let place = tempfile::tempdir().unwrap();
        Answer::leave(place.path(), &Err("lull.toml:7: app[0].client".to_owned())).unwrap();
        let mode = std::fs::metadata(Answer::file(place.path())).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_answer_is_of_the_process_that_wrote_it_and_of_no_other_of_its_number() {
        let place = tempfile::tempdir().unwrap();
        Answer::announce(place.path()).unwrap();
        let answer = Answer::read(place.path()).unwrap();
        let agent = answer.agent.unwrap();
        assert!(answer.is_of(agent.pid) && !answer.is_of(1));
        let earlier = ProcessId { start_ticks: agent.start_ticks - 1, ..agent };
        assert!(!Answer { agent: Some(earlier), ..answer }.is_of(agent.pid));
        assert!(!Answer::default().is_of(agent.pid));
    }
}
