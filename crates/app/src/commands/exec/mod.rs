//! `lull exec`: a server under the on-call runtime.

mod regulated;
mod result;

use super::UsageError;
use crate::cli::{ExecArgs, ExecMode, ExecProtocol, ExecWake};
use crate::library::{Library, check_program};
use crate::say;
use anyhow::{Context, bail};
use lull_host::oncall::{Rules, Runtime};
use lull_measure::Nanos;
use lull_oncall::protocol::Protocol;
use lull_oncall::{Mode, Settings, Waking};
use regulated::Regulated;
use result::Seen;
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
use std::time::Instant;

/// The shortest pause of mode epoll: cores that sleep for less than the break-even
/// of their deep state lose by it (REEF, SoCC'25, section 3.2: 1 ms).
const BREAK_EVEN: Nanos = Nanos::from_millis(1);

/// Signals, and a socket that tells of them.
type Told = SignalDelivery<UnixStream, SignalOnly>;

pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<()> {
    let (settings, rules) = (settings(args)?, rules(args)?);
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(UsageError("name the server to start, after --".to_owned()).into());
    };
    check_program(program).map_err(|error| UsageError(format!("{error:#}")))?;
    check_waking(&settings, &rules, program)?;
    let library = Library::write()?;
    // A gate that a regulator is to close is open until it does.
    let mode = if args.regulator.is_some() { Mode::Stats } else { settings.mode };
    let runtime = Runtime::start(&Settings { mode, ..settings }, &rules);
    let runtime = runtime.context("cannot share memory with a server")?;
    let mut regulated = Regulated::of(args, &runtime, settings)?;
    let mut told = told()?;
    let begun = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).envs(runtime.environment(library.path()));
    if args.json {
        // What the server says must not stand in the middle of it.
        command.stdout(std::io::stderr());
    }
    let mut server =
        command.spawn().with_context(|| format!("cannot start `{}`", program.display()))?;
    let mut seen = Seen::new(&name_of(args, program), &runtime);
    let status = attend(&mut server, &mut told, || {
        let reading = seen.attend(&runtime);
        let decision = regulated.as_mut().map(|regulated| regulated.attend(&runtime));
        decision.map_or(reading, |decision| decision.min(reading))
    })?;
    let result = seen.finish(&runtime, begun.elapsed());
    if args.json {
        super::print_json(&result)?;
    } else {
        say::line(&result);
    }
    if !status.success() {
        bail!("`{}` ended with {status}", program.display());
    }
    Ok(())
}

fn told() -> anyhow::Result<Told> {
    let (reader, writer) = UnixStream::pair()?;
    let signals = [SIGINT, SIGTERM, SIGHUP, SIGCHLD];
    Ok(Told::with_pipe(reader, writer, SignalOnly, signals)?)
}

/// Watches over the server until it ends; `look` looks at what it does, and says
/// when it wants to look again. In between nobody is woken but by signals.
fn attend(
    server: &mut Child,
    told: &mut Told,
    mut look: impl FnMut() -> Instant,
) -> anyhow::Result<ExitStatus> {
    loop {
        for signal in told.pending() {
            hand_on(signal, server);
        }
        if let Some(status) = server.try_wait()? {
            return Ok(status);
        }
        let until = look();
        wait_for_signal(told, until)?;
    }
}

/// Waits until a signal has come, or this long.
fn wait_for_signal(told: &Told, until: Instant) -> anyhow::Result<()> {
    let time = until.saturating_duration_since(Instant::now()).try_into()?;
    let mut signal = [PollFd::new(told.get_read(), PollFlags::IN)];
    match poll(&mut signal, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for signals"),
    }
}

/// The server is told what this program was told. A terminal has told both of
/// its Ctrl-C already, and a second one means "at once" to some servers.
fn hand_on(signal: i32, server: &Child) {
    let signal = match signal {
        SIGINT if std::io::stdin().is_terminal() => return,
        SIGCHLD => return,
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    };
    // It may have ended by itself meanwhile.
    let _ = kill_process(Pid::from_child(server), signal);
}

/// What the gate is to do from the start, or, under a regulator, when it is closed.
///
/// # Errors
/// A time that the gate would not keep, by its option; options that do not fit.
fn settings(args: &ExecArgs) -> Result<Settings, UsageError> {
    let is_regulated = args.regulator.is_some();
    let mode = match (args.mode, args.cap) {
        (Some(ExecMode::Epoll), _) => Mode::Epoll,
        (Some(ExecMode::Stats), _) if is_regulated => return Err(nothing_to_regulate()),
        (Some(ExecMode::Post), _) | (None, Some(_)) => Mode::Post,
        (None, None) if is_regulated => Mode::Post,
        (Some(ExecMode::Stats), _) | (None, None) => Mode::Stats,
    };
    let pause = pause(mode, args.delay)?;
    let usual = Settings::default();
    Ok(Settings {
        mode,
        cap: args.cap.unwrap_or(usual.cap),
        batch: args.batch,
        isr_delay_ns: pause.0,
        slot_lease_ns: slot_lease(args.slot_lease)?.0,
        waking: match args.wake {
            ExecWake::Futex => Waking::Futex,
            ExecWake::Signal => Waking::Signal,
        },
        ..usual
    })
}

fn nothing_to_regulate() -> UsageError {
    let words = "--regulator: in mode stats nobody waits, so that there is nothing to regulate: \
                 leave out --mode, or write post or epoll";
    UsageError(words.to_owned())
}

/// That workers can be woken as was asked for.
///
/// # Errors
/// If nobody waits, or workers are processes, which cannot signal each other safely.
fn check_waking(settings: &Settings, rules: &Rules, program: &OsStr) -> Result<(), UsageError> {
    if settings.waking == Waking::Futex {
        return Ok(());
    }
    let file = Path::new(program).file_name().unwrap_or(program);
    let told = rules.protocol.unwrap_or_else(|| Protocol::of_program(file.as_encoded_bytes()));
    let reason = match (settings.mode.gates(), told) {
        (false, _) => "in mode stats nobody waits: choose --cap or --mode, or leave it out",
        (true, Protocol::Postgres) => {
            "PostgreSQL's workers are processes, and only threads of one process can be sure \
             which thread a number is: leave it out, for waking by futex"
        }
        (true, _) => return Ok(()),
    };
    Err(UsageError(format!("--wake signal: {reason}")))
}

/// The pause D of a gate that was given this one, or none.
///
/// # Errors
/// One that the gate would not keep.
fn pause(mode: Mode, given: Option<Nanos>) -> Result<Nanos, UsageError> {
    let (least, why) = match mode {
        Mode::Epoll => (BREAK_EVEN, ": a core that sleeps for less spends more than it saves"),
        Mode::Off | Mode::Stats | Mode::Post => (Nanos::ZERO, ""),
    };
    let pause = given.unwrap_or(least);
    if (least..=Nanos::from_millis(100)).contains(&pause) {
        return Ok(pause);
    }
    Err(UsageError(format!("--delay is {pause}, not in {least} to 100ms{why}")))
}

/// How long a slot may count.
///
/// # Errors
/// A time that the gate would not keep.
fn slot_lease(given: Nanos) -> Result<Nanos, UsageError> {
    if (Nanos::from_millis(1)..=Nanos::from_secs(1)).contains(&given) {
        return Ok(given);
    }
    Err(UsageError(format!("--slot-lease is {given}, not in 1ms to 1s")))
}

fn rules(args: &ExecArgs) -> anyhow::Result<Rules> {
    if args.exempt_ports.len() > 4 {
        return Err(UsageError("--exempt-port: at most four ports".to_owned()).into());
    }
    let protocol = args.protocol.map(|protocol| match protocol {
        ExecProtocol::Generic => Protocol::Generic,
        ExecProtocol::Mysql => Protocol::Mysql,
        ExecProtocol::Postgres => Protocol::Postgres,
    });
    let exempt_ports = args.exempt_ports.clone();
    Ok(Rules { protocol, gates_unix: args.gate_unix, exempt_ports })
}

fn name_of(args: &ExecArgs, program: &OsStr) -> String {
    let file = Path::new(program).file_name().unwrap_or(program);
    args.name.clone().unwrap_or_else(|| file.to_string_lossy().into_owned())
}
