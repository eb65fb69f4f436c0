//! `cargo xtask package`: what goes to other machines, under `target/package`.
//!
//! A static program for any Linux (and for an image that has nothing else), by
//! musl, and a Debian package by cargo-deb with the program as this machine
//! links it. Neither carries debug information. Beside them are the notices of all crates that
//! they contain, manual pages, completions of shells and the schema of configs, which the Debian
//! package carries, too.

use crate::command::{done, read_output};
use crate::packages::{install_packages, on_path};
use crate::release;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const ARCHITECTURE: &str = std::env::consts::ARCH;

/// Makes both.
///
/// # Errors
/// If something that this takes is missing, does not build, or is not static.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let place = release::target(root).join("package");
    std::fs::create_dir_all(&place)?;
    // The Debian package contains them.
    let notices = crate::supply::write(root, &place)?;
    notices.iter().for_each(|file| println!("{}", file.display()));
    let program = static_program(root, &place)?;
    println!("{}", program.display());
    accompany(&program, &place)?;
    println!("{}", debian_package(root, &place)?.display());
    Ok(ExitCode::SUCCESS)
}

fn static_program(root: &Path, place: &Path) -> Result<PathBuf> {
    // SQLite is C, and its compiler must know musl's headers.
    if on_path("musl-gcc").is_none() && !install_packages(&["musl-tools"]) {
        bail!("a static program takes musl-gcc: apt-get install musl-tools");
    }
    let target = format!("{ARCHITECTURE}-unknown-linux-musl");
    let mut add = Command::new("rustup");
    done(add.args(["target", "add", &target]))?;
    let mut build = Command::new("cargo");
    build.current_dir(root).args(["build", "--release", "--package", "lull-cli", "--bin", "lull"]);
    build.args(["--features", "parquet"]);
    done(build.args(["--target", &target]).env("CARGO_PROFILE_RELEASE_STRIP", "symbols"))?;
    let built = release::target(root).join(target).join("release/lull");
    refuse_dynamic(&built)?;
    let version = read_output(Command::new(&built).arg("--version"))?;
    let version = version.split_whitespace().nth(1).context("it has no version")?.to_owned();
    let program = place.join(format!("lull-{version}-linux-{ARCHITECTURE}"));
    std::fs::copy(&built, &program)?;
    Ok(program)
}

/// Lets the program write what comes with it: manual pages, completions, the schema of configs.
fn accompany(program: &Path, place: &Path) -> Result<()> {
    let (man, completions) = (place.join("man"), place.join("completions"));
    for directory in [&man, &completions] {
        // A command that is gone must not leave its page in the package.
        if directory.exists() {
            std::fs::remove_dir_all(directory)?;
        }
        std::fs::create_dir_all(directory)?;
    }
    done(Command::new(program).arg("man").arg(&man))?;
    for shell in ["bash", "zsh", "fish"] {
        let script = read_output(Command::new(program).args(["completions", shell]))?;
        std::fs::write(completions.join(format!("lull.{shell}")), script)?;
    }
    let schema = read_output(Command::new(program).args(["keys", "--schema"]))?;
    std::fs::write(place.join("config.schema.json"), schema)?;
    Ok(())
}

/// A program that names an interpreter is started by that, and needs libraries.
fn refuse_dynamic(program: &Path) -> Result<()> {
    let headers =
        read_output(Command::new("readelf").args(["--program-headers", "--wide"]).arg(program))?;
    if headers.lines().any(|line| line.trim_start().starts_with("INTERP")) {
        bail!("{} needs libraries of this machine", program.display());
    }
    Ok(())
}

fn debian_package(root: &Path, place: &Path) -> Result<PathBuf> {
    if on_path("cargo-deb").is_none() {
        bail!("a Debian package takes cargo-deb: cargo install cargo-deb --locked");
    }
    let mut deb = Command::new("cargo");
    deb.current_dir(root).args(["deb", "--package", "lull-cli", "--strip", "--output"]).arg(place);
    // Its last line is the file.
    let file = read_output(&mut deb)?.lines().last().map(PathBuf::from);
    file.context("cargo-deb names no file")
}
