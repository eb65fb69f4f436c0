//! `cargo xtask tsan`: tests under ThreadSanitizer, which reports data races.
//!
//! The standard library is built with it too, so that its locks and threads are seen. The tests
//! are those of the gate, of the page and of the preloaded library, with real threads and
//! signals; then the library runs in a threaded server. There is no file of suppressions: none was
//! needed. It takes nightly Rust, so that it is no part of `cargo xtask test`.

use crate::command::done;
use crate::{nightly, release};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Programs of tests that are built with it.
const PROGRAMS: [&[&str]; 2] = [
    &["--package", "lull-oncall", "--lib", "--test", "threads"],
    &["--package", "lull-preload", "--lib"],
];

/// The test that preloads such a library into a server. Test and agent are built as usual.
const SERVER: [&str; 9] = [
    "test",
    "--package",
    "lull-cli",
    "--all-features",
    "--test",
    "e2e",
    "races",
    "--",
    "--ignored",
];

/// The options of ThreadSanitizer: a race ends the program, and a mutex is judged by its order.
const OPTIONS: &str = "halt_on_error=1:second_deadlock_stack=1";

/// Runs all programs and reports a race as a failure.
///
/// # Errors
/// If there is no nightly Rust with the sources of the standard library, or the library does not
/// build.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let sanitised = Sanitised::new(root)?;
    let mut code = ExitCode::SUCCESS;
    for program in PROGRAMS {
        println!("== {}", program.join(" "));
        let mut test = sanitised.cargo("test")?;
        if !test.args(program).status().context("cannot start rustup")?.success() {
            code = ExitCode::FAILURE;
        }
    }
    println!("== the library in a server");
    done(sanitised.cargo("build")?.args(["--package", "lull-preload"]))?;
    let mut server = Command::new("cargo");
    server.current_dir(root).args(SERVER).env("LULL_TSAN_LIBRARY", sanitised.library());
    if !server.status().context("cannot start cargo")?.success() {
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

/// Builds with ThreadSanitizer.
struct Sanitised<'a> {
    root: &'a Path,
    target: PathBuf,
    triple: String,
}

impl<'a> Sanitised<'a> {
    fn new(root: &'a Path) -> Result<Self> {
        let target = release::target(root).join("tsan");
        Ok(Self { root, target, triple: release::host_triple()? })
    }

    fn cargo(&self, command: &str) -> Result<Command> {
        let mut cargo = nightly::cargo(self.root, &self.target)?;
        cargo.args([command, "--quiet", "-Zbuild-std", "--target", &self.triple]);
        cargo.env("RUSTFLAGS", "-Zsanitizer=thread").env("TSAN_OPTIONS", OPTIONS);
        Ok(cargo)
    }

    fn library(&self) -> PathBuf {
        self.target.join(&self.triple).join("debug/liblull_preload.so")
    }
}
