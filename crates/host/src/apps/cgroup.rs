//! Processes of a cgroup, of either hierarchy.
//!
//! Verified on Linux 6.18 with v1 hierarchies mounted; version 2 and the
//! refusal of threaded cgroups on a tree of files after
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>.

use crate::Roots;
use globset::GlobMatcher;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why a cgroup's processes cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No such directory in any hierarchy.
    #[error(
        "no cgroup `{path}`: looked for {looked}; `systemd-cgls` or /proc/PID/cgroup show names",
        path = .path.display()
    )]
    NotFound {
        /// The path as it was given.
        path: PathBuf,
        /// The directories that were tried.
        looked: String,
    },
    /// A directory, but not of a cgroup.
    #[error("{path} is not a cgroup: it has no cgroup.procs", path = .path.display())]
    NoCgroup {
        /// The directory.
        path: PathBuf,
    },
    /// Part of a process only.
    #[error(
        "cgroup {path} is threaded, so it has no list of processes: \
         name the nearest cgroup above it whose cgroup.type is `domain threaded`",
        path = .path.display()
    )]
    Threaded {
        /// The directory.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot read cgroup {path}: {source}", path = .path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Where hierarchies are mounted below `/sys/fs/cgroup`: version 2, its place
/// beside version 1, systemd's own, then controllers of version 1.
const HIERARCHIES: [&str; 8] =
    ["", "unified", "systemd", "cpu,cpuacct", "cpu", "cpuset", "memory", "pids"];

/// The directory of a cgroup, given as a path in the file system or as
/// `/proc/PID/cgroup` and systemd write it, relative to the hierarchy.
///
/// # Errors
/// [`CgroupError::NotFound`] or [`CgroupError::NoCgroup`].
pub fn find(roots: &Roots, path: &Path) -> Result<PathBuf, CgroupError> {
    let inner = path.strip_prefix("/").unwrap_or(path);
    let mounted = |name: &&str| roots.sys.join("fs/cgroup").join(name).join(inner);
    let mut places: Vec<PathBuf> = HIERARCHIES.iter().map(mounted).collect();
    if path.is_absolute() {
        places.insert(0, path.to_owned());
    }
    if let Some(place) = places.iter().find(|place| place.join("cgroup.procs").exists()) {
        return Ok(place.clone());
    }
    if let Some(place) = places.iter().find(|place| place.is_dir()) {
        return Err(CgroupError::NoCgroup { path: place.clone() });
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(CgroupError::NotFound { path: path.to_owned(), looked: looked.join(", ") })
}

/// Where systemd keeps the cgroups of its units.
const OF_SYSTEMD: [&str; 3] = ["", "systemd", "unified"];

/// Whether systemd has made cgroups for its units.
pub(super) fn has_units(roots: &Roots) -> bool {
    let slice = |name| roots.sys.join("fs/cgroup").join(name).join("system.slice");
    OF_SYSTEMD.into_iter().any(|name| slice(name).is_dir())
}

/// Most cgroups that a search visits; a tree with more is searched in part.
const VISITED_MAX: usize = 20_000;

/// The cgroups whose path below a hierarchy, or in the file system, matches part by part; those
/// of the first hierarchy that has one.
///
/// # Errors
/// [`CgroupError::Unreadable`].
pub(super) fn matching(roots: &Roots, parts: &[GlobMatcher]) -> Result<Vec<PathBuf>, CgroupError> {
    let mounted = |name: &&str| roots.sys.join("fs/cgroup").join(name);
    let mut tops: Vec<PathBuf> = HIERARCHIES.iter().map(mounted).collect();
    tops.push(PathBuf::from("/"));
    for top in tops {
        let mut level = vec![top];
        for part in parts {
            let fits = |path: &PathBuf| path.file_name().is_some_and(|name| part.is_match(name));
            let mut next = Vec::new();
            for above in &level {
                next.extend(directories(above)?.into_iter().filter(fits));
            }
            level = next;
        }
        level.retain(|path| path.join("cgroup.procs").exists());
        if !level.is_empty() {
            return Ok(level);
        }
    }
    Ok(Vec::new())
}

/// The cgroups in systemd's tree whose own name matches, but none below one that does; only
/// the first if one is enough.
///
/// # Errors
/// [`CgroupError::Unreadable`].
pub(crate) fn named(
    roots: &Roots,
    glob: &GlobMatcher,
    one: bool,
) -> Result<Vec<PathBuf>, CgroupError> {
    let mounted = roots.sys.join("fs/cgroup");
    let tops = OF_SYSTEMD.map(|name| mounted.join(name));
    let Some(top) = tops.into_iter().find(|top| top.join("cgroup.procs").exists()) else {
        return Ok(Vec::new());
    };
    let (mut found, mut waiting, mut visited) = (Vec::new(), vec![top], 0);
    while let Some(next) = waiting.pop().filter(|_| visited < VISITED_MAX) {
        visited += 1;
        for path in below(&next)? {
            if path.file_name().is_some_and(|name| glob.is_match(name)) {
                found.push(path);
                if one {
                    return Ok(found);
                }
            } else {
                waiting.push(path);
            }
        }
    }
    Ok(found)
}

/// The numbers of the processes in a cgroup and the cgroups below it.
///
/// A process of another pid namespace has no number here and is left out.
///
/// # Errors
/// [`CgroupError::Threaded`] or [`CgroupError::Unreadable`]; a cgroup below
/// that vanishes meanwhile is left out.
pub(super) fn processes(directory: &Path) -> Result<BTreeSet<i32>, CgroupError> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        match listed(&next) {
            Ok(pids) => found.extend(pids),
            Err(_) if next != directory && !next.exists() => continue,
            // Its threads are of processes that a cgroup above it lists.
            Err(CgroupError::Threaded { .. }) if next != directory => continue,
            Err(error) => return Err(error),
        }
        waiting.extend(below(&next)?);
    }
    found.remove(&0);
    Ok(found)
}

fn listed(directory: &Path) -> Result<Vec<i32>, CgroupError> {
    let path = directory.to_owned();
    match std::fs::read_to_string(directory.join("cgroup.procs")) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Err(CgroupError::Threaded { path })
        }
        Err(source) => Err(CgroupError::Unreadable { path, source }),
    }
}

/// The cgroups directly below. A directory of the kernel has two links and one
/// more for each directory in it, which saves listing its many files.
fn below(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    if std::fs::metadata(directory).is_ok_and(|found| found.nlink() == 2) {
        return Ok(Vec::new());
    }
    directories(directory)
}

/// The directories in one; none in one that is gone, or is another user's own, as below `/`. What
/// cannot be listed for another reason is not gone.
fn directories(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let list = || -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
            }
        }
        Ok(found)
    };
    match list() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Vec::new()),
        Err(_) if !directory.is_dir() => Ok(Vec::new()),
        Err(source) => Err(CgroupError::Unreadable { path: directory.to_owned(), source }),
        Ok(found) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cgroup_tree as tree;

    #[test]
    fn processes_of_cgroups_below_belong_and_those_of_other_namespaces_do_not() {
        let (_tree, roots) = tree(&[
            ("system.slice/a.service/cgroup.procs", "12\n0\n"),
            ("system.slice/a.service/worker/cgroup.procs", "14\n13\n"),
            ("system.slice/b.service/cgroup.procs", "15\n"),
        ]);
        let found = find(&roots, Path::new("/system.slice/a.service")).unwrap();
        assert_eq!(processes(&found).unwrap(), BTreeSet::from([12, 13, 14]));
    }

    #[test]
    fn a_cgroup_is_found_in_either_hierarchy_and_by_its_path() {
        let (_tree, roots) = tree(&[
            ("unified/a/cgroup.procs", "1\n"),
            ("cpu/b/cgroup.procs", "2\n"),
            ("pids/c/other", ""),
        ]);
        let mounted = roots.sys.join("fs/cgroup");
        assert_eq!(find(&roots, Path::new("/a")).unwrap(), mounted.join("unified/a"));
        assert_eq!(find(&roots, Path::new("b")).unwrap(), mounted.join("cpu/b"));
        let path = mounted.join("unified/a");
        assert_eq!(find(&roots, &path).unwrap(), path);
        assert!(matches!(find(&roots, Path::new("/c")), Err(CgroupError::NoCgroup { .. })));
        let missing = find(&roots, Path::new("/d")).unwrap_err().to_string();
        assert!(missing.contains("unified/d") && missing.contains("/proc/PID/cgroup"), "{missing}");
    }

    #[test]
    fn a_cgroup_that_is_removed_is_reported() {
        let (_tree, roots) = tree(&[("a/cgroup.procs", "1\n")]);
        let path = find(&roots, Path::new("/a")).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        assert!(matches!(processes(&path), Err(CgroupError::Unreadable { .. })));
    }
}
