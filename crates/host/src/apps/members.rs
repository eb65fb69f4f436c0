//! Which processes and threads belong to an app now.
//!
//! An app is a tree of processes (started by Lull, attached by pid, or registered by its first
//! process), whatever a search for a cgroup, a unit or a pattern finds, or the processes of a
//! cgroup that a discovery assigns. In a tree a process belongs if a member made it or it is in
//! the process group of an app that Lull started, and it stays a member when its parent ends. A
//! child that leaves its group and loses its parent between two refreshes is found where the
//! kernel reports forks ([`Forks`](super::forks::Forks)); elsewhere it is missed, and attaching by
//! cgroup catches it.

use super::assigned::{CgroupSlot, SinceListing};
use super::described::Detail;
use super::identity::{Facts, ProcessId};
use super::member::Member;
use super::search::{Search, SearchError};
use super::slot::ProcessSlot;
use super::table::ProcessTable;
use super::template::Slot;
use crate::{LiveThread, Roots};
use lull_measure::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Where an app's processes are found.
#[derive(Debug)]
pub(super) enum Scope {
    /// A process and its descendants.
    Tree {
        /// The first process.
        root: ProcessId,
        /// Whether the whole process group of `root` belongs too. A group that has ended does not:
        /// another one may have its number.
        with_group: bool,
    },
    /// Every process that a search finds.
    Search(Search),
    /// One of the things that a template finds.
    Slot(Slot),
    /// A process that has registered itself, and its descendants.
    Registered(ProcessSlot),
    /// Every process of the cgroup that a discovery has assigned.
    Assigned(CgroupSlot),
}

/// The processes and threads of one app at the last refresh.
#[derive(Debug)]
pub struct AppProcesses {
    scope: Scope,
    /// The update of its template whose processes it has, if it has them all.
    taken_at: Option<u64>,
    members: BTreeMap<i32, Member>,
    threads: Vec<LiveThread>,
    /// Processes that are found, too, but belong to another app or to none.
    left_out: BTreeSet<ProcessId>,
    /// Processes that were members, and still run: their registration or assignment has ended, or
    /// the search of the app no longer finds them.
    left: Vec<ProcessId>,
}

impl AppProcesses {
    /// A process and its descendants; nothing is seen before the first refresh.
    pub const fn of_tree(root: ProcessId) -> Self {
        Self::new(Scope::Tree { root, with_group: false })
    }

    /// An app of that scope; nothing is seen before the first refresh.
    pub(super) const fn new(scope: Scope) -> Self {
        Self {
            scope,
            taken_at: None,
            members: BTreeMap::new(),
            threads: Vec::new(),
            left_out: BTreeSet::new(),
            left: Vec::new(),
        }
    }

    /// Brings processes and threads up to the table, which must be fresh.
    ///
    /// # Errors
    /// If a cgroup cannot be read, and the app keeps its processes; if too many processes are
    /// found, and it has none. An app that has ended has no threads, which is not an error.
    pub fn refresh(&mut self, table: &ProcessTable) -> Result<(), SearchError> {
        let alive =
            |pid: &i32, start| table.facts(*pid).is_some_and(|facts| facts.start_ticks == start);
        let before = self.members.len();
        self.members.retain(|pid, member| alive(pid, member.start_ticks()));
        self.note_assignment();
        if self.members.len() == before && self.is_as_listed(table.roots()) {
            return Ok(());
        }
        self.note_end_of_group(before > 0, table);
        let had_all = self.taken_at.filter(|_| self.members.len() == before);
        let found = match &mut self.scope {
            Scope::Assigned(slot) => Some(slot.processes(table)),
            Scope::Search(search) => Some(search.processes(table)),
            Scope::Slot(slot) => {
                self.taken_at = slot.changed_at(table);
                let has_all = self.taken_at.is_some() && self.taken_at == had_all;
                (!has_all).then(|| slot.processes(table))
            }
            Scope::Tree { .. } | Scope::Registered(_) => None,
        };
        let root = self.root();
        if let Some((root, with_group)) = root {
            self.grow_tree(root, with_group, table);
        }
        let outcome = found.map_or(Ok(()), |found| self.take_found(found, table));
        // Membership in a cgroup does not follow from descent.
        let first = root.map_or(ProcessId { pid: 0, start_ticks: 0 }, |(root, _)| root);
        self.processes().for_each(|process| table.forks().follow(process, first));
        self.list_threads(table.roots());
        outcome
    }

    /// Makes the processes that a search has found those of the app.
    fn take_found(
        &mut self,
        found: Result<BTreeSet<i32>, SearchError>,
        table: &ProcessTable,
    ) -> Result<(), SearchError> {
        let (pids, outcome) = match found {
            // Until a cgroup can be read again its processes stay as they are.
            Err(error @ SearchError::Cgroup(_)) => return Err(error),
            Err(error) => (BTreeSet::new(), Err(error)),
            Ok(pids) => {
                let runs = |one: &ProcessId| one.may_run(table.roots());
                let gone = self.processes().filter(|one| !pids.contains(&one.pid));
                let gone: Vec<ProcessId> = gone.filter(runs).collect();
                self.left.extend(gone);
                (pids, Ok(()))
            }
        };
        self.members.retain(|pid, _| pids.contains(pid));
        for pid in &pids {
            self.add(*pid, table);
        }
        // One that is found may be younger than the table.
        self.taken_at = self.taken_at.filter(|_| self.members.len() == pids.len());
        outcome
    }

    /// Notes the end of the process group of a tree, after which another group may have its number.
    /// A group without a process has ended only if a process of the app was seen before: a table
    /// may be older than the app.
    fn note_end_of_group(&mut self, was_seen: bool, table: &ProcessTable) {
        if let Scope::Tree { root, with_group } = &mut self.scope
            && *with_group
        {
            *with_group = match table.facts(root.pid) {
                Some(facts) => facts.start_ticks <= root.start_ticks,
                None => !was_seen || table.iter().any(|(_, facts)| facts.is_in_group_of(*root)),
            };
        }
    }

    /// Whether a process group belongs to the app, as of the last refresh.
    pub(super) const fn has_group(&self) -> bool {
        matches!(self.scope, Scope::Tree { with_group: true, .. })
    }

    /// The first process of a tree, and whether its process group belongs to the app. If
    /// another process has registered than before, what belonged to that one has left.
    fn root(&mut self) -> Option<(ProcessId, bool)> {
        let slot = match &mut self.scope {
            Scope::Tree { root, with_group } => return Some((*root, *with_group)),
            Scope::Search(_) | Scope::Slot(_) | Scope::Assigned(_) => return None,
            Scope::Registered(slot) => slot,
        };
        let (root, has_changed) = slot.look();
        if has_changed {
            self.leave_all();
        }
        root.map(|root| (root, false))
    }

    /// If a discovery has assigned another cgroup, the processes of the former one have left.
    fn note_assignment(&mut self) {
        if let Scope::Assigned(slot) = &mut self.scope
            && slot.look()
        {
            self.leave_all();
        }
    }

    /// Whether the cgroup that a discovery has assigned has the processes of its last listing. If
    /// so, their threads are up to date.
    fn is_as_listed(&mut self, roots: &Roots) -> bool {
        let Scope::Assigned(slot) = &mut self.scope else { return false };
        match slot.since_listing() {
            SinceListing::Idle => true,
            SinceListing::Tasks(count) => {
                self.list_threads(roots);
                self.threads.len() as u64 == count
            }
            SinceListing::Unknown => false,
        }
    }

    fn leave_all(&mut self) {
        let left: Vec<ProcessId> = self.processes().collect();
        self.left.extend(left);
        self.members.clear();
        self.left_out.clear();
    }

    /// Returns, once, the processes that have left the app and still run.
    pub(super) fn take_left(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.left)
    }

    /// The processes of the app and those that are left out.
    pub(super) fn claims(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.processes().chain(self.left_out.iter().copied())
    }

    /// Includes at the next refresh the processes that were left out.
    pub(super) fn claim_all(&mut self) {
        if self.left_out.is_empty() {
            return;
        }
        self.left_out.clear();
        self.taken_at = None;
        if let Scope::Assigned(slot) = &mut self.scope {
            slot.forget_listing();
        }
    }

    /// Leaves out a process that belongs to another app.
    pub(super) fn leave_out(&mut self, process: ProcessId) {
        self.left_out.insert(process);
        if self.has(process) {
            self.members.remove(&process.pid);
            self.threads.retain(|thread| thread.pid != process.pid);
        }
    }

    /// Whether a process of the app runs now; one that has ended and was not waited for does not,
    /// unless other threads of it continue.
    pub(super) fn any_runs(&self, roots: &Roots) -> bool {
        let runs = |process: &ProcessId| {
            let threads = || self.members.get(&process.pid).map_or(0, Member::thread_count);
            process.may_run(roots) || threads() > 1
        };
        self.processes().any(|process| runs(&process))
    }

    /// Whether processes may appear again after the last one has ended.
    pub(super) const fn can_return(&self) -> bool {
        !matches!(self.scope, Scope::Tree { .. })
    }

    /// Whether it has a search of its own, which finds it again within an epoch.
    pub(super) fn is_searched(&self) -> bool {
        match &self.scope {
            Scope::Search(_) => true,
            Scope::Assigned(slot) => slot.is_looked_for(),
            Scope::Tree { .. } | Scope::Slot(_) | Scope::Registered(_) => false,
        }
    }

    /// Whether it is what a template finds.
    pub(super) const fn is_of_template(&self) -> bool {
        matches!(self.scope, Scope::Slot(_))
    }

    /// Whether its template has found another match for it, or none any more, as of a fresh table.
    pub(super) fn has_other_match(&mut self, table: &ProcessTable) -> bool {
        let Self { scope: Scope::Slot(slot), members, left_out, .. } = self else { return false };
        let claims = || members.keys().copied().chain(left_out.iter().map(|one| one.pid));
        slot.has_news(table, || claims().collect())
    }

    /// Whether another process has registered as it, or another cgroup is assigned to it, than at
    /// the last refresh.
    pub(super) fn has_news(&self) -> bool {
        match &self.scope {
            Scope::Registered(slot) => slot.has_news(),
            Scope::Assigned(slot) => slot.has_news(),
            Scope::Tree { .. } | Scope::Search(_) | Scope::Slot(_) => false,
        }
    }

    /// Whether its absence says nothing: its template has further apps before it.
    pub(super) fn is_spare(&self) -> bool {
        match &self.scope {
            Scope::Slot(slot) => slot.is_spare(),
            Scope::Registered(slot) => slot.is_spare(),
            Scope::Assigned(slot) => slot.is_spare(),
            Scope::Tree { .. } | Scope::Search(_) => false,
        }
    }

    /// Whether the descendants of its processes belong to it.
    pub(super) const fn is_tree(&self) -> bool {
        matches!(self.scope, Scope::Tree { .. } | Scope::Registered(_))
    }

    /// Returns which parts of processes its search compares; `None` if it has no pattern.
    pub(super) const fn needed_description(&self) -> Option<Detail> {
        match &self.scope {
            Scope::Search(search) => search.needed_description(),
            Scope::Slot(slot) => slot.needed_description(),
            Scope::Tree { .. } | Scope::Registered(_) | Scope::Assigned(_) => None,
        }
    }

    /// Whether an absent app may have processes again, as of a table that may be old; cheaper than
    /// a refresh.
    pub(super) fn may_have_returned(&mut self, table: &ProcessTable) -> bool {
        match &mut self.scope {
            Scope::Search(search) => search.may_have_processes(table),
            Scope::Assigned(slot) => slot.may_have_processes(table),
            Scope::Tree { .. } | Scope::Slot(_) | Scope::Registered(_) => false,
        }
    }

    /// The slot of a template that it has, if it has one.
    pub(super) const fn slot(&self) -> Option<&Slot> {
        match &self.scope {
            Scope::Slot(slot) => Some(slot),
            _ => None,
        }
    }

    /// Where the processes are found, for messages.
    pub(super) fn place(&self) -> String {
        match &self.scope {
            Scope::Search(search) => search.describe(),
            Scope::Slot(slot) => slot.describe(),
            Scope::Tree { root, .. } => format!("process {}", root.pid),
            Scope::Registered(slot) => slot.describe(),
            Scope::Assigned(slot) => slot.describe(),
        }
    }

    /// The threads, by process and number.
    pub fn threads(&self) -> &[LiveThread] {
        &self.threads
    }

    /// Whether its processes are those of a cgroup that a discovery has assigned.
    pub(super) const fn is_assigned(&self) -> bool {
        matches!(self.scope, Scope::Assigned(_))
    }

    /// The CPU time of its cgroup as of the last refresh, in microseconds, if it was read. While
    /// it stays, none of its tasks has run.
    pub(super) const fn usage_us(&self) -> Option<u64> {
        match &self.scope {
            Scope::Assigned(slot) => slot.usage_us(),
            _ => None,
        }
    }

    /// The CPU time of a process as of the last refresh, if it was read.
    pub(super) fn cpu_time_of(&self, pid: i32) -> Option<Nanos> {
        self.members.get(&pid)?.cpu_time()
    }

    /// The processes, by number.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let id = |(pid, member): (&i32, &Member)| ProcessId {
            pid: *pid,
            start_ticks: member.start_ticks(),
        };
        self.members.iter().map(id)
    }

    /// Whether a process of the app may have run, as of the last refresh, since this was last
    /// called of it ([`Member::take_run`]). One that has not run has not ended.
    pub(super) fn take_run(&mut self, process: ProcessId) -> bool {
        let member = self.members.get_mut(&process.pid);
        let member = member.filter(|member| member.start_ticks() == process.start_ticks);
        member.is_none_or(Member::take_run)
    }

    /// Whether a process belongs to the app.
    pub(super) fn has(&self, process: ProcessId) -> bool {
        let member = self.members.get(&process.pid);
        member.is_some_and(|member| member.start_ticks() == process.start_ticks)
    }

    fn add(&mut self, pid: i32, table: &ProcessTable) {
        if let Some(facts) = table.facts(pid) {
            let start_ticks = facts.start_ticks;
            if self.left_out.contains(&ProcessId { pid, start_ticks }) {
                return;
            }
            let new = || Member::new(start_ticks);
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
                    && !self.is_left_out(*pid, facts)
                    && (self.is_child(facts)
                        || table.forks().first(*pid) == Some(root)
                        || group.is_some_and(|root| facts.is_in_group_of(root)))
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

    fn is_left_out(&self, pid: i32, facts: &Facts) -> bool {
        self.left_out.contains(&ProcessId { pid, start_ticks: facts.start_ticks })
    }

    /// Whether a member made it. The table keeps the parent that a process had
    /// first, and that number may be a younger process's now.
    fn is_child(&self, facts: &Facts) -> bool {
        let parent = self.members.get(&facts.parent);
        parent.is_some_and(|parent| parent.start_ticks() <= facts.start_ticks)
    }

    fn list_threads(&mut self, roots: &Roots) {
        self.threads.clear();
        for (pid, member) in &mut self.members {
            member.refresh(roots, *pid);
            self.threads.extend(member.threads(*pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::CgroupSlots;
    use crate::testing::Tree;
    use std::path::Path;

    const GROUP: &str = "sys/fs/cgroup/kubepods/a";

    #[test]
    fn a_process_that_cannot_be_read_has_not_ended() {
        let tree = Tree::new();
        let list = |pids: &str| tree.write("sys/fs/cgroup/kubepods/a/cgroup.procs", pids);
        list("7\n");
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        tree.write("proc/7/stat", &stat);
        let table = ProcessTable::new(&tree.roots()).unwrap();
        let mut app = AppProcesses::new(Scope::Search(Search::Cgroup(tree.path(GROUP))));
        app.refresh(&table).unwrap();
        // The file exists and cannot be read.
        tree.remove("proc/7/stat");
        std::fs::create_dir(tree.path("proc/7/stat")).unwrap();
        assert!(app.any_runs(&tree.roots()));
        list("");
        app.refresh(&table).unwrap();
        assert_eq!(app.take_left().iter().map(|left| left.pid).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn processes_of_a_template_that_stay_are_not_taken_again_unless_some_are_missing() {
        let tree = Tree::new();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let begin = |pid: i32| tree.write(&format!("proc/{pid}/stat"), &stat);
        tree.write("sys/fs/cgroup/kubepods/a/cgroup.procs", "7\n8\n");
        begin(7);
        let mut table = ProcessTable::new(&tree.roots()).unwrap();
        let search = Search::cgroup(Path::new("kubepods/*")).unwrap();
        let slot = Slot::all(search, 1).pop().unwrap();
        let mut app = AppProcesses::new(Scope::Slot(slot));
        let mut pids = |change: &dyn Fn(&mut AppProcesses)| {
            change(&mut app);
            table.refresh().unwrap();
            app.refresh(&table).unwrap();
            (app.processes().map(|one| one.pid).collect::<Vec<_>>(), app.taken_at.is_some())
        };
        assert_eq!(pids(&|_| {}), (vec![7], false), "the table does not know 8");
        begin(8);
        assert_eq!(pids(&|_| {}), (vec![7, 8], true));
        let leave = |app: &mut AppProcesses| app.leave_out(app.processes().last().unwrap());
        assert_eq!(pids(&leave), (vec![7], true), "8 is another app's");
        assert_eq!(pids(&AppProcesses::claim_all), (vec![7, 8], true));
        std::fs::remove_dir_all(tree.path("proc/8")).unwrap();
        assert_eq!(pids(&|_| {}), (vec![7], false), "the cgroup lists it still");
    }

    /// An app whose first process was 7, which has ended, and processes of groups with its number.
    struct Group {
        tree: Tree,
        app: AppProcesses,
    }

    impl Group {
        fn new() -> Self {
            let root = ProcessId { pid: 7, start_ticks: 50 };
            let app = AppProcesses::new(Scope::Tree { root, with_group: true });
            let group = Self { tree: Tree::new(), app };
            group.add(8, 100);
            group
        }

        fn add(&self, pid: i32, start_ticks: u64) {
            self.tree.write_member_of_7(pid, start_ticks);
        }

        fn end(&self, pid: i32) {
            std::fs::remove_dir_all(self.tree.path(&format!("proc/{pid}"))).unwrap();
        }

        /// The processes of the app, after another look.
        fn pids(&mut self) -> Vec<i32> {
            let table = ProcessTable::new(&self.tree.roots()).unwrap();
            self.app.refresh(&table).unwrap();
            self.app.processes().map(|process| process.pid).collect()
        }
    }

    #[test]
    fn a_process_that_has_the_number_of_an_ended_one_does_not_belong_to_its_group() {
        let mut group = Group::new();
        assert_eq!(group.pids(), [8], "it is in the group of the ended process");
        group.end(8);
        group.add(7, 200);
        group.add(9, 201);
        assert_eq!(group.pids(), [0; 0], "their group is another one");
        group.end(7);
        assert_eq!(group.pids(), [0; 0], "their group goes on without its leader");
    }

    #[test]
    fn a_group_without_a_process_has_ended() {
        let mut group = Group::new();
        group.end(8);
        assert_eq!(group.pids(), [0; 0], "the table may be older than the app");
        group.add(8, 100);
        assert_eq!(group.pids(), [8]);
        group.end(8);
        assert_eq!(group.pids(), [0; 0]);
        group.add(9, 201);
        assert_eq!(group.pids(), [0; 0], "its group is another one");
    }

    #[test]
    fn a_cgroup_that_cannot_be_read_keeps_its_processes() {
        let mut node = Assigned::new("cpu.stat", "usage_usec 500\n");
        assert_eq!(node.pids(), [11]);
        let list = node.tree.path(&format!("{GROUP}/cgroup.procs"));
        std::fs::remove_file(&list).unwrap();
        // A read of it fails, and not because there is no such file.
        std::fs::create_dir(&list).unwrap();
        node.set("cpu.stat", "usage_usec 501\n");
        assert!(node.app.refresh(&node.table).is_err());
        assert_eq!(node.app.threads().len(), 1);
        assert_eq!(node.app.take_left(), []);
        std::fs::remove_dir(&list).unwrap();
        node.set("cgroup.procs", "12\n");
        assert_eq!(node.pids(), [12]);
    }

    /// A tree with the processes 11 and 12, of which the cgroup of the only slot has the first.
    struct Assigned {
        tree: Tree,
        table: ProcessTable,
        app: AppProcesses,
    }

    impl Assigned {
        /// The file of this name says when the cgroup has to be listed again.
        fn new(name: &str, text: &str) -> Self {
            let tree = Tree::new();
            for (pid, tid) in [(11, 11), (12, 12)] {
                tree.write_thread(pid, tid);
            }
            tree.write(&format!("{GROUP}/cgroup.procs"), "11\n");
            tree.write(&format!("{GROUP}/{name}"), text);
            let table = ProcessTable::new(&tree.roots()).unwrap();
            let slots = CgroupSlots::new("pod", 1);
            slots.take(Path::new("kubepods/a"));
            let slot = slots.each().next().unwrap();
            Self { tree, table, app: AppProcesses::new(Scope::Assigned(slot)) }
        }

        fn set(&self, name: &str, text: &str) {
            self.tree.write(&format!("{GROUP}/{name}"), text);
        }

        /// The processes of its threads, after another look.
        fn pids(&mut self) -> Vec<i32> {
            self.app.refresh(&self.table).unwrap();
            self.app.threads().iter().map(|thread| thread.pid).collect()
        }
    }

    #[test]
    fn a_cgroup_is_not_listed_again_while_no_task_of_it_runs() {
        let mut node = Assigned::new("cpu.stat", "usage_usec 500\nuser_usec 300\n");
        assert_eq!(node.pids(), [11]);
        node.set("cgroup.procs", "11\n12\n");
        assert_eq!(node.pids(), [11], "none of its tasks can have made another process");
        node.set("cpu.stat", "usage_usec 501\nuser_usec 301\n");
        assert_eq!(node.pids(), [11, 12]);
        // A process that is younger than the table.
        node.set("cgroup.procs", "11\n12\n13\n");
        node.set("cpu.stat", "usage_usec 502\nuser_usec 302\n");
        assert_eq!(node.pids(), [11, 12]);
        node.tree.write_thread(13, 13);
        node.table.refresh().unwrap();
        assert_eq!(node.pids(), [11, 12, 13], "it has not run since the last look");
    }

    #[test]
    fn a_cgroup_is_listed_again_when_it_has_other_than_the_known_threads() {
        let mut node = Assigned::new("pids.current", "1\n");
        assert_eq!(node.pids(), [11]);
        node.set("cgroup.procs", "11\n12\n");
        assert_eq!(node.pids(), [11], "one thread is known, and there is one");
        node.set("pids.current", "2\n");
        assert_eq!(node.pids(), [11, 12]);
        // A thread of a process that is known.
        node.tree.write_thread(11, 14);
        node.set("pids.current", "3\n");
        node.set("cgroup.procs", "11\n");
        assert_eq!(node.pids(), [11, 11, 12], "it was not listed again");
        node.set("pids.current", "2\n");
        assert_eq!(node.pids(), [11, 11]);
    }

    #[test]
    fn a_process_that_its_cgroup_no_longer_has_has_left_and_one_that_has_ended_has_not() {
        let mut node = Assigned::new("cpu.stat", "usage_usec 500\n");
        node.set("cgroup.procs", "11\n12\n");
        assert_eq!(node.pids(), [11, 12]);
        assert_eq!(node.app.take_left(), []);
        node.set("cgroup.procs", "12\n");
        node.set("cpu.stat", "usage_usec 501\n");
        assert_eq!(node.pids(), [12]);
        assert_eq!(node.app.take_left(), [ProcessId { pid: 11, start_ticks: 70 }]);
        std::fs::remove_dir_all(node.tree.path("proc/12")).unwrap();
        node.table.refresh().unwrap();
        assert_eq!(node.pids(), [0; 0]);
        assert_eq!(node.app.take_left(), []);
    }

    #[test]
    fn what_was_left_out_or_has_ended_has_its_cgroup_listed_again() {
        let mut node = Assigned::new("cpu.stat", "usage_usec 500\n");
        assert_eq!(node.pids(), [11]);
        node.app.leave_out(ProcessId { pid: 11, start_ticks: 70 });
        assert_eq!(node.pids(), [0; 0]);
        node.app.claim_all();
        assert_eq!(node.pids(), [11]);
        node.set("cgroup.procs", "12\n");
        std::fs::remove_dir_all(node.tree.path("proc/11")).unwrap();
        node.table.refresh().unwrap();
        assert_eq!(node.pids(), [12]);
    }
}
