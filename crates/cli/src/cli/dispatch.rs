//! The arguments of commands about placed requests and emulated cores: `lull serve`, `emulate`,
//! `cpufreq`, `place`.

use clap::{Args, ValueEnum};
use lull_control::CoreSet;
use lull_measure::{Hertz, Nanos, Percentile};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `lull serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The server
    #[arg(value_enum)]
    pub(crate) server: BuiltinServer,
    /// Address to listen on; port 0 takes a free port and prints it
    #[arg(long, default_value = "127.0.0.1:7300", value_parser = super::listen_at)]
    pub(crate) listen: SocketAddr,
    /// Worker threads, at most 4096; by default one for each core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) workers: Option<u16>,
    /// Put each request on a core by the dispatcher of this file (docs/dispatch.md); needs workers
    /// for all requests that may be under way: 32 by default then
    #[arg(long, value_name = "FILE")]
    pub(crate) dispatch: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A built-in server.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BuiltinServer {
    /// Prices Asian options by Monte Carlo (the interactive server of EETL section 5.1)
    Options,
}

/// `lull lab emulate`.
#[derive(Debug, Args)]
pub(crate) struct EmulateArgs {
    /// The number of the core, from 0
    #[arg(long)]
    pub(crate) core: u16,
    /// How many times slower it is to be, above 1
    #[arg(long)]
    pub(crate) slowdown: f64,
    /// Length of a duty cycle (the paper: 100 to 500 us)
    #[arg(long, default_value = "250us")]
    pub(crate) period: Nanos,
    /// End after this long; by default with the command, or when interrupted
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<Nanos>,
    /// Print the measured slow-down as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The command to run meanwhile
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// `lull lab cpufreq`.
#[derive(Debug, Args)]
pub(crate) struct CpufreqArgs {
    /// The cores, such as 0-3,8
    #[arg(long)]
    pub(crate) cores: CoreSet,
    /// The P-states, with commas between; the highest is the core's full speed
    #[arg(long, value_delimiter = ',', value_name = "FREQUENCIES", required = true)]
    pub(crate) frequencies: Vec<Hertz>,
    /// Length of a duty cycle
    #[arg(long, default_value = "250us")]
    pub(crate) period: Nanos,
    /// Directory to make the files in
    #[arg(long, value_name = "DIR")]
    pub(crate) files: PathBuf,
    /// The command to run meanwhile, with the files mounted over the kernel's
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// `lull lab dispatch`.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The number of the slow core, from 0
    #[arg(long)]
    pub(crate) slow: u16,
    /// The fast core
    #[arg(long)]
    pub(crate) fast: u16,
    /// Make the slow core slower, as `lull lab emulate` does; otherwise it must be slower
    #[arg(long)]
    pub(crate) emulate: bool,
    /// How many times slower the slow core is
    #[arg(long, default_value_t = 2.0)]
    pub(crate) slowdown: f64,
    /// Power of the fast core while busy, in units of the slow one's (EETL table 4: 6.8 at
    /// twice the speed)
    #[arg(long, default_value_t = 6.8)]
    pub(crate) fast_watts: f64,
    /// Dispatchers, the point of comparison first
    #[arg(long, value_delimiter = ',', default_value = "eetl,tl,ee,s2f")]
    pub(crate) dispatchers: Vec<String>,
    /// Requests per second; by default 0.35 of what the fast core alone would serve
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Median time of a request alone on the fast core
    #[arg(long, default_value = "4ms")]
    pub(crate) median: Nanos,
    /// The percentile of the target
    #[arg(long, default_value = "p99")]
    pub(crate) percentile: Percentile,
    /// The target; by default the tail of the demand on the fast core over 0.69, as Lucene's
    #[arg(long)]
    pub(crate) target: Option<Nanos>,
    /// Blocks a dispatcher
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Length of a block; its first quarter is left out of the figures
    #[arg(long, default_value = "20s")]
    pub(crate) block: Nanos,
    /// Seed of arrivals, requests and the order of the blocks
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the table here as Markdown too
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
