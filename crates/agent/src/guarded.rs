//! The ledger, which holds the knobs' values of before, and the guard process, which
//! writes them back when the agent dies.

use lull_host::Roots;
use lull_host::apps::join_host_cgroups;
use lull_host::guard::{GuardCommand, GuardHandle, Ledger, Opened, StateDir, spawn};

/// Opens the ledger and starts a guard for it. Knobs that a former agent left changed are restored
/// first, and `say` is called with the result, and with what cannot be read in this container.
///
/// # Errors
/// Another agent holds the ledger, or it cannot be written.
pub fn open_ledger(
    directory: StateDir,
    roots: &Roots,
    guard: GuardCommand,
    say: &dyn Fn(&str),
) -> anyhow::Result<(Ledger, GuardHandle)> {
    crate::library::remove_leftovers();
    // Before the guard is started, which has the same namespace.
    if let Err(error) = join_host_cgroups(roots) {
        say(&error.to_string());
    }
    let Opened { ledger, recovery } = Ledger::open(directory, roots)?;
    if let Some(recovery) = recovery {
        say(&recovery.to_string());
    }
    let guard = spawn(guard, &ledger)?;
    Ok((ledger, guard))
}
