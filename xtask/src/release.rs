//! Lull itself, built optimised: where tasks that run it find it.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a binary of the workspace at `root`, optimised, and returns its path.
///
/// # Errors
/// If cargo cannot be started or the binary does not build.
pub fn binary(root: &Path, package: &str, name: &str) -> Result<PathBuf> {
    build(root, package, ["--bin", name])?;
    Ok(target(root).join("release").join(name))
}

/// The same for an example.
///
/// # Errors
/// As [`binary`].
pub fn example(root: &Path, package: &str, name: &str) -> Result<PathBuf> {
    build(root, package, ["--example", name])?;
    Ok(target(root).join("release/examples").join(name))
}

/// Returns cargo's target directory.
pub fn target(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    // A relative one is relative to where cargo runs, which is the root.
    root.join(target.unwrap_or_else(|| "target".into()))
}

/// The target that the compiler builds for by default.
///
/// # Errors
/// If rustc cannot be started.
pub fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

fn build(root: &Path, package: &str, what: [&str; 2]) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["build", "--quiet", "--release"]);
    let status = command.args(["--package", package]).args(what).status();
    if !status.context("cannot start cargo")?.success() {
        let what = what.join(" ");
        bail!("does not build; run cargo build --release --package {package} {what}");
    }
    Ok(())
}
