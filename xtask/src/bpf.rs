//! `cargo xtask bpf`: compiles the eBPF programs of `crates/host/bpf`.
//!
//! The objects are committed, so that Lull builds without clang. They are made by one version
//! of clang: another one writes other bytes without any change of the sources.

use crate::command::{done, read_output};
use crate::packages::{install_packages, on_path};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Sources and objects.
const FOLDER: &str = "crates/host/bpf";
pub(crate) const CLANG: &str = "clang-14";
const CLANG_VERSION: &str = "14.0.6";
const STRIP: &str = "llvm-strip-14";
/// Debian's packages of the two, and of the headers that the sources include.
pub(crate) const PACKAGES: &str = "clang-14 llvm-14 libbpf-dev linux-libc-dev";

/// Compiles every program; with `check` only compares with the committed objects.
///
/// # Errors
/// If the compiler is missing or rejects a program, or an object cannot be written.
pub(crate) fn run(root: &Path, check: bool) -> Result<ExitCode> {
    if !is_ready() {
        install_packages(&PACKAGES.split(' ').collect::<Vec<_>>());
    }
    if !is_ready() {
        bail!("this needs {CLANG} {CLANG_VERSION}: apt-get install {PACKAGES}");
    }
    let folder = root.join(FOLDER);
    let built = crate::release::target(root).join("bpf");
    std::fs::create_dir_all(&built)?;
    let sources = sources(&folder)?;
    let mut stale = 0;
    for source in &sources {
        let object = Path::new(source).with_extension("o");
        let committed = folder.join(&object);
        let new = compile(&folder, source, &built.join(&object))?;
        if std::fs::read(&committed).is_ok_and(|old| old == new) {
            continue;
        }
        if check {
            let object = object.display();
            println!("{FOLDER}/{object}: not what {source} compiles to; run cargo xtask bpf");
            stale += 1;
        } else {
            std::fs::write(&committed, new)?;
            println!("bpf: wrote {FOLDER}/{}", object.display());
        }
    }
    if stale > 0 {
        return Ok(ExitCode::FAILURE);
    }
    println!("bpf: {} objects are what their sources compile to", sources.len());
    Ok(ExitCode::SUCCESS)
}

/// Compares the committed objects; the phase of `cargo xtask test`.
///
/// # Errors
/// As [`run`].
pub(crate) fn check(root: &Path) -> Result<ExitCode> {
    run(root, true)
}

/// Returns whether the compiler is installed, in the version that made the objects.
pub(crate) fn is_ready() -> bool {
    let programs = [CLANG, STRIP].iter().all(|program| on_path(program).is_some());
    let headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
    let version = || read_output(Command::new(CLANG).arg("--version")).unwrap_or_default();
    programs && headers && version().contains(&format!("version {CLANG_VERSION}"))
}

/// The names of the sources, in order.
fn sources(folder: &Path) -> Result<Vec<String>> {
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut sources: Vec<String> = names.filter(|name| name.ends_with(".bpf.c")).collect();
    sources.sort();
    Ok(sources)
}

/// Compiles a source and returns the object. Of its debug information it keeps only BTF, by
/// which the loader finds maps and the kernel's fields.
fn compile(folder: &Path, source: &str, object: &Path) -> Result<Vec<u8>> {
    let mut clang = Command::new(CLANG);
    // The paths in BTF are relative to the folder: an object is the same on every machine.
    clang.current_dir(folder).args(["--target=bpfel", "-mcpu=v3", "-O2", "-g"]);
    clang.args(["-fdebug-compilation-dir=.", "-Wall", "-Wextra", "-Werror"]);
    // libbpf's macros name the context of each program, which few use.
    clang.arg("-Wno-unused-parameter");
    // Debian keeps <asm/types.h> in a folder of the machine's architecture.
    clang.arg(format!("-idirafter/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    done(clang.args(["-c", source, "-o"]).arg(object))?;
    done(Command::new(STRIP).arg("-g").arg(object))?;
    Ok(std::fs::read(object)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_has_its_object_and_its_licence() {
        let folder = crate::root().join(FOLDER);
        let sources = sources(&folder).unwrap();
        assert!(sources.len() >= 4, "{sources:?}");
        for source in sources {
            let text = std::fs::read_to_string(folder.join(&source)).unwrap();
            assert!(
                text.starts_with("// SPDX-License-Identifier: MIT OR GPL-2.0-only\n"),
                "{source}"
            );
            assert!(folder.join(&source).with_extension("o").exists(), "{source} has no object");
        }
    }
}
