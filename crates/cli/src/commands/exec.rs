//! `lull exec`: a server under the on-call runtime.

mod admission;
mod areas;
mod dispatch;
mod gate;
mod kernel;
mod objective;
mod result;
mod watching;

pub(super) use gate::{rules, settings};
pub(super) use result::{AccountResult, ClassResult};
pub(super) use watching::{Watching, at_first};

use super::UsageError;
use crate::cli::{ExecArgs, ExecWake};
use crate::say;
use anyhow::{Context, bail};
use dispatch::Dispatched;
pub(super) use dispatch::Dispatching;
use kernel::Observed;
use lull_agent::library::{Library, obstacle};
use lull_host::oncall::{Rules, Runtime};
use lull_oncall::protocol::Protocol;
use lull_oncall::{Settings, Waking};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

/// Signals that have arrived, and a socket that is readable when one does.
type Signals = SignalDelivery<UnixStream, SignalOnly>;

pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<()> {
    let waking = match args.wake {
        ExecWake::Futex => Waking::Futex,
        ExecWake::Signal => Waking::Signal,
    };
    let settings = match args.dispatch {
        None => settings(&args.gate)?,
        Some(_) => gate::settings_of_dispatched(&args.gate)?,
    };
    let settings = Settings { waking, ..settings };
    let rules = rules(&args.gate)?;
    let Some(program) = args.command.first() else {
        return Err(UsageError("name the server to start, after --".to_owned()).into());
    };
    let obstacle =
        obstacle(program).map_err(|error| UsageError(lull_agent::error::describe(&error)))?;
    if args.ebpf || obstacle.is_some() {
        return watch_sockets(args, &settings, obstacle);
    }
    check_waking(&settings, &rules, program)?;
    dispatch::check(args)?;
    areas::check(args)?;
    let dispatching = Dispatching::new(args)?;
    let library = Library::write()?;
    let runtime = Runtime::start(&at_first(&args.gate, settings), &rules);
    let runtime = Arc::new(runtime.context("cannot set up the page that the server shares")?);
    let mut watching = Watching::new(&args.gate, &name_of(program), &runtime, settings)?;
    let mut signals = watch_signals()?;
    let mut command = command(args);
    command.envs(runtime.environment(library.path()));
    let mut server = start(&mut command)?;
    let dispatched = dispatching.map(|it| it.start(server.id(), &runtime));
    let dispatched = dispatched.transpose().inspect_err(|_| drop(server.kill()))?;
    let status = poll_until_exit(&mut server, &mut signals, || {
        dispatched.iter().for_each(Dispatched::poll);
        watching.poll(&runtime)
    })?;
    watching.set_dispatch(dispatched.and_then(Dispatched::finish));
    watching.finish(&runtime)?;
    well(program, status)
}

/// Starts the server without the library and observes its sockets with eBPF, because
/// `--ebpf` requests it or because of an obstacle to preloading the library.
fn watch_sockets(
    args: &ExecArgs,
    settings: &Settings,
    obstacle: Option<String>,
) -> anyhow::Result<()> {
    let program = &args.command[0];
    if let Some(why) = obstacle {
        if settings.mode.gates() || args.gate.controller().is_some() {
            return Err(UsageError(format!("{why}, so that it has no gate")).into());
        }
        if args.dispatch.is_some() {
            let what = format!("{why}, so that its requests cannot be dispatched");
            return Err(UsageError(what).into());
        }
        if !args.gate.areas.is_empty() {
            let what = format!("{why}, so that its threads cannot have areas");
            return Err(UsageError(what).into());
        }
        say::notice(format_args!("{why}: the kernel watches its sockets instead"));
    }
    let name = args.gate.name.clone().unwrap_or_else(|| name_of(program));
    let mut observed = Observed::new(&name)?;
    let mut signals = watch_signals()?;
    let mut server = start(&mut command(args))?;
    observed.follow(server.id())?;
    let status = poll_until_exit(&mut server, &mut signals, || observed.poll())?;
    observed.finish(args.gate.json)?;
    well(program, status)
}

/// The server's command line.
fn command(args: &ExecArgs) -> Command {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    if args.gate.json {
        // The server's own output must not mix with the JSON.
        command.stdout(std::io::stderr());
    }
    command
}

fn start(command: &mut Command) -> anyhow::Result<Child> {
    let failed = |command: &Command| format!("cannot start `{}`", command.get_program().display());
    command.spawn().with_context(|| failed(command))
}

fn well(program: &OsStr, status: ExitStatus) -> anyhow::Result<()> {
    if !status.success() {
        bail!("`{}` ended with {status}", program.display());
    }
    Ok(())
}

fn watch_signals() -> anyhow::Result<Signals> {
    let (reader, writer) = UnixStream::pair()?;
    let signals = [SIGINT, SIGTERM, SIGHUP, SIGCHLD];
    Ok(Signals::with_pipe(reader, writer, SignalOnly, signals)?)
}

/// Waits until the server ends and calls `look` meanwhile, which returns the time of its
/// next call. Between two calls only a signal wakes this thread.
fn poll_until_exit(
    server: &mut Child,
    signals: &mut Signals,
    mut look: impl FnMut() -> Instant,
) -> anyhow::Result<ExitStatus> {
    loop {
        for signal in signals.pending() {
            forward(signal, server);
        }
        if let Some(status) = server.try_wait()? {
            return Ok(status);
        }
        let until = look();
        wait_for_signal(signals, until)?;
    }
}

/// Waits until a signal arrives or this time is reached.
fn wait_for_signal(signals: &Signals, until: Instant) -> anyhow::Result<()> {
    let time = until.saturating_duration_since(Instant::now()).try_into()?;
    let mut signal = [PollFd::new(signals.get_read(), PollFlags::IN)];
    match poll(&mut signal, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for signals"),
    }
}

/// Forwards a signal to the server. A terminal sends the SIGINT of Ctrl-C to both
/// processes, and some servers abort on a second one, so that it is not forwarded there.
fn forward(signal: i32, server: &Child) {
    let signal = match signal {
        SIGINT if std::io::stdin().is_terminal() => return,
        SIGCHLD => return,
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    };
    // The server may have ended by itself meanwhile.
    let _ = kill_process(Pid::from_child(server), signal);
}

/// Checks that workers can be woken in the requested way.
///
/// # Errors
/// If signals are requested and no worker waits in this mode, or workers are processes,
/// which cannot signal each other safely.
fn check_waking(settings: &Settings, rules: &Rules, program: &OsStr) -> Result<(), UsageError> {
    if settings.waking == Waking::Futex {
        return Ok(());
    }
    let file = Path::new(program).file_name().unwrap_or(program);
    let by_program = || Protocol::from_program(file.as_encoded_bytes());
    let protocol = rules.protocol.unwrap_or_else(by_program);
    let reason = if !settings.mode.gates() {
        "in mode stats no worker waits: choose --concurrency or --mode, or leave it out".to_owned()
    } else if protocol.workers_are_processes() {
        format!(
            "{}'s workers are processes, and signals are safe only between threads of one \
             process, because the kernel reuses thread numbers: leave it out, so that workers are \
             woken by futex",
            protocol.title()
        )
    } else {
        return Ok(());
    };
    Err(UsageError(format!("--wake signal: {reason}")))
}

fn name_of(program: &OsStr) -> String {
    let file = Path::new(program).file_name().unwrap_or(program);
    file.to_string_lossy().into_owned()
}
