//! `lull frontend`: serves page and push socket of an agent. The agent starts it.

pub(crate) fn run() -> anyhow::Result<()> {
    lull_agent::frontend::run()
}
