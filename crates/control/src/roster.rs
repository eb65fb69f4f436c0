//! Which apps are present, and how that changes while a run lasts.
//!
//! Ids of apps stay the same for a run: an app that is added gets a new one, and that of an app
//! that is removed is not used for another. An app without a live process is
//! absent: it waits for its processes, nothing of it is set, and policies see no work of it.

use crate::AppId;
use serde::{Deserialize, Serialize};

/// A change of one app since the last observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterChange {
    /// The app.
    pub app: AppId,
    /// The event.
    pub event: RosterEvent,
}

/// The events in the life of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RosterEvent {
    /// The app was absent and has processes now.
    Arrived,
    /// Its last process has ended.
    Departed,
    /// The app was never absent, but none of its former processes is left.
    Restarted,
}

/// The presence of every app after the last observation.
#[derive(Debug, Clone)]
pub(crate) struct Roster {
    present: Vec<bool>,
}

impl Roster {
    /// The presence of every app when the run begins.
    pub(crate) const fn new(present: Vec<bool>) -> Self {
        Self { present }
    }

    /// Whether an app was present in the last observation.
    pub(crate) fn is_present(&self, app: AppId) -> bool {
        self.present.get(app.index()).copied().unwrap_or(false)
    }

    /// Makes room for this many apps; a new one is absent.
    pub(crate) fn grow(&mut self, apps: usize) {
        self.present.resize(apps.max(self.present.len()), false);
    }

    /// Counts an app as absent, which is not a departure.
    pub(crate) fn remove(&mut self, app: AppId) {
        if let Some(present) = self.present.get_mut(app.index()) {
            *present = false;
        }
    }

    /// Returns the changes, given which apps are present now and which were restarted.
    pub(crate) fn update(
        &mut self,
        present: impl IntoIterator<Item = bool>,
        restarted: &[AppId],
    ) -> Vec<RosterChange> {
        let ids = (0u16..).map(AppId);
        let each = ids.zip(self.present.iter_mut()).zip(present);
        let change = |((app, before), now): ((AppId, &mut bool), bool)| {
            let event = match (std::mem::replace(before, now), now) {
                (false, true) => RosterEvent::Arrived,
                (true, false) => RosterEvent::Departed,
                (true, true) if restarted.contains(&app) => RosterEvent::Restarted,
                _ => return None,
            };
            Some(RosterChange { app, event })
        };
        each.filter_map(change).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(changes: &[RosterChange]) -> Vec<(u16, RosterEvent)> {
        changes.iter().map(|change| (change.app.0, change.event)).collect()
    }

    #[test]
    fn each_change_is_reported_once_with_the_app_it_is_of() {
        let mut roster = Roster::new(vec![true; 3]);
        assert_eq!(events(&roster.update([true, false, true], &[])), [(1, RosterEvent::Departed)]);
        assert_eq!(events(&roster.update([true, false, true], &[])), []);
        let changes = roster.update([true, true, true], &[AppId(1), AppId(2)]);
        assert_eq!(events(&changes), [(1, RosterEvent::Arrived), (2, RosterEvent::Restarted)]);
        assert!(roster.is_present(AppId(1)) && !roster.is_present(AppId(7)));
    }

    #[test]
    fn an_app_that_is_added_arrives_and_one_that_is_removed_does_not_depart() {
        let mut roster = Roster::new(vec![true; 2]);
        roster.grow(3);
        roster.remove(AppId(0));
        roster.remove(AppId(9));
        let changes = roster.update([false, true, true], &[]);
        assert_eq!(events(&changes), [(2, RosterEvent::Arrived)]);
    }
}
