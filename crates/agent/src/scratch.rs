//! Temporary files, and temporary directories named after the process that made them, so that a
//! later start finds those that a killed process left.

use anyhow::Context;
use lull_host::Roots;
use lull_host::apps::{ProcessId, ProcessTable};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempDir};

/// Writes a file under a temporary name, for a rename within its directory. As for any new file,
/// the umask limits its mode.
///
/// # Errors
/// If the file cannot be written.
pub fn temporary_file(folder: &Path, mode: u32, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix(".lull-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Makes a temporary directory in `parent` that all users can enter and only this one can write
/// to; `prefix` names its purpose.
///
/// # Errors
/// If the directory cannot be made.
pub fn scratch_directory(parent: &Path, prefix: &str) -> anyhow::Result<TempDir> {
    let owner = ProcessId::own(&Roots::default()).context("cannot read /proc/self/stat")?;
    let prefix = format!("{prefix}{}-{}-", owner.pid, owner.start_ticks);
    let place = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    let failed = || format!("cannot make a directory in {}", parent.display());
    let place = place.with_context(failed)?;
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).with_context(failed)?;
    Ok(place)
}

/// The directories in `parent` with this prefix whose makers, processes of this user, have
/// ended.
pub fn leftovers(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| is_leftover(path, prefix)).collect()
}

/// The processes with a path in their environment.
pub fn users(path: &Path) -> io::Result<Vec<i32>> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let table = ProcessTable::new(&Roots::default())?;
    let uses = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(wanted.len()).any(|window| window == wanted)
    };
    Ok(table.iter().map(|(pid, _)| pid).filter(uses).collect())
}

/// Whether no process has a path in its environment, and none is about to run a program, whose
/// environment cannot be read yet.
pub(crate) fn is_unused(path: &Path) -> io::Result<bool> {
    let table = ProcessTable::new(&Roots::default())?;
    Ok(!table.iter().any(|(pid, _)| is_in_exec(pid)) && users(path)?.is_empty())
}

/// Whether a process has left its former program and the kernel still loads the next one. The
/// process that started it may run on by then.
fn is_in_exec(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The environment's end is one of the fields after the name, which is in parentheses.
    let environment_end = stat.rsplit(')').next().and_then(|text| text.split_whitespace().nth(48));
    // Kernel threads and ended processes have no address space.
    environment_end == Some("0") && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

fn is_leftover(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    let Some(maker) = name.and_then(|name| maker_of(name, prefix)) else { return false };
    let is_mine = std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw());
    is_mine && maker.facts(&Roots::default()).is_none()
}

/// The process that made the directory of this name.
fn maker_of(name: &str, prefix: &str) -> Option<ProcessId> {
    let mut parts = name.strip_prefix(prefix)?.split('-');
    let (pid, start_ticks) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| ProcessId { pid, start_ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_the_process_that_made_it() {
        let maker = ProcessId { pid: 4711, start_ticks: 81_230 };
        assert_eq!(maker_of("lull-preload-4711-81230-aB3", "lull-preload-"), Some(maker));
        for other in ["lull-aB3", "lull-preload-4711", "lull-preload-4711-81230", "x"] {
            assert_eq!(maker_of(other, "lull-preload-"), None, "{other}");
        }
    }

    #[test]
    fn only_the_directory_of_a_process_that_has_ended_is_a_leftover() {
        let parent = tempfile::tempdir().unwrap();
        let ours = scratch_directory(parent.path(), "x-").unwrap();
        let stale = parent.path().join(format!("x-{}-1-y", i32::MAX));
        std::fs::create_dir(&stale).unwrap();
        assert_eq!(leftovers(parent.path(), "x-"), [stale]);
        let path = ours.path().to_owned();
        drop(ours);
        assert!(!path.exists());
    }
}
