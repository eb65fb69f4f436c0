//! Processes that register themselves, and those that leave their apps, while the agent runs.

use super::{HostPlant, now};
use crate::apps::{Facts, ProcessId, threads_of};
use crate::files::unless_gone;
use crate::guard::Patience;
use crate::register::{PAUSE, Registrar};
use crate::threads::LiveThread;
use lull_control::AppId;
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// Ancestors of a process that are looked at; more than any tree of processes has.
const ANCESTORS_MAX: usize = 64;

/// The outcome of restoring processes that have left their apps.
#[derive(Debug)]
pub(super) struct LeftRestored {
    /// The values that could not be restored.
    pub(super) failed: Vec<String>,
    /// Whether nothing failed, and no process that they have made was possibly missed.
    pub(super) is_complete: bool,
}

impl HostPlant {
    /// Serves the socket at which processes register, if there is one, while the plant waits.
    pub fn set_registrar(&mut self, registrar: Option<Registrar>) {
        self.registrar = registrar;
    }

    /// Returns a further event to wait for, so that registrations are served: a descriptor, or a
    /// time if the socket was served a moment ago.
    pub(super) fn registrations(&self, time: Nanos) -> (Option<&OwnedFd>, Nanos) {
        match &self.registrar {
            Some(registrar) if registrar.is_due(time) => {
                (Some(registrar.events()), Nanos(u64::MAX))
            }
            Some(_) => (None, PAUSE),
            None => (None, Nanos(u64::MAX)),
        }
    }

    /// Serves the registrations that wait.
    pub(super) fn serve_registrations(&mut self) {
        let time = now(ClockId::Monotonic);
        let Some(mut registrar) = self.registrar.take_if(|registrar| registrar.is_due(time)) else {
            return;
        };
        registrar.serve(time, &|process| self.owner_of(process));
        self.registrar = Some(registrar);
    }

    /// Whether a process has registered or departed that its app does not know of yet.
    pub(super) fn has_registration_news(&self) -> bool {
        self.apps.iter().any(|app| app.handle.has_registration_news())
    }

    /// The app that a process belongs to: one that has it, or one that has an ancestor of it
    /// and takes all descendants.
    fn owner_of(&self, process: ProcessId) -> Option<String> {
        // Processes of an app whose registration has just ended belong to no app.
        let settled = || self.apps.iter().filter(|app| !app.handle.has_registration_news());
        let mut one = Some(process);
        for generation in 0..ANCESTORS_MAX {
            let current = one?;
            let mut apps = settled().filter(|app| generation == 0 || app.handle.is_tree());
            let owner = apps.find(|app| app.handle.claims().any(|claimed| claimed == current));
            if let Some(app) = owner {
                return Some(app.handle.name().to_owned());
            }
            let parent = Facts::of_process(&self.roots, current.pid).ok()?.parent;
            one = ProcessId::lookup(&self.roots, parent).ok();
        }
        None
    }

    /// Restores the former values of processes that have left their app and still run.
    pub(super) fn let_go(&mut self) {
        let apps = self.apps.iter_mut().enumerate();
        let left: Vec<(usize, ProcessId)> = apps
            .flat_map(|(index, app)| app.handle.take_left().into_iter().map(move |it| (index, it)))
            .collect();
        self.release_left(&left);
    }

    /// Gives processes that processes of apps have made, and that belong to no app, what these had
    /// before Lull: the jobs of a `cron` that is found by its program, for example.
    pub(super) fn release_strays(&mut self) {
        let stray = |pid| {
            let start_ticks = self.table.facts(pid)?.start_ticks;
            let process = ProcessId { pid, start_ticks };
            self.owners.owner(process).is_none().then_some(process)
        };
        let strays = self.ledger.unsaved_descendants(stray);
        if strays.is_empty() {
            return;
        }
        let owner = |one: &LiveThread| {
            let creator = self.ledger.forks().creator(one.pid);
            creator.and_then(|creator| self.owners.owner(creator)).unwrap_or_default()
        };
        let id = |one: &LiveThread| ProcessId { pid: one.pid, start_ticks: one.start_ticks };
        let left: Vec<(usize, ProcessId)> = strays.iter().map(|it| (owner(it), id(it))).collect();
        let parent_of = |pid| self.table.facts(pid).map(|facts| facts.parent);
        match self.ledger.record_descendants(&strays, parent_of) {
            Ok(()) => self.release_left(&left),
            Err(error) => self.notice(format!("processes that apps have made: {error}")),
        }
    }

    /// Restores processes that have left these apps, by index, and forgets their settings.
    fn release_left(&mut self, left: &[(usize, ProcessId)]) {
        if left.is_empty() {
            return;
        }
        let LeftRestored { failed, is_complete } = self.restore_left(left);
        failed.into_iter().for_each(|failed| self.notice(failed));
        let processes: BTreeSet<ProcessId> = left.iter().map(|(_, process)| *process).collect();
        if is_complete && let Err(error) = self.ledger.dismiss(&processes) {
            self.notice(format!("processes that have left are restored again at the end: {error}"));
        }
        for app in &mut self.apps {
            app.cores.forget(&processes);
            app.scheduling.forget(&processes);
        }
    }

    /// Restores the former values of processes that have left these apps, by index.
    pub(super) fn restore_left(&mut self, left: &[(usize, ProcessId)]) -> LeftRestored {
        let mut failed = Vec::new();
        if left.is_empty() {
            return LeftRestored { failed, is_complete: true };
        }
        for (index, process) in left {
            let threads = unless_gone(threads_of(&self.roots, process.pid));
            let threads = threads.unwrap_or_else(|error| {
                failed.push(format!("{process} may keep its resctrl group: {error}"));
                None
            });
            for thread in threads.unwrap_or_default() {
                if let Err(error) = self.partitions.dismiss(AppId(*index as u16), thread) {
                    failed.push(format!("{} keeps its resctrl group: {error}", thread.tid));
                }
            }
        }
        // Reads and writes of many threads take a moment.
        let _ = self.beat(Patience::Long);
        let processes: BTreeSet<ProcessId> = left.iter().map(|(_, process)| *process).collect();
        let restored = self.ledger.restore_processes(&processes);
        for (key, why) in &restored.failed {
            failed.push(format!("{key}, which has left its app, is not as before: {why}"));
        }
        if !restored.left.is_empty() {
            let values = restored.describe_left().join(", ");
            self.notice(format!("left as another program set it: {values}"));
        }
        let _ = self.beat(Patience::Usual);
        let is_complete = failed.is_empty() && restored.is_complete();
        LeftRestored { failed, is_complete }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HostApp, HostConfig, LatencyFrom, ProgressFrom, Stop};
    use super::*;
    use crate::Roots;
    use crate::apps::{AppHandle, Target};
    use crate::gauges::energy::PowerModel;
    use crate::guard::{Ledger, StateDir};
    use crate::sys::sched::affinity_of;
    use crate::testing::Tree;
    use lull_control::{AppSpec, CoreSet, Setting};
    use std::process::Command;

    fn plant_of(pid: i32, place: &tempfile::TempDir) -> HostPlant {
        let roots = Roots::default();
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let app = HostApp {
            spec: AppSpec::best_effort("app"),
            handle: AppHandle::attach("app", &Target::Pid(pid), &roots).unwrap(),
            latency: LatencyFrom::Push,
            progress: ProgressFrom::CpuTime,
        };
        let config = HostConfig {
            apps: vec![app],
            push: None,
            power: PowerModel::default(),
            ledger: Ledger::open(dir, &roots).unwrap().ledger,
            foreign_wins: true,
            stop: Stop::new().unwrap(),
            roots,
        };
        HostPlant::new(config).unwrap()
    }

    #[test]
    fn a_process_that_has_left_is_restored_completely_only_if_its_threads_can_be_listed() {
        let (place, tree) = (tempfile::tempdir().unwrap(), Tree::new());
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id().cast_signed();
        let all = affinity_of(pid).unwrap();
        let first: CoreSet = all.iter().take(1).collect();
        let mut plant = plant_of(pid, &place);
        let left = [(0, ProcessId::lookup(&plant.roots, pid).unwrap())];
        let restored = [true, false].map(|is_listed| {
            let _ = plant.apply_all(&[Setting::Cores(AppId(0), first.clone())]);
            let steered = affinity_of(pid).unwrap();
            if !is_listed {
                tree.write(&format!("proc/{pid}/task"), "");
                plant.roots = tree.roots();
            }
            let LeftRestored { failed, is_complete } = plant.restore_left(&left);
            (steered, affinity_of(pid).unwrap(), failed.is_empty(), is_complete)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = [true, false].map(|is_all| (first.clone(), all.clone(), is_all, is_all));
        assert_eq!(restored, expected);
    }
}
