//! How far connections are from their objectives, and how many users give up waiting
//! (REEF, Li et al. 2025, section 5.4; UTSLO, SoCC'23).
//!
//! The tail of few queries is noisy, while the share of late queries is a mean. So
//! compliance compares the share of queries beyond the bound with the share
//! that the percentile allows:
//!
//! ```text
//! compliance = max over i of late_i / (1 - p_i)       kept if at most 1
//! ```
//!
//! The paper calls p_i "the allowed ratio of violations". With that meaning 1 - p_i
//! would be near 1 and the figure useless, so p_i is the percentile here.
//!
//! A user disengagement ratio (UDR) is the mean of `g(latency)` over queries,
//! where g is the share of users that leave because of a wait. UTSLO's g is not
//! public; [`Patience`] is ours: no user leaves before `start`, and then a constant
//! share of the remaining users leaves per unit of time.

use crate::{Latency, Nanos, Percentile};
use serde::{Deserialize, Serialize};

/// Returns the share of late queries over the allowed share; above 1 the objective is missed.
pub fn compliance(late_share: f64, at: Percentile) -> f64 {
    late_share / (1.0 - at.fraction())
}

/// The share of queries beyond a bound; `None` without queries.
pub fn late_share(latency: &Latency, bound: Nanos) -> Option<f64> {
    let count = latency.count();
    (count > 0).then(|| latency.count_above(bound) as f64 / count as f64)
}

/// How long users wait before they leave (ours).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patience {
    /// No user leaves before this.
    pub start: Nanos,
    /// After the threshold, all but a share of 1/e leave within this time.
    pub scale: Nanos,
}

impl Patience {
    /// No user leaves within 20 ms, then 63 % within 2 s.
    pub const OURS: Self = Self { start: Nanos::from_millis(20), scale: Nanos::from_secs(2) };

    /// g: the share of users that leave because of a wait, in [0, 1).
    pub fn gone(self, latency: Nanos) -> f64 {
        let over = latency.saturating_sub(self.start).as_secs_f64();
        1.0 - (-over / self.scale.as_secs_f64()).exp()
    }

    /// UDR over queries; `None` without any.
    pub fn ratio(self, latency: &Latency) -> Option<f64> {
        let count = latency.count();
        let gone = |(value, number): (Nanos, u64)| self.gone(value) * number as f64;
        (count > 0).then(|| latency.buckets().map(gone).sum::<f64>() / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_papers_example_misses_its_objective() {
        // p99 = 40 ms with 1.3 % of the queries over 40 ms: 1.3.
        let mut latency = Latency::default();
        latency.record_many(Nanos::from_millis(10), 987);
        latency.record_many(Nanos::from_millis(50), 13);
        let late = late_share(&latency, Nanos::from_millis(40)).unwrap();
        assert!((compliance(late, Percentile::P99) - 1.3).abs() < 1e-9);
        assert_eq!(late_share(&Latency::default(), Nanos(1)), None);
    }

    #[test]
    fn users_stay_for_a_while_and_then_leave() {
        let patience = Patience::OURS;
        assert_eq!(patience.gone(Nanos::from_millis(20)), 0.0);
        let after_2_s = patience.gone(Nanos::from_millis(2020));
        assert!((after_2_s - (1.0 - (-1.0_f64).exp())).abs() < 1e-12);
        let quick: Latency = [Nanos::from_millis(5); 3].into_iter().collect();
        assert_eq!(
            (patience.ratio(&quick), patience.ratio(&Latency::default())),
            (Some(0.0), None)
        );
    }

    proptest! {
        #[test]
        fn a_longer_wait_never_keeps_more_users(
            short_us in 0u64..1 << 32,
            more_us in 0u64..1 << 32,
        ) {
            let gone = |us| Patience::OURS.gone(Nanos::from_micros(us));
            prop_assert!(gone(short_us) <= gone(short_us + more_us));
            prop_assert!((0.0..=1.0).contains(&gone(short_us)));
        }
    }
}
