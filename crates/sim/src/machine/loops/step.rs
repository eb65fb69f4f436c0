//! The work of a core of an app of event loops: requests, and the steps that serve them.

use crate::order::NEVER_NS;

/// A request on its way through the core, or a part of one that the thread reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoopRequest {
    /// When it reached the card; never for a part.
    pub(super) arrived_ns: u64,
    /// Its work, relative to the mean.
    pub(super) work: f64,
}

impl LoopRequest {
    /// Frames of a message that is not complete: they are read, and nothing is answered.
    pub(super) const PART: Self = Self { arrived_ns: NEVER_NS, work: 0.0 };

    /// Whether it is a part.
    pub(super) const fn is_part(&self) -> bool {
        self.arrived_ns == NEVER_NS
    }
}

/// A piece of work on the core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) what: StepKind,
    /// Cycles left when it (re)started.
    pub(super) cycles: f64,
    /// Memory time left then.
    pub(super) memory_ns: f64,
    /// The time at which it began.
    pub(super) from_ns: u64,
}

/// The kind of a step. Polling is never interrupted; the others are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    /// A round of polling takes packets from the card.
    Round,
    /// The thread is woken.
    Wake,
    /// The thread fetches the ready requests (`epoll_wait`).
    Ask,
    /// The thread serves the first of these requests.
    Serve,
    /// The thread goes to sleep.
    Sleep,
}

/// The present activity of the core.
#[derive(Debug, Clone, Copy)]
pub(super) enum CoreActivity {
    Idle,
    /// Leaving an idle state, to interrupt at the end.
    Leaving,
    Working(Step),
}
