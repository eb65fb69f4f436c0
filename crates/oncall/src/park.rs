//! A worker's wait, over whatever a thread can sleep on.

use crate::gate::{Decision, Gate, Wake};
use crate::seat::Id;
use crate::sync::AtomicU32;

/// How threads sleep and wake: a futex, or what a model checker has.
pub trait Park: Wake {
    /// Now, on the gate's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Sleeps while `word` holds `value`, until woken or `until_ns` at the
    /// latest. It may return early. A wake between the last look at `word`
    /// and the sleep must not be lost.
    fn wait(&self, word: &AtomicU32, value: u32, until_ns: u64) -> Verdict;
}

/// What a worker learnt while it slept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it waits on.
    Stay,
    /// Its connection is gone, so that waiting is no use.
    Leave,
}

/// How a rest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Something has come, and the worker may run; or it was let go.
    Called,
    /// Its time was up.
    Late,
    /// What it slept on said that it should [leave](Verdict::Leave).
    Left,
}

impl Gate<'_> {
    /// Sleeps until a worker that [rests](Gate::rest) is called and may run, or
    /// `until_ns` at the latest if nothing has come by then. It does not look
    /// at the gate meanwhile: whoever calls workers looks for them
    /// ([`Gate::relieve`]).
    pub fn sleep(&self, id: Id, until_ns: u64, park: &impl Park) -> Rest {
        let Some(seat) = self.seat(id) else { return Rest::Called };
        while seat.is_resting() {
            let (word, value) = seat.word();
            let verdict = park.wait(word, value, until_ns);
            if verdict == Verdict::Leave && (self.rise(id) || self.leave(id)) {
                return Rest::Left;
            }
            if park.now_ns() >= until_ns && self.rise(id) {
                return Rest::Late;
            }
        }
        self.park(id, park);
        Rest::Called
    }

    /// Waits until a worker that was told to park may run; how long, in nanoseconds.
    pub fn park(&self, id: Id, park: &impl Park) -> u64 {
        let Some(seat) = self.seat(id) else { return 0 };
        let began_ns = park.now_ns();
        let mut now_ns = began_ns;
        while self.check(id, now_ns, park) == Decision::Park {
            let (word, value) = seat.word();
            let verdict = park.wait(word, value, self.deadline_ns(id, now_ns));
            now_ns = park.now_ns();
            if verdict == Verdict::Leave && self.leave(id) {
                break;
            }
        }
        now_ns.saturating_sub(began_ns)
    }
}
