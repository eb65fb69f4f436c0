//! The cores that the cgroup of a process allows (`cpuset`, versions 1 and 2).
//!
//! A thread that was never bound has the mask of its cpuset and follows it when it changes.
//! One that was bound once, to the same cores, does not follow any more. So a thread that
//! had the mask of its cpuset is unbound again by writing all ones, not that mask.

use crate::Roots;
use crate::files::read_text;
use lull_control::CoreSet;
use std::path::{Path, PathBuf};

/// The cores of a process's cpuset that are online; `None` if they cannot be read.
pub(crate) fn cores_of_process(roots: &Roots, pid: i32) -> Option<CoreSet> {
    let online = online(roots)?;
    let path = read_text(&roots.proc.join(format!("{pid}/cpuset"))).ok()?;
    let inner = path.trim_start_matches('/');
    let mounted = roots.sys.join("fs/cgroup");
    let allowed = [
        mounted.join("cpuset").join(inner).join("cpuset.effective_cpus"),
        mounted.join("cpuset").join(inner).join("cpuset.cpus"),
        mounted.join(inner).join("cpuset.cpus.effective"),
    ];
    match allowed.iter().find_map(|file| cores_in(file)) {
        Some(cores) => Some(cores.intersection(&online)),
        None if inner.is_empty() => Some(online),
        None => None,
    }
}

/// The cores that are online.
pub(crate) fn online(roots: &Roots) -> Option<CoreSet> {
    cores_in(&roots.sys.join("devices/system/cpu/online"))
}

fn cores_in(file: &Path) -> Option<CoreSet> {
    read_text(&PathBuf::from(file)).ok()?.parse().ok().filter(|cores: &CoreSet| !cores.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn the_cores_of_either_version_are_found_and_offline_ones_left_out() {
        let tree = Tree::new();
        let cores = || cores_of_process(&tree.roots(), 7).map(|cores| cores.to_string());
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        assert_eq!(cores(), None, "the process is gone");
        tree.write("proc/7/cpuset", "/\n");
        assert_eq!(cores().as_deref(), Some("0-3"), "no cpuset is mounted");
        tree.write("proc/7/cpuset", "/a\n");
        assert_eq!(cores(), None, "its cpuset cannot be read");
        tree.write("sys/fs/cgroup/a/cpuset.cpus.effective", "1-5\n");
        assert_eq!(cores().as_deref(), Some("1-3"));
        tree.write("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "2\n");
        assert_eq!(cores().as_deref(), Some("2"));
    }
}
