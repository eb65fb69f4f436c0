//! The subcommands, one file each.

mod attach;
mod burn;
mod calibrate;
mod check;
mod compare;
mod completions;
mod demo;
mod emulate;
mod entropy;
mod exec;
mod export;
mod guard;
mod hold;
mod intlog;
mod keys;
mod lab;
mod load;
mod metrics;
mod mix;
mod place;
mod policies;
mod replay;
mod report;
mod restore;
mod run;
mod save;
mod serve;
mod sim;
mod sweep;
mod top;
mod trace;
mod tune;
mod tune_pid;

use crate::cli::{Cli, Command};
use crate::say;
use anyhow::{Context, bail};
use lull_agent::error::UsageError;
use lull_host::guard::Ledger;
use std::io::Write;

/// Runs what the command line asks for.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<()> {
    // An agent must not die of a closed pipe before it has put things back; a
    // list whose reader has gone may.
    if !matches!(
        cli.command,
        Command::Run(_)
            | Command::Demo(_)
            | Command::Hold(_)
            | Command::Calibrate(_)
            | Command::Compare(_)
            | Command::Guard(_)
            | Command::Exec(_)
            | Command::Attach(_)
            | Command::Tune(_)
    ) {
        sigpipe::reset();
    }
    match cli.command {
        Command::Check(args) => check::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Load(args) => load::run(*args),
        Command::Serve(args) => serve::run(&args),
        Command::Burn(args) => burn::run(args),
        Command::Emulate(args) => emulate::run(&args),
        Command::Place(args) => place::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Lab(args) => lab::run(args),
        Command::Sim(args) => sim::run(&args),
        Command::Hold(args) => hold::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Entropy(args) => entropy::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Mix(args) => mix::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Intlog(args) => intlog::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Top(args) => top::run(&args),
        Command::TunePid(args) => tune_pid::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Completions { shell } => completions::run(shell),
        Command::Guard(args) => guard::run(&args),
    }
}

/// Refuses rates at which nothing would ever arrive.
fn check_rates(rates: &[f64]) -> anyhow::Result<()> {
    match rates.iter().find(|rate| !(**rate > 0.0 && rate.is_finite())) {
        Some(rate) => {
            let what = format!("--rate {rate}: write requests per second above 0");
            Err(UsageError(what).into())
        }
        None => Ok(()),
    }
}

/// Prints a value as indented JSON. A reader that is gone is an error: not all commands
/// die of a closed pipe.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    writeln!(std::io::stdout(), "{text}").context("cannot print the result")
}

/// Restores every knob from the ledger and reports what was restored.
///
/// # Errors
/// If a knob cannot be restored: the guard and `lull restore` try again.
fn put_back(ledger: &Ledger) -> anyhow::Result<()> {
    let restored = ledger.restore();
    say::told(&restored);
    if !restored.failed.is_empty() {
        bail!("not everything is as before; the ledger is {}", ledger.path().display());
    }
    Ok(())
}
