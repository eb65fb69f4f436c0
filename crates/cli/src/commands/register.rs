//! `lull register`: a program that is an app of a running agent.
//!
//! This process registers itself and then executes the program, which keeps the process number
//! and inherits the connection: the registration lasts until the program ends.

use crate::cli::RegisterArgs;
use crate::say;
use anyhow::Context;
use lull_agent::error::{UsageError, describe};
use lull_host::register::{RegisterError, register};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) fn run(args: &RegisterArgs) -> anyhow::Result<()> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(UsageError("name the program to run, after --".to_owned()).into());
    };
    match enter(args) {
        Ok(app) => say::notice(format_args!("registered as `{app}`")),
        Err(error) if args.optional => {
            say::notice(format_args!("not registered: {}", describe(&error)));
        }
        Err(error) => return Err(error),
    }
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Registers this process for as long as it runs; returns the name of the app.
fn enter(args: &RegisterArgs) -> anyhow::Result<String> {
    let hint = |error: &RegisterError| match error {
        RegisterError::Refused(_) => "",
        _ => " (--optional runs the command all the same)",
    };
    let registration = register(&args.socket, args.template.as_deref())
        .map_err(|error| anyhow::anyhow!("{error}{}", hint(&error)))?;
    let app = registration.app().to_owned();
    registration.keep_across_exec().context("the connection cannot be kept")?;
    Ok(app)
}
