//! Which pods are apps now, and whatever has to know it: the front end, which recognises senders
//! of latency by their pods, and the queries of Prometheus servers, which name the pod.

use crate::config::{AppSection, Config, LatencySource};
use crate::discovery::PodIdentity;
use crate::frontend::Frontend;
use crate::prometheus::Subject;
use lull_control::AppId;
use std::collections::BTreeMap;

/// The pods that are apps.
pub(super) struct PodApps {
    frontend: Frontend,
    /// The pods that queries of apps refer to.
    subjects: BTreeMap<AppId, Subject>,
    /// Indexed by the app's name.
    pods: BTreeMap<String, PodIdentity>,
}

impl PodApps {
    /// No pod is an app yet.
    pub(super) fn new(frontend: Frontend, config: &Config) -> Self {
        let is_queried = |app: &AppSection| {
            app.pods.is_some() && matches!(app.latency, LatencySource::Prometheus(_))
        };
        let apps = (0..).map(AppId).zip(&config.apps).filter(|(_, app)| is_queried(app));
        let subjects = apps.map(|(id, _)| (id, Subject::default())).collect();
        Self { frontend, subjects, pods: BTreeMap::new() }
    }

    pub(super) const fn frontend(&self) -> &Frontend {
        &self.frontend
    }

    /// Returns the pod that the queries of an app refer to, if the app is a pod.
    pub(super) fn subject(&self, app: AppId) -> Option<Subject> {
        self.subjects.get(&app).cloned()
    }

    /// The pods, by the name of the app that each is.
    pub(super) const fn pods(&self) -> &BTreeMap<String, PodIdentity> {
        &self.pods
    }

    /// Notes which pod an app is from now on; returns whether it was another one before.
    pub(super) fn assign(&mut self, app: AppId, name: &str, pod: Option<&PodIdentity>) -> bool {
        if self.pods.get(name) == pod {
            return false;
        }
        match pod {
            Some(pod) => self.pods.insert(name.to_owned(), pod.clone()),
            None => self.pods.remove(name),
        };
        self.frontend.assign(app.0, pod.cloned());
        if let Some(subject) = self.subjects.get(&app) {
            subject.set(pod.cloned());
        }
        true
    }
}
