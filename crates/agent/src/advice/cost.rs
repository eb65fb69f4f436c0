//! How the cost of a query rises with the number of queries under way.
//!
//! Beyond the cores, each query under way adds to the cost of every other one: it lengthens
//! lists of locks, spins, and evicts caches. So the cost is a line in the number under way,
//!
//! ```text
//!   cost(n) = base + slope n
//! ```
//!
//! which is the Universal Scalability Law (Gunther 2007) beyond the cores: throughput is the
//! inverse of the cost. The number varies by itself while a server is watched, so the line is
//! fitted by least squares over intervals, weighted by their answers. A limit of C keeps the
//! number at C where it would be higher.
//!
//! Its error is that of the jackknife over blocks of consecutive intervals, because intervals
//! next to each other are alike.

use super::observation::Interval;
use lull_measure::statistics::student_t_quantile;

/// Blocks of the jackknife.
const BLOCKS: usize = 20;
/// Upper end, as a share, of a two-sided 90 % interval.
const UPPER: f64 = 0.95;
/// The line is not followed below this share of the mean cost: no measured limit has saved more
/// than two thirds of it.
const LEAST_SHARE: f64 = 1.0 / 3.0;

/// A ratio with its 90 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ratio {
    /// Lower end.
    pub(super) low: f64,
    /// The estimate.
    pub(super) value: f64,
    /// Upper end.
    pub(super) high: f64,
}

/// Sums over intervals that determine the line; `weight` is the number of answers.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    weight: f64,
    under_way: f64,
    under_way_squared: f64,
    cost: f64,
    product: f64,
    /// Queries under way beyond the limit.
    excess: f64,
}

/// Returns by how much the mean cost of a query exceeds the one with at most `limit` queries
/// under way plus `extra`. `cost` is what an interval spent on all of its answers.
///
/// `None` if the number under way did not vary, or in fewer than two blocks.
pub(super) fn saving(
    intervals: &[Interval],
    cost: impl Fn(&Interval) -> f64,
    limit: f64,
    extra: f64,
) -> Option<Ratio> {
    let per_block = intervals.len().div_ceil(BLOCKS).max(1);
    let blocks: Vec<Moments> = intervals
        .chunks(per_block)
        .map(|block| {
            block
                .iter()
                .fold(Moments::default(), |sum, one| sum.add_interval(one, cost(one), limit))
        })
        .collect();
    let all = blocks.iter().fold(Moments::default(), |sum, block| sum.add(block, 1.0));
    let estimate = all.log_saving(extra)?;
    let without = |block: &Moments| all.add(block, -1.0).log_saving(extra);
    let left: Vec<f64> = blocks.iter().map(without).collect::<Option<_>>()?;
    let count = left.len() as f64;
    if left.len() < 2 {
        return None;
    }
    let mean = left.iter().sum::<f64>() / count;
    let squares: f64 = left.iter().map(|value| (value - mean).powi(2)).sum();
    let error = ((count - 1.0) / count * squares).sqrt();
    let half_width = student_t_quantile(UPPER, left.len() - 1) * error;
    Some(Ratio {
        low: (estimate - half_width).exp(),
        value: estimate.exp(),
        high: (estimate + half_width).exp(),
    })
}

impl Moments {
    fn add_interval(self, interval: &Interval, cost: f64, limit: f64) -> Self {
        let (weight, under_way) = (interval.answered as f64, interval.under_way);
        Self {
            weight: self.weight + weight,
            under_way: self.under_way + weight * under_way,
            under_way_squared: self.under_way_squared + weight * under_way * under_way,
            cost: self.cost + cost,
            product: self.product + under_way * cost,
            excess: self.excess + weight * (under_way - limit).max(0.0),
        }
    }

    /// Adds `times` the other sums.
    fn add(self, other: &Self, times: f64) -> Self {
        Self {
            weight: self.weight + times * other.weight,
            under_way: self.under_way + times * other.under_way,
            under_way_squared: self.under_way_squared + times * other.under_way_squared,
            cost: self.cost + times * other.cost,
            product: self.product + times * other.product,
            excess: self.excess + times * other.excess,
        }
    }

    /// The logarithm of the mean cost over that at the limit; `None` without a line.
    fn log_saving(&self, extra: f64) -> Option<f64> {
        let (under_way, cost) = (self.under_way / self.weight, self.cost / self.weight);
        let variance = self.under_way_squared / self.weight - under_way * under_way;
        let covariance = self.product / self.weight - under_way * cost;
        // Rounding leaves a little of a variance of zero.
        if !(cost > 0.0 && variance > 1e-9 * under_way * under_way) {
            return None;
        }
        let at_limit = cost - covariance / variance * (self.excess / self.weight);
        Some((cost / (at_limit.max(cost * LEAST_SHARE) + extra)).ln())
    }
}
