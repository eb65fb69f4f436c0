//! Objectives as they are written: `{ p95 = "4.2ms" }` or `{ throughput = 1000 }`.

use lull_control::Objective;
use lull_measure::{Nanos, Percentile};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::fmt;

/// One objective in a config.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written(pub(crate) Objective);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(OneKey).map(Self)
    }
}

/// The two forms, for every refusal.
const FORMS: &str = "write { p95 = \"4.2ms\" } or { throughput = 1000 }";

struct OneKey;

impl<'de> Visitor<'de> for OneKey {
    type Value = Objective;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an objective such as { p95 = \"4.2ms\" } or { throughput = 1000 }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Objective, A::Error> {
        let key: String = map
            .next_key()?
            .ok_or_else(|| A::Error::custom(format!("an objective is empty: {FORMS}")))?;
        let objective = match (key.as_str(), key.parse::<Percentile>()) {
            ("throughput", _) => {
                Objective::Throughput { floor_per_s: positive(map.next_value()?)? }
            }
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
            None => Ok(objective),
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
