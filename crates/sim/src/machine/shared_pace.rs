//! The pace that interference leaves to all running threads alike, and when each of them ends.
//!
//! Running threads are slowed by one factor, which changes whenever one of them starts or stops.
//! A clock that runs at this factor is shared by all: on it, the instant at which a thread ends
//! stays the same while others start and stop, so that such a change costs the same however many
//! threads run.

use crate::order::{NEVER_NS, round_ns};

/// The clock of work that all running threads share.
#[derive(Debug, Clone)]
pub(super) struct SharedPace {
    /// How much the threads are slowed for each unit of speed beyond the first.
    interference: f64,
    /// Time of the clock per time, and what the clock was at `at_ns`.
    pace: f64,
    clock_ns: f64,
    at_ns: u64,
    /// The clock when the work of each core's thread was last brought up to date, and when the
    /// thread ends; infinite if the core has none that makes progress.
    since_ns: Vec<f64>,
    ends_ns: Vec<f64>,
    /// The speed of each core that has a thread; 0 of the others.
    speeds: Vec<f64>,
    /// The core whose thread ends first.
    pub(super) first: usize,
}

impl SharedPace {
    /// A clock that runs at full pace at time 0; `None` without interference.
    pub(super) fn new(interference: f64, cores: usize) -> Option<Self> {
        (interference > 0.0).then(|| Self {
            interference,
            pace: 1.0,
            clock_ns: 0.0,
            at_ns: 0,
            since_ns: vec![0.0; cores],
            ends_ns: vec![f64::INFINITY; cores],
            speeds: vec![0.0; cores],
            first: 0,
        })
    }

    #[inline]
    fn at(&self, now_ns: u64) -> f64 {
        self.clock_ns + (now_ns - self.at_ns) as f64 * self.pace
    }

    /// Sets the pace from now on to that of all threads which run together.
    pub(super) fn set_pace(&mut self, now_ns: u64) {
        self.clock_ns = self.at(now_ns);
        self.at_ns = now_ns;
        let speed: f64 = self.speeds.iter().sum();
        self.pace = 1.0 / (1.0 + self.interference * (speed - 1.0).max(0.0));
    }

    /// Time on the clock since the work of a core's thread was last brought up to date.
    #[inline]
    pub(super) fn done_ns(&self, core: usize, now_ns: u64) -> f64 {
        self.at(now_ns) - self.since_ns[core]
    }

    /// The same, which brings it up to date.
    #[inline]
    pub(super) fn take_ns(&mut self, core: usize, now_ns: u64) -> f64 {
        let clock_ns = self.at(now_ns);
        clock_ns - std::mem::replace(&mut self.since_ns[core], clock_ns)
    }

    /// The thread of a core of this speed makes progress from `from_ns` on, and then ends after
    /// this much time on the clock. Returns when the core must be looked at again: where its
    /// progress begins.
    pub(super) fn set_end(
        &mut self,
        core: usize,
        speed: f64,
        now_ns: u64,
        from_ns: u64,
        span_ns: f64,
    ) -> u64 {
        self.speeds[core] = speed;
        if from_ns > now_ns {
            self.ends_ns[core] = f64::INFINITY;
            return from_ns;
        }
        if from_ns == now_ns {
            self.since_ns[core] = self.at(now_ns);
        }
        self.ends_ns[core] = self.since_ns[core] + span_ns;
        NEVER_NS
    }

    /// A core has no thread any more.
    #[inline]
    pub(super) fn stop(&mut self, core: usize) {
        (self.ends_ns[core], self.speeds[core]) = (f64::INFINITY, 0.0);
    }

    /// Finds the thread that ends first. Returns when that is; `NEVER_NS` if none does.
    pub(super) fn find_first(&mut self, now_ns: u64) -> u64 {
        let (mut first, mut end_ns) = (0, f64::INFINITY);
        for (core, ends_ns) in self.ends_ns.iter().enumerate() {
            let is_earlier = *ends_ns < end_ns;
            first = if is_earlier { core } else { first };
            end_ns = if is_earlier { *ends_ns } else { end_ns };
        }
        self.first = first;
        if end_ns == f64::INFINITY {
            return NEVER_NS;
        }
        let left_ns = (end_ns - self.at(now_ns)).max(0.0);
        now_ns.saturating_add(round_ns(left_ns / self.pace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_ends_later_while_others_run_and_no_other_thread_is_timed_again() {
        assert!(SharedPace::new(0.0, 2).is_none());
        let mut shared = SharedPace::new(0.5, 2).unwrap();
        assert_eq!(shared.find_first(0), NEVER_NS);
        assert_eq!(shared.set_end(0, 1.0, 0, 0, 1000.0), NEVER_NS);
        shared.set_pace(0);
        assert_eq!((shared.find_first(0), shared.first), (1000, 0));
        // From 400 on, a second core of speed 1 leaves both two thirds of the pace.
        assert_eq!(shared.set_end(1, 1.0, 400, 400, 200.0), NEVER_NS);
        shared.set_pace(400);
        assert_eq!((shared.find_first(400), shared.first), (700, 1));
        assert!((shared.done_ns(0, 700) - 600.0).abs() < 1e-9);
        assert!((shared.take_ns(1, 700) - 200.0).abs() < 1e-9);
        shared.stop(1);
        shared.set_pace(700);
        assert_eq!((shared.find_first(700), shared.first), (1100, 0));
    }

    #[test]
    fn a_thread_that_makes_no_progress_yet_is_looked_at_when_it_does() {
        let mut shared = SharedPace::new(1.0, 1).unwrap();
        assert_eq!(shared.set_end(0, 1.0, 10, 25, 100.0), 25);
        assert_eq!(shared.find_first(10), NEVER_NS);
        assert_eq!(shared.set_end(0, 1.0, 25, 25, 100.0), NEVER_NS);
        assert_eq!(shared.find_first(25), 125);
    }
}
