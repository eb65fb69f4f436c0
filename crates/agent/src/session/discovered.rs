//! Apps that a discovery finds: each workload has a slot of its template while it is there.
//!
//! A workload for which no slot is free waits for one. Its objectives replace those of its
//! template while it has the slot.

use super::Session;
use super::policy::{policy_of, rebuild_of, shadow_of};
use crate::config::Config;
use crate::discovery::{Discovery, Finding, Report, ReportKind, Workload};
use crate::record::RecordError;
use lull_control::journal::{Entry, Event};
use lull_control::{AppId, AppSpec, CoreSet, Epoch, Knob, Objective, Plant};
use lull_host::apps::CgroupSlots;
use lull_measure::catalogue::{DISCOVERY_SILENCE, Sample};
use std::collections::BTreeMap;

/// The slots of the templates that a discovery fills, by the template's number.
pub(super) type TemplateSlots = BTreeMap<usize, CgroupSlots>;

/// The slots that a config has for what a discovery finds.
pub(super) fn template_slots(config: &Config) -> TemplateSlots {
    let mut counts: BTreeMap<usize, (String, usize)> = BTreeMap::new();
    for app in &config.apps {
        if let Some((pods, slot)) = app.pods.as_ref().zip(app.slot) {
            counts.entry(slot.template).or_insert_with(|| (pods.template.clone(), 0)).1 += 1;
        }
    }
    let slots = |(template, (name, count)): (usize, (String, usize))| {
        (template, CgroupSlots::new(&name, count))
    };
    counts.into_iter().map(slots).collect()
}

/// A discovery and its findings.
pub(super) struct Discovered {
    discovery: Box<dyn Discovery>,
    /// Indexed by template: its first app and its slots.
    templates: BTreeMap<usize, (usize, CgroupSlots)>,
    /// Workloads that have a slot, by number.
    placed: BTreeMap<u64, AssignedApp>,
    /// Workloads that wait for one, by number.
    waiting: BTreeMap<u64, Workload>,
    /// Findings of the current epoch, which are taken in at its end.
    later: Vec<Finding>,
    /// Reports that the discovery passes on at once.
    reports: Vec<Report>,
    entries: Vec<String>,
    /// The cause of the SLO-safe state while it lasts.
    safe_cause: Option<String>,
}

struct AssignedApp {
    workload: Workload,
    index: usize,
    app: AppId,
}

/// Apps whose objectives are others from now on; `None` for those of the template.
type Changed = BTreeMap<AppId, Option<Vec<Objective>>>;

impl Discovered {
    pub(super) fn new(
        discovery: Box<dyn Discovery>,
        slots: TemplateSlots,
        config: &Config,
    ) -> Self {
        let first = |template| {
            let is_of = |slot: crate::config::TemplateSlot| slot.template == template;
            config.apps.iter().position(|app| app.slot.is_some_and(is_of))
        };
        let each = slots.into_iter();
        let templates =
            each.filter_map(|(template, slots)| Some((template, (first(template)?, slots))));
        Self {
            discovery,
            templates: templates.collect(),
            placed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            later: Vec::new(),
            reports: Vec::new(),
            entries: Vec::new(),
            safe_cause: None,
        }
    }

    /// Takes in the changes.
    fn poll(&mut self) -> Changed {
        let mut changed = Changed::new();
        let mut findings = std::mem::take(&mut self.later);
        findings.extend(self.discovery.poll());
        for finding in findings {
            match finding {
                Finding::Present(workload) => self.accept(workload, &mut changed),
                Finding::Gone(id) => self.remove(id, &mut changed),
                Finding::Notice(text) => self.entries.push(text),
            }
        }
        for (_, workload) in std::mem::take(&mut self.waiting) {
            self.place(workload, true, &mut changed);
        }
        changed
    }

    /// Takes in workloads that are new and find a free slot, while an epoch lasts. All other
    /// changes wait for its end, because the measurements of an epoch belong to the workload that
    /// had the slot when it began.
    fn poll_arrivals(&mut self) -> Changed {
        let mut changed = Changed::new();
        for finding in self.discovery.poll() {
            match finding {
                Finding::Present(workload) if self.may_arrive(&workload) => {
                    self.accept(workload, &mut changed);
                }
                Finding::Notice(text) => self.entries.push(text),
                Finding::Gone(id) => {
                    self.end_search(id);
                    self.later.push(Finding::Gone(id));
                }
                other => self.later.push(other),
            }
        }
        changed
    }

    /// Ends the search for a workload that is gone; it keeps its slot until the epoch ends.
    fn end_search(&self, id: u64) {
        let Some(placed) = self.placed.get(&id) else { return };
        if let Some((_, slots)) = self.templates.get(&placed.workload.template) {
            slots.end_search(placed.index);
        }
    }

    fn may_arrive(&self, workload: &Workload) -> bool {
        let Workload { id, template, .. } = workload;
        let is_about = |finding: &Finding| match finding {
            Finding::Present(other) => other.id == *id,
            Finding::Gone(other) => other == id,
            Finding::Notice(_) => false,
        };
        let is_known = self.placed.contains_key(id) || self.waiting.contains_key(id);
        let has_room = self.templates.get(template).is_some_and(|(_, slots)| !slots.is_full());
        has_room && !is_known && !self.later.iter().any(is_about)
    }

    fn accept(&mut self, workload: Workload, changed: &mut Changed) {
        let was_waiting = self.waiting.remove(&workload.id).is_some();
        let Some(placed) = self.placed.get_mut(&workload.id) else {
            return self.place(workload, was_waiting, changed);
        };
        let before = &placed.workload;
        let has_moved = before.template != workload.template
            || before.cgroup != workload.cgroup
            || before.pod != workload.pod;
        if has_moved {
            self.remove(workload.id, changed);
            return self.place(workload, false, changed);
        }
        if placed.workload.objectives != workload.objectives {
            changed.insert(placed.app, workload.objectives.clone());
            self.entries.push(format!("{} has other objectives", workload.name));
        }
        placed.workload = workload;
    }

    /// Gives a workload a slot, or lets it wait for one; reports that it waits, unless it was
    /// waiting before.
    fn place(&mut self, workload: Workload, was_waiting: bool, changed: &mut Changed) {
        let Some((first, slots)) = self.templates.get(&workload.template) else { return };
        let Some(index) = slots.take(&workload.cgroup) else {
            if !was_waiting {
                let most = slots.count();
                let text = format!("all {most} apps of its [[match]] are taken: raise `most`");
                self.leave(&workload, text);
            }
            self.waiting.insert(workload.id, workload);
            return;
        };
        let app = AppId(u16::try_from(first + index).unwrap_or(u16::MAX));
        changed.insert(app, workload.objectives.clone());
        self.placed.insert(workload.id, AssignedApp { workload, index, app });
    }

    fn remove(&mut self, id: u64, changed: &mut Changed) {
        self.waiting.remove(&id);
        let Some(AssignedApp { workload, index, app }) = self.placed.remove(&id) else { return };
        if let Some((_, slots)) = self.templates.get(&workload.template) {
            slots.free(index);
        }
        self.entries.push(format!("{} is no longer managed", workload.name));
        changed.insert(app, None);
    }

    /// Reports that a workload is not managed.
    fn leave(&mut self, workload: &Workload, why: String) {
        self.entries.push(format!("{} is not managed: {why}", workload.name));
        self.report(workload.id, ReportKind::Unmanaged, why);
    }

    fn report(&mut self, workload: u64, kind: ReportKind, text: String) {
        self.reports.push(Report { workload, kind, text });
    }

    /// Passes the reports on, all at once: each message would wake the process that publishes them.
    fn pass_reports(&mut self) {
        if !self.reports.is_empty() {
            self.discovery.report(std::mem::take(&mut self.reports));
        }
    }

    /// Reports the safe state to all workloads, unless it has one cause already.
    fn begin_safe_state(&mut self, cause: String) {
        if self.safe_cause.replace(cause).is_none() {
            let ids: Vec<u64> = self.placed.keys().copied().collect();
            ids.into_iter().for_each(|id| self.report_safe_state(id));
        }
    }

    /// Reports what concerns workloads in an epoch.
    fn report_epoch(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.event {
                Event::SafeBegins { cause } => self.begin_safe_state(cause.clone()),
                Event::SafeEnds => self.safe_cause = None,
                Event::Foreign { change, .. } => {
                    let text = format!("{} was changed by another program", change.whom);
                    self.report_knob(&change.knob, ReportKind::ForeignWriter, text);
                }
                Event::Decision(decision) => {
                    if let Some(why) = decision.outcome.failure(decision.from.as_ref()) {
                        let wanted = &decision.outcome.wanted;
                        let text = format!("{wanted} was refused: {why}");
                        self.report_knob(&wanted.knob(), ReportKind::KnobRefused, text);
                    }
                }
                _ => {}
            }
        }
    }

    /// Reports that a workload has an app, and the SLO-safe state if that lasts.
    fn report_managed(&mut self, workload: &Workload, app: &str) {
        self.report(workload.id, ReportKind::Managed, format!("as app `{app}`"));
        self.report_safe_state(workload.id);
        self.entries.push(format!("{} is {app}", workload.name));
    }

    fn report_safe_state(&mut self, workload: u64) {
        if let Some(cause) = self.safe_cause.clone() {
            self.report(workload, ReportKind::SafeState, cause);
        }
    }

    fn report_knob(&mut self, knob: &Knob, kind: ReportKind, text: String) {
        let of =
            |(id, placed): (&u64, &AssignedApp)| (knob.app() == Some(placed.app)).then_some(*id);
        if let Some(id) = self.placed.iter().find_map(of) {
            self.report(id, kind, text);
        }
    }

    /// Replaces the objectives of apps by those of the workloads that have them.
    pub(super) fn respecify(&self, specs: &mut [AppSpec]) {
        for AssignedApp { workload, app, .. } in self.placed.values() {
            if let (Some(own), Some(spec)) = (&workload.objectives, specs.get_mut(app.index())) {
                spec.objectives.clone_from(own);
            }
        }
    }

    /// The cores that all workloads with an app may use, if they are fewer than the node's. Those
    /// of before count while no workload has an app, and while some have the former pool and others
    /// the new one, which has no core in common with it.
    fn shared_cores(&self, before: Option<&CoreSet>) -> Option<CoreSet> {
        let limited = self.placed.values().filter_map(|placed| placed.workload.cores.clone());
        let shared = limited.reduce(|all, one| all.intersection(&one));
        let is_unknown = self.placed.is_empty() || shared.as_ref().is_some_and(CoreSet::is_empty);
        if is_unknown { before.cloned() } else { shared }
    }

    /// The workload that has an app.
    fn workload_of(&self, app: AppId) -> Option<&Workload> {
        self.placed.values().find(|placed| placed.app == app).map(|placed| &placed.workload)
    }
}

impl Session {
    /// Takes in what the discovery has found since the last epoch.
    pub(super) fn discover(&mut self) -> Result<(), RecordError> {
        let changed = self.discovered.as_mut().map(Discovered::poll).unwrap_or_default();
        self.follow_changes(changed)
    }

    /// Takes in the workloads that are new, while an epoch lasts.
    pub(super) fn discover_arrivals(&mut self) -> Result<(), RecordError> {
        let changed = self.discovered.as_mut().map(Discovered::poll_arrivals).unwrap_or_default();
        self.follow_changes(changed)
    }

    fn follow_changes(&mut self, changed: Changed) -> Result<(), RecordError> {
        let (mut is_other, mut reset) = (false, Vec::new());
        for (app, own) in changed {
            let Some(discovered) = &mut self.discovered else { break };
            let name = &self.config.apps[app.index()].name;
            let workload = discovered.workload_of(app).cloned();
            let pod = workload.as_ref().and_then(|workload| workload.pod.as_deref());
            let is_other_pod = self.pod_apps.assign(app, name, pod);
            if is_other_pod {
                // The counters of an app that is a pod are the pod's.
                self.totals.forget(name);
            }
            if let Some(workload) = workload {
                discovered.report_managed(&workload, name);
            }
            if is_other_pod && self.reset_references(app) {
                self.note_discovery(reset_text(&self.config.apps[app.index()].name));
                reset.push(app);
            }
            let usual = self.config.apps[app.index()].spec().objectives;
            let objectives = own.unwrap_or(usual);
            self.control.plant_mut().update_spec(app, |spec| {
                is_other |= spec.objectives != objectives;
                spec.objectives = objectives;
            });
        }
        if let Some(discovered) = &mut self.discovered {
            discovered.pass_reports();
        }
        let has_other_cores = self.follow_cores();
        if is_other || has_other_cores {
            self.renew_policies(has_other_cores);
        }
        self.use_references(&reset)
    }

    /// Uses only the cores that all pods may use; returns whether these have changed.
    fn follow_cores(&mut self) -> bool {
        let Some(discovered) = &mut self.discovered else { return false };
        let all = self.control.plant().machine().all_cores();
        let pool = discovered.shared_cores(self.config.pool.as_ref());
        let pool = pool.map(|cores| cores.intersection(&all));
        if pool == self.config.pool {
            return false;
        }
        discovered.entries.push(match &pool {
            Some(pool) => format!("pods may use the cores {pool} only: apps get no others"),
            None => "pods may use all cores of the node".to_owned(),
        });
        self.config.pool = pool;
        true
    }

    /// Updates policy and shadow to the present objectives and cores of the apps.
    fn renew_policies(&mut self, has_other_cores: bool) {
        let rules = self.config.rules(self.dry_run);
        let specs = self.control.plant().apps().to_vec();
        let adapts = self.control.reconfigure(rules.clone(), &specs);
        if has_other_cores || !adapts {
            let config = self.config.under(self.steered.policy());
            match policy_of(&config, self.plant().machine(), &specs) {
                Ok(policy) => self.control.replace_policy(policy),
                Err(error) => self.note_discovery(format!(
                    "the policy cannot be built for other objectives or cores, so the former one \
                     continues: {error}"
                )),
            }
            self.control.set_rebuild(rebuild_of(&config, self.plant().machine()));
        }
        if self.shadow.is_some() {
            match shadow_of(&self.config, &rules, self.plant()) {
                Ok(shadow) => self.shadow = shadow,
                Err(error) => {
                    self.note_discovery(format!("the former shadow policy continues: {error}"));
                }
            }
        }
    }

    fn note_discovery(&mut self, text: String) {
        if let Some(discovered) = &mut self.discovered {
            discovered.entries.push(text);
        }
    }

    /// Adds findings to the journal of an epoch, and reports the epoch to the workloads.
    pub(super) fn note_discovered(&mut self, epoch: &mut Epoch) {
        let Some(discovered) = &mut self.discovered else { return };
        // A free slot waits for no process of its own.
        let is_berth = |name: &String| {
            self.config.apps.iter().any(|app| app.pods.is_some() && app.name == *name)
        };
        epoch
            .entries
            .retain(|entry| !matches!(&entry.event, Event::AppWaiting { app } if is_berth(app)));
        let time = epoch.seen.time;
        let entry = |text| Entry { time, event: Event::Discovery { text } };
        epoch.entries.extend(std::mem::take(&mut discovered.entries).into_iter().map(entry));
        discovered.report_epoch(&epoch.entries);
        discovered.pass_reports();
    }

    /// How long the source of the discovery has been silent, as a metric.
    pub(super) fn discovery_sample(&self) -> Option<Sample> {
        let silence = self.discovered.as_ref()?.discovery.silence();
        let value = Ok(silence.as_secs_f64());
        Some(Sample { metric: DISCOVERY_SILENCE, label: "".into(), value })
    }
}

/// Returns the journal's text for an app that takes the references of its template again.
pub(super) fn reset_text(app: &str) -> String {
    format!(
        "{app} has the references of its template again, because other processes have replaced it"
    )
}

#[cfg(test)]
mod tests;
