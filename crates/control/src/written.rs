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
    /// What policies keep.
    pub objective: Objective,
    /// Of which latency, if it is about one.
    pub of: LatencyOf,
}

/// What a latency is measured of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyOf {
    /// Requests, from when they are due to their answers.
    Requests,
    /// Threads, from runnable to running.
    RunQueue,
}

/// How the key of an objective of run-queue latency begins.
const RUN_QUEUE: &str = "run_queue_";

/// What is wrong with an app as it is written, and at which of its keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct AppError {
    /// The key below the app.
    pub key: &'static str,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl AppSpec {
    /// Checks that the app can be steered by: a latency-critical one has a tail
    /// objective, and its bound can be met.
    ///
    /// # Errors
    /// The key at fault and what to write.
    pub fn check(&self) -> Result<(), AppError> {
        let fail = |key, message| Err(AppError { key, message });
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
            LatencyOf::RunQueue => Err(D::Error::custom(
                "run-queue latency is an objective of the apps of an agent's config only",
            )),
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
        objective_schema("^(run_queue_)?p[0-9.]+$")
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
            None => (LatencyOf::Requests, key.as_str()),
        };
        let objective = match (key.as_str(), name.parse::<Percentile>()) {
            ("throughput", _) => {
                Objective::Throughput { floor_per_s: positive(map.next_value()?)? }
            }
            ("disengagement", _) => Objective::Disengagement { ratio: share(map.next_value()?)? },
            (_, Ok(percentile)) => {
                let bound: Nanos = map.next_value()?;
                if bound == Nanos::ZERO {
                    return Err(A::Error::custom("a bound of zero cannot be met"));
                }
                Objective::Tail { percentile, bound }
            }
            (_, Err(_)) => {
                return Err(A::Error::custom(format!("unknown objective `{key}`: {FORMS}")));
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
        let elsewhere = serde_json::from_str::<WrittenObjective>(r#"{"run_queue_p99": "1ms"}"#);
        let text = elsewhere.unwrap_err().to_string();
        assert!(text.contains("of the apps of an agent's config only"), "{text}");
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
