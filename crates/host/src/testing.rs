//! Trees of kernel files for tests, a ledger in memory, and a gate whose workers are not woken.

use crate::guard::{LedgerError, Original, ThreadWrite};
use crate::knobs::SaveOld;
use crate::{LiveThread, Roots};
use lull_oncall::{Id, Seat, Wake};
use std::path::PathBuf;
use tempfile::TempDir;

/// A directory with `proc` and `sys`, gone when dropped.
pub(crate) struct Tree {
    dir: TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::under(self.dir.path())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and the directories above it; an open file sees the new content.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }
}

/// A tree with these files of cgroups, by path below the hierarchy's root, and no process.
pub(crate) fn cgroup_tree(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let tree = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = tree.path().join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let roots = Roots::under(tree.path());
    std::fs::create_dir_all(&roots.proc).unwrap();
    (tree, roots)
}

/// Wakes no worker.
pub(crate) struct NoWake;

impl Wake for NoWake {
    fn wake(&self, _: Id, _: &Seat) {}
}

/// A ledger in memory; a full one saves nothing.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) originals: Vec<Original>,
    /// How often anything new was saved.
    pub(crate) batches: usize,
    pub(crate) is_full: bool,
}

impl SaveOld for Saved {
    fn threads(&mut self, _: &[ThreadWrite]) -> Result<(), LedgerError> {
        Ok(())
    }

    fn changed_threads(&mut self, _: &[LiveThread]) -> Result<(), LedgerError> {
        Ok(())
    }

    fn values(&mut self, originals: &[Original]) -> Result<(), LedgerError> {
        if self.is_full {
            let (path, source) = ("/full/ledger".into(), std::io::ErrorKind::StorageFull.into());
            return Err(LedgerError::Write { path, source });
        }
        let known: Vec<_> = self.originals.iter().map(Original::key).collect();
        let new = originals.iter().filter(|original| !known.contains(&original.key()));
        let before = self.originals.len();
        self.originals.extend(new.cloned());
        self.batches += usize::from(self.originals.len() > before);
        Ok(())
    }
}
