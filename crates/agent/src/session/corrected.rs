//! References of apps that the run refutes are replaced while it goes on.
//!
//! From then on E_S, policies, page and record use the replacement; the record keeps one spec for
//! each app, and the journal the reference before. Knobs and what the policy has learned stay.

use super::Session;
use super::open::outside;
use crate::record::RecordError;
use lull_control::journal::{Entry, Event};
use lull_control::{AppId, AppSpec, Epoch, Plant};

impl Session {
    /// Replaces the references that the last epochs refute, and adds that to the journal.
    pub(super) fn correct_references(&mut self, epoch: &mut Epoch) -> Result<(), RecordError> {
        let found = self.references.note(self.control.plant().apps(), &epoch.standing);
        if found.is_empty() {
            return Ok(());
        }
        let mut changed: Vec<(AppId, AppSpec)> = Vec::new();
        for (app, correction) in found {
            self.control.plant_mut().update_spec(app, |spec| correction.apply(spec));
            let spec = self.apps()[app.index()].clone();
            let event = Event::ReferenceCorrected { app: spec.name.clone(), correction };
            epoch.entries.push(Entry { time: epoch.seen.time, event });
            changed.push((app, spec));
        }
        self.control.update_references();
        let apps = self.control.plant().apps();
        if let Some(shadow) = &mut self.shadow {
            shadow.set_references(apps);
        }
        // A page that cannot take them shows the former references.
        let _ = self.update_facts();
        self.recorder.describe_added(&changed)
    }

    /// Shows the present apps and config on the page, if there is one.
    pub(super) fn update_facts(&self) -> Result<(), String> {
        let Some(live) = &self.live else { return Ok(()) };
        let orders = live.takes_orders();
        let facts =
            outside::facts(&self.config, self.plant(), &self.recorder, orders, self.dry_run);
        live.set_facts(&facts).map_err(|error| error.to_string())
    }
}
