//! `lull hold`: knobs held while a command runs, put back whatever happens.

use crate::cli::HoldArgs;
use crate::{say, signals};
use anyhow::{Context, bail};
use lull_host::Roots;
use lull_host::guard::{GuardCommand, Ledger, Opened, StateDir, spawn};
use lull_host::knobs::hold;
use lull_host::plant::Stop;
use lull_measure::Nanos;
use std::process::{Child, Command};

/// How often the command is looked at; a signal ends the wait at once.
const NAP: Nanos = Nanos::from_millis(50);

pub(crate) fn run(args: &HoldArgs) -> anyhow::Result<()> {
    let roots = Roots::default();
    let stop = signals::stop_request()?;
    let place = StateDir::locate(args.state.as_deref())?;
    let Opened { mut ledger, recovery } = Ledger::open(place, &roots)?;
    if let Some(recovery) = recovery {
        say::told(&recovery);
    }
    let guard = spawn(GuardCommand::default(), &ledger)?;
    let held = match hold::hold(&args.wishes, &roots, &mut ledger) {
        Ok(held) => held,
        Err(error) => {
            ledger.close()?;
            return Err(error.into());
        }
    };
    for change in held.changes() {
        say::told(change);
    }
    let outcome = meanwhile(args, &stop);
    drop(held);
    let restored = ledger.restore();
    say::told(&restored);
    if !restored.failed.is_empty() {
        // The guard and `lull restore` have another try.
        bail!("not everything is as before; the ledger is {}", ledger.path().display());
    }
    ledger.close()?;
    guard.finish()?;
    outcome
}

/// Runs the command to its end, or waits for a signal.
fn meanwhile(args: &HoldArgs, stop: &Stop) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        say::told("held until interrupted");
        while !stop.wait(Nanos::from_secs(3600))? {}
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return match status.success() {
                true => Ok(()),
                false => bail!("`{}` ended with {status}", program.display()),
            };
        }
        if stop.wait(NAP)? {
            return end(&mut child);
        }
    }
}

/// The terminal has told the command too; a service manager has not.
fn end(child: &mut Child) -> anyhow::Result<()> {
    let pid = rustix::process::Pid::from_child(child);
    // It may have ended by itself meanwhile.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    child.wait()?;
    Ok(())
}
