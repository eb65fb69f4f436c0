//! Commands that list what there is: metrics, keys of a config, policies.

use clap::Args;
use std::path::PathBuf;

/// `lull metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Print JSON
    #[arg(long, conflicts_with_all = ["markdown", "grafana", "grafana_fleet"])]
    pub(crate) json: bool,
    /// Print the page of the docs
    #[arg(long, conflicts_with_all = ["grafana", "grafana_fleet"])]
    pub(crate) markdown: bool,
    /// Print a dashboard for Grafana: every metric of a machine
    #[arg(long, conflicts_with = "grafana_fleet")]
    pub(crate) grafana: bool,
    /// Print a dashboard for Grafana: all machines together
    #[arg(long)]
    pub(crate) grafana_fleet: bool,
}

/// `lull keys`.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// Print JSON
    #[arg(long, conflicts_with_all = ["markdown", "schema"])]
    pub(crate) json: bool,
    /// Print the page of the docs
    #[arg(long, conflicts_with = "schema")]
    pub(crate) markdown: bool,
    /// Print the JSON schema, for an editor that checks configs
    #[arg(long)]
    pub(crate) schema: bool,
}

/// `lull policies`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long, conflicts_with_all = ["markdown", "figures"])]
    pub(crate) json: bool,
    /// Print the page of the docs
    #[arg(long, conflicts_with = "figures")]
    pub(crate) markdown: bool,
    /// Simulate each policy and write a picture of it (SVG) into this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) figures: Option<PathBuf>,
}
