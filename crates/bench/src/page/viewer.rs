//! Viewers of the page: what its script does, without a browser.

use super::Agent;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const ASKS_EVERY: Duration = Duration::from_secs(1);

/// Some viewers, each with a thread.
pub(super) struct Viewers {
    /// Each with the longest epoch that it received, in seconds.
    streams: Vec<JoinHandle<Result<f64>>>,
    asker: Option<JoinHandle<Result<()>>>,
    done: Arc<AtomicBool>,
}

impl Viewers {
    /// Opens `count` viewers. A single one also requests the page's tables and `/metrics`.
    pub(super) fn open(address: &str, count: usize) -> Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let mut streams = Vec::new();
        for _ in 0..count {
            let stream = ask(address, "/api/events")?;
            streams.push(std::thread::spawn(move || longest_epoch(stream)));
        }
        let asker = (count == 1).then(|| {
            let (address, done) = (address.to_owned(), Arc::clone(&done));
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    for path in ["/api/epoch", "/metrics"] {
                        ask(&address, path)?.read_to_end(&mut Vec::new())?;
                    }
                    std::thread::sleep(ASKS_EVERY);
                }
                Ok(())
            })
        });
        Ok(Self { streams, asker, done })
    }

    /// Ends the agent, and with it the streams: the longest epoch that any viewer received.
    pub(super) fn close(self, agent: Agent) -> Result<f64> {
        self.done.store(true, Ordering::Relaxed);
        if let Some(asker) = self.asker {
            asker.join().ok().context("a viewer panicked")??;
        }
        drop(agent);
        let mut longest = 0.0_f64;
        for stream in self.streams {
            longest = longest.max(stream.join().ok().context("a viewer panicked")??);
        }
        if longest == 0.0 {
            bail!("no viewer received an epoch");
        }
        Ok(longest)
    }
}

/// Sends a request; its answer is still to be read.
fn ask(address: &str, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Reads a stream of epochs to its end.
fn longest_epoch(stream: TcpStream) -> Result<f64> {
    let mut longest = 0.0_f64;
    for line in BufReader::new(stream).lines() {
        // The agent's end is the end of the stream, however abrupt.
        let Ok(line) = line else { break };
        longest = longest.max(epoch_s(&line).unwrap_or(0.0));
    }
    Ok(longest)
}

fn epoch_s(line: &str) -> Option<f64> {
    let value: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
    value["epoch_s"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_epoch_is_read_from_its_event() {
        assert_eq!(epoch_s(r#"data: {"epoch":4,"epoch_s":1.002}"#), Some(1.002));
        assert_eq!(epoch_s("event: epoch"), None);
    }
}
