//! One agent for each state directory.
//!
//! The lock is the kernel's (`flock(2)`), so it ends with its holder in every case;
//! the file only names the holder. The file is never removed, because two
//! agents could then hold two files of one name.

use super::state_dir::StateDir;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;

/// A held lock.
#[derive(Debug)]
pub(super) struct Lock {
    /// The kernel holds the lock until this is closed.
    _file: File,
}

/// The kind of process that takes the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An agent, which keeps it for its life.
    Agent,
    /// A guard or a restore by hand, which is done within seconds.
    Restorer,
}

/// The holder of the lock, if it has written its identity yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) role: Role,
    pub(super) pid: i32,
}

const NAME: &str = "lock";

impl Lock {
    /// Takes the lock, or returns its holder (`Err(None)` if not yet known).
    pub(super) fn take(dir: &StateDir, role: Role) -> io::Result<Result<Self, Option<Holder>>> {
        let mut file = match dir.open_file(NAME, false) {
            // Restoring needs no file to be written.
            Err(error) if role == Role::Restorer => dir.existing_file(NAME)?.ok_or(error)?,
            opened => opened?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Err(read_holder(&file))),
            Err(error) => return Err(error.into()),
        }
        match write_holder(&mut file, role) {
            // The file then names an earlier holder, which has ended.
            Err(error) if role == Role::Agent => Err(error),
            _ => Ok(Ok(Self { _file: file })),
        }
    }
}

fn write_holder(file: &mut File, role: Role) -> io::Result<()> {
    let word = if role == Role::Agent { "agent" } else { "restorer" };
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{word} {}", rustix::process::getpid().as_raw_nonzero())
}

/// The number of the agent that has a state directory now.
///
/// # Errors
/// If the lock cannot be read.
pub fn running_agent(dir: &StateDir) -> io::Result<Option<i32>> {
    let Some(file) = dir.existing_file(NAME)? else { return Ok(None) };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => {
            let agent = read_holder(&file).filter(|holder| holder.role == Role::Agent);
            Ok(agent.map(|holder| holder.pid))
        }
        Err(error) => Err(error.into()),
    }
}

fn read_holder(file: &File) -> Option<Holder> {
    let mut bytes = [0; 64];
    let length = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?.strip_suffix('\n')?;
    let (word, pid) = text.split_once(' ')?;
    let role = if word == "agent" { Role::Agent } else { Role::Restorer };
    Some(Holder { role, pid: pid.parse().ok()? })
}
