//! A real Chromium without a window: when it first paints, and what it loads.

use super::free_port;
use crate::process::Running;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const START_MAX: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(60);
const ARGUMENTS: [&str; 6] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
];
/// The browser's own measurements, once it has painted.
const MEASURES: &str = "const paint = performance.getEntriesByName('first-contentful-paint')[0];\
    const files = performance.getEntriesByType('resource')\
        .concat(performance.getEntriesByType('navigation'))\
        .filter((it) => !it.name.includes('/api/'));\
    return paint ? [paint.startTime, files.reduce((sum, it) => sum + it.transferSize, 0)] : null;";

/// One load of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) first_paint_ms: f64,
    /// The bytes of all files as they were sent, with their heads; without the API's answers.
    pub(super) bytes: f64,
}

/// Whether there is a browser that can be driven.
pub(super) fn is_here() -> bool {
    let mut command = Command::new("chromedriver");
    let quiet = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// A browser.
pub(super) struct Driver {
    address: String,
    session: String,
    _profile: tempfile::TempDir,
    _process: Running,
}

impl Driver {
    pub(super) fn start() -> Result<Self> {
        let (port, profile) = (free_port()?, tempfile::tempdir()?);
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Running::start(&mut command)?;
        let address = format!("127.0.0.1:{port}");
        let started = Instant::now();
        while TcpStream::connect(&address).is_err() {
            if started.elapsed() > START_MAX {
                bail!("chromedriver does not answer at {address}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let place = format!("--user-data-dir={}", profile.path().display());
        let arguments: Vec<&str> = ARGUMENTS.into_iter().chain([place.as_str()]).collect();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments } } } });
        let mut driver =
            Self { address, session: String::new(), _profile: profile, _process: process };
        let begun = driver.ask("POST", "/session", &wanted)?;
        let id = begun["sessionId"].as_str().context("chromedriver gave no session")?;
        driver.session = format!("/session/{id}");
        driver.tell("Network.setCacheDisabled", &json!({ "cacheDisabled": true }))?;
        Ok(driver)
    }

    /// Loads a page again.
    pub(super) fn load(&self, address: &str) -> Result<Load> {
        self.post("url", &json!({ "url": address }))?;
        let started = Instant::now();
        loop {
            let script = json!({ "script": MEASURES, "args": [] });
            let measures = self.post("execute/sync", &script)?;
            if let (Some(first_paint_ms), Some(bytes)) =
                (measures[0].as_f64(), measures[1].as_f64())
            {
                return Ok(Load { first_paint_ms, bytes });
            }
            if started.elapsed() > START_MAX {
                bail!("{address} paints nothing: {measures}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tell(&self, command: &str, parameters: &Value) -> Result<Value> {
        self.post("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", &format!("{}/{path}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let text = answer(&mut stream)?;
        let mut value: Value = serde_json::from_str(&text)
            .with_context(|| format!("{method} {path}: chromedriver answered {text}"))?;
        if let Some(error) = value["value"]["error"].as_str() {
            bail!("{method} {path}: {error}: {}", value["value"]["message"]);
        }
        Ok(value["value"].take())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The browser ends with its session; where it does not, with its driver.
        let _ = self.ask("DELETE", &self.session, &json!({}));
    }
}

/// The body of an answer, by its length: the driver keeps connections.
fn answer(stream: &mut TcpStream) -> Result<String> {
    let (mut bytes, mut part) = (Vec::new(), [0; 65_536]);
    loop {
        if let Some(body) = whole(&bytes) {
            return Ok(body);
        }
        let read = stream.read(&mut part)?;
        if read == 0 {
            bail!("the answer ends early: {}", String::from_utf8_lossy(&bytes));
        }
        bytes.extend_from_slice(&part[..read]);
    }
}

/// The body, if all of it is there.
fn whole(bytes: &[u8]) -> Option<String> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let length: usize = length.trim().parse().ok()?;
    let body = bytes.get(end..end + length)?;
    Some(String::from_utf8_lossy(body).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_all_of_its_length_is_there() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{\"a\"";
        assert_eq!(whole(text).as_deref(), Some("{\"a\""));
        assert_eq!(whole(&text[..text.len() - 1]), None);
        assert_eq!(whole(b"HTTP/1.1 200 OK\r\n"), None);
    }
}
