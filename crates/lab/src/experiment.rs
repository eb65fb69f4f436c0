//! Experiments: what `lull lab` can run.

use crate::figure::DrawError;
use crate::papers::{
    ccds_2026_bayop as bayop, micro_2017_eetl as eetl, socc_2025_reef as reef,
    tpds_2024_ahq as ahq, trios_2013_ntier as ntier,
};
use crate::progress::Progress;
use crate::report::Report;
use crate::theory;
use lull_control::PolicyError;
use lull_control::dispatcher::DispatcherError;
use lull_sim::dispatch::DispatchModelError;
use lull_sim::oversubscribed::ServerModelError;
use lull_sim::stats::Failure;
use serde::Serialize;

/// Every experiment, one line each.
pub static ALL: &[&Experiment] = &[
    &theory::EXPERIMENT,
    &ntier::table2::EXPERIMENT,
    &ntier::table3::EXPERIMENT,
    &ntier::burst::EXPERIMENT,
    &ntier::period::EXPERIMENT,
    &ntier::adaptive::EXPERIMENT,
    &ntier::goodput::EXPERIMENT,
    &ntier::error::EXPERIMENT,
    &ahq::table2::EXPERIMENT,
    &ahq::knee::EXPERIMENT,
    &ahq::cores::EXPERIMENT,
    &ahq::load::EXPERIMENT,
    &ahq::fluctuating::EXPERIMENT,
    &ahq::dip::EXPERIMENT,
    &ahq::tlt::EXPERIMENT,
    &eetl::dvfs::EXPERIMENT,
    &eetl::amp::EXPERIMENT,
    &eetl::types::EXPERIMENT,
    &eetl::power::EXPERIMENT,
    &eetl::octopus::EXPERIMENT,
    &eetl::spikes::EXPERIMENT,
    &eetl::mix::EXPERIMENT,
    &eetl::noncpu::EXPERIMENT,
    &eetl::targets::EXPERIMENT,
    &eetl::gains::EXPERIMENT,
    &eetl::clairvoyant::EXPERIMENT,
    &reef::c6::EXPERIMENT,
    &reef::batch::EXPERIMENT,
    &reef::lambda::EXPERIMENT,
    &reef::policies::EXPERIMENT,
    &reef::packing::EXPERIMENT,
    &reef::ipq::EXPERIMENT,
    &reef::os::EXPERIMENT,
    &reef::overhead::EXPERIMENT,
    &reef::qoswc::EXPERIMENT,
    &reef::colocation::EXPERIMENT,
    &bayop::sweep::EXPERIMENT,
    &bayop::netpipe::EXPERIMENT,
    &bayop::model::EXPERIMENT,
    &bayop::search::EXPERIMENT,
    &bayop::day::EXPERIMENT,
    &bayop::silo::EXPERIMENT,
    &bayop::tailbench::EXPERIMENT,
];

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

/// The experiment of this name.
///
/// # Errors
/// [`LabError::Unknown`] with all names.
pub fn find(name: &str) -> Result<&'static Experiment, LabError> {
    let known = || ALL.iter().map(|experiment| experiment.name).collect::<Vec<_>>().join(", ");
    let unknown = || LabError::Unknown { name: name.to_owned(), known: known() };
    ALL.iter().copied().find(|experiment| experiment.name == name).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_a_slip_lists_them() {
        let names: BTreeSet<_> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), ALL.len());
        let text = find("ntier").unwrap_err().to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
}
