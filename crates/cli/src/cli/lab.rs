//! Arguments of `lull lab run`.

use super::CellArgs;
use clap::Args;
use std::path::PathBuf;

/// `lull lab run`.
#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// The experiment, by its name in `lull lab list`
    #[arg(required_unless_present = "all")]
    pub(crate) name: Option<String>,
    /// Run all experiments, one after the other
    #[arg(long, conflicts_with_all = ["name", "parts", "json"])]
    pub(crate) all: bool,
    /// First seed. Later seeds on which a parameter was calibrated are passed over; the first is
    /// refused, and with --all passed over, too
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Seeds at most: seeds are added until each compared row has five independent values and a
    /// verdict that is not open [default: 5, with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,
    /// Shorten runs, to check that the experiment works; rows may then miss their tolerances
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory to write the figures of the first seed to, as SVG
    #[arg(long, value_name = "DIR", conflicts_with = "cells")]
    pub(crate) figures: Option<PathBuf>,
    /// File of results to put the rows into, as crates/lab/src/claims/results.csv
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) save: Option<PathBuf>,
    /// With --save: also replace rows of a longer run or of more seeds
    #[arg(long, requires = "save")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) cells: CellArgs,
    /// Print JSON
    #[arg(long, conflicts_with = "cells")]
    pub(crate) json: bool,
}
