//! A program that runs beside others, and each line that it prints with its time.

use super::super::super::process::Running;
use anyhow::{Context as _, Result, bail};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, pipe};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Lines that an error repeats.
const RECENT: usize = 8;
/// Words of a client that has lost some of its connections.
const FAILURES: [&str; 2] = ["FATAL", "aborted"];

/// A line of output.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Seconds since the Unix epoch.
    pub(super) at_s: f64,
    pub(super) text: String,
}

/// A running program, which gets SIGTERM when this value is dropped.
pub(super) struct Printing {
    running: Running,
    name: String,
    lines: Receiver<Line>,
    recent: VecDeque<String>,
}

impl Printing {
    /// Starts a program; a thread reads both of its outputs.
    ///
    /// # Errors
    /// If it cannot start.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let (reader, writer) = pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let running = Running::start(&mut command)?;
        let name = command.get_program().display().to_string();
        // The pipe ends once only the program holds its writing end, and the program ends.
        drop(command);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for text in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(at_s) = now_s() else { break };
                if sender.send(Line { at_s, text }).is_err() {
                    break;
                }
            }
        });
        Ok(Self { running, name, lines, recent: VecDeque::new() })
    }

    /// Waits for the next line that `accepts`, at most this long.
    ///
    /// # Errors
    /// If the program ends, reports a failure, or prints no such line in time.
    pub(super) fn wait_for(
        &mut self,
        accepts: impl Fn(&str) -> bool,
        longest: Duration,
    ) -> Result<Line> {
        let begun = Instant::now();
        loop {
            let left = longest.saturating_sub(begun.elapsed());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => bail!("{} prints nothing: {self:?}", self.name),
                Err(RecvTimeoutError::Disconnected) => bail!("{} has ended: {self:?}", self.name),
            };
            self.remember(&line.text);
            if FAILURES.iter().any(|word| line.text.contains(word)) {
                bail!("{} has failed: {self:?}", self.name);
            }
            if accepts(&line.text) {
                return Ok(line);
            }
        }
    }

    /// Returns the time of the first line with this word of those that have arrived since the last
    /// call.
    ///
    /// # Errors
    /// If the program has ended.
    pub(super) fn time_of(&mut self, word: &str) -> Result<Option<f64>> {
        let has_ended = self.running.has_ended();
        let mut found = None;
        while let Ok(line) = self.lines.try_recv() {
            self.remember(&line.text);
            found = found.or_else(|| line.text.contains(word).then_some(line.at_s));
        }
        if has_ended {
            bail!("{} has ended: {self:?}", self.name);
        }
        Ok(found)
    }

    fn remember(&mut self, text: &str) {
        self.recent.push_back(text.to_owned());
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}

impl std::fmt::Debug for Printing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.recent.iter().try_for_each(|line| write!(out, "\n  {line}"))
    }
}

/// The time in seconds since the Unix epoch.
///
/// # Errors
/// If the clock is before it.
pub(super) fn now_s() -> Result<f64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(since.context("the clock is before 1970")?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Printing {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Printing::start(command).unwrap()
    }

    #[test]
    fn lines_of_both_outputs_have_their_time() {
        let before_s = now_s().unwrap();
        let mut program = shell("echo first; echo second >&2; echo third; exec sleep 600");
        let second = program.wait_for(|line| line == "second", LONGEST).unwrap();
        assert!(before_s <= second.at_s && second.at_s <= now_s().unwrap());
        let third = program.wait_for(|_| true, LONGEST).unwrap();
        assert_eq!(third.text, "third");
        assert_eq!(program.time_of("first").unwrap(), None);
    }

    #[test]
    fn a_program_that_ends_or_loses_connections_is_an_error_with_its_last_lines() {
        let ended = shell("echo why").wait_for(|_| false, LONGEST).unwrap_err().to_string();
        assert!(ended.contains("has ended") && ended.contains("why"), "{ended}");
        let mut program = shell("echo client 5 aborted; exec sleep 600");
        let failed = program.wait_for(|_| false, LONGEST).unwrap_err().to_string();
        assert!(failed.contains("client 5 aborted"), "{failed}");
        let silent = program.wait_for(|_| true, Duration::ZERO).unwrap_err().to_string();
        assert!(silent.contains("prints nothing"), "{silent}");
    }
}
