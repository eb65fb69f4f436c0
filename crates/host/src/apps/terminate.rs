//! Ends the processes that Lull started, and their descendants.
//!
//! A process is found as a descendant of a started app, also one that the
//! kernel has reported (`forks.rs`), as a member of its process group, or by a
//! mark in its environment: the last catches those that left the group after
//! their parent ended where the kernel reports nothing, and one whose agent
//! died before it could write it down. First all get SIGTERM (and SIGCONT, as
//! a stopped process could not act on it), after the grace time SIGKILL.

use super::forks::Forks;
use super::identity::{Facts, ProcessId};
use super::members::{AppProcesses, Scope};
use super::signal::signal;
use super::table::ProcessTable;
use crate::Roots;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The variable that marks the environment of started apps.
pub const MARK_VARIABLE: &str = "LULL_STARTED_BY";
/// How long an app has to end after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(3);
/// How long the kernel may take to end a process after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);
/// Looks at one environment before it counts as unmarked.
const LOOKS: u8 = 5;

/// The mark of everything that an agent started.
pub(crate) fn mark_of(agent: ProcessId) -> String {
    format!("{}.{}/", agent.pid, agent.start_ticks)
}

/// The outcome of ending apps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a process that could not be ended must be reported to the user"]
pub struct Ended {
    /// Processes that ended after SIGTERM.
    pub terminated: usize,
    /// Processes that needed SIGKILL.
    pub killed: usize,
    /// Processes that are still there.
    pub left: Vec<ProcessId>,
    /// Processes in a group with the number of an app's, of which nothing shows that the app made
    /// them. They get no signal.
    pub unproven: Vec<ProcessId>,
}

/// A process that Lull started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartedTree {
    pub(crate) root: ProcessId,
    pub(crate) group: Group,
}

/// Whether the processes in the group with the number of a started process belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// They do.
    Own,
    /// The group has ended, and another one may have its number.
    Ended,
    /// It has not been followed. It is the app's if the started process still runs, or if a member
    /// is a descendant or has the mark.
    Unfollowed,
}

/// Ends the started processes and all that belongs to them.
///
/// `marks` are the starts of the marks that they have in their environments.
pub(crate) fn terminate(
    forks: &Forks,
    roots: &Roots,
    started: &[StartedTree],
    marks: &[String],
    grace: Duration,
) -> Ended {
    if started.is_empty() && marks.is_empty() {
        return Ended::default();
    }
    let Ok(table) = ProcessTable::observer(forks, roots) else {
        let left = started.iter().map(|started| started.root).collect();
        return Ended { left, ..Ended::default() };
    };
    let mut hunt = Hunt::new(table, started, marks);
    let mut patience = Patience { grace, requested: None, forced: None };
    let mut ended = Ended { unproven: hunt.unproven(started), ..Ended::default() };
    loop {
        hunt.look();
        let running = hunt.running();
        let next = if running.is_empty() { Next::GiveUp } else { patience.next(Instant::now()) };
        match next {
            Next::Ask => hunt.send(&running, Signal::TERM),
            Next::Force => hunt.send(&running, Signal::KILL),
            Next::GiveUp => {
                ended.killed = hunt.signalled(Signal::KILL).saturating_sub(running.len());
                ended.terminated = hunt.seen.len() - ended.killed - running.len();
                ended.left = running;
                return ended;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// The next action on processes that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Ask,
    Force,
    GiveUp,
}

/// How long to wait for what, each time counted from the signal before: a machine
/// that stood still for seconds must not lead to giving up before any was sent.
struct Patience {
    grace: Duration,
    requested: Option<Instant>,
    forced: Option<Instant>,
}

impl Patience {
    fn next(&mut self, now: Instant) -> Next {
        let requested = *self.requested.get_or_insert(now);
        if now.duration_since(requested) <= self.grace {
            return Next::Ask;
        }
        let forced = *self.forced.get_or_insert(now);
        if now.duration_since(forced) <= KILL_TIMEOUT { Next::Force } else { Next::GiveUp }
    }
}

/// The processes to end, as far as they have been found.
struct Hunt<'a> {
    table: ProcessTable,
    trees: Vec<AppProcesses>,
    marks: &'a [String],
    /// How often the environment of a process has been looked at: a child
    /// has that of its parent until it executes its program.
    looks: BTreeMap<ProcessId, u8>,
    seen: BTreeMap<ProcessId, Option<Signal>>,
}

impl<'a> Hunt<'a> {
    fn new(table: ProcessTable, started: &[StartedTree], marks: &'a [String]) -> Self {
        let tree = |started: &StartedTree| {
            let with_group = has_group(*started, &table, marks);
            AppProcesses::new(Scope::Tree { root: started.root, with_group })
        };
        let trees = started.iter().map(tree).collect();
        // The table lacks a process that cannot be read.
        let may_run = started.iter().filter(|started| started.root.may_run(table.roots()));
        let seen = may_run.map(|started| (started.root, None)).collect();
        Self { table, trees, marks, looks: BTreeMap::new(), seen }
    }

    /// Members of groups that do not belong to their apps as far as is known, and may.
    fn unproven(&self, started: &[StartedTree]) -> Vec<ProcessId> {
        let trees = self.trees.iter().zip(started);
        let is_open = |(tree, started): &(&AppProcesses, &StartedTree)| {
            started.group == Group::Unfollowed && !tree.has_group()
        };
        let members = |(_, started)| members_of_group(started, &self.table);
        trees.filter(is_open).flat_map(members).collect()
    }

    fn look(&mut self) {
        // A listing that fails leaves the processes found before.
        let _ = self.table.refresh();
        for tree in &mut self.trees {
            // Only the reading of a cgroup can fail.
            let _ = tree.refresh(&self.table);
            for process in tree.processes() {
                self.seen.entry(process).or_insert(None);
            }
        }
        if self.marks.is_empty() {
            return;
        }
        for process in self.unmarked() {
            if has_mark(self.table.roots(), process.pid, self.marks) {
                self.seen.insert(process, None);
            }
            *self.looks.entry(process).or_default() += 1;
        }
    }

    /// Processes that may have the mark and were not found yet.
    fn unmarked(&self) -> Vec<ProcessId> {
        let id = |(pid, facts): (i32, &Facts)| ProcessId { pid, start_ticks: facts.start_ticks };
        let is_open = |process: &ProcessId| {
            let looks = self.looks.get(process).copied().unwrap_or_default();
            looks < LOOKS && !self.seen.contains_key(process)
        };
        self.table.iter().map(id).filter(is_open).collect()
    }

    fn running(&self) -> Vec<ProcessId> {
        let runs = |process: &&ProcessId| process.may_run(self.table.roots());
        self.seen.keys().filter(runs).copied().collect()
    }

    /// Sends a signal once to each process.
    fn send(&mut self, processes: &[ProcessId], wanted: Signal) {
        for process in processes {
            if self.seen.get(process).copied().flatten() == Some(wanted) {
                continue;
            }
            // A process that ended meanwhile, or may not be ended, is found by `running`.
            let _ = signal(self.table.roots(), *process, wanted);
            let _ = signal(self.table.roots(), *process, Signal::CONT);
            self.seen.insert(*process, Some(wanted));
        }
    }

    fn signalled(&self, wanted: Signal) -> usize {
        self.seen.values().filter(|sent| **sent == Some(wanted)).count()
    }
}

/// Whether the process group of a started process belongs to it.
fn has_group(started: StartedTree, table: &ProcessTable, marks: &[String]) -> bool {
    let is_known = |process: &ProcessId| {
        table.forks().first(process.pid) == Some(started.root)
            || has_mark(table.roots(), process.pid, marks)
    };
    match started.group {
        Group::Own => true,
        Group::Ended => false,
        Group::Unfollowed => {
            started.root.may_run(table.roots())
                || members_of_group(&started, table).any(|process| is_known(&process))
        }
    }
}

fn members_of_group<'a>(
    started: &StartedTree,
    table: &'a ProcessTable,
) -> impl Iterator<Item = ProcessId> + use<'a> {
    let root = started.root;
    let members = table.iter().filter(move |(_, facts)| facts.is_in_group_of(root));
    members.map(|(pid, facts)| ProcessId { pid, start_ticks: facts.start_ticks })
}

fn has_mark(roots: &Roots, pid: i32, marks: &[String]) -> bool {
    let Ok(environment) = std::fs::read(roots.proc.join(format!("{pid}/environ"))) else {
        return false;
    };
    let is_mark = |variable: &[u8]| {
        let value = variable.strip_prefix(MARK_VARIABLE.as_bytes());
        let value = value.and_then(|value| value.strip_prefix(b"=")).unwrap_or_default();
        marks.iter().any(|mark| value.starts_with(mark.as_bytes()))
    };
    environment.split(|byte| *byte == 0).any(is_mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_process_that_cannot_be_looked_up_may_run() {
        let tree = Tree::new();
        // Its `stat` cannot be read, and not because there is no such file.
        tree.write("proc/7", "");
        let [unread, gone] = [7, 8].map(|pid| ProcessId { pid, start_ticks: 1 });
        let table = ProcessTable::new(&tree.roots()).unwrap();
        let started = [unread, gone].map(|root| StartedTree { root, group: Group::Own });
        let mut hunt = Hunt::new(table, &started, &[]);
        hunt.look();
        assert_eq!(hunt.running(), [unread]);
    }

    #[test]
    fn a_later_group_with_the_number_of_one_that_has_ended_is_left_alone() {
        let tree = Tree::new();
        tree.write_member_of_7(9, 500);
        let root = ProcessId { pid: 7, start_ticks: 1 };
        for (group, found) in [(Group::Own, 1), (Group::Ended, 0)] {
            let table = ProcessTable::new(&tree.roots()).unwrap();
            let mut hunt = Hunt::new(table, &[StartedTree { root, group }], &[]);
            hunt.look();
            assert_eq!(hunt.running().len(), found);
        }
    }

    #[test]
    fn a_group_that_was_not_followed_is_the_apps_if_a_member_shows_it() {
        let root = ProcessId { pid: 7, start_ticks: 1 };
        let started = [StartedTree { root, group: Group::Unfollowed }];
        let member = |pid| ProcessId { pid, start_ticks: 500 };
        for (environment, found, unproven) in [
            ("LULL_STARTED_BY=3.4/web/", vec![member(9), member(10)], vec![]),
            ("LULL_STARTED_BY=3.5/web/", vec![], vec![member(9), member(10)]),
        ] {
            let tree = Tree::new();
            tree.write_member_of_7(9, 500);
            tree.write_member_of_7(10, 500);
            tree.write("proc/9/environ", environment);
            let table = ProcessTable::new(&tree.roots()).unwrap();
            let marks = ["3.4/".to_owned()];
            let mut hunt = Hunt::new(table, &started, &marks);
            hunt.look();
            assert_eq!((hunt.running(), hunt.unproven(&started)), (found, unproven));
        }
    }

    #[test]
    fn no_environment_is_read_where_there_is_no_mark_to_find() {
        let tree = Tree::new();
        tree.write("proc/7/stat", &std::fs::read_to_string("/proc/self/stat").unwrap());
        let marks = ["1.2/".to_owned()];
        for (marks, looked_at) in [(&marks[..0], 0), (&marks[..], 1)] {
            let mut hunt = Hunt::new(ProcessTable::new(&tree.roots()).unwrap(), &[], marks);
            hunt.look();
            assert_eq!(hunt.looks.len(), looked_at);
        }
    }

    #[test]
    fn no_step_is_left_out_on_a_machine_that_stalls_in_between() {
        let grace = Duration::from_secs(3);
        let mut patience = Patience { grace, requested: None, forced: None };
        let mut now = Instant::now();
        let mut steps = Vec::new();
        for _ in 0..4 {
            steps.push(patience.next(now));
            now += Duration::from_secs(60);
        }
        assert_eq!(steps, [Next::Ask, Next::Force, Next::GiveUp, Next::GiveUp]);
    }

    #[test]
    fn each_step_has_its_time() {
        let mut patience =
            Patience { grace: Duration::from_secs(3), requested: None, forced: None };
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let steps = [0, 2_900, 3_100, 5_000, 5_200].map(|ms| patience.next(at(ms)));
        assert_eq!(steps, [Next::Ask, Next::Ask, Next::Force, Next::Force, Next::GiveUp]);
    }
}
