//! `lull hold`: holds knobs while a command runs, and restores them afterwards in any case.

use super::put_back;
use crate::cli::HoldArgs;
use crate::signals;
use crate::{alongside, say};
use anyhow::anyhow;
use lull_agent::guarded;
use lull_host::Roots;
use lull_host::apps::ProcessId;
use lull_host::guard::{GuardCommand, GuardHandle, GuardState, Ledger, Original, StateDir};
use lull_host::knobs::KnobError;
use lull_host::knobs::hold::{self, Held};
use lull_host::plant::Stop;
use std::time::{Duration, Instant};

/// How often the guard is looked after, and limits of units are read, which a reload of systemd
/// may undo.
const RENEWAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &HoldArgs) -> anyhow::Result<()> {
    let roots = Roots::default();
    let stop = signals::stop_request()?;
    let place = StateDir::locate(args.state.as_deref())?;
    let (mut ledger, mut guard) =
        guarded::open_ledger(place, &roots, GuardCommand::default(), &|text| say::notice(text))?;
    let held = match hold::hold(&args.requests, &roots, &mut ledger) {
        Ok(held) => held,
        Err(error) => return Err(give_up(ledger, error)),
    };
    for change in held.changes() {
        say::notice(change);
    }
    let outcome = meanwhile(args, &stop, &held, &mut ledger, &mut guard);
    drop(held);
    put_back(&ledger)?;
    ledger.close()?;
    guard.finish()?;
    outcome
}

/// Restores the changes that a failed `hold` could not undo, and returns the error to report.
///
/// The ledger is closed only if every value is as before; otherwise the guard continues to restore
/// when this process ends. A busy systemd carries out a call later, after Lull has given up waiting
/// for the answer. It handles calls in the order of their arrival, so a value that it returns now
/// is not changed by an earlier call.
fn give_up(ledger: Ledger, error: KnobError) -> anyhow::Error {
    let restored = ledger.restore();
    if restored.failed.is_empty() {
        return match ledger.close() {
            Ok(()) => error.into(),
            Err(not_closed) => not_closed.into(),
        };
    }
    say::notice(&restored);
    let path = ledger.path().display();
    anyhow!(
        "{error}; the guard continues to restore the other values, for about 90 s where systemd \
         does not answer; the ledger is {path}"
    )
}

/// Runs the command. It is in the ledger as soon as it runs, so that the guard ends it if
/// this process is killed: the command would go on without the settings that it needs. A guard that
/// is lost is replaced, as the agent does; without one the hold ends.
fn meanwhile(
    args: &HoldArgs,
    stop: &Stop,
    held: &Held,
    ledger: &mut Ledger,
    guard: &mut GuardHandle,
) -> anyhow::Result<()> {
    if args.command.is_empty() {
        say::notice("held until interrupted");
    }
    let record = |pid: u32| {
        // A command that has ended meanwhile needs no record.
        let Ok(process) = ProcessId::lookup(&Roots::default(), pid.cast_signed()) else {
            return Ok(());
        };
        let ProcessId { pid, start_ticks } = process;
        Ok(ledger.record(&[Original::Started { pid, start_time_ticks: start_ticks }])?)
    };
    let mut looked = Instant::now();
    alongside::run(&args.command, stop, record, || {
        if looked.elapsed() >= RENEWAL {
            if let GuardState::Respawned(status) = guard.poll()? {
                say::notice(format_args!("the guard was lost ({status}); another one runs"));
            }
            held.renew().iter().for_each(say::notice);
            looked = Instant::now();
        }
        Ok(false)
    })
}
