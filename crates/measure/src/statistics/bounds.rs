//! One-sided bounds on a proportion and on a quantile, exact for independent values.
//!
//! Both count the values on one side of a limit, which is binomial if the values are
//! independent. Requests of a queue are not independent: they are late together. Divide the
//! data into blocks first, or treat the bound as optimistic.

use super::bisect;
use statrs::distribution::{Beta, ContinuousCDF};

/// Returns the upper bound on the probability of an event that occurred `events` times in
/// `trials`: with confidence `1 - alpha` the probability is at most this.
///
/// Source: Clopper and Pearson, Biometrika 26, 1934. Without events this is
/// `1 - alpha^(1/trials)`, about 3 in `trials` at 95 %.
pub fn proportion_upper(events: u64, trials: u64, alpha: f64) -> f64 {
    if events >= trials {
        return 1.0;
    }
    beta_quantile(1.0 - alpha, events as f64 + 1.0, (trials - events) as f64)
}

/// Returns the lower bound on the probability of an event; see [`proportion_upper`].
pub fn proportion_lower(events: u64, trials: u64, alpha: f64) -> f64 {
    let events = events.min(trials);
    if events == 0 {
        return 0.0;
    }
    beta_quantile(alpha, events as f64, (trials - events) as f64 + 1.0)
}

/// Returns the quantile of the beta distribution by bisection of its distribution function,
/// which is accurate for shapes in the millions, too.
fn beta_quantile(share: f64, a: f64, b: f64) -> f64 {
    let Ok(beta) = Beta::new(a, b) else { return share };
    let [low, high] = bisect([0.0, 1.0], 60, |middle| beta.cdf(middle) < share);
    0.5 * (low + high)
}

/// Returns the upper bound on the quantile at `share` of independent values, which must be
/// sorted ascending: with confidence `1 - alpha` the quantile is at most this. `None` if
/// there are too few values: a p99 at 95 % needs 299.
///
/// The bound is the smallest order statistic above which, with that confidence, fewer than
/// `1 - share` of all values lie; no distribution is assumed (Conover, Practical
/// Nonparametric Statistics, 3rd edition, section 3.2).
pub fn quantile_upper(sorted: &[f64], share: f64, alpha: f64) -> Option<f64> {
    // With probability 1 - F(k - 1), the k-th smallest value is at most the quantile.
    let count = sorted.len();
    let is_above = |rank: usize| binomial_cdf(rank - 1, count, share) >= 1.0 - alpha;
    let rank = first_rank(count, is_above)?;
    Some(sorted[rank - 1])
}

/// Returns the lower bound on a quantile; see [`quantile_upper`].
pub fn quantile_lower(sorted: &[f64], share: f64, alpha: f64) -> Option<f64> {
    // The k-th smallest value is above the quantile with probability F(k - 1).
    let count = sorted.len();
    let is_too_high = |rank: usize| binomial_cdf(rank - 1, count, share) > alpha;
    let rank = first_rank(count, is_too_high).unwrap_or(count + 1) - 1;
    (rank > 0).then(|| sorted[rank - 1])
}

/// Returns the first rank, from 1 to `count`, for which a monotone condition holds.
fn first_rank(count: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (0, count + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        match holds(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    (high <= count).then_some(high)
}

/// Returns the probability of at most `events` events in `trials` trials, each with this
/// probability of one.
fn binomial_cdf(events: usize, trials: usize, probability: f64) -> f64 {
    if events >= trials {
        return 1.0;
    }
    let beta = Beta::new(events as f64 + 1.0, (trials - events) as f64);
    beta.map_or(1.0, |beta| 1.0 - beta.cdf(probability))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_on_a_proportion_are_those_of_clopper_and_pearson() {
        // No event in n: the bound solves (1 - p)^n = alpha; in 10 trials .259 at 95 %.
        let none = proportion_upper(0, 10, 0.05);
        assert!((none - (1.0 - 0.05_f64.powf(0.1))).abs() < 1e-9, "{none}");
        // One in ten, two-sided 95 %: .0025 to .4450 (Clopper and Pearson's chart; Newcombe,
        // Statistics in Medicine 17, 1998, has .8165 for 81 of 263 as .2527 to .3676).
        assert!((proportion_lower(1, 10, 0.025) - 0.002_53).abs() < 1e-5);
        assert!((proportion_upper(1, 10, 0.025) - 0.445_02).abs() < 1e-5);
        assert!((proportion_lower(81, 263, 0.025) - 0.2527).abs() < 1e-4);
        assert!((proportion_upper(81, 263, 0.025) - 0.3676).abs() < 1e-4);
        assert_eq!((proportion_lower(0, 9, 0.05), proportion_upper(9, 9, 0.05)), (0.0, 1.0));
        assert_eq!(proportion_upper(0, 0, 0.05), 1.0);
    }

    #[test]
    fn a_p99_needs_299_values() {
        // 0.99^299 = 0.0495.
        let values: Vec<f64> = (1..=299).map(f64::from).collect();
        assert_eq!(quantile_upper(&values, 0.99, 0.05), Some(299.0));
        assert_eq!(quantile_upper(&values[..298], 0.99, 0.05), None);
        assert_eq!(quantile_lower(&[], 0.5, 0.05), None);
    }

    #[test]
    fn bounds_on_the_median_are_those_of_the_sign_test() {
        // n = 10: P(Bin(10, 1/2) <= 1) = 11/1024 = .0107, <= 2: .0547. So the 2nd and the 9th
        // bound the median at 98.9 % each, and at 94.5 % the 3rd and the 8th do.
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let both =
            |alpha| (quantile_lower(&values, 0.5, alpha), quantile_upper(&values, 0.5, alpha));
        assert_eq!(both(0.05), (Some(2.0), Some(9.0)));
        assert_eq!(both(0.055), (Some(3.0), Some(8.0)));
    }

    proptest! {
        #[test]
        fn bounds_enclose_what_was_counted(trials in 1u64..5000, share in 0.0f64..=1.0) {
            let events = (trials as f64 * share) as u64;
            let counted = events as f64 / trials as f64;
            prop_assert!(proportion_lower(events, trials, 0.05) <= counted);
            prop_assert!(proportion_upper(events, trials, 0.05) >= counted);
        }
    }
}
