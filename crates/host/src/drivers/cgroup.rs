//! One file of a cgroup that Lull sets, and how it is restored.
//!
//! A cgroup is known by its id, because a unit that starts again gets a new cgroup of the same
//! name, and its limits are the owner's. The file is restored only while it holds Lull's text.

use super::PutBack;
use super::text::{self, FileError};
use crate::files::unless_gone;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
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
        Ok(self.open()?.is_some())
    }

    /// Opens the directory of the cgroup, if it is the one that was read.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, directory_of(&self.path), flags, Mode::empty());
        let Some(opened) = unless_gone(opened.map_err(io::Error::from))? else { return Ok(None) };
        let is_same = fstat(&opened)?.st_ino == self.cgroup;
        Ok(is_same.then_some(opened))
    }

    /// Restores the text if the file has Lull's.
    ///
    /// # Errors
    /// If the file cannot be read or written, or does not keep the text.
    pub(crate) fn put_back(&self) -> Result<PutBack, FileError> {
        let outcome =
            self.write_back().map_err(|error| FileError { path: self.path.clone(), ..error });
        // Its owner may remove the cgroup at any moment, also between two calls here.
        if self.is_there().is_ok_and(|is_there| !is_there) { Ok(PutBack::Gone) } else { outcome }
    }

    fn write_back(&self) -> Result<PutBack, FileError> {
        let failed = |source| FileError { path: self.path.clone(), wanted: None, source };
        let Some(cgroup) = self.open().map_err(failed)? else { return Ok(PutBack::Gone) };
        // Found from the open directory: a cgroup that is made again meanwhile has another one.
        let file = Path::new("/proc/self/fd")
            .join(cgroup.as_raw_fd().to_string())
            .join(self.path.file_name().unwrap_or_default());
        let found = text::read(&file)?;
        if found == self.before {
            return Ok(PutBack::Already);
        }
        if found != self.ours {
            return Ok(PutBack::Left { found });
        }
        text::write(&file, &self.before)?;
        let found = text::read(&file)?;
        if found == self.before {
            return Ok(PutBack::Done);
        }
        let source = io::Error::other(format!("it reads back as `{found}`"));
        let wanted = Some(self.before.clone());
        Err(FileError { path: self.path.clone(), wanted, source })
    }
}

fn id_of(file: &Path) -> io::Result<u64> {
    Ok(directory_of(file).metadata()?.ino())
}

fn directory_of(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use rustix::fs::mkfifoat;
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
    fn a_cgroup_that_is_removed_during_the_restore_is_gone_also_if_it_is_made_again() {
        for is_made_again in [false, true] {
            let tree = Tree::new();
            let state = held(&tree);
            // A reader of a pipe waits until it has a writer, so that the next steps are in order.
            tree.remove(FILE);
            mkfifoat(CWD, &state.path, Mode::RUSR | Mode::WUSR).unwrap();
            let (path, group) = (state.path.clone(), tree.path("sys/fs/cgroup/web"));
            let owner = std::thread::spawn(move || {
                let mut text = OpenOptions::new().write(true).open(&path).unwrap();
                std::fs::remove_dir_all(&group).unwrap();
                if is_made_again {
                    std::fs::create_dir(&group).unwrap();
                    std::fs::write(&path, "50\n").unwrap();
                }
                text.write_all(b"50\n").unwrap();
            });
            assert_eq!(state.put_back().unwrap(), PutBack::Gone);
            owner.join().unwrap();
            assert!(!is_made_again || text::read(&state.path).unwrap() == "50");
        }
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
