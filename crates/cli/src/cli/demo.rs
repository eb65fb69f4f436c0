//! The arguments of `lull demo` and `lull demo database`.

use clap::{Args, Subcommand, ValueEnum};
use lull_agent::temporary_database;
use lull_measure::Nanos;
use std::path::PathBuf;

/// `lull demo`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    pub(crate) subject: Option<DemoSubject>,
    #[command(flatten)]
    pub(crate) policy: PolicyDemoArgs,
}

/// A demonstration other than that of a policy.
#[derive(Debug, Subcommand)]
pub(crate) enum DemoSubject {
    /// A database with and without a concurrency limit
    #[command(
        long_about = "A database with and without a concurrency limit.\n\nStarts MariaDB or \
                      PostgreSQL on an empty temporary directory, loads it with transactions \
                      that contend for twelve rows, lets `auto` decide on a limit, and then \
                      compares the open gate with that limit in blocks in random order. \
                      Everything is removed at the end."
    )]
    Database(DatabaseDemoArgs),
}

/// `lull demo database`.
#[derive(Debug, Args)]
pub(crate) struct DatabaseDemoArgs {
    /// Which database; by default the one that is installed, MariaDB first
    #[arg(long)]
    pub(crate) engine: Option<Engine>,
    /// Connections that send transactions all the time
    #[arg(long, short, default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub(crate) connections: u16,
    /// Seconds under load: up to half for `auto` to decide, the rest for the comparison
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(24..=3600))]
    pub(crate) seconds: u32,
    /// Seed of the requests and of the order of the blocks
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory for the picture
    #[arg(long, default_value = "runs")]
    pub(crate) record: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A database that `lull demo database` can start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// MariaDB
    Mariadb,
    /// PostgreSQL
    Postgresql,
}

impl From<Engine> for temporary_database::DatabaseEngine {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Mariadb => Self::Mariadb,
            Engine::Postgresql => Self::Postgresql,
        }
    }
}

/// `lull demo` without a subject: a policy on the built-in apps.
#[derive(Debug, Args)]
pub(crate) struct PolicyDemoArgs {
    /// Policy to compare with doing nothing
    #[arg(long, default_value = "arq")]
    pub(crate) policy: String,
    /// A key of that policy, as in a config; arq without any is shown with
    /// priority="latency-critical" where scheduling classes can be set (root)
    #[arg(long = "key", value_name = "KEY=VALUE")]
    pub(crate) keys: Vec<String>,
    /// Pairs of blocks, one without and one with the policy
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) pairs: u32,
    /// Length of a block; its first quarter is left out of the figures
    #[arg(long, default_value = "8s")]
    pub(crate) block: Nanos,
    /// Directory for the record
    #[arg(long, default_value = "runs")]
    pub(crate) record: PathBuf,
    /// Directory of the agent's state
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
