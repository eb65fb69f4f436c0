//! The end of a process that the agent has started and no longer uses.
//!
//! The loop of the agent does not wait for the process. It polls whether the process has ended, and
//! the poll kills a process whose time is over.

use std::process::Child;
use std::time::{Duration, Instant};

/// How long a process may take to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// A process that must end before the agent does. Dropping it waits for its end, and kills it if it
/// does not end by itself.
#[derive(Debug)]
pub struct EndingChild {
    child: Child,
    /// When it is killed; `None` while it may run.
    deadline: Option<Instant>,
}

impl EndingChild {
    /// Wraps a process that may run until [`Self::end`] or [`Self::kill`] is called.
    pub const fn new(child: Child) -> Self {
        Self { child, deadline: None }
    }

    /// Returns the number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives the process a second to end by itself.
    pub fn end(&mut self, now: Instant) {
        self.deadline = Some(now + END_TIMEOUT);
    }

    /// Gives the process no time: the next [`Self::end_status`] kills it.
    pub const fn kill(&mut self, now: Instant) {
        self.deadline = Some(now);
    }

    /// Returns how the process ended, without waiting, and `None` while it runs. Kills it once its
    /// time is over.
    pub fn end_status(&mut self, now: Instant) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => return Some(status.to_string()),
            Ok(None) => {}
            Err(error) => return Some(error.to_string()),
        }
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        // Root without CAP_KILL may not kill a process of another user; then it is left.
        let error = self.child.kill().err()?;
        Some(format!("it cannot be killed: {error}; CAP_KILL is needed"))
    }
}

impl Drop for EndingChild {
    fn drop(&mut self) {
        let begin = Instant::now();
        let deadline = *self.deadline.get_or_insert_with(|| begin + END_TIMEOUT);
        // The end of a process that was killed takes a moment, unless the kernel holds it.
        let last = deadline.max(begin) + END_TIMEOUT;
        while self.end_status(Instant::now()).is_none() && Instant::now() < last {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_does_not_end_in_time_is_killed_without_a_wait() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (begin, mut process) = (Instant::now(), EndingChild::new(child));
        assert_eq!(process.end_status(begin + 2 * END_TIMEOUT), None, "it may run");
        process.end(begin);
        assert_eq!(process.end_status(begin), None, "it has a second");
        let status = loop {
            // The first call kills it, and a later one sees that it has ended.
            if let Some(status) = process.end_status(begin + END_TIMEOUT) {
                break status;
            }
        };
        assert!(status.contains("signal: 9"), "{status}");
    }

    #[test]
    fn a_process_that_is_not_trusted_is_killed_when_it_is_dropped() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (begin, mut process) = (Instant::now(), EndingChild::new(child));
        let pid = rustix::process::Pid::from_raw(process.pid().cast_signed()).unwrap();
        process.kill(begin);
        drop(process);
        assert!(rustix::process::test_kill_process(pid).is_err(), "it is gone, and reaped");
    }
}
