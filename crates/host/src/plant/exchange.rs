//! Apps that are added to a run, that are removed from it, and that are other programs from now on.
//!
//! An app that is removed leaves its id without a name and without processes. What is known of all
//! other apps, and what is set for them, stays as it is.

use super::app::{HostApp, LatencyFrom, ProgressFrom, RunningApp};
use super::registered::LeftRestored;
use super::{HostError, HostPlant, now, waits_of};
use crate::apps::{self, AppHandle, GRACE, ProcessId};
use crate::gauges::counters;
use crate::guard::{Key, Patience};
use lull_control::{AppId, AppSpec};
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::collections::{BTreeMap, BTreeSet};

impl HostPlant {
    /// Looks for the processes of apps that are to be added, and refuses one that has a process of
    /// another one of them, or of an app that is not to be removed. Nothing has changed then.
    ///
    /// # Errors
    /// [`HostError::Shared`] with both apps, and others if processes cannot be looked for.
    pub fn check_arrivals(
        &mut self,
        arriving: &mut [(AppId, HostApp)],
        leaving: &[AppId],
    ) -> Result<(), HostError> {
        let needed = arriving.iter().filter_map(|(_, app)| app.handle.needed_description());
        self.table.describe_for(needed);
        self.table.refresh_changed()?;
        self.listed = now(ClockId::Boottime);
        let staying = self.apps.iter().enumerate();
        let staying = staying.filter(|(index, _)| !leaving.contains(&AppId(*index as u16)));
        let mut owners: BTreeMap<ProcessId, String> = BTreeMap::new();
        for (_, app) in staying {
            let name = app.handle.name();
            owners.extend(app.handle.claims().map(|process| (process, name.to_owned())));
        }
        for (_, app) in arriving {
            app.handle.refresh(&self.table)?;
            let second = app.handle.name().to_owned();
            for process in app.handle.claims() {
                if let Some(first) = owners.insert(process, second.clone()) {
                    return Err(HostError::Shared { pid: process.pid, first, second });
                }
            }
        }
        Ok(())
    }

    /// Removes apps, whose processes get their former values back, or end if Lull has started them,
    /// and then adds others, each with an id that is new or was removed. New ids follow each other.
    /// Returns by app the values that could not be restored or the processes that do not end.
    pub fn exchange_apps(
        &mut self,
        leaving: &[AppId],
        arriving: Vec<(AppId, HostApp)>,
    ) -> Vec<(AppId, String)> {
        let count = self.apps.len();
        let was_judged = self.is_judged_by_waits();
        let mut failed = Vec::new();
        for app in leaving {
            failed.extend(self.remove_app(*app).into_iter().map(|why| (*app, why)));
        }
        let added: Vec<AppId> = arriving.iter().map(|(app, _)| *app).collect();
        for (app, new) in arriving {
            self.add_app(app, new);
        }
        self.matches.adapt(&self.apps, self.ledger.forks());
        let is_judged = self.is_judged_by_waits();
        if is_judged != was_judged || (is_judged && self.apps.len() > count) {
            self.gauges.waits = waits_of(&self.apps, &self.roots);
        }
        self.refresh(Nanos::ZERO);
        for app in added {
            self.note_presence(app.index(), true);
            // The first reading of its gauges: a change needs two.
            let _ = self.apps[app.index()].work(Nanos(1), self.listed, None);
        }
        // The caller records the exchange before the next epoch, and may wait for a disk.
        let _ = self.beat(Patience::Long);
        failed
    }

    fn is_judged_by_waits(&self) -> bool {
        self.apps.iter().any(RunningApp::is_judged_by_waits)
    }

    /// Restores every knob of an app and leaves its id without processes; returns what could not be
    /// restored.
    fn remove_app(&mut self, app: AppId) -> Vec<String> {
        let index = app.index();
        if let Err(error) = self.table.refresh_changed() {
            self.notice(format!("cannot list processes: {error}"));
        }
        self.listed = now(ClockId::Boottime);
        let handle = &mut self.apps[index].handle;
        let mut processes: BTreeSet<ProcessId> = handle.processes().collect();
        // If that fails, the processes of the last look are restored.
        let _ = handle.refresh(&self.table);
        processes.extend(handle.processes());
        let left: Vec<(usize, ProcessId)> = processes.iter().map(|it| (index, *it)).collect();
        let LeftRestored { mut failed, is_complete } = self.restore_left(&left);
        // Entries are dismissed only after all was read back: until then a killed agent's guard
        // must restore them.
        let _ = self.beat(Patience::Long);
        if is_complete && let Err(error) = self.ledger.dismiss(&processes) {
            failed.push(format!("it is restored once more at the end: {error}"));
        }
        failed.extend(self.partitions.remove_group(app).err());
        // `touched` keeps its knobs, so that the end of the run tries failed ones again.
        self.originals.retain(|knob, _| knob.app() != Some(app));
        let vacant = HostApp {
            spec: AppSpec::removed(),
            handle: AppHandle::vacant(),
            latency: LatencyFrom::Push,
            progress: ProgressFrom::CpuTime,
        };
        let former = self.set_app(app, vacant);
        failed.extend(former.into_iter().flat_map(|former| self.end_app(former.handle)));
        if let Some(push) = &mut self.gauges.push {
            push.remove_app(app);
        }
        failed
    }

    /// Ends an app if Lull has started it; returns the processes that do not end.
    fn end_app(&mut self, handle: AppHandle) -> Vec<String> {
        let Some(started) = handle.started() else { return Vec::new() };
        let _ = self.beat(Patience::Long);
        let ended = apps::stop(&mut [handle], &self.roots, GRACE);
        let text = |process: &ProcessId| format!("process {} does not end", process.pid);
        let mut failed: Vec<String> = ended.left.iter().map(text).collect();
        // A guard would end it once more, with a process group that has its number by then.
        if failed.is_empty()
            && let Err(error) = self.ledger.release(&[Key::Started(started)])
        {
            failed.push(format!("{started} is still in the ledger: {error}"));
        }
        let _ = self.beat(Patience::Usual);
        failed
    }

    fn add_app(&mut self, app: AppId, new: HostApp) {
        if let Some(push) = &mut self.gauges.push {
            push.add_app(app, &new.spec.name);
        }
        let _ = self.set_app(app, new);
    }

    /// Gives an id to an app: one that there is, or the next. Returns the app that had it.
    fn set_app(&mut self, app: AppId, new: HostApp) -> Option<RunningApp> {
        self.owners.forget(app.index());
        let spec = new.spec.clone();
        let running = RunningApp::new(new, &self.roots, &counters::modes(&self.roots));
        let Some(former) = self.apps.get_mut(app.index()) else {
            self.apps.push(running);
            self.specs.push(spec);
            return None;
        };
        self.specs[app.index()] = spec;
        Some(std::mem::replace(former, running))
    }
}
