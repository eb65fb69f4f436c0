//! Where the kernel's files are.

use std::path::{Path, PathBuf};

/// The roots of the kernel's file trees.
///
/// A run has `/proc` and `/sys`; a test has a directory of recorded files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Where `proc` is mounted.
    pub proc: PathBuf,
    /// Where `sysfs` is mounted.
    pub sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys") }
    }
}

impl Roots {
    /// `proc` and `sys` under one directory, as a recorded tree has them.
    pub fn under(tree: &Path) -> Self {
        Self { proc: tree.join("proc"), sys: tree.join("sys") }
    }

    /// Whether process numbers in this `proc` are those that system calls take.
    ///
    /// A recorded tree, or the `proc` of another pid namespace, has others.
    pub fn is_own_proc(&self) -> bool {
        self.proc == Path::new("/proc")
    }
}
