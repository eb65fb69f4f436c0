//! `/metrics`: the last epoch and the counters of the run, from the catalogue, in any format.

use super::epoch_snapshot::{EpochSnapshot, Head};
use crate::VERSION;
use crate::discovery::PodIdentity;
use lull_control::LatencyTotals;
use lull_measure::catalogue::histogram::{LATENCY_HELP, LATENCY_HISTOGRAM};
use lull_measure::catalogue::{self, Metric, Scope, Unit};
use std::time::Duration;

/// A format of an exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' older text.
    Text,
    /// Prometheus' protobuf, the only one that has native histograms.
    Protobuf,
}

impl Format {
    /// The best format that a client accepts, by its `Accept`.
    pub(super) fn accepted(accept: &str) -> Self {
        let place = |kind: &str| accept.find(kind).unwrap_or(usize::MAX);
        let protobuf = place("proto=io.prometheus.client.MetricFamily");
        let openmetrics = place("application/openmetrics-text");
        // Prometheus names protobuf first if it stores native histograms, and last otherwise.
        match () {
            () if protobuf < openmetrics => Self::Protobuf,
            () if openmetrics < usize::MAX => Self::OpenMetrics,
            () => Self::Text,
        }
    }

    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

/// One metric with its values.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    /// The name without `_total`.
    pub(crate) name: String,
    pub(crate) help: &'a str,
    pub(crate) unit: Option<&'static str>,
    pub(crate) values: Values<'a>,
}

/// The values of a metric; there is at least one.
#[derive(Debug)]
pub(crate) enum Values<'a> {
    Gauges(Vec<(Labels<'a>, f64)>),
    Counters(Vec<(Labels<'a>, f64)>),
    Histograms(Vec<(Labels<'a>, &'a LatencyTotals)>),
}

/// Names and values of labels.
pub(crate) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Returns all families of one epoch that ended `age` ago, without the values that are missing.
pub(crate) fn families(snapshot: &EpochSnapshot, age: Duration) -> Vec<Family<'_>> {
    let mut all = gauges(snapshot);
    all.extend(counters(snapshot));
    let latencies = snapshot.totals.latencies();
    let latencies: Vec<_> =
        latencies.map(|(app, it)| (labels(snapshot, Scope::App, app), it)).collect();
    if !latencies.is_empty() {
        all.push(Family {
            name: LATENCY_HISTOGRAM.to_owned(),
            help: LATENCY_HELP,
            unit: Some("seconds"),
            values: Values::Histograms(latencies),
        });
    }
    all.push(agent(&snapshot.head));
    all.push(Family {
        name: "lull_epoch_age_seconds".to_owned(),
        help: "Time since the end of the last epoch, to which all values belong.",
        unit: Some("seconds"),
        values: Values::Gauges(vec![(Vec::new(), age.as_secs_f64())]),
    });
    all
}

/// The labels of a value: of an app that is a pod, those of the pod besides.
fn labels<'a>(snapshot: &'a EpochSnapshot, scope: Scope, label: &'a str) -> Labels<'a> {
    let pod = snapshot.pods.get(label).filter(|_| scope == Scope::App);
    scope.labels(label).chain(pod.into_iter().flat_map(PodIdentity::labels)).collect()
}

fn gauges(snapshot: &EpochSnapshot) -> Vec<Family<'_>> {
    let family = |metric: &'static Metric| {
        let samples = snapshot.samples.iter().filter(|sample| sample.metric.place == metric.place);
        let known: Vec<_> = samples
            .filter_map(|it| {
                Some((labels(snapshot, metric.scope, &it.label), *it.value.as_ref().ok()?))
            })
            .collect();
        (!known.is_empty()).then(|| Family {
            name: metric.prometheus_name(),
            help: metric.help,
            unit: unit(metric.unit),
            values: Values::Gauges(known),
        })
    };
    catalogue::gauges().filter_map(family).collect()
}

fn counters(snapshot: &EpochSnapshot) -> impl Iterator<Item = Family<'_>> {
    catalogue::counters().filter_map(|total| {
        let counts = snapshot.totals.counts(total);
        let counts: Vec<_> =
            counts.map(|(of, count)| (labels(snapshot, total.scope, of), count)).collect();
        (!counts.is_empty()).then(|| Family {
            name: total.family(),
            help: total.help,
            unit: unit(total.unit),
            values: Values::Counters(counts),
        })
    })
}

/// Facts that are not metrics: version, policy, state, source of energy.
fn agent(now: &Head) -> Family<'_> {
    let state = match now {
        Head { paused: true, .. } => "paused",
        Head { safe: true, .. } => "safe",
        _ => "policy",
    };
    let labels = vec![
        ("version", VERSION),
        ("policy", &now.policy),
        ("state", state),
        ("energy_source", &now.energy_source),
    ];
    Family {
        name: "lull_agent".to_owned(),
        help: "Always 1; its labels say what runs and how.",
        unit: None,
        values: Values::Gauges(vec![(labels, 1.0)]),
    }
}

/// OpenMetrics requires names to end in the unit.
fn unit(unit: Unit) -> Option<&'static str> {
    unit.suffix().strip_prefix('_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_unit_is_the_end_of_every_name() {
        let gauges = catalogue::gauges().map(|metric| (metric.unit, metric.prometheus_name()));
        let counters = catalogue::counters().map(|total| (total.unit, total.family()));
        for (of, name) in gauges.chain(counters) {
            if let Some(unit) = unit(of) {
                assert!(name.ends_with(&format!("_{unit}")), "{name}");
            }
        }
    }

    #[test]
    fn series_of_an_app_that_is_a_pod_have_its_names() {
        let pod = PodIdentity {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            workload: "web".to_owned(),
            ..PodIdentity::default()
        };
        let mut snapshot = EpochSnapshot::empty();
        snapshot.pods = BTreeMap::from([("critical-1".to_owned(), pod)]);
        let of = |scope, label| labels(&snapshot, scope, label);
        let pod =
            [("app", "critical-1"), ("namespace", "shop"), ("pod", "web-0"), ("workload", "web")];
        assert_eq!(of(Scope::App, "critical-1"), pod);
        assert_eq!(of(Scope::App, "db"), [("app", "db")]);
        assert_eq!(of(Scope::Core, "critical-1"), [("core", "critical-1")]);
        assert!(of(Scope::Machine, "").is_empty());
    }

    #[test]
    fn the_format_is_the_one_that_a_client_prefers() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                        encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5";
        assert_eq!(Format::accepted(protobuf), Format::Protobuf);
        let text = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(Format::accepted(text), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Text);
        assert_eq!(Format::accepted(""), Format::Text);
    }
}
