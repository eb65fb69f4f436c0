//! A search for a concurrency limit: up from one worker, or on a live server down from the open
//! gate.

use super::Site;
use crate::toolkit::descent::Descent;
use crate::toolkit::knee::Knee;
use lull_control::admission::GateObservation;
use lull_measure::Nanos;

/// A search for a limit, or a limit that was given.
#[derive(Debug, Clone)]
pub(crate) enum CapSearch {
    /// A search from one worker up, as REEF describes it.
    Up(Knee),
    /// A search from the open gate down.
    Down(Descent),
}

impl CapSearch {
    /// Keeps `cap`, or searches for one if that is 0: up to `most`, or at a live server whose
    /// workers can wait from the open gate down to the number of cores.
    pub(crate) fn new(cap: u32, most: u32, window: Nanos, site: &Site<'_>) -> Self {
        if cap == 0 && site.is_live && site.workers.may_wait() {
            Self::Down(Descent::new(site.cores.max(1), window))
        } else {
            Self::Up(Knee::new(cap, most, window))
        }
    }

    /// Returns the limit to use now; `None` for an open gate.
    pub(crate) fn cap(&self) -> Option<u32> {
        match self {
            Self::Up(knee) => Some(knee.cap()),
            Self::Down(descent) => descent.cap(),
        }
    }

    /// Returns whether the first search has ended (drift is followed still).
    pub(crate) fn has_settled(&self) -> bool {
        match self {
            Self::Up(knee) => knee.has_settled(),
            Self::Down(descent) => descent.has_settled(),
        }
    }

    /// Returns the throughput at the limit that was found from one worker up; `None` before it is
    /// known.
    pub(crate) fn best_per_s(&self) -> Option<f64> {
        match self {
            Self::Up(knee) => knee.best_per_s(),
            Self::Down(_) => None,
        }
    }

    /// Returns the throughput of the open gate; `None` before it is known, and without a search
    /// that opens it.
    pub(crate) fn open_per_s(&self) -> Option<f64> {
        match self {
            Self::Up(_) => None,
            Self::Down(descent) => descent.open_per_s(),
        }
    }

    /// Notes the answers.
    pub(crate) fn note(&mut self, seen: &GateObservation<'_>) {
        match self {
            Self::Up(knee) => knee.note(seen),
            Self::Down(descent) => descent.note(seen),
        }
    }
}
