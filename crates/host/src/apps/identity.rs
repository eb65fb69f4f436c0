//! Identity of processes and threads, distinct from later ones with the same number.
//!
//! The kernel reuses a number as soon as its owner is gone, so a number alone
//! never names anything here: it goes with the start time, in clock ticks
//! since boot (`stat` field 22, `man 5 proc`). Two owners of one number within
//! one tick of 10 ms would be mixed up; that takes a full turn of the counter.

use crate::files::unless_gone;
use crate::sys::clock::process_cpu_time;
use crate::{LiveThread, Roots};
use lull_measure::Nanos;
use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// The fields of `stat` of a process or thread that Lull needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The process that made it, or the one that took it over.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// The kernel's letter for its state: `R`, `S`, `D`, `T`, `Z`, ...
    pub state: char,
    /// Whether it is a thread of the kernel.
    pub is_kernels: bool,
    /// Whether the kernel is taking it down.
    pub is_exiting: bool,
}

/// Longer than 22 fields of `stat`: a name of up to 64 bytes, and numbers of up to 20 digits.
const STAT_BYTES: usize = 1024;

/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// `PF_EXITING` of the same file.
const EXITING: u32 = 0x0000_0004;

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

impl LiveThread {
    /// Whether it is the main thread of its process.
    pub(crate) const fn is_main(&self) -> bool {
        self.pid == self.tid
    }

    /// Whether this thread, and no later one of the same number, is there.
    ///
    /// # Errors
    /// If `proc` cannot be read, as without a free descriptor.
    pub(crate) fn look(&self, roots: &Roots) -> io::Result<bool> {
        let facts = unless_gone(Facts::of_thread(roots, self.pid, self.tid))?;
        Ok(facts.is_some_and(|facts| facts.start_ticks == self.start_ticks))
    }
}

impl Facts {
    /// Whether the process is in the group that `leader` leads or led. The kernel gives no new
    /// process the number of a group that still has members.
    pub(super) fn is_in_group_of(&self, leader: ProcessId) -> bool {
        self.group == leader.pid && self.start_ticks >= leader.start_ticks
    }

    /// Facts about a process.
    ///
    /// # Errors
    /// `NotFound` if it is gone, else the kernel's error.
    pub fn of_process(roots: &Roots, pid: i32) -> io::Result<Self> {
        Self::read(&roots.proc.join(format!("{pid}/stat")))
    }

    /// Facts about a process; `None` if it is gone, which costs no look-up of a path.
    ///
    /// # Errors
    /// If `proc` cannot be read, as without a free descriptor.
    pub(super) fn find(roots: &Roots, pid: i32) -> io::Result<Option<Self>> {
        if is_gone(roots, pid) {
            return Ok(None);
        }
        unless_gone(Self::of_process(roots, pid))
    }

    /// Facts about a thread.
    ///
    /// # Errors
    /// `NotFound` if it is gone, else the kernel's error.
    pub fn of_thread(roots: &Roots, pid: i32, tid: i32) -> io::Result<Self> {
        Self::read(&roots.proc.join(format!("{pid}/task/{tid}/stat")))
    }

    /// Reads the first fields of `stat` and no further: it is read for every process and, while
    /// apps are looked for, repeatedly.
    fn read(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path).map_err(gone_is_not_found)?;
        let (mut buffer, mut length) = ([0; STAT_BYTES], 0);
        loop {
            let count = match file.read(&mut buffer[length..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(gone_is_not_found)?,
            };
            length += count;
            if let Some(facts) = Self::parse(&buffer[..length]) {
                return Ok(facts);
            }
            if count == 0 {
                let text = format!(
                    "cannot read {}: it is not in the form of `stat` in proc(5)",
                    path.display()
                );
                return Err(io::Error::other(text));
            }
        }
    }

    /// The facts in the first 22 fields of `stat`; `None` if they are not all there.
    fn parse(stat: &[u8]) -> Option<Self> {
        // The name in parentheses may hold anything, blanks and parentheses too.
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut words = stat.get(name_end + 2..)?.split(|byte| *byte == b' ');
        // Fields 3 to 5 and 9; 22 is complete where another one follows.
        let state = char::from(*words.next()?.first()?);
        let (parent, group) = (parsed(words.next()?)?, parsed(words.next()?)?);
        let flags: u32 = parsed(words.nth(3)?)?;
        let start_ticks = parsed(words.nth(12)?)?;
        words.next()?;
        Some(Self {
            start_ticks,
            parent,
            group,
            state,
            is_kernels: flags & KERNEL_THREAD != 0,
            is_exiting: flags & EXITING != 0,
        })
    }

    /// Whether it has ended and only waits for its parent to take notice.
    pub const fn is_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether a signal or a debugger keeps it from running.
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

impl ProcessId {
    /// The process that has this number now.
    ///
    /// # Errors
    /// `NotFound` if there is none, else the kernel's error.
    pub fn lookup(roots: &Roots, pid: i32) -> io::Result<Self> {
        Ok(Self { pid, start_ticks: Facts::of_process(roots, pid)?.start_ticks })
    }

    /// The calling process.
    ///
    /// # Errors
    /// If `proc` cannot be read.
    pub fn own(roots: &Roots) -> io::Result<Self> {
        Self::lookup(roots, rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Its facts, if it still runs under this number.
    pub fn facts(&self, roots: &Roots) -> Option<Facts> {
        self.look(roots).ok().flatten()
    }

    /// The same, where an error is not the end of the process.
    ///
    /// # Errors
    /// If `proc` cannot be read, as without a free descriptor.
    pub(crate) fn look(&self, roots: &Roots) -> io::Result<Option<Facts>> {
        let facts = Facts::find(roots, self.pid)?;
        Ok(facts.filter(|facts| facts.start_ticks == self.start_ticks && !facts.is_ended()))
    }

    /// Whether it may run: one that cannot be looked up may.
    pub(crate) fn may_run(&self, roots: &Roots) -> bool {
        !matches!(self.look(roots), Ok(None))
    }
}

/// Returns process 1 and the ancestors of a process, by the facts of each.
pub(super) fn ancestors<'a>(
    process: i32,
    facts_of: impl Fn(i32) -> Option<&'a Facts>,
) -> BTreeSet<i32> {
    let mut above = BTreeSet::from([1]);
    let mut next = Some(process);
    while let Some(facts) = next.and_then(&facts_of) {
        next = above.insert(facts.parent).then_some(facts.parent);
    }
    above
}

/// The CPU time that a process has used; `None` if it is gone, or `proc` is not of this machine.
///
/// The kernel brings it up to date at ticks and switches, so that a process that runs may show an
/// old value for a tick. Once it sleeps or has ended it shows another one than before it ran. So
/// while the value stays, nothing was done by a process that sleeps: it has made no thread, none of
/// its threads has ended, and it runs what it ran.
pub(super) fn cpu_time_of(roots: &Roots, pid: i32) -> Option<Nanos> {
    roots.is_own_proc().then(|| process_cpu_time(pid).ok()).flatten()
}

/// Whether no process has this number, by one call that reads no file; `false` where `proc` is
/// somewhere else than the kernel's own, so that its numbers may be other ones.
fn is_gone(roots: &Roots, pid: i32) -> bool {
    roots.is_own_proc()
        && Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// A word as a number.
fn parsed<T: FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The kernel says `ESRCH` where a file of a process outlives the process.
fn gone_is_not_found(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}

/// The numbers that a directory of `proc` lists, each with its inode.
///
/// `proc` makes an inode when it first lists a process or thread and drops it
/// with its owner, so a number whose inode is the same has the same owner.
/// The opposite does not hold: the kernel may drop an inode to free memory.
///
/// # Errors
/// `NotFound` if the directory's owner is gone, else the kernel's error.
pub(crate) fn numbers(directory: &Path) -> io::Result<Vec<(i32, u64)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, directory, flags, Mode::empty());
    let mut listing = Dir::new(opened.map_err(|error| gone_is_not_found(error.into()))?)?;
    let mut found = Vec::new();
    while let Some(entry) = listing.read() {
        let entry = entry.map_err(|error| gone_is_not_found(error.into()))?;
        if let Some(number) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
            found.push((number, entry.ino()));
        }
    }
    Ok(found)
}

/// The threads of a process now.
///
/// # Errors
/// `NotFound` if the process is gone, else the kernel's error, also if one thread cannot be read.
pub(crate) fn threads_of(roots: &Roots, pid: i32) -> io::Result<Vec<LiveThread>> {
    each_thread_of(roots, pid)?.into_iter().collect()
}

/// Each thread of a process now, or why it cannot be read.
///
/// # Errors
/// `NotFound` if the process is gone, else the kernel's error.
pub(crate) fn each_thread_of(roots: &Roots, pid: i32) -> io::Result<Vec<io::Result<LiveThread>>> {
    let listed = numbers(&roots.proc.join(format!("{pid}/task")))?;
    let alive = |(tid, _)| {
        let facts = unless_gone(Facts::of_thread(roots, pid, tid)).transpose()?;
        Some(facts.map(|facts| LiveThread { pid, tid, start_ticks: facts.start_ticks }))
    };
    Ok(listed.into_iter().filter_map(alive).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use rustix::process::{Signal, kill_process};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_the_same_only_with_its_start_time() {
        let roots = Roots::default();
        let me = ProcessId::own(&roots).unwrap();
        assert_eq!(me.facts(&roots).unwrap().start_ticks, me.start_ticks);
        let earlier = ProcessId { start_ticks: me.start_ticks - 1, ..me };
        assert_eq!(earlier.facts(&roots), None);
    }

    #[test]
    fn a_stopped_process_is_seen_and_an_ended_one_without_a_wait_does_not_run() {
        let roots = Roots::default();
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let id = ProcessId::lookup(&roots, child.id().cast_signed()).unwrap();
        assert!(id.facts(&roots).is_some_and(|facts| !facts.is_stopped()));
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        while !Facts::of_process(&roots, id.pid).unwrap().is_stopped() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        while !Facts::of_process(&roots, id.pid).unwrap().is_ended() {
            std::thread::yield_now();
        }
        assert_eq!(id.facts(&roots), None);
        assert!(!is_gone(&roots, id.pid), "it was not waited for");
        child.wait().unwrap();
        // Another process may have the number by now.
        assert!(is_gone(&roots, id.pid) || ProcessId::lookup(&roots, id.pid).unwrap() != id);
        let elsewhere = Roots { proc: "/nowhere".into(), ..roots.clone() };
        assert!(!is_gone(&elsewhere, id.pid), "its numbers may be other ones");
        let gone = Facts::of_process(&roots, id.pid);
        assert!(gone.is_err() || gone.unwrap().start_ticks != id.start_ticks);
    }

    #[test]
    fn every_thread_of_a_process_is_listed() {
        let roots = Roots::default();
        let me = ProcessId::own(&roots).unwrap();
        let mine = LiveThread {
            pid: me.pid,
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            start_ticks: Facts::of_process(&roots, me.pid).unwrap().start_ticks,
        };
        let threads = threads_of(&roots, me.pid).unwrap();
        assert!(threads.iter().any(LiveThread::is_main));
        assert!(threads.iter().any(|thread| thread.tid == mine.tid));
    }

    #[test]
    fn a_thread_that_cannot_be_read_is_not_taken_for_gone() {
        let tree = Tree::new();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        tree.write("proc/7/task/7/stat", &stat);
        // One that ends during the listing has no file any more.
        std::fs::create_dir(tree.path("proc/7/task/8")).unwrap();
        assert_eq!(threads_of(&tree.roots(), 7).unwrap().len(), 1);
        tree.write("proc/7/task/9", "");
        assert!(threads_of(&tree.roots(), 7).is_err());
        let each = each_thread_of(&tree.roots(), 7).unwrap();
        assert_eq!((each.len(), each.iter().filter(|one| one.is_ok()).count()), (2, 1));
        let look = |tid| LiveThread { pid: 7, tid, start_ticks: 1 }.look(&tree.roots());
        assert!(!look(8).unwrap() && look(9).is_err());
    }

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let tree = tempfile::tempdir().unwrap();
        let task = tree.path().join("proc/7");
        std::fs::create_dir_all(&task).unwrap();
        let stat = "7 (a) b (c) S 3 4 4 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4711 1 1 \
                    18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        std::fs::write(task.join("stat"), stat).unwrap();
        let facts = Facts::of_process(&Roots::under(tree.path()), 7).unwrap();
        assert_eq!((facts.start_ticks, facts.parent, facts.group), (4711, 3, 4));
        assert!(!facts.is_kernels && !facts.is_ended());
    }

    #[test]
    fn facts_are_those_that_a_whole_parser_reads() {
        use procfs::FromRead;
        let mut compared = 0;
        for (pid, _) in numbers(Path::new("/proc")).unwrap() {
            let Ok(text) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
            let whole = procfs::process::Stat::from_read(text.as_slice()).unwrap();
            let facts = Facts::parse(&text).unwrap();
            assert_eq!(
                (facts.start_ticks, facts.parent, facts.group, facts.state),
                (whole.starttime, whole.ppid, whole.pgrp, whole.state)
            );
            assert_eq!(facts.is_kernels, whole.flags & KERNEL_THREAD != 0);
            compared += 1;
        }
        assert!(compared > 1, "this process and its parent at least");
    }

    #[test]
    fn a_stat_that_is_cut_short_is_an_error_and_no_facts() {
        let tree = tempfile::tempdir().unwrap();
        let task = tree.path().join("proc/7");
        std::fs::create_dir_all(&task).unwrap();
        for stat in ["", "7 (a) S", "7 (a) S 3 4 4 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 47"] {
            std::fs::write(task.join("stat"), stat).unwrap();
            let error = Facts::of_process(&Roots::under(tree.path()), 7).unwrap_err();
            assert!(error.to_string().contains("proc/7/stat"), "{error}");
        }
    }
}
