//! A latency distribution in the few numbers that reports print.

use lull_measure::{Latency, Nanos, Percentile};
use serde::Serialize;
use std::fmt;

/// Quantiles of a set of requests; `None` (JSON `null`) if there were none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Number of requests.
    pub count: u64,
    /// Mean.
    pub mean_seconds: Option<f64>,
    /// Median.
    pub p50_seconds: Option<f64>,
    /// 95th percentile.
    pub p95_seconds: Option<f64>,
    /// 99th percentile.
    pub p99_seconds: Option<f64>,
    /// 99.9th percentile.
    pub p999_seconds: Option<f64>,
    /// Longest.
    pub max_seconds: Option<f64>,
}

impl From<&Latency> for Summary {
    fn from(set: &Latency) -> Self {
        let seconds = |value: Option<Nanos>| value.map(Nanos::as_secs_f64);
        Self {
            count: set.count(),
            mean_seconds: seconds(set.mean()),
            p50_seconds: seconds(set.quantile(Percentile::P50)),
            p95_seconds: seconds(set.quantile(Percentile::P95)),
            p99_seconds: seconds(set.quantile(Percentile::P99)),
            p999_seconds: seconds(set.quantile(Percentile::P999)),
            max_seconds: seconds(set.max()),
        }
    }
}

impl fmt::Display for Summary {
    /// `mean 120us  p50 ...`, each in its own unit, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            ("mean", self.mean_seconds),
            ("p50", self.p50_seconds),
            ("p95", self.p95_seconds),
            ("p99", self.p99_seconds),
            ("p99.9", self.p999_seconds),
            ("max", self.max_seconds),
        ];
        if self.count == 0 {
            return f.write_str("none");
        }
        for (index, (name, seconds)) in columns.into_iter().enumerate() {
            let gap = if index == 0 { "" } else { "  " };
            let text = seconds
                .map_or_else(|| "-".to_owned(), |s| format!("{:.1}", Nanos::from_secs_f64(s)));
            write!(f, "{gap}{name} {text:>8}")?;
        }
        Ok(())
    }
}
