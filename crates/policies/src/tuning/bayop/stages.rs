//! The stages of `bayop`: it observes the load, tries a setting, or holds one.

use crate::search::{
    Gather, Reading, Refusal, Rules, Search, SearchPoint, evidence_of, is_refuted,
};
use lull_control::TrialEvidence;
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The stage of the search.
#[derive(Debug)]
pub(super) enum Stage {
    /// There was no observation yet, or there is nothing to search.
    Waiting,
    /// Settings are known, and the load is being observed.
    Looking { gather: Gather },
    /// A trial of a setting is in progress.
    Trying(TrialInProgress),
    /// A setting is held.
    Holding(Holding),
}

/// A trial in progress, with the search that proposed it.
#[derive(Debug)]
pub(super) struct TrialInProgress {
    pub(super) search: Box<Search>,
    pub(super) point: SearchPoint,
    pub(super) gather: Gather,
    /// Why the point cannot be set.
    pub(super) refused: Option<Refusal>,
    /// Requests per second in the first reading: trials at another load are not comparable.
    pub(super) load: Option<f64>,
}

/// A setting that is held.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) point: SearchPoint,
    pub(super) since: Nanos,
    pub(super) rate_per_s: f64,
    /// Windows in a row over the bound.
    pub(super) over: u32,
    pub(super) meets: bool,
    pub(super) gather: Gather,
    /// The last windows.
    pub(super) readings: VecDeque<Reading>,
}

/// Windows of the setting in force that are evidence.
const WINDOWS: usize = 30;

/// The evidence of the last windows of the setting in force.
pub(super) struct Watched {
    pub(super) evidence: TrialEvidence,
    pub(super) is_refuted: bool,
}

impl Holding {
    /// Adds a window; one at another load is not evidence.
    pub(super) fn add(&mut self, reading: &Reading, changed: bool, rules: &Rules) -> Watched {
        self.over = if reading.tail_us > rules.bound_us { self.over + 1 } else { 0 };
        if !changed {
            self.readings.push_back(*reading);
        }
        if self.readings.len() > WINDOWS {
            self.readings.pop_front();
        }
        let readings = self.readings.make_contiguous();
        let evidence = evidence_of(readings, rules);
        Watched { is_refuted: is_refuted(readings, rules), evidence }
    }
}
