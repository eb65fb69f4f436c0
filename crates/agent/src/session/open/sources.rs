//! Where the latency and the progress of an app are read.

use crate::config::{AppSection, LatencySource, ProgressSource};
use crate::otlp::OtlpSource;
use crate::prometheus::Queries as PrometheusQueries;
use lull_control::LatencyOf;
use lull_host::Roots;
use lull_host::gauges::queries::Queries;
use lull_host::gauges::reported::Reported;
use lull_host::oncall::Watch;
use lull_host::plant::{LatencyFrom, ProgressFrom};

/// Returns the source of an app's latency. `follow` starts a thread that sends queries to a
/// Prometheus server once an epoch.
pub(super) fn latency_from(
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
    let Some(OtlpSource { service, route, metric, .. }) = app.otlp_source(0) else {
        return String::new();
    };
    let route = route.map(|route| format!(" of route `{route}`")).unwrap_or_default();
    format!("histogram `{metric}`{route} of service `{service}`")
}

/// Returns the source of an app's progress.
pub(super) fn progress_from(app: &AppSection, has_counters: bool) -> ProgressFrom {
    match app.progress {
        ProgressSource::Push => ProgressFrom::Push,
        ProgressSource::Instructions => ProgressFrom::Instructions,
        ProgressSource::Auto if has_counters => ProgressFrom::Instructions,
        ProgressSource::Auto | ProgressSource::CpuTime => ProgressFrom::CpuTime,
    }
}
