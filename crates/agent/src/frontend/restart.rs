//! When a front end that has ended is started again.

use std::time::{Duration, Instant};

/// The wait before the second start in a row; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A front end that has lived as long had no part in the next one's end.
const STEADY_AFTER: Duration = Duration::from_secs(60);

/// The back-off of starts.
#[derive(Debug)]
pub(super) struct Restart {
    started: Instant,
    wait: Duration,
    due: Option<Instant>,
}

impl Restart {
    /// A front end was started for the first time.
    pub(super) const fn new(now: Instant) -> Self {
        Self { started: now, wait: Duration::ZERO, due: None }
    }

    /// Notes that it has ended, or that a start has failed. The first new start is due immediately.
    pub(super) fn ended(&mut self, now: Instant) {
        if now.saturating_duration_since(self.started) >= STEADY_AFTER {
            self.wait = Duration::ZERO;
        }
        self.due = Some(now + self.wait);
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
    }

    /// Whether a start is due; notes the start.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            (self.started, self.due) = (now, None);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_that_ends_again_and_again_is_started_ever_more_rarely() {
        let begin = Instant::now();
        let mut restart = Restart::new(begin);
        assert!(!restart.take_due(begin), "it runs");
        let (mut now, mut waits) = (begin, Vec::new());
        for _ in 0..10 {
            restart.ended(now);
            let ended = now;
            while !restart.take_due(now) {
                now += Duration::from_millis(500);
            }
            waits.push((now - ended).as_millis());
        }
        assert_eq!(waits[..5], [0, 500, 1_000, 2_000, 4_000]);
        assert_eq!(waits[9], 60_000);
        now += STEADY_AFTER;
        restart.ended(now);
        assert!(restart.take_due(now), "it had worked for long");
    }
}
