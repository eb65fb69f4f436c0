//! Apps that end and come back while an epoch lasts.
//!
//! An absent app is looked for every [`LOOK`]; where a cgroup has no process of an app that is one
//! read of a file. Of a present app the oldest process is watched by a pidfd, so that its end is
//! seen immediately; what a template finds is looked for as `matches.rs` says. All these
//! descriptors are in one of epoll, for there may be hundreds, with the numbers of their apps: only
//! apps whose oldest process has ended are looked at. New processes get what the app is set to
//! within the epoch. An app that arrives ends the epoch early, so that the policy decides
//! immediately; the epoch after that has its full length, so that many arrivals do not turn epochs
//! into short ones. A match that is back before it was absent for two ends of epochs needs no
//! decision: it still has its settings. News of a discovery only interrupt the wait for the end of
//! an epoch; the processes of a cgroup that they assign are looked for before the wait continues.

use super::app::RunningApp;
use super::{HostPlant, now};
use crate::Roots;
use crate::apps::{self, ProcessId};
use crate::guard::Patience;
use lull_control::AppId;
use lull_measure::Nanos;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::ClockId;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

/// The interval at which absent apps are searched.
pub(super) const LOOK: Nanos = Nanos::from_millis(150);
/// An arrival ends an epoch when it has lasted this long, so that there is something to measure.
pub(super) const CUT_MIN: Nanos = Nanos::from_millis(50);

/// An absent app that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arrival {
    /// A match of a template, or an app that a discovery has assigned: others may follow all the
    /// time.
    Match,
    /// An app that is found by itself.
    Own,
}

impl HostPlant {
    /// Whether an app is absent that may return.
    pub(super) fn is_waiting(&self) -> bool {
        self.apps.iter().any(|app| !app.presence.is_present && app.handle.is_looked_for())
    }

    /// Whether an oldest process has ended whose end is awaited.
    pub(super) fn has_ended_leader(&self) -> bool {
        self.leaders.as_ref().is_some_and(apps::has_ended)
    }

    /// The apps, by index, whose oldest process has ended, of those whose end is awaited.
    fn ended_leaders(&self) -> BTreeSet<usize> {
        match &self.leaders {
            Some(leaders) if self.has_ended_leader() => ended_of(leaders, self.apps.len()),
            _ => BTreeSet::new(),
        }
    }

    /// Looks for absent apps, and at apps whose oldest process has ended; returns which of the
    /// absent ones has arrived, rather one that is found by itself.
    pub(super) fn look(&mut self, time: Nanos) -> Option<Arrival> {
        let ended = self.ended_leaders();
        let table = &self.table;
        let is_due = |(index, app): (usize, &mut RunningApp)| {
            let is_due = match app.presence.is_present {
                _ if app.handle.has_registration_news() => true,
                true => ended.contains(&index) && app.has_lost_leader(),
                false => app.handle.is_looked_for() && app.handle.may_have_returned(table),
            };
            is_due.then_some(index)
        };
        let mut due: BTreeSet<usize> =
            self.apps.iter_mut().enumerate().filter_map(is_due).collect();
        if due.is_empty() && !self.may_find_matches(time) {
            return None;
        }
        if let Err(error) = self.table.refresh_changed() {
            self.notice(format!("cannot list processes: {error}"));
        }
        self.listed = now(ClockId::Boottime);
        if self.has_templates() {
            self.matches.note_look(time, self.table.listing());
            let has_other = |app: &mut RunningApp| app.handle.has_other_match(&self.table);
            let all = self.apps.iter_mut().enumerate();
            due.extend(all.filter_map(|(index, app)| has_other(app).then_some(index)));
        }
        let needs_none = |app: &RunningApp| {
            app.presence.is_present || app.handle.is_of_template() && app.has_settings()
        };
        let before: Vec<bool> = due.iter().map(|at| needs_none(&self.apps[*at])).collect();
        for index in &due {
            self.notices.borrow_mut().extend(self.apps[*index].refresh(&self.table));
        }
        self.let_go();
        let claims = |index: &usize| (*index, self.apps[*index].handle.claims().collect());
        let claims: Vec<(usize, Vec<ProcessId>)> = due.iter().map(claims).collect();
        if !self.owners.take_in(&claims) {
            self.settle_owners();
        }
        // Without a guard no thread is set; the wait, which beats too, reports that there is none.
        let is_guarded = due.is_empty() || self.beat(Patience::Usual).is_ok();
        for index in &due {
            self.note_presence(*index, ended.contains(index));
            if is_guarded {
                self.set_new_threads(*index);
            }
        }
        let arrived = due.iter().zip(before).filter_map(|(at, was)| {
            let app = &self.apps[*at];
            let has_many = app.handle.is_of_template() || app.handle.is_assigned();
            let arrival = if has_many { Arrival::Match } else { Arrival::Own };
            (!was && app.presence.is_present).then_some(arrival)
        });
        arrived.max()
    }

    /// Updates the presence of all apps to their processes.
    pub(super) fn note_presences(&mut self) {
        let ended = self.ended_leaders();
        (0..self.apps.len()).for_each(|index| self.note_presence(index, ended.contains(&index)));
    }

    /// Updates the presence of an app to its processes; `may_have_ended` is whether its oldest
    /// process may have ended although the end is awaited.
    pub(super) fn note_presence(&mut self, index: usize, may_have_ended: bool) {
        let is_awaited = self.is_awaited(&self.apps[index]);
        let leaders = self.leaders.as_ref();
        let app = &mut self.apps[index];
        let leader = app.presence.leader.as_ref().map(|(leader, _)| *leader);
        let has_run = leader.is_none_or(|leader| app.handle.take_run(leader));
        let leads = |(leader, _): &(ProcessId, OwnedFd)| app.handle.has(*leader);
        let may_have_ended = may_have_ended || (has_run && !app.presence.is_watched);
        // While the oldest process runs, nothing has to be read.
        if app.presence.leader.as_ref().is_some_and(leads)
            && !(may_have_ended && app.has_lost_leader())
        {
            app.presence.is_present = true;
            return;
        }
        app.presence.leader = None;
        let was_present = app.presence.is_present;
        let roots = &self.roots;
        let open = |process| match is_awaited {
            true => apps::handle(roots, process),
            false => apps::handle_of_reported(process),
        };
        let oldest = oldest_running(app.handle.processes(), roots, open);
        app.presence.is_present = oldest.is_some() || app.handle.is_running(&self.roots);
        if app.presence.is_present {
            let opened = oldest.and_then(|(one, handle)| Some((one, handle?)));
            app.presence.is_watched = opened
                .as_ref()
                .is_some_and(|(_, leader)| is_awaited && watch_end(leaders, leader, index));
            app.presence.leader = opened;
        } else if was_present {
            self.note_absence(AppId(index as u16));
        }
    }

    /// Sets the threads of new processes to what their app is set to.
    fn set_new_threads(&mut self, index: usize) {
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
    /// of theirs begin as their owner starts them. An app that is back before that is set as before
    /// when it is found.
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

/// The oldest of some processes that runs, with a handle on it unless none can be opened.
fn oldest_running(
    processes: impl Iterator<Item = ProcessId>,
    roots: &Roots,
    open: impl Fn(ProcessId) -> io::Result<OwnedFd>,
) -> Option<(ProcessId, Option<OwnedFd>)> {
    let mut processes: Vec<ProcessId> = processes.collect();
    processes.sort_unstable_by_key(|process| (process.start_ticks, process.pid));
    processes.into_iter().find_map(|one| match open(one) {
        Ok(handle) => Some((one, Some(handle))),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(_) => one.facts(roots).map(|_| (one, None)),
    })
}

/// Watches the end of the oldest process of an app, by index, until its descriptor is closed;
/// returns `false` if the kernel cannot watch one more, so that the end is seen when the epoch
/// ends.
fn watch_end(leaders: Option<&OwnedFd>, leader: &OwnedFd, index: usize) -> bool {
    let watch = |leaders: &OwnedFd| {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(leaders, leader, data, epoll::EventFlags::IN).is_ok()
    };
    leaders.is_some_and(watch)
}

/// Returns the indices of the apps, of `count`, whose oldest process has ended; all of them if
/// the kernel does not report which.
fn ended_of(leaders: &OwnedFd, count: usize) -> BTreeSet<usize> {
    let mut events = Vec::with_capacity(count.max(1));
    match epoll::wait(leaders, spare_capacity(&mut events), Some(&Timespec::default())) {
        Ok(_) => events.iter().map(|event: &epoll::Event| { event.data }.u64() as usize).collect(),
        Err(_) => (0..count).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    #[test]
    fn ends_are_reported_with_the_numbers_of_their_apps() {
        let leaders = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let start = |_| Command::new("sleep").arg("infinity").spawn().unwrap();
        let mut children: Vec<Child> = (0..4).map(start).collect();
        let handle = |child: &Child| {
            let roots = Roots::default();
            let process = ProcessId::lookup(&roots, child.id().cast_signed()).unwrap();
            apps::handle(&roots, process).unwrap()
        };
        let handles: Vec<OwnedFd> = children.iter().map(handle).collect();
        let are_watched =
            handles.iter().zip(10..).all(|(it, index)| watch_end(Some(&leaders), it, index));
        assert!(are_watched && ended_of(&leaders, 14).is_empty());
        for number in [1, 3] {
            children[number].kill().unwrap();
            children[number].wait().unwrap();
        }
        assert_eq!(ended_of(&leaders, 14), BTreeSet::from([11, 13]));
        for mut child in children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
