//! One agent for the pods of a node: a lock on the directory of the kubelet's cgroups.
//!
//! The state directory has a lock, too, which agents with another state directory do not see.
//! Agents in containers share this lock if they mount the node's `/sys`, as those of the chart do.

use crate::cgroup;
use anyhow::{Context, ensure};
use lull_host::Roots;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// The directories that are locked until this is dropped: one for each driver of cgroups that the
/// kubelet has used, and none before it has made any.
#[derive(Debug)]
pub(crate) struct NodeLock {
    _directories: Vec<File>,
}

impl NodeLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// If another agent has it.
    pub(crate) fn take(roots: &Roots, cgroup_root: &Path) -> anyhow::Result<Self> {
        let mut directories = Vec::new();
        for path in cgroup::tops(roots, cgroup_root) {
            let Ok(directory) = File::open(&path) else { continue };
            let locked = flock(&directory, FlockOperation::NonBlockingLockExclusive);
            let path = path.display();
            ensure!(
                locked != Err(Errno::WOULDBLOCK),
                "another agent already controls the pods of this node: it has locked {path}; stop \
                 it (`lslocks` shows its process), and install one release for a node"
            );
            locked.with_context(|| format!("cannot lock {path}, so that no other agent does"))?;
            directories.push(directory);
        }
        Ok(Self { _directories: directories })
    }
}
