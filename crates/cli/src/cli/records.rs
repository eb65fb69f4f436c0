//! Arguments of the commands that make or read records of several policies.

use clap::{Args, ValueEnum};
use lull_measure::Nanos;
use std::path::PathBuf;
use std::str::FromStr;

/// `lull compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The config; its own policy counts only if it is among --policies
    pub(crate) config: PathBuf,
    /// The policies, with commas between; differences are from the first
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "unmanaged,even,lc-first,parties,arq,tide"
    )]
    pub(crate) policies: Vec<String>,
    /// Rounds; in each every policy has one block
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Length of a block
    #[arg(long, default_value = "20s")]
    pub(crate) block: Nanos,
    /// Time to leave out at the beginning of each block [default: a quarter of the block]
    #[arg(long, value_name = "TIME")]
    pub(crate) settle: Option<Nanos>,
    /// Set the bound of every app whose ideal is measured to this many times its ideal
    #[arg(long, value_name = "FACTOR")]
    pub(crate) room: Option<f64>,
    /// Write the table as Markdown to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl CompareArgs {
    /// The time that is left out at the beginning of each block.
    pub(crate) fn settling(&self) -> Nanos {
        self.settle.unwrap_or(self.block / 4)
    }
}

/// `lull lab tiers`.
#[derive(Debug, Args)]
pub(crate) struct TiersArgs {
    /// Records of `lull compare`, each with another burst cycle
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Samples of the front tier's pool, with a header: unix_ms,back_khz,waiting,in_use
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: PathBuf,
    /// Connections in the pool
    #[arg(long, default_value_t = 50)]
    pub(crate) connections: u32,
    /// The number of the front tier's core, from 0
    #[arg(long, default_value_t = 0)]
    pub(crate) front: u16,
    /// The number of the back tier's core
    #[arg(long, default_value_t = 1)]
    pub(crate) back: u16,
    /// Time to leave out at the beginning of each block
    #[arg(long, default_value = "0s")]
    pub(crate) skip: Nanos,
    /// Write the tables as Markdown to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull entropy`.
#[derive(Debug, Args)]
pub(crate) struct EntropyArgs {
    /// Records of runs
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Time to leave out at the beginning of each run or phase
    #[arg(long, default_value = "0s")]
    pub(crate) skip: Nanos,
    /// E_S at which to compare resources; by default the middle of what both reach
    #[arg(long, value_name = "E_S")]
    pub(crate) at: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Records of runs
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// The page to write; by default the record's name with `.html`, or `report.html` in this
    /// directory for several records
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the tables as Markdown to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Time to leave out at the beginning of each run or phase
    #[arg(long, default_value = "0s")]
    pub(crate) skip: Nanos,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The record; several for --dataset
    #[arg(value_name = "RUN", required_unless_present = "dataset")]
    pub(crate) runs: Vec<PathBuf>,
    /// Directory to make; by default the record's name without `.db`
    #[arg(long, value_name = "DIR", conflicts_with = "dataset")]
    pub(crate) to: Option<PathBuf>,
    /// Write only this format
    #[arg(long, value_enum, conflicts_with = "dataset")]
    pub(crate) format: Option<ExportFormat>,
    /// Add the sums of the records to a dataset of many hosts: a directory, or
    /// s3://BUCKET/PREFIX
    #[arg(long, value_name = "PLACE")]
    pub(crate) dataset: Option<String>,
    /// The host of the records, instead of the one that they name
    #[arg(long, requires = "dataset")]
    pub(crate) host: Option<String>,
    /// Remove days from the dataset that are older, such as 90d: of the hosts of these records,
    /// or of all hosts without records
    #[arg(long, value_name = "DAYS", requires = "dataset")]
    pub(crate) keep: Option<Days>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of days, written `90d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Days(pub(crate) u32);

impl FromStr for Days {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('d').and_then(|number| number.parse().ok());
        let number = number.filter(|number| (1..=36_500).contains(number));
        number.map(Self).ok_or_else(|| "write days from 1d to 36500d, such as 90d".to_owned())
    }
}

/// A format of exported tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Apache Parquet
    Parquet,
    /// Comma-separated values with a header
    Csv,
}

impl ExportFormat {
    /// How its files end.
    pub(crate) const fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
        }
    }
}

/// `lull replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The record
    pub(crate) run: PathBuf,
    /// A policy to predict, with the recorded config's keys if they are its own; may be repeated
    #[arg(long, value_name = "POLICY", required = true)]
    pub(crate) policy: Vec<String>,
    /// The policy whose part of a record of several (`lull compare`) to replay
    #[arg(long, value_name = "POLICY")]
    pub(crate) part: Option<String>,
    /// Time to leave out at the beginning of each block [default: a quarter of the shortest, at
    /// most 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) skip: Option<Nanos>,
    /// Predict only if the recorded policy is reproduced within this many percent: p50, p95, p99
    /// and throughput as ratios, CPU time as a share of all cores
    #[arg(long, value_name = "PERCENT", default_value_t = 25.0)]
    pub(crate) max_error: f64,
    /// Replications of every policy
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=1000))]
    pub(crate) seeds: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Where the agent serves its page, as its --http
    #[arg(default_value = "127.0.0.1:7077", value_parser = page_address)]
    pub(crate) address: String,
}

/// Parses HOST:PORT, also within the address that the agent prints.
fn page_address(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    match address.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok() =>
        {
            Ok(address.to_owned())
        }
        _ => Err("write HOST:PORT, such as 127.0.0.1:7077".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_by_its_address_or_as_the_agent_prints_it() {
        for text in ["127.0.0.1:7077", "http://127.0.0.1:7077/"] {
            assert_eq!(page_address(text).as_deref(), Ok("127.0.0.1:7077"));
        }
        for text in ["", "somewhere", ":7077", "somewhere:", "127.0.0.1:99999", "https://a:1"] {
            assert!(page_address(text).is_err(), "{text}");
        }
    }
}
