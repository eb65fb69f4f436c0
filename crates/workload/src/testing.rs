//! What the statistical tests of this crate share.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// The generator of a test, always the same.
pub(crate) fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// The Kolmogorov-Smirnov distance between draws and a cumulative distribution.
///
/// For a right sampler `sqrt(n)` times it exceeds 1.63 once in 100 tries and
/// 2.7 once in a million.
pub(crate) fn kolmogorov_distance(mut draws: Vec<f64>, cumulative: impl Fn(f64) -> f64) -> f64 {
    draws.sort_unstable_by(f64::total_cmp);
    let count = draws.len() as f64;
    draws
        .iter()
        .enumerate()
        .map(|(rank, draw)| {
            let wanted = cumulative(*draw);
            (wanted - rank as f64 / count).abs().max(((rank + 1) as f64 / count - wanted).abs())
        })
        .fold(0.0, f64::max)
}

/// Mean and squared coefficient of variation.
pub(crate) fn moments(draws: &[f64]) -> (f64, f64) {
    let count = draws.len() as f64;
    let mean = draws.iter().sum::<f64>() / count;
    let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / count;
    (mean, variance / (mean * mean))
}
