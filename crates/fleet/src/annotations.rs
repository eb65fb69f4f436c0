//! The settings in the annotations and labels of a pod. An annotation overrules a label.
//!
//! ```text
//! lull.dev/class: latency-critical      or best-effort
//! lull.dev/objective: p99=50ms          several separated by commas
//! lull.dev/latency: ebpf                where its latency comes from: ebpf, push, otlp, prometheus
//! lull.dev/service: checkout            the service.name of its exports that name no pod
//! lull.dev/container: web               the container that is the app, not the whole pod
//! lull.dev/manage: "false"              leave the pod alone
//! ```
//!
//! A key that begins with `lull.dev/` and is none of these is an error, so that a slip of the pen
//! does not leave a server without its objective.

use crate::source::LatencyName;
use lull_control::{Class, HostObjective};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The prefix of all keys.
pub(crate) const PREFIX: &str = "lull.dev/";
/// Most objectives of a pod.
const OBJECTIVES_MAX: usize = 8;

/// The settings of a pod: of its annotations, or of a `LatencyObjective` that selects it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodSettings {
    pub(crate) class: Option<Class>,
    /// All of one kind of latency.
    pub(crate) objectives: Vec<HostObjective>,
    /// The source of the latency of its requests.
    pub(crate) latency: Option<LatencyName>,
    /// The name of the container that is the app.
    pub(crate) container: Option<String>,
    /// The `service.name` of its exports by OTLP.
    pub(crate) service: Option<String>,
    /// Whether it is managed at all, if it says so.
    pub(crate) manage: Option<bool>,
}

impl PodSettings {
    /// Reads the labels and annotations of a pod.
    ///
    /// # Errors
    /// The key at fault, and what to write.
    pub(crate) fn read(
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let mut settings = Self::default();
        let of_labels = labels.iter().filter(|(key, _)| !annotations.contains_key(*key));
        for (key, value) in of_labels.chain(annotations) {
            let Some(name) = key.strip_prefix(PREFIX) else { continue };
            settings.set(name, value.trim()).map_err(|why| format!("{key} {why}"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "class" => self.class = Some(parse_class(value)?),
            "objective" => self.objectives = parse_objectives(value.split(','))?,
            "latency" => self.latency = Some(parse_latency(value)?),
            "container" => self.container = Some(value.to_owned()),
            "service" if is_service(value) => self.service = Some(value.to_owned()),
            "service" => return Err("is not a service.name of at most 255 letters".to_owned()),
            "manage" => self.manage = Some(parse_flag(value)?),
            _ => {
                let known = "class, objective, latency, container, service and manage";
                return Err(format!("is unknown: there are {known}"));
            }
        }
        Ok(())
    }

    /// These settings, with those that are absent taken from others.
    pub(crate) fn or(self, other: &Self) -> Self {
        let has_objectives = !self.objectives.is_empty();
        Self {
            class: self.class.or(other.class),
            latency: self.latency.or(other.latency.filter(|_| !has_objectives)),
            service: self.service.or_else(|| other.service.clone()),
            objectives: if has_objectives { self.objectives } else { other.objectives.clone() },
            container: self.container.or_else(|| other.container.clone()),
            manage: self.manage.or(other.manage),
        }
    }
}

fn parse_class(text: &str) -> Result<Class, String> {
    serde_json::from_value(Value::from(text))
        .map_err(|_| format!("is `{text}`: write \"latency-critical\" or \"best-effort\""))
}

fn parse_latency(text: &str) -> Result<LatencyName, String> {
    let names = LatencyName::ALL.map(LatencyName::name);
    let known = LatencyName::ALL.into_iter().find(|one| one.name() == text);
    known.ok_or_else(|| format!("is `{text}`: write one of {}", names.join(", ")))
}

/// Whether a text may be a `service.name`.
pub(crate) fn is_service(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(char::is_control)
}

fn parse_flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("is `{text}`: write \"true\" or \"false\""))
}

/// Reads objectives such as `p99=50ms`, `throughput=1000` and `run_queue_p99=1ms`.
///
/// # Errors
/// The fault of one of them.
pub(crate) fn parse_objectives<'a>(
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<HostObjective>, String> {
    let all: Vec<HostObjective> =
        texts.take(OBJECTIVES_MAX + 1).map(parse_objective).collect::<Result<_, _>>()?;
    if all.len() > OBJECTIVES_MAX {
        return Err(format!("has more than {OBJECTIVES_MAX} objectives"));
    }
    let mut latencies = all.iter().filter(|one| one.objective.bounds_latency()).map(|one| one.of);
    let first = latencies.next();
    if let Some((first, other)) = first.zip(latencies.find(|of| Some(*of) != first)) {
        let both = format!("bounds {} and {}", first.name(), other.name());
        return Err(format!("{both}: keep one, for an app has one latency"));
    }
    Ok(all)
}

fn parse_objective(text: &str) -> Result<HostObjective, String> {
    let wrong = |why: String| format!("has `{}`: {why}", text.trim());
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| wrong("write a percentile and its bound, p99=50ms".to_owned()))?;
    let value = value.trim();
    let value = value.parse::<f64>().map_or_else(|_| Value::from(value), Value::from);
    // The same reader as for a config, whose form is { p99 = "50ms" }.
    let map = Map::from_iter([(key.trim().to_owned(), value)]);
    serde_json::from_value(Value::Object(map)).map_err(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::{LatencyOf, Objective};
    use lull_measure::{Nanos, Percentile};

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(pairs: &[(&str, &str)]) -> Result<PodSettings, String> {
        PodSettings::read(&BTreeMap::new(), &map(pairs))
    }

    #[test]
    fn all_keys_are_read_and_others_are_left_to_their_owners() {
        let settings = read(&[
            ("lull.dev/class", "latency-critical"),
            ("lull.dev/objective", "p99=50ms, throughput = 1000"),
            ("lull.dev/latency", "ebpf"),
            ("lull.dev/container", "web"),
            ("prometheus.io/scrape", "true"),
        ]);
        let settings = settings.unwrap();
        assert_eq!(settings.class, Some(Class::LatencyCritical));
        let (percentile, bound) = (Percentile::P99, Nanos::from_millis(50));
        let objectives: Vec<Objective> =
            settings.objectives.iter().map(|one| one.objective).collect();
        let throughput = Objective::Throughput { floor_per_s: 1000.0 };
        assert_eq!(objectives, [Objective::Tail { percentile, bound }, throughput]);
        assert_eq!((settings.latency, settings.service), (Some(LatencyName::Ebpf), None));
        let exports = [("lull.dev/latency", "otlp"), ("lull.dev/service", "checkout")];
        assert_eq!(read(&exports).unwrap().service.as_deref(), Some("checkout"));
        assert_eq!((settings.container.as_deref(), settings.manage), (Some("web"), None));
        assert_eq!(read(&[("lull.dev/manage", "false")]).unwrap().manage, Some(false));
        let waits = read(&[("lull.dev/objective", "run_queue_p99=1ms")]).unwrap();
        assert_eq!(waits.objectives[0].of, LatencyOf::RunQueue);
    }

    #[test]
    fn every_key_may_be_a_label_and_an_annotation_wins() {
        let none = BTreeMap::new();
        let mut labels = map(&[("lull.dev/class", "best-effort"), ("app", "web")]);
        labels.extend(map(&[("lull.dev/manage", "false"), ("lull.dev/container", "web")]));
        let settings = PodSettings::read(&labels, &none).unwrap();
        assert_eq!((settings.class, settings.manage), (Some(Class::BestEffort), Some(false)));
        assert_eq!(settings.container.as_deref(), Some("web"));
        let unknown = PodSettings::read(&map(&[("lull.dev/managed", "false")]), &none);
        assert!(unknown.unwrap_err().contains("lull.dev/managed is unknown"));
        let annotations = map(&[("lull.dev/class", "latency-critical")]);
        labels.insert("lull.dev/class".to_owned(), "critical".to_owned());
        let settings = PodSettings::read(&labels, &annotations).unwrap();
        assert_eq!(settings.class, Some(Class::LatencyCritical));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_write() {
        let many = ["p99=1ms"; 9].join(",");
        let cases = [
            ("lull.dev/class", "critical", "write \"latency-critical\" or"),
            ("lull.dev/objective", "50ms", "write a percentile and its bound, p99=50ms"),
            ("lull.dev/objective", "p99=fast", "has `p99=fast`"),
            ("lull.dev/objective", "p99=0ms", "a bound of zero"),
            ("lull.dev/objective", "p101=5ms", "unknown objective `p101`"),
            ("lull.dev/objective", "", "write a percentile"),
            ("lull.dev/objective", "p99=5ms,memory_pressure=2%", "keep one"),
            ("lull.dev/objective", "throughput=-1", "not a rate above zero"),
            ("lull.dev/objective", many.as_str(), "more than 8"),
            ("lull.dev/latency", "logs", "write one of ebpf, push, otlp, prometheus"),
            ("lull.dev/service", "", "is not a service.name"),
            ("lull.dev/manage", "no", "write \"true\" or \"false\""),
            ("lull.dev/objectives", "p99=5ms", "lull.dev/objectives is unknown"),
        ];
        for (key, value, wanted) in cases {
            let error = read(&[(key, value)]).unwrap_err();
            assert!(error.contains(wanted) && error.starts_with(key), "{key}={value}: {error}");
        }
    }

    #[test]
    fn a_pod_overrules_what_selects_it_key_by_key() {
        let resource = PodSettings {
            class: Some(Class::LatencyCritical),
            objectives: parse_objectives(["p99=50ms"].into_iter()).unwrap(),
            latency: Some(LatencyName::Ebpf),
            manage: Some(true),
            ..PodSettings::default()
        };
        let own = read(&[("lull.dev/objective", "run_queue_p99=1ms")]).unwrap().or(&resource);
        assert_eq!(own.objectives[0].of, LatencyOf::RunQueue);
        assert_eq!(own.latency, None, "its own objective is of another latency");
        assert_eq!(own.class, Some(Class::LatencyCritical));
        let left = read(&[("lull.dev/manage", "false")]).unwrap().or(&resource);
        assert_eq!((left.manage, left.objectives.len()), (Some(false), 1));
    }
}
