//! Our side of the comparison: one model in this process.

use super::Outcome;
use super::machines::{self, MACHINES, MachineBench};
use super::models::{BenchCounts, BenchModel, benches};
use crate::process::memory;
use crate::stats::ns_each;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Runs a model and prints its cost in the form of the other simulators.
///
/// # Errors
/// If there is no such model or it reaches a bound.
pub(crate) fn model(name: &str, seed: u64) -> Result<()> {
    println!("{}", outcome(name, seed)?);
    Ok(())
}

fn outcome(name: &str, seed: u64) -> Result<Value> {
    let machine = MACHINES.into_iter().find(|bench| bench.name == name);
    let outcome = match machine {
        Some(bench) => of_machine(bench, seed)?,
        None => {
            let bench = benches().into_iter().find(|bench| bench.name == name);
            let unknown = || format!("the simulator has no benchmark model {name}");
            of_stations(&bench.with_context(unknown)?, seed)?
        }
    };
    Ok(json!({
        "cpu_s": outcome.cpu_s,
        "answered": outcome.answered,
        "events": outcome.events,
        "mean_response_s": outcome.mean_response_s,
        "peak_mb": memory(std::process::id())?.peak_mb,
    }))
}

fn of_stations(bench: &BenchModel, seed: u64) -> Result<Outcome> {
    let mut system = bench.start(seed)?;
    let mut ran = None;
    let cpu_ns = ns_each(1, || ran = Some(bench.run(&mut system)));
    let BenchCounts { events, answered } = ran.context("the model did not run")??;
    let engine = system.engine();
    let response_ns: u128 = (0..engine.app_count()).map(|app| engine.responses(app).1).sum();
    Ok(Outcome {
        cpu_s: cpu_ns / 1e9,
        answered,
        events,
        mean_response_s: response_ns as f64 / 1e9 / answered as f64,
        ..Outcome::default()
    })
}

fn of_machine(bench: MachineBench, seed: u64) -> Result<Outcome> {
    let mut machine = bench.start(seed)?;
    let before = machine.events();
    let cpu_ns = ns_each(1, || bench.run(&mut machine));
    Ok(Outcome { cpu_s: cpu_ns / 1e9, ..machines::outcome(&machine, before)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "slow: 4 million customers, unoptimised"]
    fn a_model_prints_its_cost_and_its_mean() {
        let outcome = outcome("mm1", 1).unwrap();
        assert!(outcome["cpu_s"].as_f64().unwrap() > 0.0, "{outcome}");
        assert!(outcome["events"].as_u64() > outcome["answered"].as_u64(), "{outcome}");
        let mean_s = outcome["mean_response_s"].as_f64().unwrap();
        assert!((mean_s - 5e-3).abs() < 2.5e-4, "{outcome}");
    }

    #[test]
    fn an_unknown_model_is_refused() {
        assert!(outcome("mm2", 1).unwrap_err().to_string().contains("no benchmark model mm2"));
    }
}
