//! Where the latency and the progress of an app are read.

use super::Agent;
use crate::config::{AppSection, Config, LatencySource, ProgressSource};
use crate::otlp::OtlpSource;
use crate::prometheus::{self, Queries as PrometheusQueries};
use crate::session::pod_apps::PodApps;
use lull_control::{AppId, Capability, LatencyOf, Machine};
use lull_host::Roots;
use lull_host::apps::AppHandle;
use lull_host::gauges::queries::Queries;
use lull_host::gauges::reported::Reported;
use lull_host::oncall::Watch;
use lull_host::plant::{HostApp, LatencyFrom, ProgressFrom};
use lull_measure::Nanos;

impl Agent<'_> {
    /// Returns the apps with their sources of readings.
    pub(super) fn host_apps(
        &self,
        started: Vec<(AppHandle, Option<Watch>)>,
        machine: &Machine,
        roots: &Roots,
        pod_apps: &PodApps,
    ) -> Vec<HostApp> {
        let sources = Sources::new(&self.config, machine, roots, pod_apps);
        let each = (0..).map(AppId).zip(self.config.apps.iter().zip(started));
        let host_app = |(id, (app, (handle, watch))): (_, (&AppSection, (AppHandle, _)))| {
            sources.host_app(id, app, handle, watch)
        };
        each.map(host_app).collect()
    }
}

/// State that all apps of a run share when their sources are opened.
pub(in crate::session) struct Sources<'a> {
    roots: &'a Roots,
    pod_apps: &'a PodApps,
    /// The longest epoch.
    epoch: Nanos,
    has_counters: bool,
}

impl<'a> Sources<'a> {
    pub(in crate::session) fn new(
        config: &Config,
        machine: &Machine,
        roots: &'a Roots,
        pod_apps: &'a PodApps,
    ) -> Self {
        let has_counters = machine.capabilities.has(Capability::Instructions);
        Self { roots, pod_apps, epoch: config.epoch_rule().longest(), has_counters }
    }

    /// Returns an app with its sources of readings.
    pub(in crate::session) fn host_app(
        &self,
        id: AppId,
        app: &AppSection,
        handle: AppHandle,
        watch: Option<Watch>,
    ) -> HostApp {
        let follow = |queries| {
            let frontend = self.pod_apps.frontend();
            let parser = |server, wanted, to| frontend.reply_parser(server, wanted, to);
            prometheus::follow(queries, self.pod_apps.subject(id), self.epoch, parser)
        };
        HostApp {
            spec: app.spec(),
            handle,
            latency: latency_from(app, watch, self.roots, follow),
            progress: progress_from(app, self.has_counters),
        }
    }
}

/// Returns the source of an app's latency. `follow` starts a thread that sends queries to a
/// Prometheus server once an epoch.
fn latency_from(
    app: &AppSection,
    watch: Option<Watch>,
    roots: &Roots,
    follow: impl FnOnce(PrometheusQueries) -> Reported,
) -> LatencyFrom {
    match app.latency_of() {
        Some(LatencyOf::RunQueue) => return LatencyFrom::RunQueue,
        Some(LatencyOf::MemoryPressure) => return LatencyFrom::MemoryPressure,
        Some(LatencyOf::Requests) | None => {}
    }
    if let Some(queries) = app.prometheus_queries() {
        return LatencyFrom::Reported(follow(queries));
    }
    match &app.latency {
        LatencySource::Ebpf => LatencyFrom::Sockets(Queries::new(roots)),
        LatencySource::Otlp => LatencyFrom::Otlp(describe_otlp(app)),
        _ => watch.map_or(LatencyFrom::Push, LatencyFrom::OnCall),
    }
}

/// Describes what an app's latency is read from.
fn describe_otlp(app: &AppSection) -> String {
    let Some(OtlpSource { from, route, metric, .. }) = app.otlp_source(0) else {
        return String::new();
    };
    let route = route.map(|route| format!(" of route `{route}`")).unwrap_or_default();
    format!("histogram `{metric}`{route} of {from}")
}

/// Returns the source of an app's progress.
fn progress_from(app: &AppSection, has_counters: bool) -> ProgressFrom {
    match app.progress {
        ProgressSource::Push => ProgressFrom::Push,
        ProgressSource::Instructions => ProgressFrom::Instructions,
        ProgressSource::Auto if has_counters => ProgressFrom::Instructions,
        ProgressSource::Auto | ProgressSource::CpuTime => ProgressFrom::CpuTime,
    }
}
