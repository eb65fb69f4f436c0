//! What a node measures for its placer's beats.

use crate::order::NEVER_NS;
use lull_control::placer::{Beat, Every, Seen, Window};
use lull_measure::Nanos;

/// Measures for the placer's beats.
pub(super) struct Meter {
    pub(super) beat: Beat,
    pub(super) window: Window,
    /// Answers since the last beat.
    since: u32,
    pub(super) next_ns: u64,
}

impl Meter {
    pub(super) fn new(beat: Beat) -> Self {
        let next_ns = match beat.every {
            Every::Answers(_) => NEVER_NS,
            Every::Time(period) => period.0.max(1),
        };
        Self { beat, window: Window::new(beat.window), since: 0, next_ns }
    }

    /// Takes note of an answer; whether that ends a beat.
    pub(super) fn answered(&mut self, latency: Nanos) -> bool {
        self.window.answered(latency);
        self.since += 1;
        matches!(self.beat.every, Every::Answers(every) if self.since >= every)
    }

    /// Ends a beat: what was measured, with this many requests in the system.
    pub(super) fn read(&mut self, now: Nanos, active: usize) -> Seen {
        self.since = 0;
        if let Every::Time(period) = self.beat.every {
            self.next_ns += period.0.max(1);
        }
        Seen {
            now,
            tail: self.window.tail(self.beat.percentile),
            samples: self.window.samples(),
            late: self.beat.bound.and_then(|bound| self.window.late(bound)),
            rate_per_s: self.window.rate_per_s(),
            active,
        }
    }
}
