//! An experiment: its name and source, how it is run, and why it may have no report.
//!
//! The list of all experiments is [`crate::registry`].

use crate::figure::DrawError;
use crate::progress::Progress;
use crate::report::Report;
use lull_control::PolicyError;
use lull_control::dispatcher::DispatcherError;
use lull_sim::ModelError;
use lull_sim::machine::MachinePlantError;
use lull_sim::stats::Failure;
use serde::Serialize;

/// One experiment.
#[derive(Debug, Serialize)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// Paper with its table or figure, such as `Li et al. 2025, Fig. 10`.
    pub paper: &'static str,
    /// File name of the paper's text among our sources; empty if it compares with theory.
    pub seed_file: &'static str,
    /// A summary in one sentence.
    pub summary: &'static str,
    /// Runs the experiment.
    #[serde(skip)]
    pub(crate) run: fn(&Setup<'_>) -> Result<Report, LabError>,
}

/// How an experiment is run.
pub struct Setup<'a> {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Whether lengths are shortened to check that the experiment works; tolerances then need
    /// not hold.
    pub quick: bool,
    /// Commit of the program; goes into the report.
    pub commit: String,
    /// Receives the number of finished parts.
    pub progress: Progress<'a>,
}

/// Why an experiment has no report.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No experiment has the name.
    #[error("no experiment is called `{name}`; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// The experiment's own parameters were fitted on this seed.
    #[error(
        "parameters of this experiment were fitted on seed {seed} (all such seeds: {known:?}), so \
         a verdict on that seed would mean nothing: write another --seed"
    )]
    Known {
        /// The requested seed.
        seed: u64,
        /// All seeds that parameters were fitted on.
        known: Vec<u64>,
    },
    /// A simulation would take too long, or too much memory.
    #[error("{0}")]
    Bound(String),
    /// A simulation failed.
    #[error(transparent)]
    Simulation(#[from] Failure),
    /// A policy cannot be built.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A dispatcher cannot be built.
    #[error(transparent)]
    Dispatcher(#[from] DispatcherError),
    /// A model cannot be simulated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A machine cannot be put under a policy.
    #[error(transparent)]
    Machine(#[from] MachinePlantError),
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] DrawError),
}

impl<'a> Setup<'a> {
    /// The full experiment with seed 1 and without progress reports.
    pub fn new(commit: &str) -> Self {
        Self { seed: 1, quick: false, commit: commit.to_owned(), progress: Progress::silent() }
    }

    /// Returns `full`, or `quick` if lengths are shortened.
    pub(crate) fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    /// If a simulation, policy or figure fails. A row outside its tolerance is a verdict and not
    /// an error.
    pub fn run(&self, setup: &Setup<'_>) -> Result<Report, LabError> {
        (self.run)(setup)
    }

    /// Returns a report of this experiment without rows.
    pub(crate) fn report(&self, title: impl Into<String>, setup: &Setup<'_>) -> Report {
        Report {
            experiment: self.name,
            seed_file: self.seed_file,
            title: title.into(),
            choices: Vec::new(),
            rows: Vec::new(),
            figures: Vec::new(),
            commit: setup.commit.clone(),
            seeds: vec![setup.seed],
            found_on: Vec::new(),
            quick: setup.quick,
        }
    }
}
