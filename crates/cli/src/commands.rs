//! The subcommands, one file each.

mod advise;
mod attach;
mod burn;
mod calibrate;
mod check;
mod compare;
mod completions;
mod cpufreq;
mod demo;
mod emulate;
mod entropy;
mod exec;
mod export;
mod frontend;
mod gate;
mod guard;
mod hold;
mod intlog;
mod keys;
mod lab;
mod lab_claims;
mod live_trials;
mod load;
mod man;
mod metrics;
mod mix;
mod place;
#[cfg(feature = "fleet")]
mod pods;
mod policies;
mod register;
mod reload;
mod replay;
mod report;
mod restore;
mod run;
mod save;
mod serve;
mod sim;
mod sweep;
mod tiers;
mod top;
mod trace;
mod tune;
mod tune_pid;

pub(crate) use load::NoAnswer;

use crate::cli::{Cli, Command, LabAction, LabArgs};
use crate::say;
use anyhow::{Context, bail};
use lull_agent::error::UsageError;
use lull_agent::session::Closed;
use lull_host::guard::Ledger;
use lull_lab::server::ServerScenario;
use lull_measure::{Nanos, escape};
use lull_workload::push::PushConfig;
use std::io::Write;
use std::path::Path;

/// Runs the command of the command line.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Check(args) => report(|| check::run(&args)),
        Command::Demo(args) => operate(|| demo::run(&args)),
        Command::Run(args) => operate(|| run::run(&args)),
        Command::Exec(args) => operate(|| exec::run(&args)),
        Command::Attach(args) => operate(|| attach::run(&args)),
        Command::Advise(args) => report(|| advise::run(&args)),
        Command::Gate(args) => report(|| gate::run(&args)),
        Command::Load(args) => report(|| load::run(*args)),
        Command::Serve(args) => report(|| serve::run(&args)),
        Command::Burn(args) => report(|| burn::run(args)),
        Command::Policies(args) => report(|| policies::run(&args)),
        Command::Metrics(args) => report(|| metrics::run(&args)),
        Command::Keys(args) => report(|| keys::run(&args)),
        Command::Lab(args) => laboratory(args),
        Command::Sim(args) => report(|| sim::run(&args)),
        Command::Hold(args) => operate(|| hold::run(&args)),
        Command::Calibrate(args) => operate(|| calibrate::run(&args)),
        Command::Compare(args) => operate(|| compare::run(&args)),
        Command::Entropy(args) => report(|| entropy::run(&args)),
        Command::Export(args) => report(|| export::run(&args)),
        Command::Report(args) => report(|| report::run(&args)),
        Command::Sweep(args) => operate(|| sweep::run(&args)),
        Command::Tune(args) => operate(|| tune::run(&args)),
        Command::Top(args) => report(|| top::run(&args)),
        Command::Replay(args) => report(|| replay::run(&args)),
        Command::Restore(args) => report(|| restore::run(&args)),
        Command::Reload(args) => report(|| reload::run(&args)),
        Command::Register(args) => operate(|| register::run(&args)),
        Command::Completions { shell } => report(|| completions::run(shell)),
        Command::Man { directory } => report(|| man::run(&directory)),
        Command::Guard(args) => operate(|| guard::run(&args)),
        Command::Frontend => operate(frontend::run),
        #[cfg(feature = "fleet")]
        Command::Pods => operate(pods::run),
    }
}

/// Runs a research command.
fn laboratory(args: LabArgs) -> anyhow::Result<()> {
    match args.action {
        LabAction::List(args) => report(|| lab::list(&args)),
        LabAction::Run(args) => report(|| lab::run(&args)),
        LabAction::Claims(args) => report(|| lab_claims::print(&args)),
        LabAction::Check(args) => report(|| lab_claims::check(&args)),
        LabAction::Dispatch(args) => report(|| place::run(&args)),
        LabAction::Emulate(args) => report(|| emulate::run(&args)),
        LabAction::Cpufreq(args) => operate(|| cpufreq::run(&args)),
        LabAction::Interrupts(args) => report(|| intlog::run(&args)),
        LabAction::Mix(args) => report(|| mix::run(&args)),
        LabAction::Tiers(args) => report(|| tiers::run(&args)),
        LabAction::Trace(args) => report(|| trace::run(&args)),
        LabAction::TunePid(args) => report(|| tune_pid::run(&args)),
    }
}

/// Runs a command that only reports: it ends when the reader of its output has gone.
fn report(run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    sigpipe::reset();
    run()
}

/// Runs a command that changes knobs or has a server under it: a closed pipe must not end
/// it before it has restored them.
fn operate(run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    run()
}

/// Refuses rates at which no request would arrive.
fn check_rates(rates: &[f64]) -> anyhow::Result<()> {
    match rates.iter().find(|rate| !(**rate > 0.0 && rate.is_finite())) {
        Some(rate) => {
            let what = format!("--rate {rate}: write requests per second above 0");
            Err(UsageError(what).into())
        }
        None => Ok(()),
    }
}

/// Refuses a target of a tail that no request can meet.
fn check_target(target: Nanos) -> Result<(), UsageError> {
    match target {
        Nanos::ZERO => Err(UsageError("--target 0s: write a time such as 200ms".to_owned())),
        _ => Ok(()),
    }
}

/// Refuses rates of a simulated server that would take too long, or too much memory.
fn check_amount(scenario: &ServerScenario, rates: &[f64]) -> Result<(), UsageError> {
    let check = |rate: &f64| scenario.run.check_amount(&scenario.model, *rate);
    rates.iter().try_for_each(check).map_err(|why| UsageError(format!("--rate: {why}")))
}

/// Reports that none of the messages for the agent at this socket reached it.
fn note_unpushed(push: Option<&PushConfig>, sent: u64, dropped: u64) {
    if let Some(push) = push.filter(|_| sent == 0 && dropped > 0) {
        say::notice(format_args!(
            "nothing was pushed to {}: no agent listens there; its socket is agent.socket, or \
             push.sock in its state directory",
            push.socket.display()
        ));
    }
}

/// Prints a value as indented JSON. A closed reader is an error, because a closed pipe does
/// not end all commands.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    writeln!(std::io::stdout(), "{}", escape::json(&text)).context("cannot print the result")
}

/// Says how a session has ended and where its record is. One without an epoch leaves none.
fn ending(closed: &Closed, record: &str) -> String {
    let outcome = closed.outcome();
    match Path::new(record).exists() {
        true => format!("{outcome}; the record is {record}"),
        false => format!("{outcome}; no epoch has ended, so that there is no record"),
    }
}

/// Restores every knob from the ledger and reports the result.
///
/// # Errors
/// If a knob cannot be restored: the guard and `lull restore` try again.
fn put_back(ledger: &Ledger) -> anyhow::Result<()> {
    let restored = ledger.restore();
    say::notice(&restored);
    if !restored.failed.is_empty() {
        bail!("some values could not be restored; the ledger is {}", ledger.path().display());
    }
    Ok(())
}
