//! Arguments of `lull calibrate`.

use clap::{Args, Subcommand};
use lull_control::CoreSet;
use lull_measure::Nanos;
use std::path::PathBuf;

/// `lull calibrate`: the apps of a config, or this machine.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct CalibrateArgs {
    #[command(subcommand)]
    pub(crate) machine: Option<CalibrateMachine>,
    #[command(flatten)]
    pub(crate) apps: CalibrateApps,
}

/// The part of the machine that is calibrated.
#[derive(Debug, Subcommand)]
pub(crate) enum CalibrateMachine {
    /// Fit a power model of this machine to its meter, for machines of its kind without one
    Power(CalibratePowerArgs),
    /// Measure how long cores must sleep for their deepest idle state to pay
    Idle(CalibrateIdleArgs),
}

/// The apps of a config, one by one.
#[derive(Debug, Args)]
pub(crate) struct CalibrateApps {
    /// The config, to which the results are written
    #[arg(required = true)]
    pub(crate) config: Option<PathBuf>,
    /// Write the config with the results to this file instead
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Calibrate only these apps
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Vec<String>,
    /// Length of one trial at one rate
    #[arg(long, default_value = "2s")]
    pub(crate) trial: Nanos,
    /// Time for all measurements; the result lists values that were not found by then
    #[arg(long, default_value = "5m")]
    pub(crate) budget: Nanos,
    /// Measure with all cores only, not with 1, 2, 3, ...
    #[arg(long)]
    pub(crate) all_cores_only: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments that both measurements of the machine share.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Length of each measurement
    #[arg(long, default_value = "10s")]
    pub(crate) dwell: Nanos,
    /// Time that is left out before each measurement
    #[arg(long, default_value = "2s")]
    pub(crate) settle: Nanos,
    /// Directory of the agent's state
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull calibrate power`.
#[derive(Debug, Args)]
pub(crate) struct CalibratePowerArgs {
    /// Write the model to this file, for `[power] file` of a config
    #[arg(long, value_name = "FILE", default_value = "power.toml")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// `lull calibrate idle`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateIdleArgs {
    /// The idle state, by its name in `lull check`; by default the deepest
    #[arg(long, value_name = "NAME")]
    pub(crate) idle_state: Option<String>,
    /// The cores that sleep; by default all
    #[arg(long, value_name = "CORES")]
    pub(crate) cores: Option<CoreSet>,
    /// Lengths of sleep; by default those of REEF's figure
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    pub(crate) sleep: Vec<Nanos>,
    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}
