//! Confidence sequences for a proportion: limits that may be looked at after every trial.
//!
//! A limit of a fixed number of trials, such as [`super::proportion_upper`], is not one that may
//! be looked at until it says what is hoped for. These limits hold at all times together with
//! probability `1 - alpha`, so that counting can end as soon as they decide.
//!
//! A proportion `p` is excluded once the likelihood of other proportions is `1 / alpha` times
//! that of `p`. The others are mixed by a density that does not depend on the data, so that the
//! ratio is a non-negative supermartingale under every proportion beyond `p`, and it reaches
//! `1 / alpha` with probability `alpha` at most (Ville's inequality). Source: Robbins, "Statistical
//! methods related to the law of the iterated logarithm", Annals of Mathematical Statistics 41,
//! 1970; Howard et al., Annals of Statistics 49, 2021. The densities are ours: `q^(-1/2)` below
//! `p`, and `q^(-3/2)` above it, which suit events as rare as late requests.

use super::bisect;
use statrs::function::beta::{beta_reg, ln_beta};

/// Returns the upper limit on the probability of an event that has occurred `events` times in
/// `trials` so far: with confidence `1 - alpha` the probability is at no time above this.
pub fn proportion_upper_anytime(events: u64, trials: u64, alpha: f64) -> f64 {
    if events >= trials {
        return 1.0;
    }
    let (events, trials) = (events as f64, trials as f64);
    // The ratio grows from the share that was counted upwards.
    let is_excluded = |limit: f64| log_ratio_below(events, trials, limit) >= -alpha.ln();
    let [_, high] = bisect([events / trials, 1.0], 60, |limit| !is_excluded(limit));
    high
}

/// Returns the lower limit on the probability of an event; see [`proportion_upper_anytime`].
pub fn proportion_lower_anytime(events: u64, trials: u64, alpha: f64) -> f64 {
    let events = events.min(trials);
    if events == 0 {
        return 0.0;
    }
    let (events, trials) = (events as f64, trials as f64);
    let is_excluded = |limit: f64| log_ratio_above(events, trials, limit) >= -alpha.ln();
    let [low, _] = bisect([0.0, events / trials], 60, is_excluded);
    low
}

/// Returns how many trials without an event it takes until the upper limit is at most `share`,
/// in (0, 1).
pub fn trials_without_event(share: f64, alpha: f64) -> u64 {
    let is_enough = |trials: u64| proportion_upper_anytime(0, trials, alpha) <= share;
    let mut high = 1;
    while !is_enough(high) && high < u64::MAX / 2 {
        high *= 2;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low.midpoint(high);
        match is_enough(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// The logarithm of the likelihood of proportions below `limit`, mixed by a density proportional
/// to `q^(-1/2)`, over that of `limit`.
fn log_ratio_below(events: f64, trials: f64, limit: f64) -> f64 {
    let (a, b) = (events + 0.5, trials - events + 1.0);
    let mixed = ln_beta(a, b) + beta_reg(a, b, limit).max(f64::MIN_POSITIVE).ln();
    let density = (2.0 * limit.sqrt()).ln();
    mixed - density - log_likelihood(events, trials, limit)
}

/// The logarithm of the likelihood of proportions above `limit`, mixed by a density proportional
/// to `q^(-3/2)`, over that of `limit`. There is an event at least.
fn log_ratio_above(events: f64, trials: f64, limit: f64) -> f64 {
    let (a, b) = (events - 0.5, trials - events + 1.0);
    let mixed = ln_beta(a, b) + (1.0 - beta_reg(a, b, limit)).max(f64::MIN_POSITIVE).ln();
    let density = (2.0 * (limit.sqrt().recip() - 1.0)).ln();
    mixed - density - log_likelihood(events, trials, limit)
}

fn log_likelihood(events: f64, trials: f64, share: f64) -> f64 {
    events * share.ln() + (trials - events) * (-share).ln_1p()
}

#[cfg(test)]
mod tests {
    use super::super::{proportion_lower, proportion_upper};
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus as Rng;

    #[test]
    fn limits_are_those_of_an_independent_computation() {
        // The same ratios with the incomplete beta function of Numerical Recipes, in Python.
        for (events, trials, low, high) in [
            (2, 800, 3.443_6e-5, 0.013_685_3),
            (50, 10_000, 0.002_860_07, 0.008_007_74),
            (5, 100, 0.006_331_3, 0.159_092_8),
            (160, 2000, 0.059_491_5, 0.104_833_9),
        ] {
            let found = proportion_lower_anytime(events, trials, 0.01);
            assert!((found / low - 1.0).abs() < 1e-3, "{events} of {trials}: {found}");
            let found = proportion_upper_anytime(events, trials, 0.01);
            assert!((found / high - 1.0).abs() < 1e-3, "{events} of {trials}: {found}");
        }
        assert_eq!(proportion_lower_anytime(0, 9, 0.05), 0.0);
        assert_eq!(proportion_upper_anytime(9, 9, 0.05), 1.0);
        assert_eq!(proportion_upper_anytime(0, 0, 0.05), 1.0);
    }

    #[test]
    fn a_share_takes_a_fifth_more_trials_without_an_event_than_without_looking() {
        // Without looking 459, because 0.99^459 = 0.0099, and 90.
        assert_eq!(trials_without_event(0.01, 0.01), 556);
        assert_eq!(trials_without_event(0.05, 0.01), 109);
        assert_eq!(trials_without_event(0.999, 0.5), 1);
    }

    /// The share of 500 runs in which the true probability is excluded at some time, looked at
    /// after every 50 of 2,000 trials.
    fn wrong(excludes: impl Fn(f64, f64) -> bool) -> f64 {
        const RUNS: u64 = 500;
        let is_wrong = |seed: &u64| {
            let mut rng = Rng::seed_from_u64(*seed);
            let mut events = 0_u64;
            (1..=40).any(|look: u64| {
                events += (0..50).filter(|_| rng.random_bool(TRUE_SHARE)).count() as u64;
                excludes(events as f64, (50 * look) as f64)
            })
        };
        (0..RUNS).filter(is_wrong).count() as f64 / RUNS as f64
    }

    const TRUE_SHARE: f64 = 0.05;
    const ALPHA: f64 = 0.05;

    #[test]
    fn looking_until_a_limit_decides_is_wrong_as_rarely_as_it_says() {
        // That a limit excludes a share takes one ratio, and the limit itself takes sixty.
        let upper = wrong(|events, all| {
            events < TRUE_SHARE * all && log_ratio_below(events, all, TRUE_SHARE) >= -ALPHA.ln()
        });
        let lower = wrong(|events, all| {
            events > TRUE_SHARE * all && log_ratio_above(events, all, TRUE_SHARE) >= -ALPHA.ln()
        });
        assert!(upper <= ALPHA && lower <= ALPHA, "{upper} {lower}");
        // Limits of a fixed number of trials are not made for it.
        let fixed = [
            wrong(|events, all| beta_reg(events + 1.0, all - events, TRUE_SHARE) > 1.0 - ALPHA),
            wrong(|events, all| {
                events > 0.0 && beta_reg(events, all - events + 1.0, TRUE_SHARE) < ALPHA
            }),
        ];
        assert!(fixed.iter().all(|share| *share > 0.07), "{fixed:?}");
    }

    proptest! {
        #[test]
        fn limits_enclose_those_of_a_fixed_number_of_trials(
            trials in 1u64..3000,
            share in 0.0f64..=1.0,
        ) {
            let events = (trials as f64 * share) as u64;
            let below = proportion_lower(events, trials, 0.01);
            prop_assert!(proportion_lower_anytime(events, trials, 0.01) <= below + 1e-9);
            let above = proportion_upper(events, trials, 0.01);
            prop_assert!(proportion_upper_anytime(events, trials, 0.01) >= above - 1e-9);
        }
    }
}
