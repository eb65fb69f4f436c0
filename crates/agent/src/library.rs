//! The library that is preloaded into servers.
//!
//! It is embedded in this program and written to a temporary file while a server runs with
//! it, or to a directory that the servers' environment names.

use crate::scratch::{self, scratch_directory};
use anyhow::{Context, bail};
use lull_host::oncall::{self, Linkage, linkage};
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The library's file, built with this program (`build.rs`).
const LIBRARY: &[u8] = include_bytes!(env!("LULL_PRELOAD"));

/// Writes the library into a directory that outlives this program and returns its path.
pub fn write_to(directory: &Path) -> anyhow::Result<PathBuf> {
    Ok(oncall::write_library(directory, LIBRARY)?)
}

/// Rejects a program whose queries the library cannot observe, with an alternative.
pub fn check_program(program: &OsStr) -> anyhow::Result<()> {
    match obstacle(program)? {
        None => Ok(()),
        Some(why) => bail!("{why}; latency = \"ebpf\" sees it from the kernel"),
    }
}

/// Returns why the library cannot observe a program's queries; `None` if it can.
///
/// # Errors
/// If the program does not exist or cannot be read.
pub fn obstacle(program: &OsStr) -> anyhow::Result<Option<String>> {
    let path = find(program)?;
    let linked = linkage(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let why = match linked {
        Linkage::Dynamic | Linkage::Other => return Ok(None),
        Linkage::Static => "is linked statically: nothing can be preloaded into it",
        Linkage::Go => "is a Go program, which makes its system calls by itself",
    };
    Ok(Some(format!("{} {why}", path.display())))
}

/// Returns the path of a program as a shell would find it.
///
/// # Errors
/// If there is no such program, or it may not be executed.
pub fn find(program: &OsStr) -> anyhow::Result<PathBuf> {
    let places = if program.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|place| place.join(program)).collect()
    };
    let mut files = places.iter().filter(|path| path.is_file());
    let first = files.clone().next().with_context(|| {
        format!("no program `{}`: is it installed, and in $PATH?", program.display())
    })?;
    let runs = files.find(|path| access(path.as_path(), Access::EXEC_OK).is_ok());
    runs.cloned().with_context(|| {
        let file = first.display();
        format!("{file} may not be executed: `chmod +x {file}`, or name another program")
    })
}

/// The library in a temporary file, which is removed when the value is dropped.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    _place: TempDir,
}

impl Library {
    /// Writes the library to a new directory that only this user can write to.
    pub fn write() -> anyhow::Result<Self> {
        remove_leftovers();
        let place = scratch_directory(&std::env::temp_dir(), PREFIX)
            .context("cannot make a directory for the preloaded library")?;
        let path = place.path().join("liblull_preload.so");
        let failed = || format!("cannot write the preloaded library to {}", path.display());
        std::fs::write(&path, LIBRARY).with_context(failed)?;
        // A server that changes its user must still be able to load it.
        std::fs::set_permissions(&path, Permissions::from_mode(0o555)).with_context(failed)?;
        Ok(Self { path, _place: place })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// How the directory of a library is named, before the process that made it.
const PREFIX: &str = "lull-preload-";

/// Removes the directories of libraries whose `lull` was killed. A directory whose library a
/// running process still has in its environment is kept, because that process may start
/// others with it.
pub fn remove_leftovers() {
    let is_unused = |path: &PathBuf| scratch::is_unused(path).unwrap_or(false);
    for path in scratch::leftovers(&std::env::temp_dir(), PREFIX).into_iter().filter(is_unused) {
        // A directory that cannot be removed now is removed by the next start.
        let _ = std::fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_only_if_it_may_be_executed() {
        assert!(find(OsStr::new("true")).is_ok());
        let error = find(OsStr::new("/etc/passwd")).unwrap_err().to_string();
        assert!(error.starts_with("/etc/passwd may not be executed: `chmod +x"), "{error}");
        let error = find(OsStr::new("/etc")).unwrap_err().to_string();
        assert!(error.starts_with("no program `/etc`"), "{error}");
    }

    #[test]
    fn only_the_library_of_a_process_that_has_ended_is_a_leftover() {
        let library = Library::write().unwrap();
        let directory = library.path().parent().unwrap().to_owned();
        let stale = directory.with_file_name(format!("{PREFIX}{}-1-x", i32::MAX));
        let mut user = std::process::Command::new("sleep");
        let mut user = user.arg("600").env("LD_PRELOAD", stale.join("x.so")).spawn().unwrap();
        // Other tests remove leftovers meanwhile, so that the user comes first.
        std::fs::create_dir(&stale).unwrap();
        remove_leftovers();
        let was_kept = stale.exists();
        user.kill().unwrap();
        user.wait().unwrap();
        remove_leftovers();
        assert!(was_kept, "the library of a running process was removed");
        assert!(!stale.exists() && directory.exists());
    }
}
