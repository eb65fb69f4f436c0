//! The `lull` command: one file a subcommand.
//!
//! Exit status: 0 done, 1 failed, 2 bad usage or input, 3 a load of which no request was answered.

// First, since its macro is to be known in all others.
#[macro_use]
mod say;

mod alongside;
mod cli;
mod commands;
mod order;
mod progress;
mod signals;
mod text;

use lull_agent::error::UsageError;
use lull_agent::located::InputError;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::parse();
    match commands::dispatch(cli).and_then(|()| finish_output()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::notice(lull_agent::error::describe(&error));
            ExitCode::from(status_of(&error))
        }
    }
}

/// Reports results that could not be printed.
fn finish_output() -> anyhow::Result<()> {
    match say::finish_output() {
        Some(error) => anyhow::bail!("cannot print the result: {error}"),
        None => Ok(()),
    }
}

/// Bad input is 2, a server that answers nothing is 3, everything else 1.
fn status_of(error: &anyhow::Error) -> u8 {
    if error.is::<commands::NoAnswer>() {
        return 3;
    }
    let is_input = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<InputError>() || cause.is::<UsageError>()
    };
    if error.chain().any(is_input) { 2 } else { 1 }
}
