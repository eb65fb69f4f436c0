//! The agent's side of its guard: started before the first knob, kept alive.

use super::ledger::Ledger;
use super::process::{ARMED, GuardArgs, GuardError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a guard may take to get ready; a loaded machine is slow.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a guard may take to end after a clean close.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// How to start a guard: a program and what comes before the guard's own arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardCommand {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments.
    pub args: Vec<OsString>,
}

impl Default for GuardCommand {
    /// The running executable, even if its file was replaced since, as `guard`.
    fn default() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec!["guard".into()] }
    }
}

/// A running guard. Dropping it leaves the guard at its work.
#[derive(Debug)]
pub struct GuardHandle {
    command: GuardCommand,
    args: GuardArgs,
    child: Child,
}

/// How a guard was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardState {
    /// It runs.
    Alive,
    /// It had ended like this, and a new one runs.
    Respawned(ExitStatus),
}

/// Starts the guard of a ledger, and waits until nothing can be lost any more.
///
/// # Errors
/// [`GuardError`] if it does not get ready; no knob may be written then.
pub fn spawn(command: GuardCommand, ledger: &Ledger) -> Result<GuardHandle, GuardError> {
    let args = GuardArgs { ledger: ledger.path().to_owned(), agent: ledger.agent() };
    let child = start(&command, &args)?;
    Ok(GuardHandle { command, args, child })
}

impl GuardHandle {
    /// Looks after the guard; to be called each epoch.
    ///
    /// # Errors
    /// [`GuardError`] if it has ended and no new one can be started. Old values
    /// are safe on disk then, but only the next start would put them back.
    pub fn poll(&mut self) -> Result<GuardState, GuardError> {
        let failed = |source| GuardError::Failed { doing: "be looked after", source };
        let Some(status) = self.child.try_wait().map_err(failed)? else {
            return Ok(GuardState::Alive);
        };
        self.child = start(&self.command, &self.args)?;
        Ok(GuardState::Respawned(status))
    }

    /// The guard's process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the guard to end, once the ledger has been closed.
    ///
    /// # Errors
    /// [`GuardError`] if it does not end; it will with the agent.
    pub fn finish(mut self) -> Result<ExitStatus, GuardError> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if begun.elapsed() < END_TIMEOUT => std::thread::sleep(PAUSE),
                Ok(None) => {
                    let source = io::ErrorKind::TimedOut.into();
                    return Err(GuardError::Failed { doing: "end", source });
                }
                Err(source) => return Err(GuardError::Failed { doing: "be waited for", source }),
            }
        }
    }
}

fn start(command: &GuardCommand, args: &GuardArgs) -> Result<Child, GuardError> {
    let failed = |source| GuardError::Failed { doing: "be started", source };
    let mut child = Command::new(&command.program)
        .arg0("lull")
        .args(&command.args)
        .args(args.to_args())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    let output = child.stdout.take().expect("standard output was piped above");
    match first_line(output).map_err(failed)? {
        line if line == ARMED => Ok(child),
        line => {
            let end = child.kill().and_then(|()| child.wait()).map_err(failed)?;
            let said = if line.is_empty() { format!("nothing, {end}") } else { line };
            Err(GuardError::NotReady { waited: READY_TIMEOUT, output: said })
        }
    }
}

/// What the guard says until its first newline, its end, or the deadline.
fn first_line(mut output: ChildStdout) -> io::Result<String> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let ready = match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
            Ok(ready) => ready,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut bytes = [0; 256];
        let length = if ready == 0 { 0 } else { output.read(&mut bytes)? };
        said.extend(&bytes[..length]);
        if length == 0 || said.contains(&b'\n') {
            return Ok(String::from_utf8_lossy(&said)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned());
        }
    }
}
