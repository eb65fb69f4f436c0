//! Coverage and error rates by simulation, under independent, autocorrelated and bursty noise.
//!
//! Each figure is of 2,000 runs with fixed seeds, so a share of 95 % has a standard error of
//! half a percent. Limits are three of these away. Where an assumption does not hold, the
//! coverage that remains is asserted, too, so that the documentation stays true.

use super::*;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus as Rng;

const RUNS: u64 = 2000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Noise {
    Independent,
    /// First-order autoregression with this coefficient.
    Autoregressive(f64),
    /// Rare bursts of about five blocks, four standard deviations high, on independent noise.
    Bursty,
}

const NOISES: [Noise; 3] = [Noise::Independent, Noise::Autoregressive(0.7), Noise::Bursty];

impl Noise {
    /// A series with mean zero and a standard deviation of one (bursts: about that).
    fn series(self, length: usize, rng: &mut Rng) -> Vec<f64> {
        let normal = |rng: &mut Rng| -> f64 { StandardNormal.sample(rng) };
        let mut last = normal(rng);
        // A share of .02 / (.02 + .2) of the time is burst.
        let mut is_burst = rng.random_bool(1.0 / 11.0);
        let mut next = |rng: &mut Rng| match self {
            Self::Independent => normal(rng),
            Self::Autoregressive(by) => {
                last = by * last + (1.0 - by * by).sqrt() * normal(rng);
                last
            }
            Self::Bursty => {
                is_burst = rng.random_bool(if is_burst { 0.8 } else { 0.02 });
                0.6 * normal(rng) + if is_burst { 4.0 } else { 0.0 } - 4.0 / 11.0
            }
        };
        (0..length).map(|_| next(rng)).collect()
    }

    /// Differences within pairs of neighbouring blocks whose order is drawn.
    fn pairs(self, effect: f64, pairs: usize, rng: &mut Rng) -> Vec<f64> {
        let blocks = self.series(2 * pairs, rng);
        let difference = |both: &[f64]| {
            let apart = both[0] - both[1];
            effect + if rng.random_bool(0.5) { apart } else { -apart }
        };
        blocks.chunks_exact(2).map(difference).collect()
    }
}

/// The share of runs for which something holds.
fn share(holds: impl Fn(&mut Rng) -> bool) -> f64 {
    let hit = |seed: &u64| holds(&mut Rng::seed_from_u64(1000 + seed));
    (0..RUNS).filter(hit).count() as f64 / RUNS as f64
}

fn assert_within(found: f64, expected: std::ops::RangeInclusive<f64>, what: &str) {
    assert!(expected.contains(&found), "{what}: {found}, not within {expected:?}");
}

#[test]
fn students_interval_covers_pairs_under_all_noises_and_single_values_only_if_independent() {
    for noise in NOISES {
        let pairs =
            share(|rng| Estimate::from_values(&noise.pairs(0.3, 30, rng)).unwrap().covers(0.3));
        assert_within(pairs, 0.935..=0.985, &format!("pairs, {noise:?}"));
        let single =
            share(|rng| Estimate::from_values(&noise.series(30, rng)).unwrap().covers(0.0));
        let expected = match noise {
            Noise::Independent => 0.935..=0.965,
            // The mean of 30 values has the error of that of 6.
            Noise::Autoregressive(_) => 0.55..=0.67,
            // Half of the series contain no burst, and are off by the mean of bursts.
            Noise::Bursty => 0.37..=0.46,
        };
        assert_within(single, expected, &format!("single values, {noise:?}"));
    }
}

#[test]
fn ratios_within_pairs_are_covered() {
    for noise in NOISES {
        let found = share(|rng| {
            let logs = noise.pairs(0.1, 20, rng);
            let ours: Vec<f64> = logs.iter().map(|log| (0.2 * log).exp()).collect();
            let ratio = PairedRatio::from_pairs(&ours, &[1.0; 20]).unwrap();
            ratio.low <= 0.02_f64.exp() && 0.02_f64.exp() <= ratio.high
        });
        assert_within(found, 0.935..=0.985, &format!("{noise:?}"));
    }
}

#[test]
fn sign_flips_keep_their_error_under_all_noises() {
    for noise in NOISES {
        for pairs in [8, 20] {
            let name = format!("{noise:?}, {pairs} pairs");
            let chance = |rng: &mut Rng| sign_flip_chance(&noise.pairs(0.0, pairs, rng), rng);
            assert_within(share(|rng| chance(rng) <= 0.05), 0.03..=0.065, &name);
        }
    }
}

/// The share of runs in which a sign test shows an effect at one of its looks.
fn shown(noise: Noise, effect: f64, scale: f64, alpha: f64) -> f64 {
    share(|rng| {
        let mut test = SignTest::new(0.0, Side::Above, scale);
        noise.pairs(effect, 60, rng).iter().any(|one| {
            test.push(one.clamp(-scale, scale));
            test.is_shown(alpha)
        })
    })
}

#[test]
fn a_sign_test_that_is_looked_at_sixty_times_errs_no_more_than_stated() {
    for noise in NOISES {
        // The mean over all stopping times is below alpha; it is about half of it here.
        assert_within(shown(noise, 0.0, 3.0, 0.05), 0.005..=0.05, &format!("{noise:?}"));
        // An effect of 1.13 standard deviations of a block, .8 of a difference, is found.
        assert_within(shown(noise, 1.13, 6.0, 0.005), 0.9..=1.0, &format!("{noise:?}"));
    }
}

#[test]
fn the_joint_test_errs_no_more_than_stated_over_all_figures() {
    let claims = |seed: u64| {
        let mut rng = Rng::seed_from_u64(seed);
        let figures: Vec<Vec<Option<f64>>> = (0..6)
            .map(|_| Noise::Bursty.pairs(0.0, 8, &mut rng).into_iter().map(Some).collect())
            .collect();
        joint_chances(&figures, &mut rng).iter().any(|chance| *chance <= 0.05)
    };
    let found = (0..1000).filter(|seed| claims(*seed)).count() as f64 / 1000.0;
    assert_within(found, 0.02..=0.072, "six figures of eight pairs");
}

#[test]
#[ignore = "slow: a thousand bootstraps"]
fn the_bootstrap_covers_skewed_differences() {
    let truth = 0.18_f64.exp();
    let covers = |seed: u64| {
        let mut rng = Rng::seed_from_u64(seed);
        let skewed = |rng: &mut Rng| -> f64 {
            let normal: f64 = StandardNormal.sample(rng);
            (0.6 * normal).exp()
        };
        let values: Vec<f64> = (0..12).map(|_| skewed(&mut rng)).collect();
        let [low, high] = studentised_interval(&values, 0.05, &mut rng).unwrap();
        low <= truth && truth <= high
    };
    let found = (0..1000).filter(|seed| covers(*seed)).count() as f64 / 1000.0;
    assert_within(found, 0.92..=0.97, "log-normal");
}

#[test]
fn bounds_on_proportion_and_quantile_are_exact_for_independent_requests_only() {
    // A request is late above 1.645 standard deviations: 5 % are.
    for (noise, least, most) in [
        (Noise::Independent, 0.945, 0.985),
        // Late requests come together: 300 of them are worth fewer.
        (Noise::Autoregressive(0.7), 0.83, 0.93),
    ] {
        let late = share(|rng| {
            let series = noise.series(300, rng);
            let events = series.iter().filter(|value| **value > 1.645).count() as u64;
            proportion_upper(events, 300, 0.05) >= 0.05
        });
        assert_within(late, least..=most, &format!("proportion, {noise:?}"));
        let tail = share(|rng| {
            let mut series = noise.series(300, rng);
            series.sort_by(f64::total_cmp);
            quantile_upper(&series, 0.95, 0.05).unwrap() >= 1.645
        });
        assert_within(tail, least - 0.01..=most, &format!("quantile, {noise:?}"));
    }
}

/// Gives the intervals at the looks at a series.
type Sequence<'a> = &'a dyn Fn(&[f64]) -> Vec<[f64; 2]>;

/// The share of runs in which an interval misses the mean at one of its looks.
fn misses(noise: Noise, sequence: Sequence<'_>, mean: f64) -> f64 {
    share(|rng| {
        let series = noise.series(200, rng);
        sequence(&series).iter().any(|[low, high]| *low > mean || *high < mean)
    })
}

#[test]
fn sequences_of_bounded_values_hold_at_all_looks_if_the_noise_has_no_memory() {
    let squeezed = |value: &f64| (0.5 + value / 10.0).clamp(0.0, 1.0);
    let bernstein = |series: &[f64]| -> Vec<[f64; 2]> {
        let mut sequence = EmpiricalBernstein::new(0.05);
        let next = |value| {
            sequence.push(squeezed(value));
            sequence.interval()
        };
        series.iter().map(next).collect()
    };
    let betting = |series: &[f64]| -> Vec<[f64; 2]> {
        let mut sequence = Betting::new(0.05);
        let next = |(at, value): (usize, &f64)| {
            sequence.push(squeezed(value));
            (at % 20 == 19).then(|| sequence.interval())
        };
        series.iter().enumerate().filter_map(next).collect()
    };
    let sequences: [Sequence<'_>; 2] = [&bernstein, &betting];
    for sequence in sequences {
        let independent = misses(Noise::Independent, sequence, 0.5);
        assert_within(independent, 0.0..=0.05, "independent");
    }
    // With autocorrelation the conditional mean is not the mean, and the guarantee does not hold.
    let memory = misses(Noise::Autoregressive(0.95), &betting, 0.5);
    assert_within(memory, 0.2..=1.0, "an autocorrelation of .95");
}

#[test]
fn boundaries_hold_at_all_looks() {
    for (boundary, name) in [
        (&(|v: f64| normal_mixture_boundary(v, 100.0, 0.05)) as &dyn Fn(f64) -> f64, "mixture"),
        (&|v| stitched_boundary(v, 0.05), "stitched"),
    ] {
        let crossed = share(|rng| {
            let mut sum = 0.0;
            let series = Noise::Independent.series(500, rng);
            series.iter().zip(1..).any(|(value, count)| {
                sum += value;
                sum > boundary(f64::from(count))
            })
        });
        assert_within(crossed, 0.001..=0.05, name);
    }
    // An interval for a fixed number of values, read as often, errs far more.
    let peeking = share(|rng| {
        let series = Noise::Independent.series(500, rng);
        (10..500).any(|count| {
            let mean: f64 = series[..count].iter().sum::<f64>() / count as f64;
            mean > 1.645 / (count as f64).sqrt()
        })
    });
    assert_within(peeking, 0.2..=0.5, "peeking");
}
