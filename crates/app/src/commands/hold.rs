//! `lull hold`: knobs held while a command runs, put back whatever happens.

use crate::cli::HoldArgs;
use crate::{alongside, say, signals};
use anyhow::bail;
use lull_host::Roots;
use lull_host::guard::{GuardCommand, Ledger, Opened, StateDir, spawn};
use lull_host::knobs::hold;
use lull_host::plant::Stop;

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

fn meanwhile(args: &HoldArgs, stop: &Stop) -> anyhow::Result<()> {
    if args.command.is_empty() {
        say::told("held until interrupted");
    }
    alongside::run(&args.command, stop, || false)
}
