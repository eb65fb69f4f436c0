//! One app of a run, started by Lull or attached.

use super::assigned::{CgroupSlot, CgroupSlots};
use super::attach::{AttachError, Target, scope_of, search_for};
use super::described::Detail;
use super::identity::ProcessId;
use super::launch::{Launch, StartError, Started, start};
use super::members::{AppProcesses, Scope};
use super::search::SearchError;
use super::signal::signal;
use super::slot::ProcessSlots;
use super::table::ProcessTable;
use super::template::Slot;
use super::terminate::{Ended, Group, StartedTree, terminate};
use crate::guard::{Key, Ledger, LedgerError, Original};
use crate::{LiveThread, Roots};
use lull_measure::Nanos;
use rustix::process::Signal;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// One app of a run.
#[derive(Debug)]
pub struct AppHandle {
    name: String,
    processes: AppProcesses,
    started: Option<Started>,
    /// The processes that `pause` stopped.
    paused: Vec<ProcessId>,
}

/// Why an app cannot be paused or resumed.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// Its owner decides about it.
    #[error("app `{name}` was not started by Lull, so Lull does not stop it")]
    NotStarted {
        /// The app.
        name: String,
    },
    /// The app cannot be written to the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A process did not obey.
    #[error("cannot {doing} process {pid} of app `{name}`: {source}")]
    Signal {
        /// `stop` or `continue`.
        doing: &'static str,
        /// The app.
        name: String,
        /// The process.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Number of checks until all processes of an app must have stopped. A count and not a
/// time, because a paused machine loses any amount of time.
const LOOKS: u32 = 2_000;
/// Number of checks after which a process that waits in the kernel counts as stopped: by
/// then the child that it was about to create exists.
const LOOKS_AT_WAITING: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

impl AppHandle {
    /// Starts an app and waits until it is ready.
    ///
    /// # Errors
    /// [`StartError`]; nothing of the app runs then.
    pub fn start(launch: &Launch, roots: &Roots, ledger: &mut Ledger) -> Result<Self, StartError> {
        let started = start(launch, roots, ledger)?;
        let scope = Scope::Tree { root: started.id, with_group: true };
        Ok(Self::new(launch.name.clone(), scope, Some(started)))
    }

    /// Attaches to an app that Lull does not start.
    ///
    /// # Errors
    /// [`AttachError`] if a process does not run or cannot be controlled, or the target cannot be
    /// searched.
    pub fn attach(name: &str, target: &Target, roots: &Roots) -> Result<Self, AttachError> {
        Ok(Self::new(name.to_owned(), scope_of(target, roots)?, None))
    }

    /// Makes apps of the matches of a target: each process that matches, each unit or each cgroup
    /// has the first app of these names that is free, for as long as it has a process.
    ///
    /// # Errors
    /// [`AttachError`] if the target cannot be searched.
    pub fn attach_each(
        names: &[String],
        target: &Target,
        roots: &Roots,
    ) -> Result<Vec<Self>, AttachError> {
        let search = search_for(target, roots)?;
        let each = names.iter().zip(Slot::all(search, names.len()));
        let handle = |(name, slot): (&String, _)| Self::new(name.clone(), Scope::Slot(slot), None);
        Ok(each.map(handle).collect())
    }

    /// Makes apps of the processes that register for these slots, one a name.
    pub fn attach_registered(names: &[String], slots: &ProcessSlots) -> Vec<Self> {
        let each = names.iter().zip(slots.each());
        let handle =
            |(name, slot): (&String, _)| Self::new(name.clone(), Scope::Registered(slot), None);
        each.map(handle).collect()
    }

    /// Makes apps of the cgroups that a discovery assigns to these slots, one a name.
    pub fn attach_assigned(names: &[String], slots: &CgroupSlots) -> Vec<Self> {
        let each = names.iter().zip(slots.each());
        let handle =
            |(name, slot): (&String, _)| Self::new(name.clone(), Scope::Assigned(slot), None);
        each.map(handle).collect()
    }

    /// The place of an app that was removed from the run: it never has a process.
    pub(crate) fn vacant() -> Self {
        Self::new(String::new(), Scope::Assigned(CgroupSlot::unassigned()), None)
    }

    const fn new(name: String, scope: Scope, started: Option<Started>) -> Self {
        let processes = AppProcesses::new(scope);
        Self { name, processes, started, paused: Vec::new() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Brings its processes and threads up to the table, which must be fresh.
    ///
    /// # Errors
    /// [`SearchError`] if its cgroup cannot be read or it has too many processes.
    pub fn refresh(&mut self, table: &ProcessTable) -> Result<(), SearchError> {
        self.processes.refresh(table)
    }

    /// Its threads at the last refresh.
    pub fn threads(&self) -> &[LiveThread] {
        self.processes.threads()
    }

    /// Whether its processes are those of a cgroup that a discovery has assigned.
    pub(crate) const fn is_assigned(&self) -> bool {
        self.processes.is_assigned()
    }

    /// The CPU time of its cgroup as of the last refresh, in microseconds, if it was read. While
    /// it stays, none of its tasks has run.
    pub(crate) const fn usage_us(&self) -> Option<u64> {
        self.processes.usage_us()
    }

    /// The CPU time of a process as of the last refresh, if it was read: of one whose cgroup has
    /// not run since, at an earlier one.
    pub(crate) fn cpu_time_of(&self, pid: i32) -> Option<Nanos> {
        self.processes.cpu_time_of(pid)
    }

    /// Its processes at the last refresh.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.processes.processes()
    }

    /// Whether a process of it runs now.
    pub fn is_running(&self, roots: &Roots) -> bool {
        self.processes.any_runs(roots)
    }

    /// Whether it may have processes again after the last one has ended: an app that Lull started
    /// is not started again, and a process that was named by its number has no successor.
    pub const fn can_return(&self) -> bool {
        self.processes.can_return()
    }

    /// Whether it has a search of its own, which runs while it is absent.
    pub(crate) fn is_looked_for(&self) -> bool {
        self.processes.is_searched()
    }

    /// Whether a template finds it. All apps of one template are searched together, since one of
    /// them is nearly always free.
    pub(crate) const fn is_of_template(&self) -> bool {
        self.processes.is_of_template()
    }

    /// Whether its template has found another match for it, or none any more, as of a fresh table.
    pub(crate) fn has_other_match(&mut self, table: &ProcessTable) -> bool {
        self.processes.has_other_match(table)
    }

    /// Whether a process belonged to it at the last refresh.
    pub(crate) fn has(&self, process: ProcessId) -> bool {
        self.processes.has(process)
    }

    /// Whether a process of it may have run, as of the last refresh, since this was last called of
    /// it. One that has not run has not ended.
    pub(crate) fn take_run(&mut self, process: ProcessId) -> bool {
        self.processes.take_run(process)
    }

    /// Whether another process has registered as this app, or another cgroup is assigned to it,
    /// or none is any more.
    pub(crate) fn has_registration_news(&self) -> bool {
        self.processes.has_news()
    }

    /// Whether the descendants of its processes belong to it.
    pub(crate) const fn is_tree(&self) -> bool {
        self.processes.is_tree()
    }

    /// Returns, once, the processes that have left the app and still run.
    pub(crate) fn take_left(&mut self) -> Vec<ProcessId> {
        self.processes.take_left()
    }

    /// Whether its absence says nothing: a template has further apps before it.
    pub(crate) fn is_spare(&self) -> bool {
        self.processes.is_spare()
    }

    /// Returns the fault of its template, if this app reports for the template.
    pub(crate) fn complaint(&self) -> Option<String> {
        self.processes.slot().and_then(Slot::complaint)
    }

    /// Returns which parts of processes its search compares; `None` if it has no pattern.
    pub(crate) const fn needed_description(&self) -> Option<Detail> {
        self.processes.needed_description()
    }

    /// Whether an absent app may have processes again, as of a table that may be old; cheaper than
    /// a refresh.
    pub fn may_have_returned(&mut self, table: &ProcessTable) -> bool {
        self.processes.may_have_returned(table)
    }

    /// Where its processes are found, for messages.
    pub fn place(&self) -> String {
        self.processes.place()
    }

    /// Its processes and those that were left out.
    pub(crate) fn claims(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.processes.claims()
    }

    /// Includes at the next refresh the processes that were left out.
    pub(crate) fn claim_all(&mut self) {
        self.processes.claim_all();
    }

    /// Leaves out a process because another app claims it, too.
    pub(crate) fn leave_out(&mut self, process: ProcessId) {
        self.processes.leave_out(process);
    }

    /// The first process of an app that Lull started.
    pub(crate) fn started(&self) -> Option<ProcessId> {
        self.started.as_ref().map(|started| started.id)
    }

    /// How the first process of a started app has ended, if it has.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.started.as_mut().map_or(Ok(None), |started| started.child.try_wait())
    }

    /// Stops (SIGSTOP) all processes of a started app until [`AppHandle::resume`].
    ///
    /// Used to measure how fast another app is alone. What is stopped is in
    /// the ledger first, so that it continues if the agent is killed. Processes
    /// that were stopped before are left alone. One that waits in the kernel, as
    /// `vfork` does for a child that may have been stopped first, stops before it
    /// does anything else, and is not waited for.
    ///
    /// # Errors
    /// [`PauseError`]; what was stopped is continued by `resume`.
    pub fn pause(
        &mut self,
        table: &mut ProcessTable,
        ledger: &mut Ledger,
    ) -> Result<(), PauseError> {
        if self.started.is_none() {
            return Err(PauseError::NotStarted { name: self.name.clone() });
        }
        let mut looks = 0;
        loop {
            let running = self.running(table, looks >= LOOKS_AT_WAITING);
            let Some(first) = running.first() else { return Ok(()) };
            if looks == LOOKS {
                return Err(self.refused("stop", *first, io::ErrorKind::TimedOut.into()));
            }
            self.stop_each(&running, table.roots(), ledger)?;
            looks += 1;
            std::thread::sleep(PAUSE);
        }
    }

    /// Continues what [`AppHandle::pause`] stopped.
    ///
    /// # Errors
    /// [`PauseError`]; can be tried again.
    pub fn resume(&mut self, roots: &Roots, ledger: &mut Ledger) -> Result<(), PauseError> {
        for process in &self.paused {
            match signal(roots, *process, Signal::CONT) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(self.refused("continue", *process, error));
                }
                _ => {}
            }
        }
        let keys: Vec<Key> = self.paused.iter().map(|process| Key::Stopped(*process)).collect();
        ledger.release(&keys)?;
        self.paused.clear();
        Ok(())
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// Returns the processes that have not stopped. A process can fork until it stops
    /// itself, so the listing is repeated. The caller decides whether a process that
    /// was signalled and waits in the kernel counts as stopped.
    fn running(&mut self, table: &mut ProcessTable, waiting_stands: bool) -> Vec<ProcessId> {
        // A listing that fails shows the processes as they were before.
        let _ = table.refresh();
        let _ = self.processes.refresh(table);
        let runs = |process: &ProcessId| match process.look(table.roots()) {
            Ok(None) => false,
            Ok(Some(facts)) if facts.is_stopped() => false,
            Ok(Some(facts)) if facts.state == 'D' => {
                !(waiting_stands && self.paused.contains(process))
            }
            Ok(Some(_)) | Err(_) => true,
        };
        self.processes.processes().filter(runs).collect()
    }

    fn stop_each(
        &mut self,
        processes: &[ProcessId],
        roots: &Roots,
        ledger: &mut Ledger,
    ) -> Result<(), PauseError> {
        let new: Vec<ProcessId> =
            processes.iter().filter(|process| !self.paused.contains(process)).copied().collect();
        let stopped = |process: &ProcessId| Original::Stopped {
            pid: process.pid,
            start_time_ticks: process.start_ticks,
        };
        ledger.record(&new.iter().map(stopped).collect::<Vec<_>>())?;
        for process in new {
            match signal(roots, process, Signal::STOP) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(self.refused("stop", process, error));
                }
                _ => self.paused.push(process),
            }
        }
        Ok(())
    }

    fn refused(&self, doing: &'static str, process: ProcessId, source: io::Error) -> PauseError {
        PauseError::Signal { doing, name: self.name.clone(), pid: process.pid, source }
    }
}

/// Ends the apps that Lull started, all at once; attached ones are left alone.
///
/// SIGTERM first, SIGKILL after the grace time, to every descendant.
pub fn stop(apps: &mut [AppHandle], roots: &Roots, grace: Duration) -> Ended {
    let started = || apps.iter().filter_map(|app| app.started.as_ref());
    let Some(forks) = started().next().map(|started| started.forks.clone()) else {
        return Ended::default();
    };
    let tree = |app: &AppHandle| {
        let root = app.started.as_ref()?.id;
        let group = if app.processes.has_group() { Group::Own } else { Group::Ended };
        Some(StartedTree { root, group })
    };
    let trees: Vec<StartedTree> = apps.iter().filter_map(tree).collect();
    let marks: Vec<String> = started().map(|started| started.mark.clone()).collect();
    let ended = terminate(&forks, roots, &trees, &marks, grace);
    for started in apps.iter_mut().filter_map(|app| app.started.as_mut()) {
        // Takes notice of the end; one that did not end is in `ended.left`.
        let _ = started.child.try_wait();
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_process_whose_state_cannot_be_read_has_not_stopped() {
        let tree = Tree::new();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        tree.write("proc/7/stat", &stat);
        let mut table = ProcessTable::new(&tree.roots()).unwrap();
        let root = ProcessId::lookup(&tree.roots(), 7).unwrap();
        let scope = Scope::Tree { root, with_group: false };
        let mut app = AppHandle::new("app".to_owned(), scope, None);
        // The file exists and cannot be read.
        tree.remove("proc/7/stat");
        std::fs::create_dir(tree.path("proc/7/stat")).unwrap();
        assert_eq!(app.running(&mut table, false), [root]);
    }
}
