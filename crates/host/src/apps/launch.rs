//! Starts an app, and reports immediately why it did not start.
//!
//! A started app gets a process group of its own, so that Ctrl-C in the
//! agent's terminal reaches the agent alone, which ends its apps in order. It
//! is written to the ledger as soon as it has a number: if the agent is
//! killed, its guard ends the app, because the app would run on without control.
//! An app that must outlive the agent is started by another program and attached.

use super::forks::Forks;
use super::identity::ProcessId;
use super::ready::{Endpoint, Ready};
use super::terminate::{GRACE, Group, MARK_VARIABLE, StartedTree, mark_of, terminate};
use crate::Roots;
use crate::guard::{Ledger, LedgerError, Original};
use crate::own_directory::replace_file;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How to start an app.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The app's name.
    pub name: String,
    /// The program, searched in `$PATH`, and its arguments.
    pub argv: Vec<String>,
    /// The variables of its environment besides the agent's.
    pub env: Vec<(String, String)>,
    /// Where its output goes.
    pub output: Output,
    /// How to tell that it is ready; without it, it is when it has not exited
    /// for [`SETTLE`].
    pub ready: Option<Ready>,
}

/// Where an app's output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Output to the agent's own.
    Inherit,
    /// Output to a new file.
    Log(PathBuf),
}

/// How long an app without a readiness check must run to count as started.
pub const SETTLE: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(5);
/// How much of its output an app's error shows.
const LAST_BYTES: u64 = 4096;
const LAST_LINES: usize = 8;

/// Why an app was not started. Nothing of it runs any more then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The config names no program.
    #[error("app `{name}` has no program to start: `start` is empty")]
    Empty {
        /// The app.
        name: String,
    },
    /// The kernel refused to execute it.
    #[error("cannot start app `{name}`: `{program}`: {source}; is it installed, and in $PATH?")]
    Exec {
        /// The app.
        name: String,
        /// The program.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Its log cannot be written.
    #[error("cannot write the output of app `{name}` to {path}: {source}", path = .path.display())]
    Log {
        /// The app.
        name: String,
        /// The log.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process answers at the app's address.
    #[error(
        "something already accepts connections at {endpoint}, where app `{name}` should: \
         end it, attach to it by pid, or give the app another address"
    )]
    Taken {
        /// The app.
        name: String,
        /// The address.
        endpoint: Endpoint,
    },
    /// The app ran and ended.
    #[error(
        "app `{name}` exited immediately ({status}){last}{hint}",
        last = quoted(.last),
        hint = hint(*.status)
    )]
    ExitedAtOnce {
        /// The app.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its output, if they went to a log.
        last: Vec<String>,
    },
    /// The app runs and does not answer.
    #[error(
        "app `{name}` did not accept connections at {endpoint} within {} s{last}",
        .waited.as_secs_f64(), last = quoted(.last)
    )]
    NotReady {
        /// The app.
        name: String,
        /// Where it should.
        endpoint: Endpoint,
        /// How long it had.
        waited: Duration,
        /// The last lines of its output, if they went to a log.
        last: Vec<String>,
    },
    /// The run was stopped meanwhile.
    #[error("stopped before app `{name}` accepted connections at {endpoint}")]
    Stopped {
        /// The app.
        name: String,
        /// Where it should.
        endpoint: Endpoint,
    },
    /// The app cannot be written to the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The kernel refused something else.
    #[error("cannot watch app `{name}`: {source}")]
    Watch {
        /// The app.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A started app.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) id: ProcessId,
    /// The variable that marks its environment and that of its descendants.
    pub(super) mark: String,
    /// The processes that it and its descendants have made, where the kernel reports forks.
    pub(super) forks: Forks,
}

/// Starts an app and waits until it is ready.
pub(super) fn start(
    launch: &Launch,
    roots: &Roots,
    ledger: &mut Ledger,
) -> Result<Started, StartError> {
    let name = launch.name.clone();
    if let Some(ready) = launch.ready.as_ref().filter(|ready| ready.endpoint.accepts()) {
        return Err(StartError::Taken { name, endpoint: ready.endpoint.clone() });
    }
    let mark = format!("{}{name}/", mark_of(ledger.agent()));
    // Subscribe before it runs, so that none of its descendants is missed.
    ledger.forks().subscribe();
    let forks = ledger.forks().clone();
    let mut child = execute(launch, &mark)?;
    let found = ProcessId::lookup(roots, child.id().cast_signed());
    let known: Vec<ProcessId> = found.iter().copied().collect();
    let begin = || {
        let id = found.map_err(|source| StartError::Watch { name: launch.name.clone(), source })?;
        let ProcessId { pid, start_ticks } = id;
        ledger.record(&[Original::Started { pid, start_time_ticks: start_ticks }])?;
        ledger.forks().follow(id, id);
        wait_until_ready(launch, &mut child, &forks)?;
        Ok(id)
    };
    match begin() {
        Ok(id) => Ok(Started { child, id, mark, forks }),
        Err(error) => {
            let tree = |root| StartedTree { root, group: Group::Own };
            let known: Vec<_> = known.into_iter().map(tree).collect();
            let _ = terminate(&forks, roots, &known, std::slice::from_ref(&mark), GRACE);
            // The process was ended above, if it could be found in proc.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn execute(launch: &Launch, mark: &str) -> Result<Child, StartError> {
    let name = || launch.name.clone();
    let (program, args) =
        launch.argv.split_first().ok_or_else(|| StartError::Empty { name: name() })?;
    let mut command = Command::new(program);
    // The service manager's socket is the agent's own.
    for variable in crate::service::VARIABLES {
        command.env_remove(variable);
    }
    command.args(args).envs(launch.env.iter().map(|(key, value)| (key, value)));
    command.env(MARK_VARIABLE, mark).process_group(0).stdin(Stdio::null());
    if let Output::Log(path) = &launch.output {
        let failed = |source| StartError::Log { name: name(), path: path.clone(), source };
        let log = replace_file(path).map_err(failed)?;
        command.stderr(log.try_clone().map_err(failed)?).stdout(log);
    }
    let failed = |source| StartError::Exec { name: name(), program: program.clone(), source };
    command.spawn().map_err(failed)
}

fn wait_until_ready(launch: &Launch, child: &mut Child, forks: &Forks) -> Result<(), StartError> {
    let name = || launch.name.clone();
    let limit = launch.ready.as_ref().map_or(SETTLE, |ready| ready.timeout);
    let begun = Instant::now();
    loop {
        // Read the reports now, or the kernel drops some before the first epoch.
        forks.read();
        let ended =
            child.try_wait().map_err(|source| StartError::Watch { name: name(), source })?;
        if let Some(status) = ended {
            return Err(StartError::ExitedAtOnce {
                name: name(),
                status,
                last: last_lines(launch),
            });
        }
        let is_over = begun.elapsed() >= limit;
        match &launch.ready {
            None if is_over => return Ok(()),
            Some(ready) if ready.endpoint.accepts() => return Ok(()),
            Some(ready) if ready.is_stopped() => {
                let endpoint = ready.endpoint.clone();
                return Err(StartError::Stopped { name: name(), endpoint });
            }
            Some(Ready { endpoint, timeout: waited, .. }) if is_over => {
                let (endpoint, waited) = (endpoint.clone(), *waited);
                let last = last_lines(launch);
                return Err(StartError::NotReady { name: name(), endpoint, waited, last });
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

fn last_lines(launch: &Launch) -> Vec<String> {
    let Output::Log(path) = &launch.output else { return Vec::new() };
    // An error about the log would hide the one that the log explains.
    let text = tail(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn quoted(last: &[String]) -> String {
    let mut text = String::new();
    for line in last {
        let _ = write!(text, "\n    {line}");
    }
    if text.is_empty() { text } else { format!("; its last output:{text}") }
}

fn hint(status: ExitStatus) -> &'static str {
    if status.success() {
        "\nif it goes into the background by itself, configure it to stay in the foreground"
    } else {
        ""
    }
}
