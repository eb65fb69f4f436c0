//! The nightly compiler, for the checks of memory and threads that the stable one has not.

use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

const MISSING: &str = "no nightly Rust with miri and rust-src; run `rustup toolchain install \
                       nightly --profile minimal --component miri,rust-src`";

/// Returns a cargo of nightly Rust that works at `root` with a target directory of its own: its
/// flags would make the usual cargo build everything again.
///
/// # Errors
/// If there is no nightly Rust with the components.
pub(crate) fn cargo(root: &Path, target: &Path) -> Result<Command> {
    let mut components = rustup();
    components.args(["miri", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !components.status().is_ok_and(|status| status.success()) {
        bail!(MISSING);
    }
    let mut cargo = rustup();
    cargo.current_dir(root).env("CARGO_TARGET_DIR", target);
    Ok(cargo)
}

/// A cargo of nightly Rust without what the stable one, which runs this task, has set.
fn rustup() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]);
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        command.env_remove(variable);
    }
    command.env_remove("RUSTUP_TOOLCHAIN");
    command
}
