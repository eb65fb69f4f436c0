//! Where the kernel's files are.

use std::path::{Path, PathBuf};

/// The roots of the kernel's file trees.
///
/// A run has `/proc`, `/sys` and `/dev`; a test has a directory of recorded files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Where `proc` is mounted.
    pub proc: PathBuf,
    /// Where `sysfs` is mounted.
    pub sys: PathBuf,
    /// Where device files are.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into() }
    }
}

impl Roots {
    /// `proc`, `sys` and `dev` under one directory, as a recorded tree has them.
    pub fn under(tree: &Path) -> Self {
        Self { proc: tree.join("proc"), sys: tree.join("sys"), dev: tree.join("dev") }
    }

    /// Whether process numbers in this `proc` are those that system calls take.
    ///
    /// A recorded tree, or the `proc` of another pid namespace, has others.
    pub fn is_own_proc(&self) -> bool {
        self.proc == Path::new("/proc")
    }
}
