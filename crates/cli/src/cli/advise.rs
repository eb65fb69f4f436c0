//! Arguments of `lull advise`.

use super::exec::protocol_parser;
use clap::Args;
use lull_oncall::protocol::Protocol;

/// `lull advise`.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// The server: a process number or a systemd unit
    pub(crate) server: String,
    /// How long to watch it; a change of its load in this time makes the verdict more certain
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// The server's protocol; by default by the name of its program
    #[arg(long, value_parser = protocol_parser())]
    pub(crate) protocol: Option<Protocol>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
