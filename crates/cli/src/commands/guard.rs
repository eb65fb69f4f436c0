//! `lull guard`: restores knobs when its agent dies. The agent starts it.

use crate::say;
use anyhow::Context;
use lull_host::guard::{self, GuardArgs, GuardEnd};

pub(crate) fn run(args: &crate::cli::GuardArgs) -> anyhow::Result<()> {
    let args = GuardArgs::parse(args.arguments.iter().cloned())
        .context("this command is for the agent; `lull restore` puts knobs back by hand")?;
    let agent = args.agent.pid;
    if let GuardEnd::Stuck(recovery) = guard::run(&args)? {
        say::notice(format!("guard: agent {agent} was stopped or stuck for 5 s and was killed"));
        recovery.iter().for_each(say::notice);
    }
    Ok(())
}
