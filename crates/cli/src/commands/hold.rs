//! `lull hold`: holds knobs while a command runs, and restores them afterwards in any case.

use super::put_back;
use crate::cli::HoldArgs;
use crate::signals;
use crate::{alongside, say};
use lull_agent::guarded;
use lull_host::Roots;
use lull_host::guard::{GuardCommand, StateDir};
use lull_host::knobs::hold;
use lull_host::plant::Stop;

pub(crate) fn run(args: &HoldArgs) -> anyhow::Result<()> {
    let roots = Roots::default();
    let stop = signals::stop_request()?;
    let place = StateDir::locate(args.state.as_deref())?;
    let (mut ledger, guard) =
        guarded::open_ledger(place, &roots, GuardCommand::default(), &|text| say::notice(text))?;
    let held = match hold::hold(&args.wishes, &roots, &mut ledger) {
        Ok(held) => held,
        Err(error) => {
            ledger.close()?;
            return Err(error.into());
        }
    };
    for change in held.changes() {
        say::notice(change);
    }
    let outcome = meanwhile(args, &stop);
    drop(held);
    put_back(&ledger)?;
    ledger.close()?;
    guard.finish()?;
    outcome
}

fn meanwhile(args: &HoldArgs, stop: &Stop) -> anyhow::Result<()> {
    if args.command.is_empty() {
        say::notice("held until interrupted");
    }
    alongside::run(&args.command, stop, || false)
}
