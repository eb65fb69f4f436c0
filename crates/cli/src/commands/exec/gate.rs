//! The settings of a gate from the options of `lull exec` and `lull attach`.

use super::UsageError;
use super::objective::objectives;
use crate::cli::{ExecMode, GateArgs};
use lull_agent::admission::{longest_wait, tightest_bound};
use lull_agent::config::{ClientClassSection, ClientMatchSection, bypass, client_classes};
use lull_host::oncall::{ClientClass, ClientMatch, Rules};
use lull_measure::Nanos;
use lull_oncall::{BREAK_EVEN_NS, Mode, PARK_MAX_NS, Settings};
use serde::de::DeserializeOwned;

/// The shortest pause of mode epoll: a core that sleeps for less than the break-even time
/// of its deep state consumes more energy (REEF, SoCC'25, section 3.2: 1 ms).
const BREAK_EVEN: Nanos = Nanos(BREAK_EVEN_NS);

/// Returns the settings of the gate from the start, or, under an admission controller, those
/// of the closed gate.
///
/// # Errors
/// If a time is out of the gate's range, or options exclude each other.
pub(in crate::commands) fn settings(args: &GateArgs) -> Result<Settings, UsageError> {
    if args.controller().is_none() && !args.objectives.is_empty() {
        return Err(for_a_controller("--objective"));
    }
    settings_of_dispatched(args)
}

/// As [`settings`], for a server whose requests are dispatched, which needs an objective, too.
///
/// # Errors
/// As [`settings`].
pub(super) fn settings_of_dispatched(args: &GateArgs) -> Result<Settings, UsageError> {
    check_options(args)?;
    let has_admission = args.controller().is_some();
    let mode = match (args.mode, args.limit()) {
        (Some(ExecMode::Epoll), _) => Mode::Epoll,
        (Some(ExecMode::Stats), _) if has_admission => return Err(nothing_to_control()),
        (Some(ExecMode::Post), _) | (None, Some(_)) => Mode::Post,
        (None, None) if has_admission => Mode::Post,
        (Some(ExecMode::Stats), _) | (None, None) => Mode::Stats,
    };
    let pause = pause(mode, args.delay)?;
    let usual = Settings::default();
    Ok(Settings {
        mode,
        cap: args.limit().unwrap_or(usual.cap),
        batch: args.batch.unwrap_or(1),
        isr_delay_ns: pause.0,
        slot_lease_ns: slot_lease(args.slot_lease)?.0,
        park_max_ns: park_max(args)?.0,
        ..usual
    })
}

fn for_a_controller(option: &str) -> UsageError {
    UsageError(format!("{option} is for an admission controller: write --concurrency auto"))
}

fn nothing_to_control() -> UsageError {
    let words = "--concurrency: no worker waits in mode stats, so an admission controller has \
                 nothing to control: leave out --mode, or write post or epoll";
    UsageError(words.to_owned())
}

/// Refuses options of an admission controller if there is none, and options that an
/// admission controller sets itself if there is one.
fn check_options(args: &GateArgs) -> Result<(), UsageError> {
    let used = |options: &[(&'static str, bool)]| {
        options.iter().find(|(_, is_given)| *is_given).map(|(option, _)| *option)
    };
    let for_controller =
        [("--key", !args.keys.is_empty()), ("--promise", !args.promises.is_empty())];
    let controlled = [("--batch", args.batch.is_some()), ("--delay", args.delay.is_some())];
    let error = match (args.controller(), used(&for_controller), used(&controlled)) {
        (None, Some(option), _) => return Err(for_a_controller(option)),
        (Some(name), _, Some(option)) => {
            format!("{option} cannot be used with --concurrency {name}, which decides on it")
        }
        _ => return Ok(()),
    };
    Err(UsageError(error))
}

/// Returns the pause D of the gate for this option.
///
/// # Errors
/// If the pause is out of the gate's range.
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

/// Returns the lease of a slot.
///
/// # Errors
/// If the time is out of the gate's range.
fn slot_lease(given: Nanos) -> Result<Nanos, UsageError> {
    if (Nanos::from_millis(1)..=Nanos::from_secs(1)).contains(&given) {
        return Ok(given);
    }
    Err(UsageError(format!("--slot-lease is {given}, not in 1ms to 1s")))
}

/// Returns the longest wait at the gate.
///
/// # Errors
/// If the time is out of the gate's range, or an objective is invalid.
fn park_max(args: &GateArgs) -> Result<Nanos, UsageError> {
    let (least, most) = (Nanos::from_millis(10), Nanos(PARK_MAX_NS));
    match args.longest_wait {
        Some(longest) if !(least..=most).contains(&longest) => {
            Err(UsageError(format!("--longest-wait is {longest}, not in {least} to {most}")))
        }
        Some(longest) => Ok(longest),
        // A promise makes other connections wait on purpose.
        None if !args.promises.is_empty() => Ok(most),
        None => Ok(longest_wait(&objectives(&args.objectives)?)),
    }
}

/// Returns which connections may wait, and the protocol of the server.
///
/// # Errors
/// If more ports are exempt than the gate can store.
pub(in crate::commands) fn rules(args: &GateArgs) -> anyhow::Result<Rules> {
    if args.exempt_ports.len() > 4 {
        return Err(UsageError("--exempt-port: at most four ports".to_owned()).into());
    }
    let client_classes = read_client_classes(&args.client_classes)?;
    Ok(Rules {
        protocol: args.protocol,
        gates_unix: args.gate_unix,
        exempt_ports: args.exempt_ports.clone(),
        bypass: read_bypass(args, &client_classes)?,
        client_classes,
        long_wait: tightest_bound(&objectives(&args.objectives)?),
    })
}

/// Clients that bypass the gate, each an inline table in its argument.
fn read_bypass(args: &GateArgs, classes: &[ClientClass]) -> Result<Vec<ClientMatch>, UsageError> {
    let read = |text: &String| {
        inline_table(text).map_err(|error: toml::de::Error| {
            UsageError(format!("--bypass {text}: {}", error.message()))
        })
    };
    let written: Vec<ClientMatchSection> =
        args.bypass.iter().map(read).collect::<Result<_, _>>()?;
    bypass(&written, !args.no_default_bypass, classes)
        .map_err(|message| UsageError(format!("--bypass: {message}")))
}

/// Classes of clients as a config would have them, each an inline table in its argument.
fn read_client_classes(texts: &[String]) -> Result<Vec<ClientClass>, UsageError> {
    let wrong = |text: &str, message: &str| UsageError(format!("--client-class {text}: {message}"));
    let read = |text: &String| {
        inline_table(text).map_err(|error: toml::de::Error| wrong(text, error.message()))
    };
    let sections: Vec<ClientClassSection> = texts.iter().map(read).collect::<Result<_, _>>()?;
    client_classes(&sections).map_err(|(at, message)| wrong(&texts[at], &message))
}

/// Reads keys as a config would have them, which are an inline table in an argument.
///
/// # Errors
/// The error of TOML or of the type.
pub(super) fn inline_table<T: DeserializeOwned>(text: &str) -> Result<T, toml::de::Error> {
    #[derive(serde::Deserialize)]
    struct One<T> {
        one: T,
    }
    toml::from_str(&format!("one = {{ {text} }}")).map(|One { one }| one)
}
