//! `lull exec`: a server under the on-call runtime.

mod regulated;
mod result;

use super::UsageError;
use crate::cli::{ExecArgs, ExecMode, ExecProtocol};
use crate::config::gate;
use crate::library::{Library, check_program};
use crate::say;
use anyhow::{Context, bail};
use lull_host::oncall::{Rules, Runtime};
use lull_oncall::protocol::Protocol;
use lull_oncall::{Mode, Settings};
use regulated::Regulated;
use result::Seen;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How often the server and the signals are looked at.
const NAP: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<()> {
    let (settings, rules) = (settings(args)?, rules(args)?);
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(UsageError("name the server to start, after --".to_owned()).into());
    };
    check_program(program).map_err(|error| UsageError(format!("{error:#}")))?;
    let library = Library::write()?;
    let runtime = Runtime::start(&settings, &rules).context("cannot share memory with a server")?;
    let mut regulated = Regulated::of(args, &runtime)?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
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
    let status = attend(&mut server, &mut signals, || {
        seen.attend(&runtime);
        if let Some(regulated) = &mut regulated {
            regulated.attend(&runtime);
        }
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

/// Watches over the server until it ends, with a look at what it does every now and then.
fn attend(
    server: &mut Child,
    signals: &mut Signals,
    mut look: impl FnMut(),
) -> anyhow::Result<ExitStatus> {
    loop {
        if let Some(status) = server.try_wait()? {
            return Ok(status);
        }
        for signal in signals.pending() {
            hand_on(signal, server);
        }
        look();
        std::thread::sleep(NAP);
    }
}

/// The server is told what this program was told. A terminal has told both of
/// its Ctrl-C already, and a second one means "at once" to some servers.
fn hand_on(signal: i32, server: &Child) {
    let signal = match signal {
        SIGINT if std::io::stdin().is_terminal() => return,
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    };
    // It may have ended by itself meanwhile.
    let _ = kill_process(Pid::from_child(server), signal);
}

/// What the gate is to do from the start.
///
/// # Errors
/// A time that the gate would not keep, by its option.
fn settings(args: &ExecArgs) -> Result<Settings, UsageError> {
    let mode = match (args.mode, args.cap) {
        (Some(ExecMode::Epoll), _) => Mode::Epoll,
        (Some(ExecMode::Post), _) | (None, Some(_)) => Mode::Post,
        (Some(ExecMode::Stats), _) | (None, None) => Mode::Stats,
    };
    let refused = |option: &str, why: String| UsageError(format!("{option} {why}"));
    let pause = gate::pause(mode, args.delay).map_err(|why| refused("--delay", why))?;
    let lease = gate::slot_lease(args.slot_lease).map_err(|why| refused("--slot-lease", why))?;
    let usual = Settings::default();
    Ok(Settings {
        mode,
        cap: args.cap.unwrap_or(usual.cap),
        batch: args.batch,
        isr_delay_ns: pause.0,
        slot_lease_ns: lease.0,
        ..usual
    })
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
