//! Our method: tail and power have a model each, and a reading has a value.
//!
//! There are two Gaussian processes, of the logarithm of tail over bound and of the logarithm of
//! power. Above the bound the first logarithm is compressed: it does not matter whether an
//! overloaded server exceeds its bound five or ten times, and such a cliff would make the process
//! expect cliffs everywhere.
//!
//! A candidate is accepted if it meets the bound with a probability of `final_floor`. The value of
//! one more reading of it is therefore
//!
//! ```text
//! P(one more reading makes it acceptable)  x  expected decrease of power
//! ```
//!
//! The first factor is more than the probability of meeting the bound. It is small where nothing
//! can be learnt, so that a candidate slightly over the bound is not measured for ever, and large
//! where a candidate of low power was misjudged by one noisy reading, which is then repeated. It
//! follows from the process: a reading with noise `n` of a candidate whose posterior has standard
//! deviation `s` moves the mean by a normal of `s^2 / sqrt(s^2 + n^2)` and leaves
//! `s n / sqrt(s^2 + n^2)` (the knowledge gradient of Frazier et al., for one candidate).

use super::prior::{Prior, PriorMean};
use super::reading::Reading;
use super::rules::Rules;
use super::space::{Place, Space};
use crate::toolkit::surrogate::{
    GaussianProcess, Posterior, log_expected_improvement, probability_below,
};
use statrs::distribution::{ContinuousCDF, Normal};

/// The limit of the compressed logarithm of tail over bound (ours): twice the bound.
const CEILING: f64 = std::f64::consts::LN_2;
/// The least standard deviation of ln tail that any number of trials can reach (ours).
const MIN_STD_DEV: f64 = 0.01;
/// Tail over bound up to which a candidate counts as close to the bound (ours).
const NEAR: f64 = 1.2;

/// The two fitted processes and their prior mean.
pub(super) struct Models {
    tail: GaussianProcess,
    watts: GaussianProcess,
    prior: Option<Prior>,
    bound_us: f64,
    /// Standard deviations below the bound at which a candidate is accepted.
    confidence: f64,
}

/// The posteriors at one candidate: of the logarithm of tail over bound, compressed above 0,
/// and of the logarithm of power in watts.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) tail: Posterior,
    pub(super) watts: Posterior,
}

impl Models {
    /// Fits the models to the readings of a search. Returns `None` with fewer than two.
    pub(super) fn fit(
        space: &Space,
        rules: &Rules,
        readings: &[(&Place, &Reading)],
    ) -> Option<Self> {
        let prior = match rules.prior {
            PriorMean::Constant => None,
            PriorMean::Response => Prior::fit(space, readings.iter().copied(), rules.bound_us),
        };
        let inputs: Vec<_> = readings.iter().map(|(place, _)| space.coordinates(place)).collect();
        let before = |place: &Place| expected(prior.as_ref(), space, place, rules.bound_us);
        let tail = |(place, it): &(&Place, &Reading)| {
            compressed((it.tail_us / rules.bound_us).ln()) - before(place)[0]
        };
        let watts = |(place, it): &(&Place, &Reading)| it.watts.ln() - before(place)[1];
        let tails: Vec<_> = readings.iter().map(tail).collect();
        let powers: Vec<_> = readings.iter().map(watts).collect();
        Some(Self {
            tail: GaussianProcess::fit_each(&inputs, &tails)?,
            watts: GaussianProcess::fit_each(&inputs, &powers)?,
            prior,
            bound_us: rules.bound_us,
            confidence: Normal::standard().inverse_cdf(rules.final_floor.clamp(0.5, 0.999_999)),
        })
    }

    /// Returns the posteriors at a candidate.
    pub(super) fn at(&self, space: &Space, place: &Place) -> View {
        let at = space.coordinates(place);
        let [tail, watts] = expected(self.prior.as_ref(), space, place, self.bound_us);
        View {
            tail: raised(self.tail.posterior(&at), tail),
            watts: raised(self.watts.posterior(&at), watts),
        }
    }

    /// Returns the posteriors at many candidates, given with their coordinates.
    pub(super) fn at_all(&self, space: &Space, places: &[(Place, Vec<f64>)]) -> Vec<View> {
        let points = || places.iter().map(|(_, at)| at.as_slice());
        let (tails, watts) = (self.tail.posteriors(points()), self.watts.posteriors(points()));
        let views = tails.into_iter().zip(watts).map(|(tail, watts)| View { tail, watts });
        if self.prior.is_none() {
            return views.collect();
        }
        let lifted = views.zip(places).map(|(view, (place, _))| {
            let [tail, watts] = expected(self.prior.as_ref(), space, place, self.bound_us);
            View { tail: raised(view.tail, tail), watts: raised(view.watts, watts) }
        });
        lifted.collect()
    }

    /// Returns the probability that one more reading makes a candidate acceptable.
    pub(super) fn may_be_accepted(&self, tail: Posterior) -> f64 {
        let (known, noise) = (tail.std_dev, self.tail.noise_std_dev());
        let both = known.hypot(noise).max(f64::MIN_POSITIVE);
        let (left, moved) = (known * noise / both, known * known / both);
        let limit = -self.confidence * left.hypot(MIN_STD_DEV);
        probability_below(Posterior { mean: tail.mean, std_dev: moved }, limit)
    }
}

impl View {
    /// Returns the probability of meeting the bound.
    pub(super) fn meets(&self) -> f64 {
        probability_below(widened(self.tail), 0.0)
    }

    /// Returns the probability that the tail is below, or close to, the bound.
    pub(super) fn is_near(&self) -> f64 {
        probability_below(widened(self.tail), compressed(NEAR.ln()))
    }

    /// Returns the logarithm of the expected share by which power falls below `best`, if the
    /// standard deviation of power were `widening` times the model's.
    pub(super) fn log_gain(&self, best: f64, widening: f64) -> f64 {
        let std_dev = widening * self.watts.std_dev;
        log_expected_improvement(Posterior { std_dev, ..self.watts }, best)
    }

    /// The tail, in microseconds.
    pub(super) fn tail_us(&self, bound_us: f64) -> f64 {
        bound_us * straight(self.tail.mean).exp()
    }
}

/// The prior mean of both processes at a place.
fn expected(prior: Option<&Prior>, space: &Space, place: &Place, bound_us: f64) -> [f64; 2] {
    let Some(prior) = prior else { return [0.0; 2] };
    let [tail, watts] = prior.logs(&space.values(place));
    [compressed(tail - bound_us.ln()), watts]
}

fn raised(posterior: Posterior, by: f64) -> Posterior {
    Posterior { mean: posterior.mean + by, ..posterior }
}

/// Widens a posterior to the least standard deviation that trials can reach.
fn widened(posterior: Posterior) -> Posterior {
    Posterior { std_dev: posterior.std_dev.hypot(MIN_STD_DEV), ..posterior }
}

/// Compresses the logarithm of tail over bound towards [`CEILING`] above 0.
fn compressed(log: f64) -> f64 {
    if log <= 0.0 { log } else { CEILING * log / (CEILING + log) }
}

/// The inverse of [`compressed`]; near the ceiling, ten bounds.
fn straight(bent: f64) -> f64 {
    if bent <= 0.0 { bent } else { (CEILING * bent / (CEILING - bent).max(1e-9)).min(10f64.ln()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_bent_above_its_bound_only_and_back() {
        for log in [-3.0, -0.01, 0.0, 0.1, 1.0, 2.0] {
            assert!((straight(compressed(log)) - log).abs() < 1e-9, "{log}");
        }
        assert!(compressed(100.0) < CEILING && compressed(0.1) > 0.08);
        assert_eq!(straight(CEILING), 10f64.ln());
    }
}
