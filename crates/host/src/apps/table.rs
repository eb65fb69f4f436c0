//! All processes of the machine, known cheaply enough for every epoch.
//!
//! One table serves all apps. Where the kernel reports what becomes of processes
//! ([`Forks`]), only those are read, and `proc` is listed once in [`LIST_AGAIN`]. Elsewhere it
//! is listed every time: a process is read once, when its number or its inode is new; after that
//! an epoch costs the listing alone.
//!
//! Parents are found by reading `stat` and not `task/TID/children`: the latter
//! is missing from many kernels (`CONFIG_PROC_CHILDREN`), is documented to
//! miss children unless all are stopped (`man 5 proc`), and takes one read for
//! each thread of an app where this takes one for each new process.
//!
//! Verified on Linux 6.18: inodes stay while processes do, and change when a
//! number is reused. Measured there, optimised, on 2 busy virtual cores with
//! 140 processes and 3 apps of 8 threads: 80 us of CPU time for a refresh of
//! table and apps in a tight loop, 380 us every 100 ms, with cold caches and
//! compilers coming and going; with 1,130 processes 0.7 and 1.6 ms.

use super::described::{Descriptions, Detail};
use super::forks::Forks;
use super::identity::{Facts, numbers};
use crate::Roots;
use crate::clock::read as now;
use crate::files::unless_gone;
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time after which all processes are listed although the kernel reports their events: it reports
/// no process that only rewrites its command line.
const LIST_AGAIN: Nanos = Nanos::from_secs(30);

/// Number of the next listing of any table.
static NEXT_LISTING: AtomicU64 = AtomicU64::new(1);

/// The processes of the machine at the last refresh.
#[derive(Debug)]
pub struct ProcessTable {
    roots: Roots,
    known: BTreeMap<i32, Known>,
    /// What the processes run, if an app is found by that.
    described: Option<Descriptions>,
    forks: Forks,
    /// Whether the changes that are reported are left to another table.
    is_observer: bool,
    /// Processes that the next look reads again: they were about to end when they were read, so
    /// that their end was reported already, or were reported just before a listing, or may be
    /// among those whose reports are missing.
    ending: BTreeSet<i32>,
    /// When all processes are listed again, since boot.
    list_at: Nanos,
    /// Unique number of the listing that it holds.
    listing: u64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// The inode in the last listing; `None` if it was not in one yet.
    inode: Option<u64>,
    facts: Facts,
}

impl ProcessTable {
    /// The processes under `roots` now.
    ///
    /// # Errors
    /// If `proc` cannot be listed.
    pub fn new(roots: &Roots) -> io::Result<Self> {
        Self::listed(roots, Forks::default(), false)
    }

    /// A second table of the machine: it knows which processes these forks have made, and leaves
    /// the changes that are reported to the table that follows them.
    ///
    /// # Errors
    /// As [`ProcessTable::new`].
    pub(super) fn observer(forks: &Forks, roots: &Roots) -> io::Result<Self> {
        Self::listed(roots, forks.clone(), true)
    }

    fn listed(roots: &Roots, forks: Forks, is_observer: bool) -> io::Result<Self> {
        let mut table = Self {
            roots: roots.clone(),
            known: BTreeMap::new(),
            described: None,
            forks,
            is_observer,
            ending: BTreeSet::new(),
            list_at: Nanos::ZERO,
            listing: 0,
        };
        table.refresh()?;
        Ok(table)
    }

    /// The same with forks that the kernel reports. They are read by the next refresh, so that
    /// descendants are found of processes that are followed by then.
    #[must_use]
    pub fn following(self, forks: Forks) -> Self {
        Self { forks, ..self }
    }

    /// The forks that the kernel reports.
    pub const fn forks(&self) -> &Forks {
        &self.forks
    }

    /// Lists the processes again.
    ///
    /// # Errors
    /// If `proc` cannot be listed, and the table is as before. A process that cannot be read stays
    /// as it was, is left out if it is new, and is read again by the next look.
    pub fn refresh(&mut self) -> io::Result<()> {
        // Processes reported from here on may be missing from the listing.
        if self.is_observer {
            self.forks.read();
            return self.list(None);
        }
        let changed = self.forks.take_changed();
        self.list(changed)
    }

    /// Lists the processes, after these were reported; `None` if reports may be missing.
    fn list(&mut self, changed: Option<BTreeSet<i32>>) -> io::Result<()> {
        let is_complete = changed.is_some();
        let was_complete = self.list_at != Nanos::ZERO;
        self.ending.extend(changed.into_iter().flatten());
        // All are listed again until that succeeds after a complete report: a look at changes alone
        // would miss those that were taken here, and those before the subscription.
        self.list_at = Nanos::ZERO;
        let listed = numbers(&self.roots.proc)?;
        if is_complete {
            self.list_at = now(ClockId::Boottime).saturating_add(LIST_AGAIN);
        }
        let mut before = std::mem::take(&mut self.known);
        let mut unread = Vec::new();
        for (pid, inode) in listed {
            let before = before.remove(&pid);
            let now = match before.filter(|known| known.inode == Some(inode)) {
                Some(same) => Some(same),
                None => self.listed_again(pid, inode, before).unwrap_or_else(|_| {
                    unread.push(pid);
                    before
                }),
            };
            if let Some(now) = now {
                self.known.insert(pid, now);
            }
        }
        if is_complete && !was_complete {
            // The reports that are missing may be of any process, and are not repeated.
            self.ending.extend(self.known.keys());
        }
        self.ending.retain(|pid| self.known.contains_key(pid));
        self.ending.extend(unread);
        self.describe_all();
        Ok(())
    }

    /// Reads a process that may be another one than before, with this inode now; it has its first
    /// facts if it is the same. `None` if it is gone.
    fn listed_again(
        &self,
        pid: i32,
        inode: u64,
        before: Option<Known>,
    ) -> io::Result<Option<Known>> {
        let Some(read) = unless_gone(Facts::of_process(&self.roots, pid))? else {
            return Ok(None);
        };
        let same = before.filter(|known| known.facts.start_ticks == read.start_ticks);
        let facts = same.map_or(read, |known| known.facts);
        Ok(Some(Known { inode: Some(inode), facts }))
    }

    /// Brings the table up to what the kernel has reported since the last call: processes that
    /// were made, execute another program, have another user or have ended. Lists all where that
    /// is not known, and once in half a minute.
    ///
    /// # Errors
    /// As [`ProcessTable::refresh`].
    pub fn refresh_changed(&mut self) -> io::Result<()> {
        let is_due = now(ClockId::Boottime) >= self.list_at;
        // Reported numbers are those of the machine's own `proc`.
        if is_due || !self.roots.is_own_proc() {
            return self.refresh();
        }
        // A listing that took the reports again would count them as complete.
        let Some(mut changed) = self.forks.take_changed() else { return self.list(None) };
        changed.append(&mut self.ending);
        let found: Vec<(i32, Option<Facts>)> =
            changed.into_iter().map(|pid| (pid, self.read_again(pid))).collect();
        self.listing = NEXT_LISTING.fetch_add(1, Ordering::Relaxed);
        if let Some(described) = &mut self.described {
            described.update(&self.roots, &found);
        }
        Ok(())
    }

    /// Reads a process; returns its facts now, or `None` if there is none of this number. The table
    /// keeps what the process was when it was first seen. One that cannot be read stays, and the
    /// next look reads it again.
    fn read_again(&mut self, pid: i32) -> Option<Facts> {
        let facts = match Facts::find(&self.roots, pid) {
            Ok(Some(facts)) => facts,
            Ok(None) => {
                self.known.remove(&pid);
                return None;
            }
            Err(_) => {
                self.ending.insert(pid);
                return self.known.get(&pid).map(|known| known.facts);
            }
        };
        // Its end may be reported before its parent has waited for it, and is not reported again.
        if facts.is_ended() || facts.is_exiting {
            self.ending.insert(pid);
        }
        let read = Known { inode: None, facts };
        let before = self.known.entry(pid).or_insert(read);
        if before.facts.start_ticks != facts.start_ticks {
            *before = read;
        }
        Some(facts)
    }

    /// Reads from now on what processes run, as far as the apps of the calling agent need it.
    pub(crate) fn describe_for(&mut self, needed: impl Iterator<Item = Detail>) {
        if let Some(detail) = needed.max() {
            self.describe(rustix::process::getpid().as_raw_nonzero().get(), detail);
        }
    }

    /// Reads from now on what processes run, for an agent with this number.
    pub(super) fn describe(&mut self, own: i32, detail: Detail) {
        match &mut self.described {
            Some(described) if described.detail() >= detail => return,
            Some(described) => described.raise(detail),
            None => self.described = Some(Descriptions::new(own, detail)),
        }
        self.describe_all();
    }

    fn describe_all(&mut self) {
        self.listing = NEXT_LISTING.fetch_add(1, Ordering::Relaxed);
        if let Some(described) = &mut self.described {
            let listed = self.known.iter().map(|(pid, known)| (*pid, known.facts)).collect();
            described.refresh(&self.roots, &listed);
        }
    }

    /// Returns the unique number of its listing: results derived from one listing hold until the
    /// next.
    pub(crate) const fn listing(&self) -> u64 {
        self.listing
    }

    pub(super) fn descriptions(&self) -> Option<&Descriptions> {
        self.described.as_ref()
    }

    /// Facts about a process as they were when it was first seen.
    ///
    /// A parent that ended since is still named; state is of no use here.
    pub fn facts(&self, pid: i32) -> Option<&Facts> {
        self.known.get(&pid).map(|known| &known.facts)
    }

    /// The processes by number, with their facts.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &Facts)> {
        self.known.iter().map(|(pid, known)| (*pid, &known.facts))
    }

    /// Number of processes.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no process was seen, as in an empty tree.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn roots(&self) -> &Roots {
        &self.roots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::pattern::PatternSearch;
    use crate::apps::{ProcessId, ProcessPattern};
    use crate::testing::Tree;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    /// A `cat` that runs already: its arguments are readable, and only its end is still reported.
    fn settled(args: &[&str]) -> Child {
        let mut command = Command::new("cat");
        let mut child =
            command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    /// Looks at what is reported until something holds. No listing is due meanwhile, so that
    /// only reports can bring it about where the kernel has them.
    fn look_until(table: &mut ProcessTable, what: &str, holds: impl Fn(&ProcessTable) -> bool) {
        table.list_at = Nanos(u64::MAX);
        let deadline = Instant::now() + Duration::from_secs(120);
        while !holds(table) {
            assert!(Instant::now() < deadline, "never seen: {what}");
            table.refresh_changed().unwrap();
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// The kernel may report the end of a process after its parent has waited for it.
    fn look_until_gone(table: &mut ProcessTable, pid: i32) {
        look_until(table, "the end", |table| table.facts(pid).is_none());
    }

    #[test]
    fn processes_come_and_go() {
        let roots = Roots::default();
        let mut table = ProcessTable::new(&roots).unwrap();
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        table.refresh().unwrap();
        assert_eq!(table.facts(pid).unwrap().parent, ProcessId::own(&roots).unwrap().pid);
        child.kill().unwrap();
        child.wait().unwrap();
        table.refresh().unwrap();
        assert_ne!(table.facts(pid).map(|facts| facts.parent), Some(pid));
    }

    #[test]
    fn a_process_that_cannot_be_read_stays_and_is_read_again() {
        let tree = Tree::new();
        tree.write("proc/7/stat", &std::fs::read_to_string("/proc/self/stat").unwrap());
        let mut table = ProcessTable::new(&tree.roots()).unwrap();
        // The file exists and cannot be read.
        tree.remove("proc/7/stat");
        std::fs::create_dir(tree.path("proc/7/stat")).unwrap();
        assert!(table.read_again(7).is_some() && table.facts(7).is_some());
        assert!(table.ending.contains(&7));
        std::fs::remove_dir_all(tree.path("proc/7")).unwrap();
        assert!(table.read_again(7).is_none() && table.facts(7).is_none());
    }

    #[test]
    fn a_process_that_a_listing_cannot_read_stays_and_is_read_again() {
        let tree = Tree::new();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        tree.write("proc/7/stat", &stat);
        let mut table = ProcessTable::new(&tree.roots()).unwrap();
        // It has another inode, and a read of it fails, as one of a new process does.
        std::fs::rename(tree.path("proc/7"), tree.path("proc/former")).unwrap();
        for pid in [7, 8] {
            std::fs::create_dir_all(tree.path(&format!("proc/{pid}/stat"))).unwrap();
        }
        table.refresh().unwrap();
        assert!(table.facts(7).is_some() && table.facts(8).is_none());
        assert!(table.ending.is_superset(&BTreeSet::from([7, 8])));
        std::fs::remove_dir(tree.path("proc/8/stat")).unwrap();
        tree.write("proc/8/stat", &stat);
        std::fs::remove_dir_all(tree.path("proc/7")).unwrap();
        table.refresh().unwrap();
        assert!(table.facts(7).is_none() && table.facts(8).is_some());
    }

    #[test]
    fn changes_between_listings_are_those_of_a_listing() {
        let forks = Forks::default();
        let is_reported = forks.subscribe();
        let mut table = ProcessTable::new(&Roots::default()).unwrap().following(forks);
        table.refresh_changed().unwrap();
        let (mut short, mut long) = (sleeper(), sleeper());
        let [ended, alive] = [&short, &long].map(|child| child.id().cast_signed());
        table.refresh_changed().unwrap();
        assert!(table.facts(ended).is_some() && table.facts(alive).is_some());
        let facts = *table.facts(alive).unwrap();
        short.kill().unwrap();
        short.wait().unwrap();
        look_until_gone(&mut table, ended);
        assert!(table.facts(alive).is_some());
        table.refresh().unwrap();
        let listed = *table.facts(alive).unwrap();
        assert_eq!(listed.start_ticks, facts.start_ticks, "a listing takes it for another process");
        long.kill().unwrap();
        long.wait().unwrap();
        if !is_reported {
            lull_testing::skip("the kernel reports no forks, so that all processes were listed");
        }
    }

    /// Ends a process that is not waited for, and looks until its end was reported, or until a
    /// listing after dropped reports has it read again.
    fn end(table: &mut ProcessTable, child: &mut Child, is_reported: bool) {
        let pid = child.id().cast_signed();
        child.kill().unwrap();
        while !Facts::of_process(&Roots::default(), pid).unwrap().is_ended() {
            std::thread::yield_now();
        }
        let is_noted = |table: &ProcessTable| !is_reported || table.ending.contains(&pid);
        look_until(table, "the report of an end", is_noted);
    }

    #[test]
    fn a_process_whose_end_was_reported_is_known_until_it_is_waited_for() {
        let forks = Forks::default();
        let is_reported = forks.subscribe();
        let mut table = ProcessTable::new(&Roots::default()).unwrap().following(forks);
        // The first look lists all, and the second reads all again.
        table.refresh_changed().unwrap();
        table.refresh_changed().unwrap();
        for is_listed in [false, true] {
            let mut child = sleeper();
            let pid = child.id().cast_signed();
            table.refresh_changed().unwrap();
            let first = *table.facts(pid).unwrap();
            end(&mut table, &mut child, is_reported);
            if is_listed {
                table.refresh().unwrap();
            }
            table.refresh_changed().unwrap();
            assert_eq!(table.facts(pid), Some(&first), "as it was first seen");
            child.wait().unwrap();
            look_until_gone(&mut table, pid);
        }
    }

    #[test]
    fn a_process_whose_end_was_among_dropped_reports_is_known_until_it_is_waited_for() {
        let forks = Forks::default();
        if !forks.subscribe() {
            return lull_testing::skip("the kernel does not report forks here");
        }
        let mut table = ProcessTable::new(&Roots::default()).unwrap().following(forks.clone());
        let mut child = settled(&[]);
        let pid = child.id().cast_signed();
        table.refresh_changed().unwrap();
        table.refresh_changed().unwrap();
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while forks.take_changed().is_some_and(|changed| !changed.contains(&pid)) {
            assert!(Instant::now() < deadline, "the end was never reported");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        forks.note_loss();
        table.list_at = Nanos(u64::MAX);
        table.refresh_changed().unwrap();
        assert_eq!(table.list_at, Nanos::ZERO, "the next look lists all again");
        while table.list_at == Nanos::ZERO {
            assert!(Instant::now() < deadline, "no listing counts as complete");
            table.refresh_changed().unwrap();
        }
        table.refresh_changed().unwrap();
        assert!(table.facts(pid).is_some());
        child.wait().unwrap();
        look_until_gone(&mut table, pid);
    }

    #[test]
    fn a_process_from_between_a_listing_and_the_subscription_is_found() {
        let unreported = ProcessTable::new(&Roots::default()).unwrap();
        let mut child = settled(&[]);
        let pid = child.id().cast_signed();
        let forks = Forks::default();
        forks.subscribe();
        let mut table = unreported.following(forks);
        table.refresh_changed().unwrap();
        let is_known = table.facts(pid).is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_known);
    }

    #[test]
    fn a_search_misses_nothing_when_programs_are_read_too() {
        let start = || settled(&["-uuu"]);
        let end = |mut child: Child| {
            child.kill().unwrap();
            child.wait().unwrap();
        };
        let (early, lasting) = (start(), start());
        let mut table = ProcessTable::new(&Roots::default()).unwrap();
        table.describe(i32::MAX, Detail::Args);
        let pattern = ProcessPattern { args: Some("cat -uuu".to_owned()), ..Default::default() };
        let mut search = PatternSearch::new(&pattern).unwrap();
        let pid = |child: &Child| child.id().cast_signed();
        let all = |table: &ProcessTable, search: &mut PatternSearch| {
            search.processes(table.descriptions().unwrap())
        };
        assert_eq!(all(&table, &mut search), BTreeSet::from([pid(&early), pid(&lasting)]));
        end(early);
        let late = start();
        table.refresh().unwrap();
        table.describe(i32::MAX, Detail::Exe);
        let found = all(&table, &mut search);
        let exe = table.descriptions().unwrap().get(pid(&lasting)).map(|(one, _)| one.exe.clone());
        let expected = BTreeSet::from([pid(&lasting), pid(&late)]);
        end(lasting);
        end(late);
        assert_eq!(found, expected);
        assert!(exe.is_some_and(|exe| exe.starts_with('/')));
    }

    #[test]
    fn a_process_that_executes_another_program_is_described_again_at_the_next_look() {
        let forks = Forks::default();
        forks.subscribe();
        let mut table = ProcessTable::new(&Roots::default()).unwrap().following(forks);
        table.describe(i32::MAX, Detail::Args);
        let script = "read go; exec sleep 3079";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let has_args = |table: &ProcessTable, wanted: &str| {
            let described = table.descriptions().unwrap().get(pid);
            described.is_some_and(|(described, _)| described.args.contains(wanted))
        };
        look_until(&mut table, "the shell", |table| has_args(table, "read go"));
        // A young process is read repeatedly, whatever is reported of it.
        let is_old = |table: &ProcessTable| !table.descriptions().unwrap().is_young(pid);
        look_until(&mut table, "its age", is_old);
        writeln!(child.stdin.take().unwrap(), "go").unwrap();
        let is_replaced =
            |table: &ProcessTable| has_args(table, "sleep 3079") && !has_args(table, "read go");
        look_until(&mut table, "the other program", is_replaced);
        child.kill().unwrap();
        child.wait().unwrap();
        look_until_gone(&mut table, pid);
        assert!(table.descriptions().unwrap().get(pid).is_none());
    }

    /// Asks the kernel for the number of a dead process again; only root may.
    #[test]
    fn a_reused_number_is_read_again() {
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        let mut table = ProcessTable::new(&Roots::default()).unwrap();
        let first = *table.facts(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        for _ in 0..50 {
            if std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_err() {
                return;
            }
            let mut next = sleeper();
            table.refresh().unwrap();
            let seen = *table.facts(next.id().cast_signed()).unwrap();
            let reused = next.id().cast_signed() == pid;
            next.kill().unwrap();
            next.wait().unwrap();
            if reused {
                assert_ne!(seen.start_ticks, first.start_ticks);
                return;
            }
        }
    }
}
