//! The library that is preloaded into servers: inside this program, written
//! out for as long as a server runs with it, or to where servers are told to look.

use anyhow::{Context, bail};
use lull_host::oncall::{self, Linkage, linkage};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Built with this program (`build.rs`).
const LIBRARY: &[u8] = include_bytes!(env!("LULL_PRELOAD"));

/// Writes it into a directory that outlives this program; its path.
pub fn write_to(directory: &Path) -> anyhow::Result<PathBuf> {
    Ok(oncall::write_library(directory, LIBRARY)?)
}

/// Refuses a program of which the library would see nothing, with what to do.
pub fn check_program(program: &OsStr) -> anyhow::Result<()> {
    match obstacle(program)? {
        None => Ok(()),
        Some(why) => bail!("{why}; latency = \"ebpf\" sees it from the kernel"),
    }
}

/// Why the library would see nothing of a program; `None` if it does.
///
/// # Errors
/// No such program, or one that cannot be read.
pub fn obstacle(program: &OsStr) -> anyhow::Result<Option<String>> {
    let Some(path) = find(program) else {
        bail!("no program `{}`: is it installed, and in $PATH?", program.display());
    };
    let linked = linkage(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let why = match linked {
        Linkage::Dynamic | Linkage::Other => return Ok(None),
        Linkage::Static => "is linked statically: nothing can be preloaded into it",
        Linkage::Go => "is a Go program, which makes its system calls by itself",
    };
    Ok(Some(format!("{} {why}", path.display())))
}

/// Where a shell would find it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|place| place.join(program)).find(|path| path.is_file())
}

/// The library in a file of its own, which goes with the value.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    _place: TempDir,
}

impl Library {
    /// Writes it to a new directory that only this user can write to.
    pub fn write() -> anyhow::Result<Self> {
        let place = tempfile::Builder::new().prefix("lull-").tempdir();
        let place = place.context("cannot make a directory for the preloaded library")?;
        let path = place.path().join("liblull_preload.so");
        let failed = || format!("cannot write the preloaded library to {}", path.display());
        std::fs::write(&path, LIBRARY).with_context(failed)?;
        // A server that changes its user still executes programs with it.
        for (path, mode) in [(place.path(), 0o755), (&path, 0o555)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(failed)?;
        }
        Ok(Self { path, _place: place })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
