//! Custody of this machine's knobs: the ledger, which knows them as they were, and
//! the guard, which puts them back when nobody else can.

use crate::say;
use anyhow::bail;
use lull_host::Roots;
use lull_host::guard::{GuardCommand, GuardHandle, Ledger, Opened, StateDir, spawn};

/// Takes it, and tells of what somebody before had left turned.
///
/// # Errors
/// If somebody else has it, or the ledger cannot be kept.
pub(crate) fn take(
    place: StateDir,
    roots: &Roots,
    say: &dyn Fn(&str),
) -> anyhow::Result<(Ledger, GuardHandle)> {
    let Opened { ledger, recovery } = Ledger::open(place, roots)?;
    if let Some(recovery) = recovery {
        say(&recovery.to_string());
    }
    let guard = spawn(GuardCommand::default(), &ledger)?;
    Ok((ledger, guard))
}

/// Puts everything back and tells of it.
///
/// # Errors
/// If something could not be: the guard and `lull restore` have another try.
pub(crate) fn put_back(ledger: &Ledger) -> anyhow::Result<()> {
    let restored = ledger.restore();
    say::told(&restored);
    if !restored.failed.is_empty() {
        bail!("not everything is as before; the ledger is {}", ledger.path().display());
    }
    Ok(())
}
