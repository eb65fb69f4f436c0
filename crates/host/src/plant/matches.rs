//! When the apps of templates are looked for within an epoch.
//!
//! Some app of a template is nearly always free, so that looking for it every `LOOK` would cost as
//! much as an epoch each time. Where the kernel reports what becomes of processes, they are looked
//! for when it has reported something; elsewhere for [`RETURN_WITHIN`] after a match has ended.

use super::app::RunningApp;
use super::presence::Arrival;
use super::{HostPlant, now};
use crate::apps::{self, Forks};
use lull_control::AppId;
use lull_measure::Nanos;
use rustix::time::ClockId;
use std::os::fd::OwnedFd;

/// How long a match that has ended is looked for within epochs where processes are not reported,
/// and each look has to list them all.
const RETURN_WITHIN: Nanos = Nanos::from_secs(10);
/// Shortest time between two arrivals of matches that end an epoch early: each costs an epoch, and
/// matches may come and go all the time.
const CUT_AGAIN: Nanos = Nanos::from_secs(10);

/// What tells when templates may find something else.
#[derive(Debug)]
pub(super) struct Matches {
    has_templates: bool,
    /// Readable while the kernel has reported something of processes; `None` where it does not,
    /// or no app is of a template.
    reports: Option<OwnedFd>,
    /// When a match was last seen to have ended, `CLOCK_MONOTONIC`.
    ended: Option<Nanos>,
    /// When the arrival of a match last ended an epoch early.
    cut: Option<Nanos>,
}

impl Matches {
    /// For a plant with these apps.
    pub(super) fn new(apps: &[RunningApp], forks: &Forks) -> Self {
        let has_templates = apps.iter().any(|app| app.handle.is_of_template());
        let reports = has_templates.then(|| forks.wakes()).flatten();
        Self { has_templates, reports, ended: None, cut: None }
    }

    /// Readable while the kernel has reported something that was not read yet.
    pub(super) const fn reports(&self) -> Option<&OwnedFd> {
        self.reports.as_ref()
    }

    /// Whether an arrival may end the epoch early; notes that it does.
    pub(super) fn take_cut(&mut self, arrival: Arrival, time: Nanos) -> bool {
        if arrival == Arrival::Match {
            if self.cut.is_some_and(|cut| time < cut.saturating_add(CUT_AGAIN)) {
                return false;
            }
            self.cut = Some(time);
        }
        true
    }
}

impl HostPlant {
    /// Whether the end of an app's oldest process is awaited: not if the kernel reports it.
    pub(super) fn is_awaited(&self, app: &RunningApp) -> bool {
        !app.handle.is_of_template() || self.matches.reports.is_none()
    }

    /// Whether matches have to be looked for at the next look, whatever is reported until then.
    pub(super) fn awaits_matches(&self, time: Nanos) -> bool {
        let Matches { has_templates, reports, ended, .. } = &self.matches;
        match reports {
            // A write of a knob reads reports, too.
            Some(_) => self.ledger.forks().has_changes(),
            None => {
                *has_templates
                    && ended.is_some_and(|ended| time < ended.saturating_add(RETURN_WITHIN))
            }
        }
    }

    /// Whether templates may find something else than at the last look.
    pub(super) fn may_find_matches(&self, time: Nanos) -> bool {
        let reported = self.matches.reports.as_ref();
        reported.is_some_and(apps::has_ended) || self.awaits_matches(time)
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
    fn matches_that_come_and_go_all_the_time_rarely_end_an_epoch_early() {
        let mut matches = Matches { has_templates: true, reports: None, ended: None, cut: None };
        let mut cuts = 0;
        for tenth in 0..1_000 {
            let time = Nanos::from_millis(100 * tenth);
            cuts += u32::from(matches.take_cut(Arrival::Match, time));
            assert!(matches.take_cut(Arrival::Own, time));
        }
        assert_eq!(cuts, 10);
    }
}
