//! The admission controller that the options of `lull exec` and `lull attach` request.

use super::UsageError;
use super::gate::inline_table;
use super::objective::objectives;
use crate::cli::{ExecMode, GateArgs};
use lull_agent::admission::{AdmissionSetup, LiveAdmission, Promise, workers};
use lull_host::oncall::Runtime;
use lull_oncall::Settings;
use std::sync::Arc;

/// Returns the requested admission controller, if the options name one.
///
/// # Errors
/// If no admission controller has this name, a key or objective is invalid, or the
/// controller does not fit the gate.
pub(super) fn live_admission(
    args: &GateArgs,
    runtime: &Arc<Runtime>,
    closed: Settings,
) -> Result<Option<LiveAdmission>, UsageError> {
    let Some(name) = args.controller() else { return Ok(None) };
    let objectives = objectives(&args.objectives)?;
    let setup = AdmissionSetup {
        name: name.to_owned(),
        keys: table("--key", &args.keys)?,
        closed,
        workers: workers(args.mode.map(|mode| mode == ExecMode::Epoll), &objectives),
        objectives,
        promises: promises(&args.promises)?,
        seed: seed(),
    };
    let admission = LiveAdmission::new(&setup, Arc::clone(runtime));
    admission.map(Some).map_err(|error| UsageError(format!("--concurrency {name}: {error}")))
}

/// Draws a seed from the clock: two runs compare settings in another order.
fn seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| u64::from(since.subsec_nanos()) ^ since.as_secs())
}

/// Keys as a config would have them, each in an argument of this option.
///
/// # Errors
/// The error of TOML.
pub(super) fn table(option: &str, keys: &[String]) -> Result<toml::Table, UsageError> {
    let read = |key: &String| {
        let table: Result<toml::Table, _> = key.parse();
        table.map_err(|error| UsageError(format!("{option} {key}: {}", error.message())))
    };
    let mut all = toml::Table::new();
    for key in keys {
        all.extend(read(key)?);
    }
    Ok(all)
}

/// Promises as a config would have them, each an inline table in its argument.
fn promises(texts: &[String]) -> Result<Vec<Promise>, UsageError> {
    let read = |text: &String| {
        let wrong = |message: &str| UsageError(format!("--promise {text}: {message}"));
        let one: Promise =
            inline_table(text).map_err(|error: toml::de::Error| wrong(error.message()))?;
        one.check().map_err(|(key, message)| wrong(&format!("{key} {message}")))?;
        Ok(one)
    };
    texts.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_a_config_and_a_slip_is_quoted_as_it_was_written() {
        let keys = ["goal=\"tail\"", "rounds=5"].map(str::to_owned);
        let table = table("--key", &keys).unwrap();
        assert_eq!(table["rounds"].as_integer(), Some(5));
        assert_eq!(table["goal"].as_str(), Some("tail"));
        let error = super::table("--key", &["goal=tail".to_owned()]).unwrap_err().0;
        assert!(error.starts_with("--key goal=tail: "), "{error}");
    }
}
