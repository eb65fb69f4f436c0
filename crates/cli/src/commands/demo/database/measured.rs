//! The measurements of the load client, by window and by block.

use lull_measure::{Latency, Nanos, Percentile};
use lull_workload::client::WindowReport;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The windows of a load under way.
#[derive(Default)]
pub(super) struct Windows {
    all: Mutex<Vec<Window>>,
}

struct Window {
    time: Range<Nanos>,
    completed: u64,
    /// Emptied when the next block begins.
    latencies: Option<Box<Latency>>,
    p99: Option<Nanos>,
}

/// One window in the picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) end: Nanos,
    pub(super) p99: Option<Nanos>,
    pub(super) per_s: f64,
}

/// The counted part of a block.
#[derive(Debug, Default)]
pub(super) struct Block {
    latency: Latency,
    completed: u64,
    span: Nanos,
}

impl Windows {
    fn lock(&self) -> MutexGuard<'_, Vec<Window>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, report: &WindowReport, latencies: &Latency) {
        let length = Nanos::from_secs_f64(report.length_seconds);
        self.lock().push(Window {
            time: report.start_ns..report.start_ns + length,
            completed: report.completed_requests,
            latencies: Some(Box::new(latencies.clone())),
            p99: latencies.quantile(Percentile::P99),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Sums the windows that lie within a time, and drops the latencies of all windows.
    pub(super) fn block(&self, begin: Nanos, end: Nanos) -> Block {
        let mut block = Block::default();
        let mut all = self.lock();
        for window in &mut *all {
            let latencies = window.latencies.take();
            if let Some(latencies) = latencies
                && window.time.start >= begin
                && window.time.end <= end
            {
                block.latency.merge(&latencies);
                block.completed += window.completed;
                block.span += window.time.end.saturating_sub(window.time.start);
            }
        }
        block
    }

    pub(super) fn points(&self) -> Vec<Point> {
        let point = |window: &Window| {
            let length = window.time.end.saturating_sub(window.time.start).as_secs_f64();
            let per_s = window.completed as f64 / length.max(1e-9);
            Point { end: window.time.end, p99: window.p99, per_s }
        };
        self.lock().iter().map(point).collect()
    }
}

impl Block {
    /// Transactions done per second.
    pub(super) fn throughput(&self) -> Option<f64> {
        (self.span > Nanos::ZERO).then(|| self.completed as f64 / self.span.as_secs_f64())
    }

    /// Latency at a percentile, in seconds.
    pub(super) fn tail_s(&self, at: Percentile) -> Option<f64> {
        self.latency.quantile(at).map(Nanos::as_secs_f64)
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns a block of a second with this many transactions, each of this latency.
    pub(in super::super) fn block(transactions: u64, latency: Nanos) -> Block {
        let mut block =
            Block { completed: transactions, span: Nanos::from_secs(1), ..Block::default() };
        block.latency.record_many(latency, transactions);
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(start_ms: u64, count: u64) -> Window {
        let mut latency = Latency::default();
        latency.record_many(Nanos::from_millis(5), count);
        Window {
            time: Nanos::from_millis(start_ms)..Nanos::from_millis(start_ms + 250),
            completed: count,
            p99: latency.quantile(Percentile::P99),
            latencies: Some(Box::new(latency)),
        }
    }

    #[test]
    fn only_windows_within_the_time_count_and_each_once() {
        let windows = Windows::default();
        windows.lock().extend([window(0, 1), window(250, 10), window(500, 20), window(750, 100)]);
        let sum = windows.block(Nanos::from_millis(200), Nanos::from_millis(800));
        assert_eq!((sum.completed, sum.latency.count()), (30, 30));
        assert_eq!(sum.throughput(), Some(60.0));
        let again = windows.block(Nanos::ZERO, Nanos::MAX);
        assert_eq!(
            (again.completed, again.throughput(), again.tail_s(Percentile::P50)),
            (0, None, None)
        );
        assert_eq!(windows.points().len(), 4);
        assert_eq!(windows.points()[3].per_s, 400.0);
    }
}
