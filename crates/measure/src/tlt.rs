//! The TLT theorem: a tail latency bounds throughput (Ah-Q, section VI, theorem 2).
//!
//! With RLP requests outstanding on average, tail latency `TL` at percentile
//! θ, and f the share of all latency carried by requests *strictly* below TL:
//!
//! ```text
//! phi <= RLP/TL * (1 - f)/(1 - θ)        requests per second
//! TL/AL <= (1 - f)/(1 - θ)               AL = mean latency (eq. 10)
//! ```
//!
//! The theorem says "no more than TL" where its proof needs "less than": with
//! a constant latency the printed form makes f 1 and the bound 0. It is an
//! upper bound, so it does not follow that a shorter tail raises throughput.

use crate::{Latency, Nanos, Percentile};

/// The bound that the theorem states for one set of latencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// TL, the tail latency.
    pub tail: Nanos,
    /// f, the share of latency strictly below TL, in [0, 1).
    pub share_below: f64,
    /// (1 - f)/(1 - θ), the most that TL/AL can be.
    pub ratio_max: f64,
    /// TL/AL as it is; never above `ratio_max`.
    pub ratio: f64,
}

impl Bound {
    /// Highest throughput per second with `outstanding` (RLP) requests on average.
    pub fn throughput_max(&self, outstanding: f64) -> f64 {
        outstanding / self.tail.as_secs_f64() * self.ratio_max
    }
}

/// The bound over single latencies, sorted in place; `None` without latencies.
///
/// The tail is the lower order statistic `sorted[ceil(θN) - 1]`, with which
/// the inequality holds for every set of latencies.
pub fn bound(latencies: &mut [Nanos], at: Percentile) -> Option<Bound> {
    latencies.sort_unstable();
    let rank = (at.fraction() * latencies.len() as f64).ceil() as usize;
    let tail = *latencies.get(rank.max(1) - 1)?;
    let total = total(latencies);
    if total == 0.0 {
        return None;
    }
    let below = latencies.partition_point(|latency| *latency < tail);
    let share_below = self::total(&latencies[..below]) / total;
    let ratio_max = (1.0 - share_below) / (1.0 - at.fraction());
    let ratio = tail.0 as f64 * latencies.len() as f64 / total;
    Some(Bound { tail, share_below, ratio_max, ratio })
}

/// Returns the bound over a histogram; `None` without latencies.
///
/// It holds exactly for the latencies as the histogram keeps them, within 0.1 % of their values.
pub fn bound_of(latencies: &Latency, at: Percentile) -> Option<Bound> {
    let count = latencies.count();
    let rank = ((at.fraction() * count as f64).ceil() as u64).max(1);
    let (mut total, mut below, mut seen, mut tail) = (0.0, 0.0, 0, None);
    for (latency, number) in latencies.buckets() {
        if tail.is_none() && seen + number >= rank {
            (tail, below) = (Some(latency), total);
        }
        seen += number;
        total += latency.0 as f64 * number as f64;
    }
    let tail = tail?;
    let share_below = below / total;
    let ratio_max = (1.0 - share_below) / (1.0 - at.fraction());
    let ratio = tail.0 as f64 * count as f64 / total;
    Some(Bound { tail, share_below, ratio_max, ratio })
}

fn total(latencies: &[Nanos]) -> f64 {
    latencies.iter().map(|latency| latency.0 as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exponential_latency_gives_the_closed_form() {
        // Mean 1 s at the mid-points of 200,000 equal probabilities:
        // TL = 2.9957, f = 1 - e^-TL (1 + TL) = 0.8002, bound 3.996.
        let count = 200_000;
        let quantile = |i| -(1.0 - (f64::from(i) + 0.5) / f64::from(count)).ln();
        let mut all: Vec<_> = (0..count).map(|i| Nanos::from_secs_f64(quantile(i))).collect();
        let got = bound(&mut all, Percentile::P95).unwrap();
        assert!((got.ratio - 2.9957).abs() < 1e-3, "{got:?}");
        assert!((got.share_below - 0.8002).abs() < 1e-3, "{got:?}");
        assert!((got.ratio_max - 3.996).abs() < 5e-3, "{got:?}");
    }

    #[test]
    fn constant_latency_keeps_a_bound_above_zero() {
        let got = bound(&mut [Nanos::from_millis(5); 100], Percentile::P95).unwrap();
        assert_eq!((got.share_below, got.ratio), (0.0, 1.0));
        assert!((got.ratio_max - 20.0).abs() < 1e-9);
    }

    #[test]
    fn no_latency_has_no_bound() {
        assert_eq!(bound(&mut [], Percentile::P95), None);
        assert_eq!(bound(&mut [Nanos::ZERO], Percentile::P95), None);
    }

    #[test]
    fn throughput_follows_littles_law_at_the_mean() {
        // 8 outstanding at a constant 4 ms do exactly 2000/s; the bound is 20 times that.
        let got = bound(&mut [Nanos::from_millis(4); 10], Percentile::P95).unwrap();
        assert!((got.throughput_max(8.0) - 40_000.0).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn holds_for_every_set_of_latencies(
            latencies in prop::collection::vec(1u64..1 << 40, 1..200),
            percent in 1u32..1000,
        ) {
            let at = Percentile::new(f64::from(percent) / 10.0).unwrap();
            let mut all: Vec<_> = latencies.into_iter().map(Nanos).collect();
            let got = bound(&mut all, at).unwrap();
            prop_assert!(got.ratio <= got.ratio_max * (1.0 + 1e-9), "{got:?}");
            let kept: Latency = all.iter().copied().collect();
            let near = bound_of(&kept, at).unwrap();
            prop_assert!(near.ratio <= near.ratio_max * (1.0 + 1e-9), "{near:?}");
            // Latencies below 100 ns are kept as 100 ns; all others within 0.1 %.
            if all[0] >= Nanos(100) {
                prop_assert!((near.tail.0 as f64 / got.tail.0 as f64 - 1.0).abs() < 2e-3);
                prop_assert!((near.ratio / got.ratio - 1.0).abs() < 4e-3, "{got:?} {near:?}");
            }
        }
    }
}
