//! The `lull` command: one file a subcommand.
//!
//! Exit status: 0 done, 1 failed, 2 bad usage or input.

mod admission;
mod alongside;
mod blocks;
mod cli;
mod commands;
mod config;
mod custody;
mod dispatched;
mod library;
mod live;
mod located;
mod power_file;
mod progress;
mod prometheus;
mod proof;
mod record;
mod recorded;
mod say;
mod session;
mod signals;
mod spots;
mod status;
mod text;

use clap::Parser;
use std::process::ExitCode;

/// Version and commit; both stand in every record.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("LULL_COMMIT"), ")");

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::told(format_args!("{error:#}"));
            ExitCode::from(status_of(&error))
        }
    }
}

/// Bad input is 2, everything else 1.
fn status_of(error: &anyhow::Error) -> u8 {
    let is_input = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<located::InputError>() || cause.is::<commands::UsageError>()
    };
    if error.chain().any(is_input) { 2 } else { 1 }
}
