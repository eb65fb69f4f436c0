//! When the apps of templates are looked for within an epoch.
//!
//! Some app of a template is nearly always free, so that looking for it every `LOOK` would cost as
//! much as an epoch each time. Where the kernel reports what becomes of processes, they are looked
//! for when it has reported something: immediately if the last search is [`MATCH_LOOK`] ago, else
//! that long after the report, so that one search finds all that changes meanwhile. Elsewhere they
//! are looked for during [`RETURN_WITHIN`] after a match has ended.

use super::app::RunningApp;
use super::presence::{Arrival, LOOK};
use super::{HostPlant, now};
use crate::apps::{self, Forks};
use lull_control::AppId;
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::os::fd::OwnedFd;

/// Longest time from a report of the kernel to the search for matches that it causes.
const MATCH_LOOK: Nanos = Nanos::from_millis(200);
/// How long a match that has ended is searched within epochs where processes are not reported, and
/// each search has to list them all.
const RETURN_WITHIN: Nanos = Nanos::from_secs(10);
/// Average time between two arrivals of matches, or of what a discovery has assigned, that end an
/// epoch early: each costs an epoch, and they may come and go all the time.
const CUT_INTERVAL: Nanos = Nanos::from_secs(15);
/// How far arrivals may be ahead of that: three at once.
const CUT_AHEAD_MAX: Nanos = Nanos::from_secs(45);

/// When templates may find something else. Times are of `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub(super) struct Matches {
    has_templates: bool,
    /// Readable while the kernel has reported something of processes; `None` where it does not,
    /// or no app is of a template.
    reports: Option<OwnedFd>,
    /// The time of the last search for matches.
    looked: Nanos,
    /// The listing of processes in which they were.
    listing: u64,
    /// When matches are searched next because of what was reported since; `None` if nothing was.
    due: Option<Nanos>,
    /// When a match was last seen to have ended.
    ended: Option<Nanos>,
    /// When the epochs that arrivals have ended early would be over at one a `CUT_INTERVAL`.
    cut_until: Nanos,
}

/// When something was reported that no search has taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportTime {
    /// At any time since the last search: the plant did not wait for it.
    SinceSearch,
    /// It has ended a wait.
    Now,
}

impl Matches {
    /// Creates the matches of a plant with these apps.
    pub(super) fn new(apps: &[RunningApp], forks: &Forks) -> Self {
        let has_templates = apps.iter().any(|app| app.handle.is_of_template());
        let reports = has_templates.then(|| forks.wakes()).flatten();
        let (looked, ended, cut_until) = (Nanos::ZERO, None, Nanos::ZERO);
        Self { has_templates, reports, looked, listing: 0, due: None, ended, cut_until }
    }

    /// Continues with these apps: some were added or removed.
    pub(super) fn adapt(&mut self, apps: &[RunningApp], forks: &Forks) {
        let Self { has_templates, reports, .. } = Self::new(apps, forks);
        (self.has_templates, self.reports) = (has_templates, reports);
    }

    /// Whether the kernel reports for templates what becomes of processes.
    pub(super) const fn is_reported(&self) -> bool {
        self.reports.is_some()
    }

    /// Notes that matches were searched in this listing of the processes.
    pub(super) const fn note_look(&mut self, time: Nanos, listing: u64) {
        self.looked = time;
        self.listing = listing;
        self.due = None;
    }

    /// Notes that the kernel has reported something that no search has taken in: between the last
    /// search and now, or just now.
    fn note_report(&mut self, time: Nanos, when: ReportTime) {
        let earliest = self.looked.saturating_add(MATCH_LOOK);
        let due = match when {
            ReportTime::Now if time < earliest => time.saturating_add(MATCH_LOOK),
            ReportTime::Now | ReportTime::SinceSearch => earliest.max(time),
        };
        self.due.get_or_insert(due);
    }

    /// Whether a match that has ended may be back.
    fn awaits_return(&self, time: Nanos) -> bool {
        let until = self.ended.map(|ended| ended.saturating_add(RETURN_WITHIN));
        until.is_some_and(|until| time < until)
    }

    /// Whether an arrival may end the epoch early; notes that it does.
    pub(super) fn take_cut(&mut self, arrival: Arrival, time: Nanos) -> bool {
        if arrival == Arrival::Match {
            let until = self.cut_until.max(time).saturating_add(CUT_INTERVAL);
            if until > time.saturating_add(CUT_AHEAD_MAX) {
                return false;
            }
            self.cut_until = until;
        }
        true
    }
}

impl HostPlant {
    /// Whether the end of an app's oldest process is awaited: not if the kernel reports it.
    pub(super) fn is_awaited(&self, app: &RunningApp) -> bool {
        !app.handle.is_of_template() || self.matches.reports.is_none()
    }

    /// Returns a further event to wait for, so that matches are searched: a descriptor, and the
    /// longest time.
    pub(super) fn match_reports(&self, time: Nanos) -> (Option<&OwnedFd>, Nanos) {
        let matches = &self.matches;
        let Some(reports) = &matches.reports else {
            let awaits = matches.awaits_return(time);
            return (None, if awaits { LOOK } else { Nanos::MAX });
        };
        match matches.due {
            Some(due) => (None, due.saturating_sub(time)),
            None if self.has_unseen_changes() => (None, Nanos::ZERO),
            None => (Some(reports), Nanos::MAX),
        }
    }

    /// Whether the kernel has a report for templates that was not read yet.
    pub(super) fn has_report(&self) -> bool {
        self.matches.reports.as_ref().is_some_and(apps::has_ended)
    }

    /// Notes reports since the last search for matches, if there are any; `has_report` is whether
    /// there are some that were not read yet.
    pub(super) fn note_reports(&mut self, time: Nanos, has_report: bool, when: ReportTime) {
        let Matches { reports, due, .. } = &self.matches;
        if reports.is_some() && due.is_none() && (has_report || self.has_unseen_changes()) {
            self.matches.note_report(time, when);
        }
    }

    /// Whether templates may find something else than at the last look, and are to be looked for.
    pub(super) fn may_find_matches(&self, time: Nanos) -> bool {
        let Matches { has_templates, reports, looked, due, .. } = &self.matches;
        match reports {
            _ if !has_templates => false,
            Some(_) => due.is_some_and(|due| time >= due),
            None => time >= looked.saturating_add(LOOK) && self.matches.awaits_return(time),
        }
    }

    /// Whether reports were read, or processes listed, since the last search for matches: a write
    /// of a knob does that, too.
    fn has_unseen_changes(&self) -> bool {
        self.ledger.forks().has_changes() || self.table.listing() != self.matches.listing
    }

    /// Whether matches are searched whenever processes are listed.
    pub(super) const fn has_templates(&self) -> bool {
        self.matches.has_templates
    }

    /// Notes that an app has no process any more.
    pub(super) fn note_absence(&mut self, app: AppId) {
        if self.apps[app.index()].handle.is_of_template() {
            self.matches.ended = Some(now(ClockId::Monotonic));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_search_follows_many_reports_and_none_waits_longer_than_one_interval() {
        let mut matches = Matches::new(&[], &Forks::default());
        matches.note_look(Nanos::from_secs(1), 1);
        let (mut searches, mut waited) = (0, Vec::new());
        for millis in 1_300..11_300 {
            let time = Nanos::from_millis(millis);
            if millis % 100 == 0 {
                matches.note_report(time, ReportTime::Now);
                waited.push(time);
            }
            if matches.due.is_some_and(|due| time >= due) {
                assert!(waited.drain(..).all(|since| time.saturating_sub(since) <= MATCH_LOOK));
                matches.note_look(time, millis);
                searches += 1;
            }
        }
        assert_eq!(searches, 34, "the first one immediately, then one in 300 ms");
    }

    #[test]
    fn reports_from_before_a_wait_are_searched_for_as_if_they_followed_the_last_search() {
        let mut matches = Matches::new(&[], &Forks::default());
        let (looked, late) = (Nanos::from_millis(1_000), Nanos::from_millis(1_030));
        for (noted, due) in
            [(late, looked.saturating_add(MATCH_LOOK)), (looked + looked, looked + looked)]
        {
            matches.note_look(looked, 1);
            matches.note_report(noted, ReportTime::SinceSearch);
            assert_eq!(matches.due, Some(due));
        }
    }

    #[test]
    fn matches_that_come_and_go_all_the_time_rarely_end_an_epoch_early() {
        let mut matches = Matches::new(&[], &Forks::default());
        let mut cuts = Vec::new();
        for second in 0..120 {
            let time = Nanos::from_secs(second);
            cuts.extend(matches.take_cut(Arrival::Match, time).then_some(second));
            assert!(matches.take_cut(Arrival::Own, time));
        }
        assert_eq!(cuts, [0, 1, 2, 15, 30, 45, 60, 75, 90, 105]);
    }
}
