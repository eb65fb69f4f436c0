//! The apps of a template.

use super::latency::{LatencySource, ProgressSource};
use super::origin::{AppOrigin, MatchSection, PodsAs, RegisterAs, TemplateSlot};
use super::schema::{AppSection, Reference};
use super::template::TemplateSection;
use crate::prometheus::names_pod;
use lull_control::LatencyOf;

/// Most apps of one template.
const MOST: u16 = 256;

impl TemplateSection {
    /// Checks the section as a whole, so that a fault is reported by its own keys and not by those
    /// of its apps.
    ///
    /// # Errors
    /// The key at fault and the correction.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        if self.most.get() > MOST {
            return Err(("most".to_owned(), format!("is {}: write 1 to {MOST}", self.most)));
        }
        if self.name.is_empty() {
            return Err(("name".to_owned(), "must be a word".to_owned()));
        }
        let app = self.app(TemplateSlot { template: 0, index: 0 });
        app.check_values().map_err(|(key, message)| (key.to_owned(), message))?;
        let is_process = app.matching.is_some();
        let others = [
            self.unit.is_some(),
            self.cgroup.is_some(),
            self.register.is_some(),
            self.pods.is_some(),
        ];
        if others.into_iter().chain([is_process]).filter(|given| *given).count() != 1 {
            let message = "needs what matches: exe, args and user (one or more), or unit, or \
                           cgroup, or register, or pods";
            return Err(("name".to_owned(), message.to_owned()));
        }
        let place = app.origin().map_err(|message| ("name".to_owned(), message))?;
        // The keys of `match` are the template's own.
        place.check().map_err(|(key, message)| (key.replace("match.", ""), message))?;
        let one = match &place {
            AppOrigin::Unit(text) if !is_glob(text) => Some(("unit", "web-*.service")),
            AppOrigin::Cgroup(path) if !is_glob(&path.to_string_lossy()) => {
                Some(("cgroup", "kubepods/burstable/*"))
            }
            _ => None,
        };
        if let Some((key, example)) = one {
            let message =
                format!("names one {key}: write an [[app]] for it, or a glob such as {example}");
            return Err((key.to_owned(), message));
        }
        self.check_source()?;
        let reports = self.latency.is_some();
        if !reports && self.objectives.iter().any(|one| one.of == LatencyOf::Requests) {
            let message = "bounds requests, but the apps of a template report none: bound the \
                           waits of their threads, { run_queue_p99 = \"1ms\" } or { \
                           memory_pressure = \"2%\" }, or write an [[app]] with a source of \
                           latency";
            return Err(("objectives".to_owned(), message.to_owned()));
        }
        app.spec().check().map_err(|error| (error.key.to_owned(), error.message))
    }

    /// Checks the source of the latency of its apps.
    fn check_source(&self) -> Result<(), (String, String)> {
        let fail = |key: &str, message: &str| Err((key.to_owned(), message.to_owned()));
        match &self.latency {
            Some(_) if self.pods.is_none() => return fail("latency", "is for `pods` only"),
            Some(LatencySource::Preload) => {
                let message = "of pods must be \"ebpf\", \"push\", \"otlp\" or \"prometheus:URL\"";
                return fail("latency", message);
            }
            _ => {}
        }
        let section = self.prometheus.as_ref();
        let queries = [
            ("query", self.query.as_ref()),
            ("prometheus.load", section.and_then(|section| section.load.as_ref())),
            ("prometheus.age", section.and_then(|section| section.age.as_ref())),
        ];
        let is_of_all = |query: &&String| !names_pod(query);
        match queries.into_iter().find(|(_, query)| query.as_ref().is_some_and(is_of_all)) {
            Some((key, _)) => fail(key, "is the same for all pods: write pod=\"$pod\" in it"),
            None => Ok(()),
        }
    }

    /// Its apps; `template` is its number.
    pub(super) fn apps(&self, template: usize) -> impl Iterator<Item = AppSection> + '_ {
        (0..usize::from(self.most.get()))
            .map(move |index| self.app(TemplateSlot { template, index }))
    }

    fn app(&self, slot: TemplateSlot) -> AppSection {
        let Self { exe, args, user, register, pods, .. } = self.clone();
        let template = self.name.clone();
        let is_process = exe.is_some() || args.is_some() || user.is_some();
        AppSection {
            name: format!("{}-{}", self.name, slot.index + 1),
            class: self.class,
            objectives: self.objectives.clone(),
            max_load: None,
            threads: self.threads,
            ideal: self.ideal.map(Reference::Known),
            solo: self.solo.map(Reference::Known),
            start: None,
            pid: None,
            cgroup: self.cgroup.clone(),
            unit: self.unit.clone(),
            matching: is_process.then_some(MatchSection { exe, args, user }),
            ready: None,
            latency: self.latency.clone().unwrap_or_default(),
            page: None,
            concurrency: None,
            gate: None,
            client_class: Vec::new(),
            promise: Vec::new(),
            area: Vec::new(),
            area_keys: None,
            query: self.query.clone(),
            prometheus: self.prometheus.clone(),
            otlp: self.otlp.clone(),
            progress: ProgressSource::Auto,
            slot: Some(slot),
            register: register.map(|users| RegisterAs { template: template.clone(), users }),
            pods: pods.map(|selector| PodsAs { template, selector }),
        }
    }
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}
