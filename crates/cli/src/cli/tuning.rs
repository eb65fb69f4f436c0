//! Arguments of `lull sweep`, `lull lab interrupts`, `lull tune` and `lull lab trace`.

use clap::Args;
use lull_measure::{Hertz, Nanos};
use lull_workload::arrivals::Rate;
use std::path::PathBuf;

/// `lull sweep`.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// A config of the agent with the policy bayop, whose server is swept as it runs; or a server
    /// to simulate and its grid (examples/tune/netserver.toml)
    pub(crate) config: PathBuf,
    /// Append a row of CSV for every trial; a sweep continues with the rows in the file
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) out: Option<PathBuf>,
    /// Write all rows as Parquet, with which settings are on the front
    #[arg(long, value_name = "FILE", value_parser = super::parquet_file)]
    #[arg(conflicts_with = "cells")]
    pub(crate) parquet: Option<PathBuf>,
    /// Draw settings and front of every load into this SVG
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) figure: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cells: super::CellArgs,
    #[command(flatten)]
    pub(crate) live: LiveSweepArgs,
    /// Print JSON
    #[arg(long, conflicts_with = "cells")]
    pub(crate) json: bool,
}

/// The arguments for the sweep of a running server alone.
#[derive(Debug, Args)]
#[command(next_help_heading = "Of a running server")]
pub(crate) struct LiveSweepArgs {
    /// Write the best setting of this load, with its evidence, into a profile that the policies
    /// co-pi and static take (agent.profile); other loads in the file stay
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) profile: Option<PathBuf>,
    /// Most settings to try, evenly spaced over the levels of the knobs [default: 24]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) settings: Option<u16>,
    /// Blocks: each tries every setting once, in another random order [default: 3]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) blocks: Option<u16>,
    /// Seed of the order, to repeat it; by default every sweep has another one
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u32>,
}

impl LiveSweepArgs {
    /// Returns whether one of them is given.
    pub(crate) fn is_given(&self) -> bool {
        let Self { profile, settings, blocks, seed } = self;
        profile.is_some() || settings.is_some() || blocks.is_some() || seed.is_some()
    }
}

/// `lull lab interrupts`.
#[derive(Debug, Args)]
pub(crate) struct IntlogArgs {
    /// The server to simulate (examples/tune/netserver.toml)
    #[arg(required_unless_present = "live")]
    pub(crate) scenario: Option<PathBuf>,
    /// Record the interrupts of this machine for this long instead; needs root or CAP_BPF and
    /// CAP_PERFMON
    #[arg(long, value_name = "TIME")]
    #[arg(conflicts_with_all = ["scenario", "rate", "delay", "frequency"])]
    pub(crate) live: Option<Nanos>,
    /// Record one core of this machine only
    #[arg(long, requires = "live")]
    pub(crate) core: Option<u16>,
    /// Requests per second; by default the first of the scenario
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Interrupt delay, such as 100us; by default the driver's own
    #[arg(long, value_name = "TIME")]
    pub(crate) delay: Option<Nanos>,
    /// Frequency, such as 1.3GHz; by default the governor's own
    #[arg(long)]
    pub(crate) frequency: Option<Hertz>,
    /// Write a row of CSV for every interrupt
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Draw the gaps between interrupts and the frames of each, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) figure: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull tune`.
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// A config of the agent with the policy bayop, whose server is searched as it runs; or a
    /// server to simulate, its objective and its grid (examples/tune/netserver.toml)
    pub(crate) config: PathBuf,
    /// Requests per second to search a simulated server at; by default those of the file
    #[arg(long, value_delimiter = ',')]
    pub(crate) rate: Vec<f64>,
    /// Trials of a search [default: 30, or as the config says]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) trials: Option<u16>,
    /// How settings are chosen: apart (ours), penalty (the paper's), front (of power and tail,
    /// below the bound), random
    #[arg(long)]
    pub(crate) method: Option<String>,
    /// Share of late requests from which on only settings that are nearly certain to meet the
    /// bound are tried
    #[arg(long, value_parser = share)]
    pub(crate) harm_max: Option<f64>,
    /// Try no new setting that is predicted to exceed twice the bound; methods apart and front
    #[arg(long)]
    pub(crate) safe: bool,
    /// End a trial whose tail is this many bounds after a quarter of its time
    #[arg(long, value_parser = cut)]
    pub(crate) cut: Option<f64>,
    /// Seed of the search, to repeat a search; by default a new one each time
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u32>,
    /// SQLite file in which trials and findings are stored, made if it is missing
    #[arg(long, default_value = "lull-tune.sqlite", value_name = "FILE")]
    pub(crate) store: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a share from 0 to 1".to_owned())
}

fn cut(text: &str) -> Result<f64, String> {
    let bounds = text.parse::<f64>().ok().filter(|bounds| *bounds >= 1.0);
    bounds.ok_or_else(|| "write a number of 1 or more".to_owned())
}

/// `lull lab trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// A recording in the form of the public cache traces; `-` reads standard input
    pub(crate) recording: PathBuf,
    /// Time to leave out at its beginning
    #[arg(long, default_value = "0s")]
    pub(crate) from: Nanos,
    /// Length of the part to use
    #[arg(long = "for", value_name = "TIME", default_value = "24h")]
    pub(crate) span: Nanos,
    /// Length of the intervals over which rates are averaged
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(crate) bin: Nanos,
    /// Scale the busiest interval to this rate, such as 750000/s
    #[arg(long, value_name = "RATE")]
    pub(crate) peak: Option<Rate>,
    /// Count only these operations, such as get,gets
    #[arg(long, value_delimiter = ',')]
    pub(crate) operations: Vec<String>,
    /// Write here instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}
