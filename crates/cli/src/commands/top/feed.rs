//! Reads the agent's epochs over HTTP on a thread of its own; reconnects after a loss.

use super::state::{Epoch, Facts, Past, Update};
use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, ErrorKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const RETRY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(5);
/// The metrics whose past values are drawn.
const SERIES: &str = "entropy_system_ratio,tail_latency_seconds";

/// The receiving end.
pub(super) struct Feed {
    updates: Receiver<Update>,
}

impl Feed {
    /// Starts the thread that connects to the agent.
    pub(super) fn start(address: &str) -> Self {
        let (sender, updates) = channel();
        let source = Source { base: format!("http://{address}"), agent: agent(), sender };
        // The thread ends with the process, or once the receiver of its updates is dropped.
        std::thread::spawn(move || source.run());
        Self { updates }
    }

    /// Returns the updates since the last call.
    pub(super) fn updates(&self) -> Vec<Update> {
        self.updates.try_iter().collect()
    }
}

fn agent() -> ureq::Agent {
    // A proxy is for remote hosts, not for the agent of this machine.
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .build();
    ureq::Agent::new_with_config(config)
}

struct Source {
    base: String,
    agent: ureq::Agent,
    sender: Sender<Update>,
}

impl Source {
    fn run(&self) {
        loop {
            let lost = match self.follow() {
                // A reload ends the stream too, since viewers read the facts of the run again.
                Ok(()) => "the stream of epochs has ended".to_owned(),
                Err(error) => lull_agent::error::describe(&error),
            };
            if self.sender.send(Update::Lost(lost)).is_err() {
                return;
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Follows the stream until it ends.
    fn follow(&self) -> anyhow::Result<()> {
        let facts: Facts = self.get("/api/run")?;
        self.sender.send(Update::Run(facts))?;
        let past: Past = self.get(&format!("/api/history?series={SERIES}&epochs=300"))?;
        self.sender.send(Update::Past(past))?;
        let answer = self.agent.get(format!("{}/api/events", self.base)).call()?;
        let lines = BufReader::new(answer.into_body().into_reader()).lines();
        for line in lines {
            let line = line.context("the stream broke off")?;
            let Some(text) = line.strip_prefix("data: ").filter(|text| text.starts_with('{'))
            else {
                continue;
            };
            let epoch: Epoch = serde_json::from_str(text).context("an epoch is not understood")?;
            self.sender.send(Update::Epoch(Box::new(epoch)))?;
        }
        Ok(())
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let answer = self.agent.get(format!("{}{path}", self.base)).call();
        let mut answer = answer.map_err(explained)?;
        let text = answer.body_mut().read_to_string()?;
        serde_json::from_str(&text).with_context(|| format!("{path} is not understood"))
    }
}

/// Says what to do where nothing listens at the address.
fn explained(error: ureq::Error) -> anyhow::Error {
    match error {
        ureq::Error::Io(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
            anyhow!("no agent listens (start it with --http)")
        }
        other => other.into(),
    }
}
