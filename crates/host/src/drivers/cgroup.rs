//! One file of a cgroup that Lull sets, and how it is restored.
//!
//! A cgroup is known by its id, because a unit that starts again gets a new cgroup of the same
//! name, and its limits are the owner's. The file is restored only while it holds Lull's text.

use super::PutBack;
use super::text::{self, FileError};
use crate::files::unless_gone;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One file of a cgroup before Lull, and Lull's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupFile {
    /// The file.
    pub path: PathBuf,
    /// The kernel's id of the cgroup, the inode of its directory.
    pub cgroup: u64,
    /// The text before.
    pub before: String,
    /// Lull's text.
    pub ours: String,
}

impl CgroupFile {
    /// Reads a file as it is, to which Lull will write `ours`.
    pub(crate) fn read(path: &Path, ours: &str) -> Result<Self, FileError> {
        let failed = |source| FileError { path: path.to_owned(), wanted: None, source };
        let cgroup = id_of(path).map_err(failed)?;
        let before = text::read(path)?;
        Ok(Self { path: path.to_owned(), cgroup, before, ours: ours.to_owned() })
    }

    /// Whether the cgroup is the one that was read.
    ///
    /// # Errors
    /// If its directory cannot be read, which is not its end.
    pub(crate) fn is_there(&self) -> io::Result<bool> {
        Ok(unless_gone(id_of(&self.path))? == Some(self.cgroup))
    }

    /// Restores the text if the file has Lull's.
    ///
    /// # Errors
    /// If the file cannot be read or written, or does not keep the text.
    pub(crate) fn put_back(&self) -> Result<PutBack, FileError> {
        let outcome = self.write_back();
        // Its owner may remove the cgroup at any moment, also between two calls here.
        if self.is_there().is_ok_and(|is_there| !is_there) { Ok(PutBack::Gone) } else { outcome }
    }

    fn write_back(&self) -> Result<PutBack, FileError> {
        let failed = |source| FileError { path: self.path.clone(), wanted: None, source };
        if !self.is_there().map_err(failed)? {
            return Ok(PutBack::Gone);
        }
        let found = text::read(&self.path)?;
        if found == self.before {
            return Ok(PutBack::Already);
        }
        if found != self.ours {
            return Ok(PutBack::Left { found });
        }
        text::write(&self.path, &self.before)?;
        let found = text::read(&self.path)?;
        if found == self.before {
            return Ok(PutBack::Done);
        }
        let source = io::Error::other(format!("it reads back as `{found}`"));
        let wanted = Some(self.before.clone());
        Err(FileError { path: self.path.clone(), wanted, source })
    }
}

fn id_of(file: &Path) -> io::Result<u64> {
    Ok(file.parent().unwrap_or(file).metadata()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use rustix::fs::{CWD, Mode, mkfifoat};
    use std::fs::OpenOptions;
    use std::io::Write;

    const FILE: &str = "sys/fs/cgroup/web/cpu.weight";

    fn held(tree: &Tree) -> CgroupFile {
        tree.write(FILE, "100\n");
        let state = CgroupFile::read(&tree.path(FILE), "50").unwrap();
        text::write(&state.path, "50").unwrap();
        state
    }

    #[test]
    fn a_file_with_lulls_text_is_restored_once() {
        let tree = Tree::new();
        let state = held(&tree);
        assert_eq!(state.put_back().unwrap(), PutBack::Done);
        assert_eq!(text::read(&state.path).unwrap(), "100");
        assert_eq!(state.put_back().unwrap(), PutBack::Already);
    }

    #[test]
    fn the_text_of_another_program_is_left_and_reported() {
        let tree = Tree::new();
        let state = held(&tree);
        tree.write(FILE, "77\n");
        assert_eq!(state.put_back().unwrap(), PutBack::Left { found: "77".to_owned() });
        assert_eq!(text::read(&state.path).unwrap(), "77");
    }

    #[test]
    fn a_new_cgroup_of_the_same_name_is_not_written_to() {
        let tree = Tree::new();
        let state = held(&tree);
        std::fs::rename(tree.path("sys/fs/cgroup/web"), tree.path("sys/fs/cgroup/old")).unwrap();
        tree.write(FILE, "50\n");
        assert_eq!(state.put_back().unwrap(), PutBack::Gone);
        assert_eq!(text::read(&state.path).unwrap(), "50");
    }

    #[test]
    fn a_cgroup_that_is_removed_during_the_restore_is_gone() {
        let tree = Tree::new();
        let state = held(&tree);
        // A reader of a pipe waits until it has a writer, so that the next steps are in order.
        tree.remove(FILE);
        mkfifoat(CWD, &state.path, Mode::RUSR | Mode::WUSR).unwrap();
        let (path, group) = (state.path.clone(), tree.path("sys/fs/cgroup/web"));
        let owner = std::thread::spawn(move || {
            let mut text = OpenOptions::new().write(true).open(path).unwrap();
            std::fs::remove_dir_all(group).unwrap();
            text.write_all(b"50\n").unwrap();
        });
        assert_eq!(state.put_back().unwrap(), PutBack::Gone);
        owner.join().unwrap();
    }

    #[test]
    fn a_cgroup_that_cannot_be_read_is_not_taken_for_gone() {
        let tree = Tree::new();
        let state = held(&tree);
        std::fs::remove_dir_all(tree.path("sys/fs/cgroup")).unwrap();
        tree.write("sys/fs/cgroup", "");
        assert!(state.put_back().is_err());
    }

    #[test]
    fn a_cgroup_that_was_removed_is_gone() {
        let tree = Tree::new();
        let state = held(&tree);
        std::fs::remove_dir_all(tree.path("sys/fs/cgroup/web")).unwrap();
        assert_eq!(state.put_back().unwrap(), PutBack::Gone);
    }
}
