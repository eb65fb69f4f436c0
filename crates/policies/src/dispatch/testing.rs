//! What tests of dispatchers share: the paper's cores, a demand, questions.

use super::Site;
use crate::registry::DISPATCHERS;
use lull_control::dispatcher::{
    CoreSpeed, DispatchObservation, DispatchRequest, Dispatcher, DispatcherError, Ladder, Supply,
};
use lull_measure::{Nanos, Percentile};
use statrs_free::quantile;

/// A site that owns its parts.
#[derive(Debug, Clone)]
pub(crate) struct OwnedSite {
    pub(crate) ladder: Ladder,
    pub(crate) target: Nanos,
    pub(crate) profile: Vec<Nanos>,
}

fn types(values: &[(&str, f64, f64)]) -> Vec<CoreSpeed> {
    values.iter().map(|(name, speed, watts)| CoreSpeed::new(name, *speed, *watts)).collect()
}

fn fixed(values: &[(&str, f64, f64)], cores: &[u32]) -> Ladder {
    Ladder::new(types(values), Supply::Fixed(cores.to_vec())).unwrap()
}

/// 2F-13S of table 4.
pub(crate) fn amp() -> Ladder {
    fixed(&[("slow", 1.0, 1.0), ("fast", 2.0, 6.8)], &[13, 2])
}

/// 2F-2S of section 6.5.
pub(crate) fn two_and_two() -> Ladder {
    fixed(&[("slow", 1.0, 1.0), ("fast", 2.0, 6.8)], &[2, 2])
}

/// 2F-2M-7S of section 6.4.
pub(crate) fn amp_three() -> Ladder {
    fixed(&[("slow", 1.0, 1.0), ("medium", 1.59, 3.5), ("fast", 2.0, 6.8)], &[7, 2, 2])
}

/// Four cores of five levels, table 4.
pub(crate) fn dvfs() -> Ladder {
    let levels = [
        ("slow", 1.0, 1.7),
        ("medium-", 1.3, 2.7),
        ("medium", 1.6, 3.8),
        ("medium+", 1.9, 5.3),
        ("fast", 2.0, 6.8),
    ];
    Ladder::new(types(&levels), Supply::Any(4)).unwrap()
}

/// A demand like the paper's: median near 83 ms of slow work, p99 near 270 ms.
/// Quantiles of a lognormal at even shares, so that no randomness is needed.
pub(crate) fn gamma_like(requests: usize) -> Vec<Nanos> {
    let share = |index: usize| (index as f64 + 0.5) / requests as f64;
    let work = |index| 0.083 * (0.5 * quantile(share(index))).exp();
    (0..requests).map(|index| Nanos::from_secs_f64(work(index))).collect()
}

mod statrs_free {
    /// Quantile of the standard normal distribution by bisection of its
    /// integral, to 1e-9: enough for a demand, and no dependency.
    pub(super) fn quantile(share: f64) -> f64 {
        // Abramowitz and Stegun 26.2.17, error below 7.5e-8.
        let upper = |x: f64| {
            let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
            let terms =
                [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
            let series = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
            let tail = series * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            if x >= 0.0 { 1.0 - tail } else { tail }
        };
        let (mut low, mut high) = (-9.0, 9.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if upper(middle) < share { low = middle } else { high = middle }
        }
        low
    }
}

/// 2F-13S with the target of 200 ms.
pub(crate) fn amp_site() -> OwnedSite {
    OwnedSite { ladder: amp(), target: Nanos::from_millis(200), profile: gamma_like(8000) }
}

/// Four DVFS cores with the target of 200 ms.
pub(crate) fn dvfs_site() -> OwnedSite {
    OwnedSite { ladder: dvfs(), ..amp_site() }
}

impl OwnedSite {
    pub(crate) fn site(&self) -> Site<'_> {
        Site {
            ladder: &self.ladder,
            percentile: Percentile::P99,
            target: self.target,
            profile: &self.profile,
        }
    }
}

/// The dispatcher of this name with this config.
pub(crate) fn build(name: &str, config: &str, site: &OwnedSite) -> Box<dyn Dispatcher> {
    DISPATCHERS.find(name).unwrap().build(&config.parse().unwrap(), &site.site()).unwrap()
}

/// Why it cannot be built.
pub(crate) fn refused(name: &str, config: &str, site: &OwnedSite) -> DispatcherError {
    DISPATCHERS.find(name).unwrap().build(&config.parse().unwrap(), &site.site()).err().unwrap()
}

/// A question without work done.
pub(crate) fn request<'a>(
    age_ms: u64,
    on: Option<usize>,
    (older, active): (usize, usize),
    free: &'a [u32],
) -> DispatchRequest<'a> {
    let age = Nanos::from_millis(age_ms);
    DispatchRequest { age, done: Nanos::ZERO, on, older, active, work: None, free }
}

/// Measurements with this tail, answers and rate.
pub(crate) fn seen(tail_ms: u64, samples: usize, rate_per_s: f64) -> DispatchObservation {
    seen_at(0, tail_ms, samples, rate_per_s)
}

/// The same at a time.
pub(crate) fn seen_at(
    now_s: u64,
    tail_ms: u64,
    samples: usize,
    rate_per_s: f64,
) -> DispatchObservation {
    DispatchObservation {
        now: Nanos::from_secs(now_s),
        tail: Some(Nanos::from_millis(tail_ms)),
        samples,
        late: None,
        rate_per_s: Some(rate_per_s),
        active: 0,
    }
}
