//! `lull restore`: restores the knobs that a killed agent and guard left changed.

use crate::cli::RestoreArgs;
use crate::say;
use anyhow::bail;
use lull_host::Roots;
use lull_host::apps::join_host_cgroups;
use lull_host::guard::{Recovery, StateDir, restore_stale};

pub(crate) fn run(args: &RestoreArgs) -> anyhow::Result<()> {
    lull_agent::library::remove_leftovers();
    let path = StateDir::path_of(args.state.as_deref())?;
    // A directory that was made here would hide that another one is meant.
    if path.try_exists().is_ok_and(|exists| !exists) {
        if args.json {
            return super::print_json(&None::<Recovery>);
        }
        println!("nothing to restore: there is no directory {}", path.display());
        return Ok(());
    }
    let place = StateDir::locate(args.state.as_deref())?;
    let roots = Roots::default();
    if let Err(error) = join_host_cgroups(&roots) {
        say::notice(error.to_string());
    }
    let recovery = restore_stale(&place, &roots)?;
    match &recovery {
        _ if args.json => super::print_json(&recovery)?,
        None => println!("nothing to restore in {}", place.path().display()),
        Some(recovery) => println!("{recovery}"),
    }
    if recovery.is_some_and(|recovery| recovery.has_failed()) {
        bail!(
            "some values were not restored: remove the cause and run `lull restore` again, or set \
             what the output names by hand"
        );
    }
    Ok(())
}
