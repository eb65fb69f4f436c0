//! What an experiment is: its name and source, how it is run, and why it may have no report.
//!
//! The list of all experiments is [`crate::registry`].

use crate::figure::DrawError;
use crate::progress::Progress;
use crate::report::Report;
use lull_control::PolicyError;
use lull_control::dispatcher::DispatcherError;
use lull_sim::dispatch::DispatchModelError;
use lull_sim::oversubscribed::ServerModelError;
use lull_sim::stats::Failure;
use serde::Serialize;

/// One experiment.
#[derive(Debug, Serialize)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// Paper and table or figure.
    pub paper: &'static str,
    /// The seed document; empty if it is about none.
    pub seed_file: &'static str,
    /// What it shows, in one sentence.
    pub summary: &'static str,
    /// Runs it.
    #[serde(skip)]
    pub(crate) run: fn(&Setup<'_>) -> Result<Report, LabError>,
}

/// How an experiment is run.
pub struct Setup<'a> {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Whether to cut lengths down to see that it works; tolerances then need not hold.
    pub quick: bool,
    /// Commit of the program, for the report.
    pub commit: String,
    /// Who is told how far it is.
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
    /// A seed that the experiment's own numbers were found on.
    #[error(
        "numbers of this experiment were found on seed {seed} (they were on {known:?}), so a \
         verdict on it would mean nothing: write another --seed"
    )]
    Known {
        /// The seed that was asked for.
        seed: u64,
        /// All such seeds.
        known: Vec<u64>,
    },
    /// A simulation failed.
    #[error(transparent)]
    Simulation(#[from] Failure),
    /// A policy could not be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A dispatcher could not be made.
    #[error(transparent)]
    Dispatcher(#[from] DispatcherError),
    /// A placed node could not be made.
    #[error(transparent)]
    Node(#[from] DispatchModelError),
    /// An oversubscribed server could not be made.
    #[error(transparent)]
    Server(#[from] ServerModelError),
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] DrawError),
}

impl<'a> Setup<'a> {
    /// The full experiment with seed 1 and nobody watching.
    pub fn new(commit: &str) -> Self {
        Self { seed: 1, quick: false, commit: commit.to_owned(), progress: Progress::silent() }
    }

    /// `full`, or `quick` if lengths are to be cut down.
    pub(crate) fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

impl Experiment {
    /// Runs it.
    ///
    /// # Errors
    /// If a simulation, policy or figure fails; a row outside its tolerance is no error.
    pub fn run(&self, setup: &Setup<'_>) -> Result<Report, LabError> {
        (self.run)(setup)
    }

    /// An empty report of this experiment.
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
