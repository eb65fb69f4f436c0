//! Replaces references of apps that the run refutes, while it continues.
//!
//! From then on E_S, policies, page and record use the replacement; the record keeps one spec for
//! each app, and the journal the reference before. Knobs and what the policy has learned stay.

use super::Session;
use super::discovered::reset_text;
use super::open::outside;
use crate::config::AppSection;
use crate::record::RecordError;
use lull_control::journal::{Entry, Event};
use lull_control::{AppId, Epoch, Plant};

impl Session {
    /// Replaces the references that the last epochs refute, and adds that to the journal. An app of
    /// a template that is another match now has the references of its template again.
    pub(super) fn correct_references(&mut self, epoch: &mut Epoch) -> Result<(), RecordError> {
        let mut changed = self.reset_matches(epoch);
        let found = self.references.note(self.control.plant().apps(), &epoch.assessment);
        for (app, correction) in found {
            self.control.plant_mut().update_spec(app, |spec| correction.apply(spec));
            let name = self.apps()[app.index()].name.clone();
            let event = Event::ReferenceCorrected { app: name, correction };
            epoch.entries.push(Entry { time: epoch.seen.time, event });
            changed.push(app);
        }
        self.use_references(&changed)
    }

    /// Gives apps of templates that have other processes since the last epoch the references of
    /// their templates, and adds that to the journal; returns those whose references have changed.
    /// A pod whose container is started again is the same pod.
    fn reset_matches(&mut self, epoch: &mut Epoch) -> Vec<AppId> {
        let apps = (0..).map(AppId).zip(&self.config.apps);
        let is_new = |(_, section): &(AppId, &AppSection)| {
            section.slot.is_some()
                && section.pods.is_none()
                && epoch.entries.iter().any(|entry| has_new_processes(&entry.event, &section.name))
        };
        let mut changed: Vec<AppId> = apps.filter(is_new).map(|(app, _)| app).collect();
        changed.retain(|app| self.reset_references(*app));
        for app in &changed {
            let event = Event::Discovery { text: reset_text(&self.config.apps[app.index()].name) };
            epoch.entries.push(Entry { time: epoch.seen.time, event });
        }
        changed
    }

    /// Gives an app that is another match or pod now the references of its template, which are
    /// never measured; returns whether these are others.
    pub(super) fn reset_references(&mut self, app: AppId) -> bool {
        self.references.forget(app);
        let given = self.config.apps[app.index()].spec();
        let mut has_changed = false;
        self.control.plant_mut().update_spec(app, |spec| {
            let before = (spec.ideal, spec.solo_per_s);
            (spec.ideal, spec.solo_per_s) = (given.ideal, given.solo_per_s);
            has_changed = before != (spec.ideal, spec.solo_per_s);
        });
        has_changed
    }

    /// Passes the present references of these apps on to all parts that use them.
    pub(super) fn use_references(&mut self, changed: &[AppId]) -> Result<(), RecordError> {
        if changed.is_empty() {
            return Ok(());
        }
        self.control.update_references();
        let apps = self.control.plant().apps();
        if let Some(shadow) = &mut self.shadow {
            shadow.set_references(apps);
        }
        // A page that cannot take them shows the former references.
        let _ = self.update_facts();
        let apps = self.control.plant().apps();
        let spec = |app: &AppId| (*app, apps[app.index()].clone());
        self.recorder.describe_added(&changed.iter().map(spec).collect::<Vec<_>>())
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

/// Whether an app has other processes since an event.
fn has_new_processes(event: &Event, name: &str) -> bool {
    match event {
        Event::AppArrived { app } | Event::AppRestarted { app } => app == name,
        _ => false,
    }
}
