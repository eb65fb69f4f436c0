//! The library that is preloaded into servers.
//!
//! It is embedded in this program and written to a temporary file while a server runs with
//! it, or to a directory that the servers' environment names.

use anyhow::{Context, bail};
use lull_host::Roots;
use lull_host::apps::{ProcessId, ProcessTable};
use lull_host::oncall::{self, Linkage, linkage};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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

/// Returns the path of a program as a shell would find it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|place| place.join(program)).find(|path| path.is_file())
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
        let owner = ProcessId::own(&Roots::default()).context("cannot read /proc/self/stat")?;
        let prefix = format!("{PREFIX}{}-{}-", owner.pid, owner.start_ticks);
        let place = tempfile::Builder::new().prefix(&prefix).tempdir();
        let place = place.context("cannot make a directory for the preloaded library")?;
        let path = place.path().join("liblull_preload.so");
        let failed = || format!("cannot write the preloaded library to {}", path.display());
        std::fs::write(&path, LIBRARY).with_context(failed)?;
        // A server that changes its user must still be able to load it.
        for (path, mode) in [(place.path(), 0o755), (&path, 0o555)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(failed)?;
        }
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
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    let leftover = |path: &PathBuf| is_leftover(path) && !is_in_use(path);
    for path in entries.flatten().map(|entry| entry.path()).filter(leftover) {
        // What cannot be removed now is found again by the next start.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Whether a path is the directory of a library, of this user, whose maker has ended.
fn is_leftover(path: &Path) -> bool {
    let Some(maker) = path.file_name().and_then(OsStr::to_str).and_then(maker_of) else {
        return false;
    };
    let is_mine = std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw());
    is_mine && maker.facts(&Roots::default()).is_none()
}

/// The process that made the directory of this name.
fn maker_of(name: &str) -> Option<ProcessId> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let (pid, start_ticks) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| ProcessId { pid, start_ticks })
}

fn is_in_use(directory: &Path) -> bool {
    let wanted = directory.as_os_str().as_encoded_bytes();
    let Ok(table) = ProcessTable::new(&Roots::default()) else { return true };
    table.iter().any(|(pid, _)| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(wanted.len()).any(|window| window == wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_the_process_that_made_it() {
        let maker = ProcessId { pid: 4711, start_ticks: 81_230 };
        assert_eq!(maker_of("lull-preload-4711-81230-aB3"), Some(maker));
        for other in ["lull-aB3", "lull-preload-4711", "lull-preload-4711-81230", "x"] {
            assert_eq!(maker_of(other), None, "{other}");
        }
    }

    #[test]
    fn only_the_library_of_a_process_that_has_ended_is_a_leftover() {
        let library = Library::write().unwrap();
        let directory = library.path().parent().unwrap().to_owned();
        assert!(!is_leftover(&directory), "its maker runs");
        let stale = directory.with_file_name(format!("{PREFIX}{}-1-x", i32::MAX));
        std::fs::create_dir(&stale).unwrap();
        let mut user = std::process::Command::new("sleep");
        let mut user = user.arg("600").env("LD_PRELOAD", stale.join("x.so")).spawn().unwrap();
        remove_leftovers();
        let was_kept = stale.exists();
        user.kill().unwrap();
        user.wait().unwrap();
        remove_leftovers();
        assert!(was_kept, "the library of a running process was removed");
        assert!(!stale.exists() && directory.exists());
    }
}
