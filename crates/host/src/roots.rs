//! Where the kernel's files are, and sockets of the machine's services.

use std::path::{Path, PathBuf};

/// The roots of the kernel's file trees, and of sockets.
///
/// A run has `/proc`, `/sys`, `/dev` and `/run`; a test has a directory of recorded files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// Where `proc` is mounted.
    pub proc: PathBuf,
    /// Where `sysfs` is mounted.
    pub sys: PathBuf,
    /// Where device files are.
    pub dev: PathBuf,
    /// Where services have their sockets.
    pub run: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        let [proc, sys, dev, run] = ["/proc", "/sys", "/dev", "/run"].map(PathBuf::from);
        Self { proc, sys, dev, run }
    }
}

impl Roots {
    /// `proc`, `sys`, `dev` and `run` under one directory, as a recorded tree has them.
    pub fn under(tree: &Path) -> Self {
        let [proc, sys, dev, run] = ["proc", "sys", "dev", "run"].map(|name| tree.join(name));
        Self { proc, sys, dev, run }
    }

    /// Whether process numbers in this `proc` are those that system calls take.
    ///
    /// A recorded tree, or the `proc` of another pid namespace, has others.
    pub fn is_own_proc(&self) -> bool {
        self.proc == Path::new("/proc")
    }
}
