//! `cargo xtask tsan`: tests under ThreadSanitizer, which reports data races.
//!
//! The standard library is built with it too, so that its locks and threads are seen. The tests
//! are those of the gate, of the page and of the preloaded library, with real threads and
//! signals. There is no file of suppressions: none was needed. It takes nightly Rust, so that it
//! is no part of `cargo xtask test`.

use crate::{nightly, release};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::ExitCode;

/// What cargo tests; tests of other crates start processes, of which each would have to be built
/// so.
const PROGRAMS: [&[&str]; 3] = [
    &["--package", "lull-oncall", "--lib", "--test", "threads"],
    &["--package", "lull-preload", "--lib"],
    &["--package", "lull-marks", "--lib"],
];

/// The options of ThreadSanitizer: a race ends the program, and a mutex is judged by its order.
const OPTIONS: &str = "halt_on_error=1:second_deadlock_stack=1";

/// Runs all programs and reports a race as a failure.
///
/// # Errors
/// If there is no nightly Rust with the sources of the standard library.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let triple = release::host_triple()?;
    let mut code = ExitCode::SUCCESS;
    for program in PROGRAMS {
        println!("== {}", program.join(" "));
        let mut cargo = nightly::cargo(root, &release::target(root).join("tsan"))?;
        cargo.args(["test", "--quiet", "-Zbuild-std", "--target", &triple]).args(program);
        cargo.env("RUSTFLAGS", "-Zsanitizer=thread").env("TSAN_OPTIONS", OPTIONS);
        if !cargo.status().context("cannot start rustup")?.success() {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
