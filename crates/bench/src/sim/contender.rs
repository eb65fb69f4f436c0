//! One simulator on one model: a process that times itself.

use crate::process::printed;
use crate::python::Python;
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// The simulator of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Simulator {
    Ours,
    SimPy,
    Ciw,
}

/// The unit that a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RateUnit {
    Request,
    Event,
}

/// The output of a run, as JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(super) struct Outcome {
    /// CPU time of the simulation.
    pub(super) cpu_s: f64,
    /// Requests answered in it.
    pub(super) answered: u64,
    /// Events in it; only ours counts them.
    #[serde(default)]
    pub(super) events: u64,
    pub(super) mean_response_s: f64,
    /// Most memory of the process; only ours looks.
    #[serde(default)]
    pub(super) peak_mb: f64,
}

/// A simulator and a model.
pub(super) struct Contender<'c> {
    pub(super) by: Simulator,
    pub(super) model: &'static str,
    /// This program.
    pub(super) ours: &'c Path,
    pub(super) python: &'c Python,
}

impl Simulator {
    /// Returns its name, for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "lull",
            Self::SimPy => "SimPy",
            Self::Ciw => "Ciw",
        }
    }
}

impl Outcome {
    /// Requests or events for each second of CPU time.
    pub(super) fn rate_per_s(&self, per: RateUnit) -> f64 {
        let count = match per {
            RateUnit::Request => self.answered,
            RateUnit::Event => self.events,
        };
        count as f64 / self.cpu_s
    }
}

impl Contender<'_> {
    /// Runs it once.
    pub(super) fn run(&self, seed: u64) -> Result<Outcome> {
        let mut command = match self.by {
            Simulator::Ours => Command::new(self.ours),
            Simulator::SimPy => self.python.script("simpy_models.py"),
            Simulator::Ciw => self.python.script("ciw_models.py"),
        };
        if self.by == Simulator::Ours {
            command.arg(crate::SIM_MODEL);
        }
        let text = printed(command.args([self.model, &seed.to_string()]))?.text;
        serde_json::from_str(&text).with_context(|| format!("{command:?} printed {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_over_cpu_time() {
        let text = r#"{"cpu_s": 0.5, "answered": 100, "mean_response_s": 1, "throughput": 3}"#;
        let outcome: Outcome = serde_json::from_str(text).unwrap();
        assert_eq!(outcome.rate_per_s(RateUnit::Request), 200.0);
        assert_eq!((outcome.rate_per_s(RateUnit::Event), outcome.peak_mb), (0.0, 0.0));
    }
}
