//! The output of a client program for one run.

/// One run of a load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoadRun {
    pub(super) queries_per_s: f64,
    pub(super) queries: f64,
    /// Latency in milliseconds and transactions of it, in order.
    histogram: Vec<(f64, u64)>,
}

impl LoadRun {
    /// A run by the times of its transactions, each bucket with its count, in order.
    pub(super) fn new(queries_per_s: f64, queries: f64, histogram: Vec<(f64, u64)>) -> Self {
        Self { queries_per_s, queries, histogram }
    }

    /// The mean of a figure of each transaction's latency in milliseconds.
    pub(super) fn mean_of(&self, figure: impl Fn(f64) -> f64) -> f64 {
        let all: u64 = self.histogram.iter().map(|(_, count)| count).sum();
        let sum: f64 = self.histogram.iter().map(|(ms, count)| figure(*ms) * *count as f64).sum();
        sum / all as f64
    }

    /// The latency of a transaction that this share of them does not exceed.
    pub(super) fn quantile_ms(&self, share: f64) -> f64 {
        let all: u64 = self.histogram.iter().map(|(_, count)| count).sum();
        let (rank, mut sum) = (share * all as f64, 0);
        let found = self.histogram.iter().find(|(_, count)| {
            sum += count;
            sum as f64 >= rank
        });
        found.map_or(f64::NAN, |(latency_ms, _)| *latency_ms)
    }
}
