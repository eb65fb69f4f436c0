//! Which processes and threads belong to an app now.
//!
//! An app is a tree of processes (started by Lull, or attached by pid) or
//! whatever is in a cgroup. In a tree a process belongs if a member made it or
//! it is in the process group of an app that Lull started, and it stays a
//! member when its parent ends. Between two refreshes a child that leaves its
//! group and loses its parent is missed; attach by cgroup catches those too.

use super::cgroup::{self, CgroupError};
use super::identity::{Facts, ProcessId, numbers};
use super::table::ProcessTable;
use crate::{LiveThread, Roots};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where an app's processes are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// A process and its descendants.
    Tree {
        /// The first process.
        root: ProcessId,
        /// Whether the whole process group of `root` belongs too.
        with_group: bool,
    },
    /// Every process of a cgroup and the cgroups below it.
    Cgroup(PathBuf),
}

/// The processes and threads of one app at the last refresh.
#[derive(Debug)]
pub struct AppProcesses {
    scope: Scope,
    members: BTreeMap<i32, Member>,
    threads: Vec<LiveThread>,
}

#[derive(Debug)]
struct Member {
    start_ticks: u64,
    /// Inode and start time by thread number.
    tasks: BTreeMap<i32, (u64, u64)>,
}

impl AppProcesses {
    /// An app of that scope; nothing is seen before the first refresh.
    pub const fn new(scope: Scope) -> Self {
        Self { scope, members: BTreeMap::new(), threads: Vec::new() }
    }

    /// Brings processes and threads up to the table, which must be fresh.
    ///
    /// # Errors
    /// If the scope is a cgroup that cannot be read. An app that has ended has
    /// no threads, which is no error.
    pub fn refresh(&mut self, table: &ProcessTable) -> Result<(), CgroupError> {
        let alive =
            |pid: &i32, start| table.facts(*pid).is_some_and(|facts| facts.start_ticks == start);
        self.members.retain(|pid, member| alive(pid, member.start_ticks));
        match &self.scope {
            Scope::Cgroup(path) => {
                let pids = cgroup::processes(path)?;
                self.members.retain(|pid, _| pids.contains(pid));
                for pid in pids {
                    self.add(pid, table);
                }
            }
            Scope::Tree { root, with_group } => {
                let (root, with_group) = (*root, *with_group);
                self.grow_tree(root, with_group, table);
            }
        }
        self.list_threads(table.roots());
        Ok(())
    }

    /// The threads, by process and number.
    pub fn threads(&self) -> &[LiveThread] {
        &self.threads
    }

    /// The processes, by number.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let id = |(pid, member): (&i32, &Member)| ProcessId {
            pid: *pid,
            start_ticks: member.start_ticks,
        };
        self.members.iter().map(id)
    }

    /// Where the processes are found.
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    fn add(&mut self, pid: i32, table: &ProcessTable) {
        if let Some(facts) = table.facts(pid) {
            let start_ticks = facts.start_ticks;
            let new = || Member { start_ticks, tasks: BTreeMap::new() };
            self.members.entry(pid).or_insert_with(new);
        }
    }

    fn grow_tree(&mut self, root: ProcessId, with_group: bool, table: &ProcessTable) {
        if table.facts(root.pid).is_some_and(|facts| facts.start_ticks == root.start_ticks) {
            self.add(root.pid, table);
        }
        let group = with_group.then_some(root);
        loop {
            let belongs = |(pid, facts): &(i32, &Facts)| {
                !self.members.contains_key(pid)
                    && (self.is_child(facts) || group.is_some_and(|root| in_group(facts, root)))
            };
            let new: Vec<i32> = table.iter().filter(belongs).map(|(pid, _)| pid).collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                self.add(pid, table);
            }
        }
    }

    /// Whether a member made it. The table keeps the parent that a process had
    /// first, and that number may be a younger process's now.
    fn is_child(&self, facts: &Facts) -> bool {
        let parent = self.members.get(&facts.parent);
        parent.is_some_and(|parent| parent.start_ticks <= facts.start_ticks)
    }

    fn list_threads(&mut self, roots: &Roots) {
        self.threads.clear();
        for (pid, member) in &mut self.members {
            member.refresh(roots, *pid);
            let id = |(tid, (_, start)): (&i32, &(u64, u64))| LiveThread {
                pid: *pid,
                tid: *tid,
                start_ticks: *start,
            };
            self.threads.extend(member.tasks.iter().map(id));
        }
    }
}

/// Whether a process is in the group that `leader` leads or led. The kernel
/// gives no new process the number of a group that still has members.
fn in_group(facts: &Facts, leader: ProcessId) -> bool {
    facts.group == leader.pid && facts.start_ticks >= leader.start_ticks
}

impl Member {
    /// A process that is gone has no threads; the next table says so.
    fn refresh(&mut self, roots: &Roots, pid: i32) {
        let listed = numbers(&roots.proc.join(format!("{pid}/task"))).unwrap_or_default();
        let mut before = std::mem::take(&mut self.tasks);
        for (tid, inode) in listed {
            let kept = before.remove(&tid).filter(|(known, _)| *known == inode);
            let read = || Some((inode, Facts::of_thread(roots, pid, tid).ok()?.start_ticks));
            if let Some(task) = kept.or_else(read) {
                self.tasks.insert(tid, task);
            }
        }
    }
}
