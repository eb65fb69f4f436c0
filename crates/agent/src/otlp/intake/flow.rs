//! The requests of one app from one sender between two windows.

use super::Window;
use crate::otlp::histogram::Unit;
use crate::otlp::series::Added;
use lull_measure::push::{LENGTH_MAX, LENGTH_MIN};
use lull_measure::{Buckets, Nanos};

/// Exports that are closer together are parts of one.
const EXPORTS_APART: Nanos = Nanos::from_millis(100);
/// The sender's clock is believed while it advances at most this many times as fast as ours.
const CLOCKS_RATIO: u64 = 2;
const CLOCKS_NOISE: Nanos = Nanos::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Flow {
    buckets: Buckets,
    errors: u64,
    /// The time that the counted exports cover.
    span: Nanos,
    /// When the last counted export arrived.
    end: Nanos,
    has_window: bool,
    /// The newest point, by the sender's clock; 0 before the first.
    newest: u64,
    /// How long the last window was.
    period: Nanos,
    export: ExportSums,
}

/// Sums of the export that is being read.
#[derive(Debug, Default)]
struct ExportSums {
    has_point: bool,
    /// Whether it was too long on its way to describe the present.
    is_late: bool,
    /// A point of it was refused, so that its requests are not known.
    is_refused: bool,
    newest: u64,
    /// The longest time in which a series has added its requests.
    span: Nanos,
    buckets: Buckets,
    errors: u64,
}

impl Flow {
    /// Passes over a point of an export that is late.
    pub(super) fn skip(&mut self, time: u64) {
        self.export.is_late = true;
        self.newest = self.newest.max(time);
    }

    /// Passes over a point that cannot be counted.
    pub(super) fn refuse(&mut self) {
        self.export.is_refused = true;
    }

    /// Adds a point of this time; `added` is `None` if nothing of it counts.
    pub(super) fn add(&mut self, added: Option<&Added>, time: u64, unit: Unit, is_error: bool) {
        let export = &mut self.export;
        (export.has_point, export.newest) = (true, export.newest.max(time));
        let Some(Added { histogram, span }) = added else { return };
        histogram.add_to(&mut export.buckets, unit);
        let count = histogram.count();
        export.span = export.span.max(*span);
        export.errors += if is_error { count } else { 0 };
    }

    /// Ends an export that arrived `now`; `false` if no window has resulted from the sender yet.
    pub(super) fn end_export(&mut self, now: Nanos) -> bool {
        let export = std::mem::take(&mut self.export);
        let is_first = self.newest == 0;
        let since = now.saturating_sub(self.end);
        if export.has_point {
            let by_sender = export.newest.saturating_sub(self.newest);
            let span = match is_first {
                true => export.span,
                false => believable(Nanos(by_sender), since),
            };
            // A repeated export, or the second part of one, covers no time of its own.
            let span = if by_sender == 0 { Nanos::ZERO } else { span };
            (self.newest, self.end) = (self.newest.max(export.newest), now);
            // An export without a length gives no rate: the first one only starts the count.
            if span > Nanos::ZERO || !is_first {
                self.buckets.merge(&export.buckets);
                self.errors = self.errors.saturating_add(export.errors);
            }
            self.cover(span);
        } else if !is_first && !export.is_late && !export.is_refused && since >= self.idle_after() {
            // It exports other metrics: it runs, and has had no request.
            self.end = now;
            self.cover(since);
        }
        self.period > Nanos::ZERO
    }

    fn idle_after(&self) -> Nanos {
        self.period.scale(0.9).max(EXPORTS_APART)
    }

    fn cover(&mut self, span: Nanos) {
        if span > Nanos::ZERO {
            self.span = self.span.saturating_add(span);
            (self.has_window, self.period) = (true, span);
        }
    }

    /// Returns the window since the last call, if an export ended since.
    pub(super) fn drain(&mut self, app: u16, sender: u32) -> Option<Window> {
        if !std::mem::take(&mut self.has_window) {
            return None;
        }
        let length = std::mem::take(&mut self.span).clamp(LENGTH_MIN, LENGTH_MAX);
        let buckets = std::mem::take(&mut self.buckets);
        let errors = std::mem::take(&mut self.errors);
        Some(Window { app, sender, end: self.end, length, errors, buckets })
    }
}

/// The time between two exports: by the sender's clock, unless it was set meanwhile.
fn believable(by_sender: Nanos, by_us: Nanos) -> Nanos {
    let most = Nanos(by_us.0.saturating_mul(CLOCKS_RATIO)).saturating_add(CLOCKS_NOISE);
    if by_sender <= most { by_sender } else { by_us }
}
