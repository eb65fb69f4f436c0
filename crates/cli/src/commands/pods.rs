//! `lull pods`: watches the pods of a Kubernetes node for an agent. The agent starts it.

use lull_agent::config::Config;
use lull_agent::discovery::Discovery;

pub(crate) fn run() -> anyhow::Result<()> {
    lull_fleet::run()
}

/// Starts what finds apps, if the config has `agent.discover`.
pub(crate) fn discovery(config: &Config) -> anyhow::Result<Option<Box<dyn Discovery>>> {
    let program = std::env::current_exe()?;
    config.agent.discover.map(|_| lull_fleet::discover(config, program)).transpose()
}
