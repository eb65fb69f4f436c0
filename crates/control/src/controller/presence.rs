//! The controller's response to apps that depart, arrive and are restarted.

use super::retries::Retries;
use super::{Controller, Turn};
use crate::journal::Event;
use crate::roster::{RosterChange, RosterEvent};
use crate::{AppId, AppSpec, Knob, Observation, Plant, Policy, Setting, numbered};

/// Rebuilds the policy for these apps.
pub type RebuildPolicy = Box<dyn Fn(&[AppSpec]) -> Result<Box<dyn Policy>, String> + Send>;

impl Controller {
    /// Sets how the policy is rebuilt when it cannot adapt to a change of the roster. Without it
    /// such a policy continues unchanged.
    pub fn set_rebuild(&mut self, rebuild: RebuildPolicy) {
        self.rebuild = Some(rebuild);
    }

    /// Writes changes of the roster to the journal, forgets the settings of the knobs of the apps
    /// that changed, and lets the policy adapt or rebuilds it.
    pub(super) fn note_roster(&mut self, seen: &Observation, turn: &mut Turn) {
        if std::mem::take(&mut self.is_first) {
            // The time before the first epoch, in which apps start, is not silence.
            self.heard.fill(seen.time.saturating_sub(seen.epoch));
            for (app, spec) in numbered(&self.apps) {
                let is_absent = seen.app(app).is_some_and(|now| !now.alive);
                if is_absent && !self.roster.is_present(app) {
                    turn.push(Event::AppWaiting { app: spec.name.clone() });
                }
            }
        }
        let present = seen.apps.iter().map(|app| app.alive);
        let changes = self.roster.update(present, &seen.restarted);
        for change in &changes {
            let app = self.apps[change.app.index()].name.clone();
            turn.push(match change.event {
                RosterEvent::Departed => Event::AppExited { app },
                RosterEvent::Arrived => Event::AppArrived { app },
                RosterEvent::Restarted => Event::AppRestarted { app },
            });
            self.forget_app(change.app);
            self.heard[change.app.index()] = seen.time;
        }
        if !changes.is_empty() && !self.policy.roster_changed(&changes) {
            self.rebuild_policy(&changes, turn);
        }
    }

    /// Drops the last known settings of an app's knobs, and which of them were left to other
    /// programs: both were of processes that are gone. Reserved knobs stay reserved.
    fn forget_app(&mut self, app: AppId) {
        self.state.retain(|knob, _| knob.app() != Some(app));
        self.retries.forget(|knob| knob.app() == Some(app));
        let reserved = &self.reserved;
        self.yielded.retain(|knob| knob.app() != Some(app) || reserved.contains(knob));
    }

    /// Forgets all that is known of an app that was added, was removed, or is another program from
    /// now on; `settings` are those of the plant now, which the app's owner has set.
    pub(crate) fn exchange_app(&mut self, app: AppId, settings: &[Setting]) {
        self.forget_app(app);
        self.roster.remove(app);
        self.assessor.forget(app);
        self.pending = None;
        let is_of_app = |setting: &&Setting| setting.knob().app() == Some(app);
        self.original.retain(|setting| !is_of_app(&setting));
        self.original.extend(settings.iter().filter(is_of_app).cloned());
    }

    /// Takes over the values that the owners of apps gave their knobs, for the SLO-safe state, of
    /// apps that have arrived or were restarted since the last turn. Called before
    /// [`Controller::turn`] with the same observation.
    pub fn note_arrivals(&mut self, seen: &Observation, plant: &impl Plant) {
        for (app, _) in numbered(&self.apps) {
            let is_new = !self.roster.is_present(app) || seen.restarted.contains(&app);
            if is_new && seen.app(app).is_some_and(|now| now.alive) {
                let owners = plant.owners(app);
                let is_replaced = |knob: Knob| owners.iter().any(|new| new.knob() == knob);
                self.original.retain(|setting| !is_replaced(setting.knob()));
                self.original.extend(owners);
            }
        }
    }

    fn rebuild_policy(&mut self, changes: &[RosterChange], turn: &mut Turn) {
        let Some(rebuild) = &self.rebuild else { return };
        let names: Vec<_> =
            changes.iter().map(|change| self.apps[change.app.index()].name.as_str()).collect();
        let apps = names.join(", ");
        match rebuild(&self.apps) {
            Ok(policy) => {
                self.policy = policy;
                self.pending = None;
                self.retries = Retries::default();
                turn.push(Event::PolicyRebuilt { apps, failed: None });
            }
            Err(why) => turn.push(Event::PolicyRebuilt { apps, failed: Some(why) }),
        }
    }
}
