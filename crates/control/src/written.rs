//! Objectives as people write them, in configs and in scenarios:
//! `{ p95 = "4.2ms" }`, `{ throughput = 1000 }` or `{ disengagement = 0.001 }`.
//!
//! One parser reads both, so that an objective is written the same way for an app on a
//! host and for an app in the simulator.

use crate::{AppSpec, Class, Objective};
use lull_measure::{Nanos, Percentile};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// One objective as it is written: a map of one key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WrittenObjective(pub Objective);

/// One objective of an app on a host as it is written, such as `{ run_queue_p99 = "1ms" }`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostObjective {
    /// The objective that policies keep.
    pub objective: Objective,
    /// The kind of latency, if it is about one.
    pub of: LatencyOf,
}

/// The kind of latency that an objective bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyOf {
    /// Requests, from when they are due to their answers.
    Requests,
    /// Threads, from runnable to running.
    RunQueue,
    /// Tasks that wait for memory: the time, in each second, for which at least one does.
    MemoryPressure,
}

impl LatencyOf {
    /// Returns its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "latency of requests",
            Self::RunQueue => "run-queue latency",
            Self::MemoryPressure => "memory pressure",
        }
    }
}

/// How the key of an objective of run-queue latency begins.
const RUN_QUEUE: &str = "run_queue_";
/// The key of an objective of memory pressure.
const MEMORY_PRESSURE: &str = "memory_pressure";
/// The percentile of a bound on memory pressure: in a report over many epochs, the pressure of
/// 95 in 100 does not exceed it. In one epoch all percentiles are the same.
const PRESSURE_PERCENTILE: Percentile = Percentile::P95;

/// An error in the description of an app, with the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct AppError {
    /// The key below the app.
    pub key: &'static str,
    /// The error and the correction.
    pub message: String,
}

impl AppSpec {
    /// Checks that the app can be steered by: its rates and its ideal latency are above zero, a
    /// latency-critical one has a tail objective, and its bound can be met.
    ///
    /// # Errors
    /// The key at fault and what to write.
    pub fn check(&self) -> Result<(), AppError> {
        let fail = |key, message| Err(AppError { key, message });
        let is_no_rate = |rate: &f64| !(rate.is_finite() && *rate > 0.0);
        for (key, rate) in [("max_load", self.max_load_per_s), ("solo", self.solo_per_s)] {
            if let Some(rate) = rate.filter(is_no_rate) {
                return fail(key, format!("is {rate}: write a rate above zero"));
            }
        }
        if self.ideal == Some(Nanos::ZERO) {
            return fail("ideal", "is zero: write the tail latency alone".to_owned());
        }
        match (self.class, self.tail()) {
            (Class::LatencyCritical, None) => {
                let advice = "write objectives = [{ p95 = \"4.2ms\" }]";
                let problem = "is latency-critical and has no tail objective";
                fail("objectives", format!("`{}` {problem}: {advice}", self.name))
            }
            (_, Some((_, bound))) if self.ideal.is_some_and(|ideal| ideal > bound) => {
                let ideal = self.ideal.unwrap_or_default();
                let what = format!("`{}`: {ideal} is above the bound {bound}", self.name);
                fail("ideal", format!("{what}: no policy can meet it"))
            }
            _ => Ok(()),
        }
    }
}

/// A map of one key, whose name is a percentile, `throughput` or `disengagement`.
impl JsonSchema for WrittenObjective {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "objective".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        objective_schema("^p[0-9.]+$")
    }
}

impl<'de> Deserialize<'de> for WrittenObjective {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = from.deserialize_map(OneKey)?;
        match read.of {
            LatencyOf::Requests => Ok(Self(read.objective)),
            of => Err(D::Error::custom(format!(
                "{} is an objective of the apps of an agent's config only, because no simulated \
                 machine has it: bound the latency of requests",
                of.name()
            ))),
        }
    }
}

impl JsonSchema for HostObjective {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "objective".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = objective_schema("^(run_queue_)?p[0-9.]+$");
        let share = json_schema!({ "type": ["string", "number"] });
        if let Some(patterns) = schema.get_mut("patternProperties") {
            patterns[format!("^{MEMORY_PRESSURE}$")] = share.to_value();
        }
        schema
    }
}

/// A map of one key: a latency, whose name matches the pattern, or another figure.
fn objective_schema(latency: &str) -> Schema {
    json_schema!({
        "type": "object",
        "title": "objective",
        "minProperties": 1,
        "maxProperties": 1,
        "patternProperties": { (latency): { "type": "string", "format": "time" } },
        "additionalProperties": { "type": "number" },
    })
}

impl<'de> Deserialize<'de> for HostObjective {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(OneKey)
    }
}

/// The forms, for every refusal.
const FORMS: &str = "write { p95 = \"4.2ms\" }, { throughput = 1000 } or { disengagement = 0.001 }";

/// The further objectives of an app on a host.
const ON_HOSTS: &str = "of an app on a host also { run_queue_p99 = \"1ms\" } or \
                        { memory_pressure = \"2%\" }";

struct OneKey;

impl<'de> Visitor<'de> for OneKey {
    type Value = HostObjective;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an objective such as { p95 = \"4.2ms\" } or { throughput = 1000 }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HostObjective, A::Error> {
        let key: String = map
            .next_key()?
            .ok_or_else(|| A::Error::custom(format!("an objective is empty: {FORMS}")))?;
        let (of, name) = match key.strip_prefix(RUN_QUEUE) {
            Some(name) => (LatencyOf::RunQueue, name),
            None if key == MEMORY_PRESSURE => (LatencyOf::MemoryPressure, key.as_str()),
            None => (LatencyOf::Requests, key.as_str()),
        };
        let objective = match (key.as_str(), name.parse::<Percentile>()) {
            ("throughput", _) => {
                Objective::Throughput { floor_per_s: positive(map.next_value()?)? }
            }
            ("disengagement", _) => Objective::Disengagement { ratio: share(map.next_value()?)? },
            (MEMORY_PRESSURE, _) => {
                let WrittenShare(share) = map.next_value()?;
                let bound = stall_time_per_s(share);
                Objective::Tail { percentile: PRESSURE_PERCENTILE, bound }
            }
            (_, Ok(percentile)) => {
                let bound: Nanos = map.next_value()?;
                if bound == Nanos::ZERO {
                    return Err(A::Error::custom("a bound of zero cannot be met"));
                }
                Objective::Tail { percentile, bound }
            }
            (_, Err(_)) => {
                return Err(A::Error::custom(format!(
                    "unknown objective `{key}`: {FORMS}; {ON_HOSTS}"
                )));
            }
        };
        match map.next_key::<String>()? {
            None => Ok(HostObjective { objective, of }),
            Some(second) => Err(A::Error::custom(format!(
                "one objective has two keys, `{key}` and `{second}`: write them as two objectives"
            ))),
        }
    }
}

/// Returns a share of time, such as a memory pressure, as the time in each second: policies
/// compare it with its bound as they compare latencies.
pub fn stall_time_per_s(share: f64) -> Nanos {
    Nanos::from_secs(1).scale(share)
}

/// A share of time: `"2%"`, or the number 0.02.
struct WrittenShare(f64);

impl<'de> Deserialize<'de> for WrittenShare {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Form {
            Share(f64),
            Percent(String),
        }
        let wrong = "is not a share of time: write \"2%\", or a number such as 0.02";
        let value = match Form::deserialize(from) {
            Ok(Form::Share(value)) => value,
            Ok(Form::Percent(text)) => {
                let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
                let percent: f64 =
                    percent.ok_or_else(|| D::Error::custom(format!("`{text}` {wrong}")))?;
                percent / 100.0
            }
            Err(_) => return Err(D::Error::custom(format!("{MEMORY_PRESSURE} {wrong}"))),
        };
        share(value).map(Self)
    }
}

fn positive<E: Error>(value: f64) -> Result<f64, E> {
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(E::custom(format!("{value} is not a rate above zero")))
    }
}

fn share<E: Error>(value: f64) -> Result<f64, E> {
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(E::custom(format!("{value} is not a share between zero and one")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Objective, String> {
        let read = serde_json::from_str::<WrittenObjective>(text);
        read.map(|written| written.0).map_err(|error| error.to_string())
    }

    #[test]
    fn all_forms_are_read() {
        let percentile = Percentile::new(95.0).unwrap();
        let bound = Nanos::from_micros(4200);
        assert_eq!(read(r#"{"p95": "4.2ms"}"#), Ok(Objective::Tail { percentile, bound }));
        let floor_per_s = 1000.0;
        assert_eq!(read(r#"{"throughput": 1000}"#), Ok(Objective::Throughput { floor_per_s }));
        let ratio = 0.001;
        assert_eq!(read(r#"{"disengagement": 0.001}"#), Ok(Objective::Disengagement { ratio }));
    }

    #[test]
    fn run_queue_latency_is_an_objective_on_a_host_and_nowhere_else() {
        let read = |text| serde_json::from_str::<HostObjective>(text).map_err(|e| e.to_string());
        let (percentile, bound) = (Percentile::P999, Nanos::from_millis(1));
        let objective = Objective::Tail { percentile, bound };
        let of = LatencyOf::RunQueue;
        assert_eq!(read(r#"{"run_queue_p99.9": "1ms"}"#), Ok(HostObjective { objective, of }));
        let requests = read(r#"{"p99.9": "1ms"}"#).unwrap();
        assert_eq!((requests.objective, requests.of), (objective, LatencyOf::Requests));
        let wrong = read(r#"{"run_queue_throughput": 3}"#).unwrap_err();
        assert!(wrong.contains("unknown objective `run_queue_throughput`"), "{wrong}");
        assert!(wrong.contains("also { run_queue_p99 = "), "{wrong}");
        let elsewhere = serde_json::from_str::<WrittenObjective>(r#"{"run_queue_p99": "1ms"}"#);
        let text = elsewhere.unwrap_err().to_string();
        assert!(text.contains("of the apps of an agent's config only"), "{text}");
    }

    #[test]
    fn memory_pressure_is_a_share_of_time_and_is_kept_as_time_in_each_second() {
        let read = |text: &str| {
            serde_json::from_str::<HostObjective>(text).map_err(|error| error.to_string())
        };
        let of = LatencyOf::MemoryPressure;
        for (text, millis) in [("\"2%\"", 20), ("\"2 %\"", 20), ("0.02", 20), ("\"12.5%\"", 125)] {
            let bound = Nanos::from_millis(millis);
            let objective = Objective::Tail { percentile: PRESSURE_PERCENTILE, bound };
            let found = read(&format!(r#"{{"memory_pressure": {text}}}"#));
            assert_eq!(found, Ok(HostObjective { objective, of }), "{text}");
        }
        for text in ["\"2\"", "\"20ms\"", "\"%\"", "\"100%\"", "\"nan%\"", "0", "1", "-0.1", "[]"] {
            let error = read(&format!(r#"{{"memory_pressure": {text}}}"#)).unwrap_err();
            assert!(error.contains("share"), "{text}: {error}");
        }
        let elsewhere = serde_json::from_str::<WrittenObjective>(r#"{"memory_pressure": "2%"}"#);
        let text = elsewhere.unwrap_err().to_string();
        assert!(text.contains("memory pressure is an objective of the apps of an agent"), "{text}");
        assert!(read(r#"{"run_queue_memory_pressure": 0.1}"#).is_err());
    }

    #[test]
    fn rates_and_an_ideal_of_an_app_that_are_not_above_zero_are_refused() {
        let bound = Nanos::from_millis(8);
        let app = AppSpec::latency_critical("search", Percentile::P95, bound);
        assert_eq!(app.check(), Ok(()));
        let key = |app: AppSpec| app.check().unwrap_err().key;
        for rate in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
            let rate = Some(rate);
            assert_eq!(key(AppSpec { max_load_per_s: rate, ..app.clone() }), "max_load");
            assert_eq!(key(AppSpec { solo_per_s: rate, ..AppSpec::best_effort("batch") }), "solo");
        }
        assert_eq!(key(AppSpec { ideal: Some(Nanos::ZERO), ..app }), "ideal");
    }

    #[test]
    fn what_is_no_objective_is_refused_with_what_to_write() {
        let cases = [
            ("{}", "an objective is empty: write"),
            (r#"{"bound": "4ms"}"#, "unknown objective `bound`"),
            (r#"{"p95": "0ms"}"#, "a bound of zero"),
            (r#"{"p95": "1ms", "p99": "2ms"}"#, "two keys, `p95` and `p99`"),
            (r#"{"throughput": -1}"#, "-1 is not a rate above zero"),
            (r#"{"disengagement": 1}"#, "1 is not a share between zero and one"),
        ];
        for (text, wanted) in cases {
            let error = read(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn an_app_without_tail_or_with_an_ideal_above_its_bound_is_refused() {
        let percentile = Percentile::new(95.0).unwrap();
        let mut app = AppSpec::latency_critical("cache", percentile, Nanos::from_millis(4));
        assert_eq!(app.check(), Ok(()));
        app.ideal = Some(Nanos::from_millis(5));
        assert_eq!(app.check().unwrap_err().key, "ideal");
        app.objectives.clear();
        assert_eq!(app.check().unwrap_err().key, "objectives");
        assert_eq!(AppSpec::best_effort("batch").check(), Ok(()));
    }
}
