//! The static program for arm64, built on a machine of another processor.
//!
//! Rust's own linker and C library link the program, as they link the tests of the rig's arm64
//! machine. Two dependencies contain C (SQLite and ring): Debian's cross compiler compiles them
//! against musl's headers for arm64, which are fetched and not installed. The library that
//! `lull exec` preloads is for glibc, so the cross compiler links it with its own C library
//! (`crates/agent/build.rs` starts that build).

use crate::command::{done, read_output};
use crate::debian::{self, Package, Source};
use crate::packages::{install_packages, on_path};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// The processor that the program is for.
pub(super) const ARCHITECTURE: &str = "aarch64";
/// Starts programs of that processor; it has no other file.
pub(super) const EMULATOR: &str = "qemu-aarch64-static";

const PROGRAM: &str = "aarch64-unknown-linux-musl";
const LIBRARY: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const ARCHIVER: &str = "aarch64-linux-gnu-ar";
const LINKER: &str = "-C target-feature=+crt-static -C linker=rust-lld -C link-self-contained=yes";
const MUSL: Source = Source {
    name: "musl-arm64",
    suite: "bookworm",
    architecture: "arm64",
    packages: &[Package::Named("musl-dev")],
};

/// Sets what a build of the program for [`ARCHITECTURE`] takes, and returns its target.
///
/// # Errors
/// If the compiler, the emulator, musl's headers or Rust's libraries cannot be had.
pub(super) fn prepare(build: &mut Command) -> Result<&'static str> {
    let needed = [COMPILER, EMULATOR].map(on_path);
    let packages = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"];
    if needed.contains(&None) && !install_packages(&packages) {
        bail!("a program for arm64 needs: apt-get install {}", packages.join(" "));
    }
    done(Command::new("rustup").args(["target", "add", PROGRAM, LIBRARY]))?;
    let musl = debian::provide(&MUSL, &xtask::cache().join("packages"))?;
    let headers = read_output(Command::new(COMPILER).arg("-print-file-name=include"))?;
    build.env("CC_aarch64_unknown_linux_musl", COMPILER);
    build.env("AR_aarch64_unknown_linux_musl", ARCHIVER);
    build.env("CFLAGS_aarch64_unknown_linux_musl", c_flags(&musl, headers.trim()));
    build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS", LINKER);
    build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
    Ok(PROGRAM)
}

/// Headers of musl and of the compiler only, and atomic instructions in place of calls to the
/// compiler's own library, which is for glibc.
fn c_flags(musl: &Path, compiler: &str) -> String {
    let musl = musl.join("usr/include/aarch64-linux-musl");
    format!("-nostdinc -isystem {} -isystem {compiler} -mno-outline-atomics", musl.display())
}
