//! The agent's side of its guard: started before the first knob, kept alive.

use super::heartbeat::{self, Patience};
use super::ledger::Ledger;
use super::process::{ARMED, GuardArgs, GuardError};
use crate::service::{self, Service};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a guard may take to get ready: in an emulated machine beside other work it has taken
/// more than 10 s. It is shorter than `WatchdogSec` of the unit.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a guard may take to end after a clean close.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);
/// Shortest time between two usual beats in a row: each takes three system calls.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// The command of a guard: a program and the arguments before the guard's own.
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

/// A running guard. Clones share it. Dropping it leaves the guard at its work.
#[derive(Debug, Clone)]
pub struct GuardHandle {
    shared: Arc<Mutex<Guard>>,
}

#[derive(Debug)]
struct Guard {
    command: GuardCommand,
    args: GuardArgs,
    child: Child,
    /// When the last beat was sent, if it was a usual one.
    usual: Option<Instant>,
    /// How the last guard was lost that was replaced since the last [`GuardHandle::poll`].
    ended: Option<ExitStatus>,
    service: Service,
}

/// How a guard was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardState {
    /// The guard runs.
    Alive,
    /// The guard had ended with this status, or was stopped by this signal and was killed, and a
    /// new one runs.
    Respawned(ExitStatus),
}

/// Starts the guard of a ledger, and waits until nothing can be lost any more.
///
/// # Errors
/// [`GuardError`] if it does not get ready; no knob may be written then.
pub fn spawn(command: GuardCommand, ledger: &Ledger) -> Result<GuardHandle, GuardError> {
    let args = GuardArgs { ledger: ledger.path().to_owned(), agent: ledger.agent() };
    let child = start(&command, &args)?;
    let service = Service::from_environment();
    let guard = Guard { command, args, child, usual: None, ended: None, service };
    Ok(GuardHandle { shared: Arc::new(Mutex::new(guard)) })
}

impl GuardHandle {
    /// Reports to the guard and the service manager that the agent works, and starts a new guard
    /// if this one has ended or is stopped. To be called before knobs are written, and at least
    /// every two seconds: the guard kills an agent whose beats stop.
    ///
    /// # Errors
    /// [`GuardError`] if the guard has ended and no new one can be started. Old values
    /// are safe on disk then, but only the next start would restore them: no knob may be
    /// written.
    pub fn beat(&self, patience: Patience) -> Result<(), GuardError> {
        self.lock().beat(patience)
    }

    /// As [`GuardHandle::beat`] with usual patience, for a loop that waits: the call does nothing
    /// if the last beat was a usual one and is less than a tenth of a second old.
    ///
    /// # Errors
    /// As [`GuardHandle::beat`].
    pub fn beat_in_wait(&self) -> Result<(), GuardError> {
        let mut guard = self.lock();
        match guard.usual {
            Some(last) if last.elapsed() < BEAT_MIN => Ok(()),
            _ => guard.beat(Patience::Usual),
        }
    }

    /// Looks after the guard, and returns whether it was replaced since the last call; to be
    /// called each epoch.
    ///
    /// # Errors
    /// As [`GuardHandle::beat`].
    pub fn poll(&mut self) -> Result<GuardState, GuardError> {
        let mut guard = self.lock();
        guard.replace_if_lost()?;
        Ok(guard.ended.take().map_or(GuardState::Alive, GuardState::Respawned))
    }

    /// The guard's process number.
    pub fn pid(&self) -> u32 {
        self.lock().child.id()
    }

    /// Sends lines to the service manager, such as `READY=1`.
    pub fn report(&self, lines: &str) {
        self.lock().service.report(lines);
    }

    /// Waits for the guard to end, once the ledger has been closed.
    ///
    /// # Errors
    /// [`GuardError`] if it does not end; it will with the agent.
    pub fn finish(self) -> Result<ExitStatus, GuardError> {
        let mut guard = self.lock();
        drop(guard.child.stdin.take());
        let begun = Instant::now();
        loop {
            match guard.status() {
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

    fn lock(&self) -> MutexGuard<'_, Guard> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guard {
    fn beat(&mut self, patience: Patience) -> Result<(), GuardError> {
        self.replace_if_lost()?;
        if let Some(pipe) = &self.child.stdin {
            heartbeat::send(pipe, patience);
        }
        self.usual = (patience == Patience::Usual).then(Instant::now);
        self.service.ping();
        Ok(())
    }

    fn replace_if_lost(&mut self) -> Result<(), GuardError> {
        let failed = |source| GuardError::Failed { doing: "be looked after", source };
        if let Some(status) = self.status().map_err(failed)? {
            self.usual = None;
            self.child = start(&self.command, &self.args)?;
            self.ended = Some(status);
        }
        Ok(())
    }

    /// How the guard has ended, or by which signal it was stopped; `None` while it runs.
    ///
    /// A stopped guard does not notice the death of its agent. It is killed and not continued,
    /// because a new one is ready for certain.
    fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        if !has_changed(&self.child)? {
            return Ok(None);
        }
        let Some(stopped) = stop_of(&self.child)? else { return self.child.try_wait() };
        self.child.kill()?;
        self.child.wait()?;
        Ok(Some(stopped))
    }
}

/// Whether a child is stopped or has ended, which is still to be waited for or was waited for.
fn has_changed(child: &Child) -> io::Result<bool> {
    let any = WaitIdOptions::STOPPED | WaitIdOptions::EXITED;
    let options = any | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        Err(Errno::CHILD) => Ok(true),
        found => Ok(found?.is_some()),
    }
}

/// The status of a child that a signal has stopped; `None` if it runs or has ended.
fn stop_of(child: &Child) -> io::Result<Option<ExitStatus>> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let found = match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        // Its end was waited for already.
        Err(Errno::CHILD) => None,
        found => found?,
    };
    let signal = found.and_then(|status| status.stopping_signal());
    // The encoding of a stop in wait(2).
    Ok(signal.map(|signal| ExitStatus::from_raw((signal << 8) | 0x7f)))
}

fn start(command: &GuardCommand, args: &GuardArgs) -> Result<Child, GuardError> {
    let failed = |source| GuardError::Failed { doing: "be started", source };
    let mut program = Command::new(&command.program);
    for variable in service::VARIABLES {
        program.env_remove(variable);
    }
    let mut child = program
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
        line if line == ARMED => {
            let pipe = child.stdin.as_ref().expect("standard input was piped above");
            heartbeat::never_block(pipe).map_err(failed)?;
            Ok(child)
        }
        line => {
            let end = child.kill().and_then(|()| child.wait()).map_err(failed)?;
            let printed = if line.is_empty() { format!("nothing, {end}") } else { line };
            Err(GuardError::NotReady { waited: READY_TIMEOUT, output: printed })
        }
    }
}

/// Reads the guard's output until its first newline, its end, or the deadline.
fn first_line(mut output: ChildStdout) -> io::Result<String> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let mut printed = Vec::new();
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
        printed.extend(&bytes[..length]);
        if length == 0 || printed.contains(&b'\n') {
            return Ok(String::from_utf8_lossy(&printed)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned());
        }
    }
}
