//! Objectives in the options of `lull exec` and `lull attach`.

use super::UsageError;
use lull_control::{Objective, WrittenObjective};

/// Objectives, each in its argument.
///
/// # Errors
/// The first invalid one and the reason.
pub(super) fn objectives(texts: &[String]) -> Result<Vec<Objective>, UsageError> {
    texts.iter().map(|text| objective(text)).collect()
}

/// Reads an objective in the form of a config, with or without quotes.
fn objective(text: &str) -> Result<Objective, UsageError> {
    let is_toml = toml::from_str::<toml::Table>(text).is_ok();
    let quoted = match text.split_once('=').filter(|_| !is_toml) {
        Some((key, value)) => format!("{key}=\"{}\"", value.trim()),
        None => text.to_owned(),
    };
    let wrong =
        |error: toml::de::Error| UsageError(format!("--objective {text}: {}", error.message()));
    toml::from_str::<WrittenObjective>(&quoted).map(|written| written.0).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::{Nanos, Percentile};

    #[test]
    fn an_objective_is_that_of_a_config_and_needs_no_quotes() {
        let bound = Nanos::from_millis(50);
        let tail = Objective::Tail { percentile: Percentile::P99, bound };
        assert_eq!(objective("p99=50ms").unwrap(), tail);
        assert_eq!(objective("p99 = \"50ms\"").unwrap(), tail);
        let floor = Objective::Throughput { floor_per_s: 1000.0 };
        assert_eq!(objective("throughput=1000").unwrap(), floor);
        let refused = [
            ("p99=fast", "`fast` is not a duration"),
            ("p99=-5ms", "`-5ms` is not a duration"),
            ("p999=5ms", "unknown objective `p999`"),
            ("throughput=-1", "not a rate above zero"),
            ("speed=5", "unknown objective"),
            ("p99", "p99"),
        ];
        for (text, why) in refused {
            let error = objective(text).unwrap_err().0;
            assert!(error.starts_with("--objective ") && error.contains(why), "{error}");
        }
    }
}
