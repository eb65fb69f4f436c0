//! The threads of one process of an app, listed again only when it has run.

use super::identity::{Facts, cpu_time_of, numbers};
use crate::files::unless_gone;
use crate::{LiveThread, Roots};
use lull_measure::Nanos;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process and its threads at the last refresh.
#[derive(Debug, Default)]
pub(super) struct Member {
    start_ticks: u64,
    /// Inode and start time by thread number; the inode of the only thread is that of the
    /// directory, so that it is read once more when there are others.
    tasks: BTreeMap<i32, (u64, u64)>,
    /// The inode of its directory of threads, if there was one thread when they were listed.
    alone: Option<u64>,
    /// Its CPU time before its threads were listed, if it is known.
    cpu_time: Option<Nanos>,
    /// Whether it may have run since [`Member::take_run`] was last called.
    has_run: bool,
}

/// Links of a directory of threads that holds one: `.`, `..` and the thread's.
const LINKS_OF_ONE: u64 = 3;

impl Member {
    /// A process that began then, of which no thread is known yet.
    pub(super) fn new(start_ticks: u64) -> Self {
        Self { start_ticks, ..Self::default() }
    }

    /// When it began, in clock ticks since boot.
    pub(super) const fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Its CPU time before its threads were listed, if it is known.
    pub(super) const fn cpu_time(&self) -> Option<Nanos> {
        self.cpu_time
    }

    /// Whether it may have run since the last call. Its CPU time may be old for a tick while it
    /// runs, so that a later refresh finds that it has.
    pub(super) const fn take_run(&mut self) -> bool {
        std::mem::replace(&mut self.has_run, false)
    }

    /// How many threads it had.
    pub(super) fn thread_count(&self) -> usize {
        self.tasks.len()
    }

    /// Its threads by number; `pid` is its own.
    pub(super) fn threads(&self, pid: i32) -> impl Iterator<Item = LiveThread> {
        self.tasks.iter().map(move |(tid, (_, start_ticks))| LiveThread {
            pid,
            tid: *tid,
            start_ticks: *start_ticks,
        })
    }

    /// A process that is gone has no threads; the next table says so. Threads that cannot be listed
    /// or read stay as they are, and are listed again by the next look.
    pub(super) fn refresh(&mut self, roots: &Roots, pid: i32) {
        // Read before the threads are, so that what changes meanwhile is found by a later look. It
        // may be old for a tick; a later look then finds another one.
        let cpu_time = cpu_time_of(roots, pid);
        if cpu_time.is_some() && cpu_time == self.cpu_time {
            return;
        }
        (self.cpu_time, self.has_run) = (cpu_time, true);
        let directory = roots.proc.join(format!("{pid}/task"));
        let alone = inode_if_alone(&directory).filter(|_| roots.is_own_proc());
        let was_alone = alone.is_some() && alone == self.alone && self.tasks.keys().eq([&pid]);
        self.alone = alone;
        if let Some(inode) = alone {
            // The only thread of a process is the main one, which began when the process did.
            if !was_alone {
                self.tasks = BTreeMap::from([(pid, (inode, self.start_ticks))]);
            }
            return;
        }
        let Ok(listed) = unless_gone(numbers(&directory)) else {
            self.cpu_time = None;
            return;
        };
        let mut before = std::mem::take(&mut self.tasks);
        for (tid, inode) in listed.unwrap_or_default() {
            let known = before.remove(&tid);
            let task = match known.filter(|(former, _)| *former == inode) {
                Some(same) => Ok(Some(same)),
                None => unless_gone(Facts::of_thread(roots, pid, tid))
                    .map(|facts| Some((inode, facts?.start_ticks))),
            };
            if task.is_err() {
                self.cpu_time = None;
            }
            if let Some(task) = task.unwrap_or(known) {
                self.tasks.insert(tid, task);
            }
        }
    }
}

/// Returns the inode of a directory of threads if it holds one thread, at less cost than a listing.
fn inode_if_alone(directory: &Path) -> Option<u64> {
    let found = std::fs::metadata(directory).ok()?;
    (found.nlink() == LINKS_OF_ONE).then(|| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn threads_that_cannot_be_listed_or_read_stay() {
        let tree = Tree::new();
        tree.write_thread(11, 11);
        tree.write_thread(11, 14);
        let (roots, mut member) = (tree.roots(), Member::default());
        member.refresh(&roots, 11);
        let [known, away] = ["proc/11/task", "proc/11/away"].map(|path| tree.path(path));
        std::fs::rename(&known, &away).unwrap();
        // A listing of it fails, and not because there is no such directory.
        tree.write("proc/11/task", "");
        member.refresh(&roots, 11);
        assert!(member.tasks.keys().eq(&[11, 14]), "{member:?}");
        std::fs::remove_file(&known).unwrap();
        std::fs::rename(&away, &known).unwrap();
        // Another inode, whose `stat` cannot be read.
        std::fs::rename(known.join("14"), tree.path("proc/11/former")).unwrap();
        std::fs::create_dir_all(known.join("14/stat")).unwrap();
        member.refresh(&roots, 11);
        assert!(member.tasks.keys().eq(&[11, 14]), "{member:?}");
        std::fs::remove_dir_all(&known).unwrap();
        member.refresh(&roots, 11);
        assert!(member.tasks.is_empty(), "{member:?}");
    }

    #[test]
    fn threads_are_listed_again_once_the_process_has_run() {
        let mut command = Command::new("cat");
        let mut cat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (roots, pid) = (Roots::default(), cat.id().cast_signed());
        let mut member = Member::default();
        // A thread that no listing shows.
        let false_thread = i32::MAX;
        while !member.tasks.contains_key(&false_thread) {
            member.refresh(&roots, pid);
            member.tasks.insert(false_thread, (0, 0));
            member.refresh(&roots, pid);
        }
        cat.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        member.has_run = false;
        // Its CPU time may be old until it sleeps.
        let deadline = Instant::now() + Duration::from_secs(120);
        while member.tasks.contains_key(&false_thread) && Instant::now() < deadline {
            member.refresh(&roots, pid);
            std::thread::yield_now();
        }
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert!(member.tasks.keys().eq([&pid]) && member.has_run, "{member:?}");
    }
}
