//! Arguments and user of every process, and its program if an app is found by it, read once for all
//! apps that go by them.
//!
//! A process can execute another program, and rewrite its command line. In its first [`YOUNG`]
//! it is read at every listing, and twice a second where looks are more frequent. After that it
//! is read at once where the kernel reports that it executes another program, and in a listing
//! once in [`AGAIN`]. A process that is not reported is skipped while its CPU time is that of the
//! last reading: if it has run since, it shows another one, at the latest when it sleeps. A search
//! learns what has changed since it looked last, so that a look without news costs it nothing.

use super::identity::{Facts, ancestors, cpu_time_of};
use crate::Roots;
use crate::clock::read as now;
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Age below which a process is read at every listing.
const YOUNG: Nanos = Nanos::from_secs(2);
/// Shortest time between two readings of young processes of which nothing is reported.
const YOUNG_AGAIN: Nanos = Nanos::from_millis(450);
/// Time after which a listing reads all processes again.
const AGAIN: Nanos = Nanos::from_secs(10);
/// Longest part of a command line that is kept.
const ARGS_MAX: usize = 4096;
/// Changes that are kept for searches that looked some listings ago.
const CHANGES_MAX: usize = 4096;

/// The parts of a process that are read. The later one includes the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detail {
    /// Its arguments and its user.
    Args,
    /// Its arguments, its user and the path of its program.
    Exe,
}

/// The program, arguments and user of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    /// The path of its program; empty if it cannot be read, or no app is found by it.
    pub(super) exe: String,
    /// Its arguments, joined by blanks.
    pub(super) args: String,
    /// Its effective user.
    pub(super) uid: u32,
}

/// The descriptions of all processes but those that no app is made of: threads of the kernel,
/// process 1, the agent, its ancestors and its descendants.
#[derive(Debug)]
pub(super) struct Descriptions {
    of: BTreeMap<i32, Known>,
    detail: Detail,
    own: i32,
    /// Process 1 and the agent's ancestors.
    above: BTreeSet<i32>,
    /// The agent and its descendants.
    family: BTreeSet<i32>,
    version: u64,
    changes: VecDeque<(u64, i32)>,
    read_all: Nanos,
    /// Processes that were younger than [`YOUNG`] when they were read last.
    young: BTreeSet<i32>,
    /// When these were read last, whatever was reported.
    read_young: Nanos,
}

/// A process that was read.
#[derive(Debug)]
struct Known {
    start_ticks: u64,
    /// Its parent when it was first seen.
    parent: i32,
    /// Its CPU time before it was read, if that is known.
    cpu_time: Option<Nanos>,
    described: Described,
}

impl Descriptions {
    /// Creates an empty table; `own` is the agent.
    pub(super) fn new(own: i32, detail: Detail) -> Self {
        Self {
            of: BTreeMap::new(),
            detail,
            own,
            above: BTreeSet::from([1]),
            family: BTreeSet::from([own]),
            version: 0,
            changes: VecDeque::new(),
            read_all: Nanos::ZERO,
            young: BTreeSet::new(),
            read_young: Nanos::ZERO,
        }
    }

    /// Has more of each process read from the next refresh on, which reads all of them. What that
    /// changes is news for every search.
    pub(super) fn raise(&mut self, detail: Detail) {
        self.detail = detail;
        self.read_all = Nanos::ZERO;
        self.of.values_mut().for_each(|known| known.cpu_time = None);
    }

    /// The parts that are read.
    pub(super) const fn detail(&self) -> Detail {
        self.detail
    }

    /// Updates the descriptions to a listing of all processes.
    pub(super) fn refresh(&mut self, roots: &Roots, listed: &BTreeMap<i32, Facts>) {
        let time = now(ClockId::Boottime);
        let is_all_due = time >= self.read_all.saturating_add(AGAIN);
        if is_all_due {
            self.read_all = time;
            self.above = ancestors(self.own, |pid| listed.get(&pid));
        }
        self.version += 1;
        self.read_young = time;
        self.young.clear();
        for (pid, facts) in listed {
            let started = started(facts.start_ticks);
            let known = self.of.get(pid).filter(|known| known.start_ticks == facts.start_ticks);
            if known.is_some() && !is_all_due && time.saturating_sub(started) >= YOUNG {
                continue;
            }
            self.read(roots, *pid, facts);
        }
        let gone = self.of.keys().filter(|pid| !listed.contains_key(pid));
        for pid in gone.copied().collect::<Vec<_>>() {
            self.forget(pid);
        }
        self.family.retain(|pid| listed.contains_key(pid));
        self.drop_oldest_changes();
    }

    /// Updates the descriptions to the present state of some processes: the facts of each now,
    /// `None` if it is gone. They are read whatever their CPU time is, which may be old just when a
    /// process executes another program. Young ones are read again, because a new process may
    /// rewrite its command line.
    pub(super) fn update(&mut self, roots: &Roots, changed: &[(i32, Option<Facts>)]) {
        self.version += 1;
        let time = now(ClockId::Boottime);
        let is_due = time >= self.read_young.saturating_add(YOUNG_AGAIN);
        let young = if is_due { std::mem::take(&mut self.young) } else { BTreeSet::new() };
        self.read_young = if is_due { time } else { self.read_young };
        for (pid, facts) in changed {
            match facts {
                // An ended process keeps its description until it is gone, because its program
                // cannot be read any more.
                Some(facts) if facts.is_ended() || facts.is_exiting => {}
                Some(facts) => {
                    if let Some(known) = self.of.get_mut(pid) {
                        known.cpu_time = None;
                    }
                    self.read(roots, *pid, facts);
                }
                None => {
                    self.forget(*pid);
                    self.family.remove(pid);
                }
            }
        }
        let is_read = |pid: &i32| changed.iter().any(|(read, _)| read == pid);
        for pid in young.into_iter().filter(|pid| !is_read(pid)) {
            if let Some(Known { start_ticks, parent, .. }) = self.of.get(&pid) {
                self.read_of(roots, pid, *start_ticks, *parent);
            }
        }
        self.drop_oldest_changes();
    }

    /// Reads what a process runs, unless no app is made of it, or its CPU time is as it was.
    fn read(&mut self, roots: &Roots, pid: i32, facts: &Facts) {
        if !facts.is_kernels && !self.is_left_out(pid, facts) {
            self.read_of(roots, pid, facts.start_ticks, facts.parent);
        }
    }

    fn read_of(&mut self, roots: &Roots, pid: i32, start_ticks: u64, parent: i32) {
        // The CPU time is read first, so that the next look finds changes during this one.
        let cpu_time = cpu_time_of(roots, pid);
        let known = self.of.get(&pid).filter(|known| known.start_ticks == start_ticks);
        if cpu_time.is_none() || known.is_none_or(|known| known.cpu_time != cpu_time) {
            let Some(described) = Described::read(roots, pid, self.detail) else { return };
            if known.is_none_or(|known| known.described != described) {
                self.changes.push_back((self.version, pid));
            }
            let parent = known.map_or(parent, |known| known.parent);
            self.of.insert(pid, Known { start_ticks, parent, cpu_time, described });
        }
        if now(ClockId::Boottime) < started(start_ticks).saturating_add(YOUNG) {
            self.young.insert(pid);
        }
    }

    fn forget(&mut self, pid: i32) {
        if self.of.remove(&pid).is_some() {
            self.changes.push_back((self.version, pid));
        }
    }

    fn drop_oldest_changes(&mut self) {
        let excess = self.changes.len().saturating_sub(CHANGES_MAX);
        self.changes.drain(..excess);
    }

    /// The number of the last listing, for [`Descriptions::changed_since`].
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// The processes that have come, gone or changed since a listing; all if that is too long
    /// ago to know.
    pub(super) fn changed_since(&self, version: u64) -> Vec<i32> {
        let is_known = self.changes.len() < CHANGES_MAX
            || self.changes.front().is_some_and(|(first, _)| *first <= version);
        if version == 0 || !is_known {
            return self.of.keys().copied().collect();
        }
        let since = self.changes.iter().rev().take_while(|(at, _)| *at > version);
        since.map(|(_, pid)| *pid).collect()
    }

    /// Returns what a process runs, and its parent as it was first seen.
    pub(super) fn get(&self, pid: i32) -> Option<(&Described, i32)> {
        self.of.get(&pid).map(|known| (&known.described, known.parent))
    }

    /// Whether a process is read at every look, because of its age.
    #[cfg(test)]
    pub(super) fn is_young(&self, pid: i32) -> bool {
        self.young.contains(&pid)
    }

    fn is_left_out(&mut self, pid: i32, facts: &Facts) -> bool {
        if self.family.contains(&facts.parent) {
            self.family.insert(pid);
        }
        self.above.contains(&pid) || self.family.contains(&pid)
    }
}

impl Described {
    /// Reads it from `/proc`; `None` if the process has ended.
    fn read(roots: &Roots, pid: i32, detail: Detail) -> Option<Self> {
        let place = roots.proc.join(pid.to_string());
        let uid = std::fs::metadata(&place).ok()?.uid();
        let exe = match detail {
            Detail::Args => PathBuf::new(),
            Detail::Exe => std::fs::read_link(place.join("exe")).unwrap_or_default(),
        };
        let exe = exe.to_string_lossy();
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
        let mut args = [0; ARGS_MAX];
        let length = File::open(place.join("cmdline")).ok()?.read(&mut args).ok()?;
        let args = joined(&args[..length]);
        Some(Self { exe, args, uid })
    }
}

/// When a process began, since boot.
fn started(start_ticks: u64) -> Nanos {
    let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
    Nanos(start_ticks.saturating_mul(1_000_000_000 / ticks_per_s))
}

/// A command line with blanks between its arguments.
fn joined(args: &[u8]) -> String {
    let args = String::from_utf8_lossy(args.strip_suffix(&[0]).unwrap_or(args)).into_owned();
    args.replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn cat() -> (Child, i32) {
        let mut command = Command::new("cat");
        let cat = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = cat.id().cast_signed();
        // The kernel lets its parent continue before the arguments can be read.
        while std::fs::read(format!("/proc/{pid}/cmdline")).unwrap().is_empty() {
            std::thread::yield_now();
        }
        (cat, pid)
    }

    fn has_args(all: &Descriptions, pid: i32, args: &str) -> bool {
        all.get(pid).is_some_and(|(it, _)| it.args == args)
    }

    /// Gives a process that started at tick 1 arguments that no reading shows, and which stay when
    /// it is read once more, because its CPU time is as it was.
    fn read_falsely(all: &mut Descriptions, pid: i32) {
        let roots = Roots::default();
        while !has_args(all, pid, "false") {
            all.read_of(&roots, pid, 1, 0);
            if let Some(known) = all.of.get_mut(&pid) {
                known.described.args = "false".to_owned();
            }
            all.read_of(&roots, pid, 1, 0);
        }
    }

    #[test]
    fn what_is_reported_is_read_whatever_its_cpu_time() {
        let (mut cat, pid) = cat();
        let mut all = Descriptions::new(i32::MAX, Detail::Exe);
        read_falsely(&mut all, pid);
        let facts = Facts::of_process(&Roots::default(), pid).unwrap();
        all.update(&Roots::default(), &[(pid, Some(Facts { start_ticks: 1, ..facts }))]);
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert!(has_args(&all, pid, "cat"), "{:?}", all.get(pid));
    }

    #[test]
    fn the_program_is_read_where_an_app_is_found_by_it() {
        let (mut cat, pid) = cat();
        let read = |detail| Described::read(&Roots::default(), pid, detail).unwrap();
        let (without, with) = (read(Detail::Args), read(Detail::Exe));
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert_eq!(without, Described { exe: String::new(), ..with.clone() });
        assert!(with.exe.starts_with('/'), "{with:?}");
    }

    #[test]
    fn a_command_line_is_joined_by_blanks() {
        assert_eq!(joined(b"a\0-b\0c d\0"), "a -b c d");
        assert_eq!(joined(b""), "");
    }

    #[test]
    fn a_process_is_read_again_once_it_has_run() {
        let (mut cat, pid) = cat();
        let mut all = Descriptions::new(i32::MAX, Detail::Exe);
        read_falsely(&mut all, pid);
        cat.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        // Its CPU time may be old until it sleeps.
        let deadline = Instant::now() + Duration::from_secs(120);
        while has_args(&all, pid, "false") && Instant::now() < deadline {
            all.read_of(&Roots::default(), pid, 1, 0);
            std::thread::yield_now();
        }
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert!(has_args(&all, pid, "cat"), "{:?}", all.get(pid));
    }

    #[test]
    fn a_search_learns_of_new_changed_and_ended_processes_since_its_last_look() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let write = |pid: i32, args: &str| {
            let place = roots.proc.join(pid.to_string());
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("cmdline"), args).unwrap();
        };
        let facts = |parent| Facts {
            // Younger than any age, so that it is read every time.
            start_ticks: u64::MAX,
            parent,
            group: 0,
            state: 'S',
            is_kernels: false,
            is_exiting: false,
        };
        let mut listed =
            BTreeMap::from([(1, facts(0)), (50, facts(1)), (60, facts(50)), (70, facts(1))]);
        [1, 50, 60, 70].into_iter().for_each(|pid| write(pid, "a"));
        let mut all = Descriptions::new(50, Detail::Exe);
        all.refresh(&roots, &listed);
        assert_eq!(all.changed_since(0), [70], "the agent and what it started are left out");
        let seen = all.version();
        all.refresh(&roots, &listed);
        assert_eq!(all.changed_since(seen), [0; 0]);
        write(70, "b");
        all.refresh(&roots, &listed);
        assert_eq!(all.changed_since(seen), [70]);
        let seen = all.version();
        listed.remove(&70);
        all.refresh(&roots, &listed);
        assert_eq!((all.changed_since(seen), all.get(70)), (vec![70], None));
        let seen = all.version();
        all.update(&roots, &[(70, Some(facts(1))), (60, Some(facts(50)))]);
        assert_eq!(all.changed_since(seen), [70], "what the agent started is left out");
        let exiting = Facts { is_exiting: true, ..facts(1) };
        let seen = all.version();
        all.update(&roots, &[(70, Some(exiting))]);
        assert!(all.changed_since(seen).is_empty() && all.get(70).is_some());
        all.update(&roots, &[(70, Some(facts(2)))]);
        assert_eq!(all.get(70).map(|(_, parent)| parent), Some(1), "the parent at first sight");
        all.update(&roots, &[(70, None), (71, None)]);
        assert_eq!((all.changed_since(seen), all.get(70)), (vec![70], None));
    }
}
