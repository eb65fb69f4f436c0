//! `lull restore`: restores the knobs that a killed agent and guard left changed.

use crate::cli::RestoreArgs;
use lull_host::Roots;
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
    let recovery = restore_stale(&place, &Roots::default())?;
    if args.json {
        return super::print_json(&recovery);
    }
    match recovery {
        None => println!("nothing to restore in {}", place.path().display()),
        Some(recovery) => println!("{recovery}"),
    }
    Ok(())
}
