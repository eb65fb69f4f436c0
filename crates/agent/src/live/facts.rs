//! Facts about a run that do not change while its apps are the same, as they are sent to the page.

use crate::VERSION;
use lull_control::{AppSpec, Capability, Machine, in_force};
use lull_measure::catalogue::{Metric, gauges};
use serde::Serialize;

/// A run's head.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// The record's name, which identifies the run.
    pub run: String,
    version: &'static str,
    /// Nanoseconds since 1970 at the start.
    started_unix_ns: u64,
    dry_run: bool,
    /// Whether orders are accepted.
    control: bool,
    machine: MachineFacts,
    apps: Vec<AppFacts>,
    /// Policies that can be switched to here; empty without control.
    policies: Vec<String>,
    metrics: Vec<MetricFacts>,
}

/// The arguments of [`Facts::new`].
pub struct Head<'a> {
    /// Name of the record's file, without its ending.
    pub run: String,
    /// When the run began, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Whether no setting is applied.
    pub dry_run: bool,
    /// The machine.
    pub machine: &'a Machine,
    /// The apps, references measured.
    pub apps: &'a [AppSpec],
    /// Policies that can be switched to; `None` if orders are not accepted.
    pub policies: Option<Vec<String>>,
}

#[derive(Debug, Clone, Serialize)]
struct MachineFacts {
    name: String,
    cores: usize,
    cache_ways: Option<u32>,
    /// Missing capabilities with the reason, by name.
    missing: Vec<(String, String)>,
}

#[derive(Debug, Clone, Serialize)]
struct AppFacts {
    name: String,
    class: lull_control::Class,
    /// The percentile of the first tail objective: `p95`.
    percentile: Option<String>,
    bound_seconds: Option<f64>,
    ideal_seconds: Option<f64>,
    solo_per_second: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
struct MetricFacts {
    key: String,
    of: &'static str,
    help: &'static str,
    source: &'static str,
}

impl Facts {
    /// Collects the facts of a run.
    pub fn new(head: Head<'_>) -> Self {
        let Head { run, started_unix_ns, dry_run, machine, apps, policies } = head;
        Self {
            run,
            version: VERSION,
            started_unix_ns,
            dry_run,
            control: policies.is_some(),
            machine: MachineFacts {
                name: machine.name.clone(),
                cores: machine.cores.len(),
                cache_ways: machine.cache.as_ref().map(|cache| cache.ways),
                missing: missing(machine),
            },
            apps: in_force(apps).map(|(_, spec)| app_facts(spec)).collect(),
            policies: policies.unwrap_or_default(),
            metrics: gauges().map(metric_facts).collect(),
        }
    }
}

fn missing(machine: &Machine) -> Vec<(String, String)> {
    let of = |what: Capability| {
        let why = machine.capabilities.get(what).err()?;
        Some((what.to_string(), why.to_string()))
    };
    Capability::ALL.into_iter().filter_map(of).collect()
}

fn app_facts(spec: &AppSpec) -> AppFacts {
    let tail = spec.tail();
    AppFacts {
        name: spec.name.clone(),
        class: spec.class,
        percentile: tail.map(|(percentile, _)| percentile.to_string()),
        bound_seconds: tail.map(|(_, bound)| bound.as_secs_f64()),
        ideal_seconds: spec.ideal.map(lull_measure::Nanos::as_secs_f64),
        solo_per_second: spec.solo_per_s,
    }
}

fn metric_facts(metric: &Metric) -> MetricFacts {
    let of = metric.scope.name();
    MetricFacts { key: metric.json_key(), of, help: metric.help, source: metric.source }
}
