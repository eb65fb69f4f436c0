//! `lull guard`: restores knobs when its agent dies. The agent starts it.

use anyhow::Context;
use lull_host::guard::{self, GuardArgs};

pub(crate) fn run(args: &crate::cli::GuardArgs) -> anyhow::Result<()> {
    let args = GuardArgs::parse(args.arguments.iter().cloned())
        .context("this command is for the agent; `lull restore` puts knobs back by hand")?;
    guard::run(&args)?;
    Ok(())
}
