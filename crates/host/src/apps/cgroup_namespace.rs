//! The cgroup namespace of a process, by which the kernel names the cgroups of other processes.
//!
//! A container usually has a namespace of its own. In it the cgroup of another container is
//! `/../../pod/x` in `/proc/PID/cgroup` and `/proc/PID/cpuset`, which is not a path below
//! `/sys/fs/cgroup`, also where that is mounted from the host (`cgroup_namespaces(7)`).

use super::cgroup;
use crate::Roots;
use crate::files::read_text;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The ability that is missing without the names of other containers' cgroups.
const MISSING: &str = "cpusets and memory pressure of other containers cannot be read, so that a \
                       thread whose cpuset changes may keep cores that Lull has set";

/// An error of reading the names of other containers' cgroups, with the ability that is missing
/// without them.
#[derive(Debug, thiserror::Error)]
pub enum CgroupNamespaceError {
    /// The kernel refused.
    #[error(
        "{MISSING}: this process has a cgroup namespace of its own and cannot join that of \
         process 1: {source}; give its container CAP_SYS_ADMIN and CAP_SYS_PTRACE, or the cgroup \
         namespace of the host"
    )]
    Refused {
        /// The kernel's error.
        source: io::Error,
    },
    /// Only the cgroups of this container are mounted.
    #[error(
        "{MISSING}: the cgroups of the host are not mounted ({0}); mount /sys of the host at /sys"
    )]
    NotMounted(cgroup::CgroupError),
}

/// Lets this thread, and threads and processes that it starts from now on, read the names of all
/// cgroups as process 1 does. Does nothing if they can already.
///
/// # Errors
/// If that cannot be, which only leaves out what the error says.
pub fn join_host_cgroups(roots: &Roots) -> Result<(), CgroupNamespaceError> {
    let path = |process: &str| read_text(&roots.proc.join(process).join("cpuset"));
    if !path("1").is_ok_and(|path| path.starts_with("/..")) {
        return Ok(());
    }
    let join = || {
        let namespace = File::open(roots.proc.join("1/ns/cgroup"))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ControlGroup))?;
        path("self").map_err(io::Error::other)
    };
    let former = File::open(roots.proc.join("thread-self/ns/cgroup"));
    let own = join().map_err(|source| CgroupNamespaceError::Refused { source })?;
    let Err(error) = cgroup::find(roots, Path::new(&own)) else { return Ok(()) };
    // Return to the former namespace, so that the cgroups of this container have the names by which
    // they are mounted.
    if let Ok(former) = former {
        let _ = move_into_link_name_space(former.as_fd(), Some(LinkNameSpaceType::ControlGroup));
    }
    Err(CgroupNamespaceError::NotMounted(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cpuset, Tree};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    #[test]
    fn a_namespace_that_cannot_be_joined_is_named_with_what_to_do() {
        let tree = Tree::new();
        tree.write("proc/1/cpuset", "/init.scope\n");
        join_host_cgroups(&tree.roots()).unwrap();
        tree.write("proc/1/cpuset", "/../../..\n");
        let refused = join_host_cgroups(&tree.roots()).unwrap_err().to_string();
        assert!(refused.contains("No such file"), "{refused}");
        assert!(refused.contains("give its container CAP_SYS_ADMIN"), "{refused}");
    }

    /// Joins the namespace of the test, from that of `child`, on a machine with these cgroups.
    fn joined_from(child: i32, cgroups: &str) -> (String, Result<(), String>, String) {
        let (tree, own) = (Tree::new(), format!("/proc/{}", std::process::id()));
        tree.write(cgroups, "");
        std::fs::create_dir_all(tree.path("proc")).unwrap();
        symlink(&own, tree.path("proc/1")).unwrap();
        tree.write("proc/self/cpuset", "/pod\n");
        let cpuset = || std::fs::read_to_string(Path::new(&own).join("cpuset")).unwrap();
        // A thread of its own, because the namespace is that of the thread.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let namespace = File::open(format!("/proc/{child}/ns/cgroup")).unwrap();
                let kind = Some(LinkNameSpaceType::ControlGroup);
                move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                let outside = cpuset();
                let joined = join_host_cgroups(&tree.roots()).map_err(|error| error.to_string());
                (outside, joined, cpuset())
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_process_with_a_cgroup_namespace_of_its_own_reads_the_cpusets_of_others() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec unshare --cgroup sh -c 'echo; exec sleep 600'"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let all = crate::sys::sched::affinity_of(pid).unwrap();
        let cpuset = Cpuset::new(pid, &all);
        drop(child.stdin.take());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let can_join = cpuset.is_some() && line == "\n";
        let places = ["sys/fs/cgroup/pod/cgroup.procs", "sys/fs/cgroup/cgroup.procs"];
        let outcomes = can_join.then(|| places.map(|place| joined_from(pid, place)));
        child.kill().unwrap();
        child.wait().unwrap();
        let Some([mounted, other]) = outcomes else {
            return lull_testing::skip("no cgroup namespace can be made here");
        };
        let own = std::fs::read_to_string("/proc/self/cpuset").unwrap();
        assert!(mounted.0.starts_with("/.."), "{mounted:?}");
        assert_eq!((mounted.1, mounted.2), (Ok(()), own));
        assert!(other.1.unwrap_err().contains("mount /sys of the host"));
    }
}
