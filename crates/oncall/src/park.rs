//! The loops in which a worker's thread waits for the gate.

use crate::gate::{Decision, Gate, Wake};
use crate::gate_entry::Id;
use crate::sync::AtomicU32;

/// How threads sleep and wake: by futex, by signal, or in a model checker.
pub trait Park: Wake {
    /// Returns the time of the gate's clock in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Sleeps while `word` holds `value`, until woken or `until_ns` at the latest. It may
    /// return early. A wake between the last read of `word` and the sleep must not be lost.
    fn wait(&self, word: &AtomicU32, value: u32, until_ns: u64) -> Verdict;
}

/// Whether a worker continues to wait after a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The worker continues to wait.
    Stay,
    /// The worker must not wait, since its connection is closed or a signal arrived.
    Leave,
}

/// How a rest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// A query has arrived and the worker may run; or the worker was let go.
    Called,
    /// Its time was up.
    TimedOut,
    /// The sleep ended with [`Verdict::Leave`].
    Left,
}

impl Gate<'_> {
    /// Sleeps until a worker that [rests](Gate::rest) is called and may run, or `until_ns` at
    /// the latest if no query has arrived by then. The service thread looks at the gate
    /// meanwhile ([`Gate::release_expired`]); the worker itself does so only as often as the
    /// longest wait, so that it does not depend on that thread.
    pub fn sleep(&self, id: Id, until_ns: u64, park: &impl Park) -> Rest {
        let Some(entry) = self.entry(id) else { return Rest::Called };
        let park_max_ns = self.control().settings().park_max_ns;
        while entry.is_resting() {
            let (word, value) = entry.word();
            let check_ns = park.now_ns().saturating_add(park_max_ns);
            let verdict = park.wait(word, value, until_ns.min(check_ns));
            if verdict == Verdict::Leave && (self.end_rest(id) || self.leave(id)) {
                return Rest::Left;
            }
            if park.now_ns() >= until_ns && self.end_rest(id) {
                return Rest::TimedOut;
            }
        }
        self.park(id, park);
        Rest::Called
    }

    /// Waits until a parked worker may run. Returns the waiting time in nanoseconds.
    pub fn park(&self, id: Id, park: &impl Park) -> u64 {
        let Some(entry) = self.entry(id) else { return 0 };
        let began_ns = park.now_ns();
        let mut now_ns = began_ns;
        while self.check(id, now_ns, park) == Decision::Park {
            let (word, value) = entry.word();
            let verdict = park.wait(word, value, self.deadline_ns(id, now_ns));
            now_ns = park.now_ns();
            if verdict == Verdict::Leave && self.leave(id) {
                break;
            }
        }
        now_ns.saturating_sub(began_ns)
    }
}
