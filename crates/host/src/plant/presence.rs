//! Apps that end and come back while an epoch lasts.
//!
//! An absent app is looked for every [`LOOK`]; where a cgroup has no process that is one read
//! of a file. Of a present app the oldest process is watched by a pidfd, so that its end is
//! seen immediately; what a template finds is looked for as `matches.rs` says. New processes get
//! what the app is set to within the epoch. An app that arrives ends the epoch early, so that the
//! policy decides immediately; the epoch after that has its full length, so that many arrivals do
//! not turn epochs into short ones. News of a discovery only interrupt the wait for the end of an
//! epoch.

use super::app::RunningApp;
use super::{HostPlant, now};
use crate::apps::{self, ProcessId};
use lull_control::AppId;
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// How often absent apps are looked for.
pub(super) const LOOK: Nanos = Nanos::from_millis(150);
/// An arrival ends an epoch when it has lasted this long, so that there is something to measure.
pub(super) const CUT_MIN: Nanos = Nanos::from_millis(50);

/// An absent app that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arrival {
    /// One of a template.
    Match,
    /// One that is found by itself.
    Own,
}

impl HostPlant {
    /// Whether an app is absent that may come back.
    pub(super) fn is_waiting(&self) -> bool {
        self.apps.iter().any(|app| !app.presence.is_present && app.handle.is_looked_for())
    }

    /// The processes whose end is awaited.
    pub(super) fn leaders(&self) -> Vec<&OwnedFd> {
        let awaited = self.apps.iter().filter(|app| self.is_awaited(app));
        awaited.filter_map(|app| Some(&app.presence.leader.as_ref()?.1)).collect()
    }

    /// Looks for absent apps, and at apps whose oldest process has ended; returns which of the
    /// absent ones has arrived, rather one that is found by itself.
    pub(super) fn look(&mut self, time: Nanos) -> Option<Arrival> {
        let any_ended = apps::any_ended(&self.leaders());
        let roots = &self.roots;
        let is_due = |app: &mut RunningApp| match app.presence.is_present {
            _ if app.handle.has_registration_news() => true,
            true => any_ended && app.has_lost_leader(),
            false => app.handle.is_looked_for() && app.handle.may_have_returned(roots),
        };
        let all = self.apps.iter_mut().enumerate();
        let mut due: BTreeSet<usize> =
            all.filter_map(|(index, app)| is_due(app).then_some(index)).collect();
        if due.is_empty() && !self.may_find_matches(time) {
            return None;
        }
        if let Err(error) = self.table.refresh_changed() {
            self.notice(format!("cannot list processes: {error}"));
        }
        self.listed = now(ClockId::Boottime);
        if self.has_templates() {
            self.matches.note_look(time, self.table.listing());
            let has_other = |app: &RunningApp| app.handle.has_other_match(&self.table);
            let all = self.apps.iter().enumerate();
            due.extend(all.filter_map(|(index, app)| has_other(app).then_some(index)));
        }
        let before: Vec<bool> = due.iter().map(|at| self.apps[*at].presence.is_present).collect();
        for index in &due {
            self.notices.borrow_mut().extend(self.apps[*index].refresh(&self.table));
        }
        self.let_go();
        let claims = |index: &usize| (*index, self.apps[*index].handle.claims().collect());
        let claims: Vec<(usize, Vec<ProcessId>)> = due.iter().map(claims).collect();
        if !self.owners.take_in(&claims) {
            self.settle_owners();
        }
        for index in &due {
            self.note_presence(*index);
            self.bring_under(*index);
        }
        let arrived = due.iter().zip(before).filter_map(|(at, was)| {
            let app = &self.apps[*at];
            let arrival = if app.handle.is_of_template() { Arrival::Match } else { Arrival::Own };
            (!was && app.presence.is_present).then_some(arrival)
        });
        arrived.max()
    }

    /// Brings what is known of an app's presence up to its processes.
    pub(super) fn note_presence(&mut self, index: usize) {
        let app = &mut self.apps[index];
        let leads = |(leader, _): &(ProcessId, OwnedFd)| app.handle.has(*leader);
        // While the oldest process runs, nothing has to be read.
        if app.presence.leader.as_ref().is_some_and(leads) && !app.has_lost_leader() {
            app.presence.is_present = true;
            return;
        }
        app.presence.leader = None;
        let was_present = app.presence.is_present;
        app.presence.is_present = app.handle.is_running(&self.roots);
        if app.presence.is_present {
            let running = app.handle.processes().filter(|one| one.facts(&self.roots).is_some());
            let oldest = running.min_by_key(|process| (process.start_ticks, process.pid));
            let opened = oldest.and_then(|one| Some((one, apps::handle(&self.roots, one).ok()?)));
            app.presence.leader = opened;
        } else if was_present {
            self.note_absence(AppId(index as u16));
        }
    }

    /// Sets the threads of new processes to what their app is set to.
    fn bring_under(&mut self, index: usize) {
        let cores = self.watch_cores(index);
        let class = self.watch_scheduling(index);
        for (threads, ours) in cores.into_iter().chain(class) {
            let found = self.foreign(AppId(index as u16), &threads, ours);
            self.early_foreign.extend(found);
        }
        let shares = self.watch_shares(AppId(index as u16));
        self.early_foreign.extend(shares);
    }

    /// Takes processes that two apps claim from one or both of them, and reports each pair once.
    pub(super) fn settle_owners(&mut self) {
        for overlap in self.owners.settle(&mut self.apps) {
            let (first, second) = overlap.apps;
            let name = |index: usize| self.apps[index].handle.name();
            let outcome = match overlap.owner {
                Some(owner) => format!("it stays with `{}`", name(owner)),
                None => "it is left unmanaged".to_owned(),
            };
            self.notice(format!(
                "{} is found by both `{}` and `{}`: {outcome}; narrow one of them",
                overlap.process,
                name(first),
                name(second)
            ));
        }
    }

    /// Forgets what the departed apps were set to: their threads are gone, and new processes
    /// of theirs begin as their owner starts them.
    pub(super) fn forget_departed(&mut self, departed: &[AppId]) {
        for app in departed {
            let running = &mut self.apps[app.index()];
            running.cores = Default::default();
            running.scheduling = Default::default();
            let thread_knob = |knob: &lull_control::Knob| {
                matches!(knob, lull_control::Knob::Cores(_) | lull_control::Knob::Scheduling(_))
                    && knob.app() == Some(*app)
            };
            self.originals.retain(|knob, _| !thread_knob(knob));
        }
    }
}
