//! In which spans of equal length the requests of an app missed their objective, whatever the
//! epochs of the policy are.
//!
//! A request belongs to the span in which it was due. The objective of a span is missed if more
//! of its requests than the percentile leaves are answered later than the bound, or not at all.

use lull_measure::{Nanos, Percentile};

/// Spans of equal length, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// When the first begins.
    pub start: Nanos,
    /// The length of each.
    pub length: Nanos,
}

/// The requests of an app by the span in which they were due.
#[derive(Debug, Clone)]
pub(super) struct DueWindows {
    windows: Windows,
    objective: (Percentile, Nanos),
    spans: Vec<SpanCount>,
}

/// The requests that were due in one span.
#[derive(Debug, Clone, Copy, Default)]
struct SpanCount {
    due: u64,
    in_time: u64,
    /// Whether the app departed before all were answered.
    left_out: bool,
}

impl DueWindows {
    /// No request yet.
    pub(super) fn new(windows: Windows, objective: (Percentile, Nanos)) -> Self {
        Self { windows, objective, spans: Vec::new() }
    }

    /// The span of an instant; `None` before the start.
    fn span(&mut self, at_ns: u64) -> Option<&mut SpanCount> {
        let index = (at_ns.checked_sub(self.windows.start.0)? / self.windows.length.0) as usize;
        if index >= self.spans.len() {
            self.spans.resize(index + 1, SpanCount::default());
        }
        self.spans.get_mut(index)
    }

    /// A request is due.
    pub(super) fn due(&mut self, now_ns: u64) {
        self.span(now_ns).into_iter().for_each(|span| span.due += 1);
    }

    /// A request is answered.
    pub(super) fn answered(&mut self, arrived_ns: u64, latency: Nanos) {
        let is_in_time = latency <= self.objective.1;
        self.span(arrived_ns).into_iter().for_each(|span| span.in_time += u64::from(is_in_time));
    }

    /// The app departs, and with it its requests from `oldest_ns` on.
    pub(super) fn leave_out(&mut self, oldest_ns: u64, now_ns: u64) {
        self.span(now_ns).into_iter().for_each(|span| span.left_out = true);
        let Windows { start, length } = self.windows;
        let first = oldest_ns.saturating_sub(start.0) / length.0;
        self.spans.iter_mut().skip(first as usize).for_each(|span| span.left_out = true);
    }

    /// Whether each span missed its objective that ended at least the bound before `now`.
    pub(super) fn missed(&self, now: Nanos) -> impl Iterator<Item = bool> + '_ {
        let (percentile, bound) = self.objective;
        let Windows { start, length } = self.windows;
        let known = now.0.saturating_sub(start.0).saturating_sub(bound.0) / length.0;
        let spans = (0..known as usize).map(|at| self.spans.get(at).copied().unwrap_or_default());
        spans.map(move |span| {
            let needed = (percentile.fraction() * span.due as f64 - 1e-9).ceil();
            !span.left_out && (span.in_time as f64) < needed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn windows() -> DueWindows {
        let objective = (Percentile::P95, Nanos::from_millis(10));
        let second = Nanos::from_secs(1);
        DueWindows::new(Windows { start: second, length: second }, objective)
    }

    fn missed(windows: &DueWindows, at_s: u64) -> Vec<bool> {
        windows.missed(Nanos::from_secs(at_s)).collect()
    }

    #[test]
    fn a_span_is_missed_if_more_are_late_than_the_percentile_leaves() {
        let mut windows = windows();
        windows.due(0);
        for second in [1, 2] {
            for number in 0..20 {
                let due_ns = second * SECOND + number;
                let late = number < second;
                windows.due(due_ns);
                windows.answered(due_ns, Nanos::from_millis(if late { 11 } else { 10 }));
            }
        }
        // One of twenty may be late; two may not. A span without requests misses nothing, and
        // the one that ended less than the bound ago is not known yet.
        assert_eq!(missed(&windows, 5), [false, true, false]);
        assert!(missed(&windows, 1).is_empty());
    }

    #[test]
    fn unanswered_requests_are_late_unless_their_app_departed() {
        let mut windows = windows();
        windows.due(SECOND);
        windows.due(2 * SECOND);
        assert_eq!(missed(&windows, 4), [true, true]);
        windows.leave_out(2 * SECOND, 3 * SECOND);
        assert_eq!(missed(&windows, 5), [true, false, false]);
    }
}
