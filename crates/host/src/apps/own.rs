//! The processes of a cgroup of which no app is made: the agent with its guard and its front end,
//! its ancestors, process 1, and threads of the kernel.
//!
//! An app by cgroup or unit is all that is in it, and an agent that is started by hand is in the
//! slice of its user. Without this rule a best-effort app of that slice would lower the agent,
//! which decides, and the guard, which restores, and what the owner starts later would inherit
//! settings from the shell.

use super::identity::{Facts, ancestors};
use super::table::ProcessTable;
use crate::Roots;
use std::collections::BTreeSet;

/// How the command lines of the processes begin that an agent starts beside it.
const HELPERS: [&[u8]; 3] = [b"lull\0guard\0", b"lull\0frontend\0", b"lull\0pods\0"];

/// Removes such processes from those of a cgroup.
pub(super) fn leave_out_own(found: &mut BTreeSet<i32>, table: &ProcessTable) {
    // The numbers of another tree of processes mean others.
    if !table.roots().is_own_proc() {
        return;
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let above = ancestors(own, |pid| table.facts(pid));
    let is_left_out = |pid: i32| {
        let is_of_agent = |facts: &Facts| facts.parent == own && is_helper(pid, table.roots());
        let is_none = |facts: &Facts| facts.is_kernels || is_of_agent(facts);
        pid == own || above.contains(&pid) || table.facts(pid).is_some_and(is_none)
    };
    found.retain(|pid| !is_left_out(*pid));
}

/// Whether a child of the agent is one that it has started beside it, and no app.
fn is_helper(pid: i32, roots: &Roots) -> bool {
    let line = std::fs::read(roots.proc.join(format!("{pid}/cmdline"))).unwrap_or_default();
    HELPERS.into_iter().any(|begin| line.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_cgroup_has_neither_the_agent_nor_its_guard_nor_what_is_above_them() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("guard"), "read line\n").unwrap();
        let mut guard = Command::new("sh");
        guard.arg0("lull").arg("guard").current_dir(place.path()).stdin(Stdio::piped());
        let mut guard = guard.spawn().unwrap();
        let mut app = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let [guards, apps] = [&guard, &app].map(|child| child.id().cast_signed());
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let above = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
        let table = ProcessTable::new(&Roots::default()).unwrap();
        let kernels = table.iter().find(|(_, facts)| facts.is_kernels).map(|(pid, _)| pid);
        let mut found = BTreeSet::from([1, above, own, guards, apps]);
        found.extend(kernels);
        leave_out_own(&mut found, &table);
        for child in [&mut guard, &mut app] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, BTreeSet::from([apps]));
    }

    #[test]
    fn numbers_of_another_tree_of_processes_are_not_those_of_the_agent() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        std::fs::create_dir_all(&roots.proc).unwrap();
        let table = ProcessTable::new(&roots).unwrap();
        let mut found = BTreeSet::from([1, 2]);
        leave_out_own(&mut found, &table);
        assert_eq!(found, BTreeSet::from([1, 2]));
    }
}
