//! Ours: tail and power modelled apart, and what a reading of a place is worth.
//!
//! Two Gaussian processes, of the logarithm of the tail in bounds and of that
//! of power. Over the bound the first is bent: whether a server that is swamped
//! is five or ten bounds over is of no interest, and such a cliff would make the
//! process expect cliffs everywhere.
//!
//! A place may stay if it meets the bound with a probability of `final_floor`.
//! A reading of a place is therefore worth
//!
//! ```text
//! P(one more reading lets the place stay)  x  expected decrease of power
//! ```
//!
//! The first factor is what a mere probability of meeting the bound misses: it
//! is small where nothing more can be learnt, so that a place a hair over the
//! bound is not measured for ever, and it is large where a thrifty place was
//! misjudged by one noisy reading, which is then measured again. It follows
//! from the process: a reading with noise `n` at a place known to `s` moves
//! the mean by a normal `s^2 / sqrt(s^2 + n^2)` and leaves `s n / sqrt(s^2 +
//! n^2)` unknown (Frazier's knowledge gradient, for one place).

use super::prior::{Prior, PriorMean};
use super::reading::Reading;
use super::rules::Rules;
use super::space::{Place, Space};
use crate::toolkit::surrogate::{
    Belief, GaussianProcess, log_expected_decrease, probability_below,
};
use statrs::distribution::{ContinuousCDF, Normal};

/// Where the logarithm of a tail over its bound is bent to (ours): twice the bound.
const CEILING: f64 = std::f64::consts::LN_2;
/// Least deviation of ln tail: what no number of trials knows better (ours).
const DOUBT: f64 = 0.01;
/// How far over its bound a place may be that is tried for what it may teach (ours).
const NEAR: f64 = 1.2;

/// What is known of all places.
pub(super) struct Models {
    tail: GaussianProcess,
    watts: GaussianProcess,
    prior: Option<Prior>,
    bound_us: f64,
    /// Deviations below the bound that a place must be to stay.
    confidence: f64,
}

/// What is believed of one place: logarithms of the tail in bounds, bent above
/// 0, and of power in watts.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) tail: Belief,
    pub(super) watts: Belief,
}

impl Models {
    /// From the readings of a search; `None` with fewer than two.
    pub(super) fn of(
        space: &Space,
        rules: &Rules,
        readings: &[(&Place, &Reading)],
    ) -> Option<Self> {
        let prior = match rules.prior {
            PriorMean::Constant => None,
            PriorMean::Response => Prior::of(space, readings.iter().copied(), rules.bound_us),
        };
        let inputs: Vec<_> = readings.iter().map(|(place, _)| space.coordinates(place)).collect();
        let before = |place: &Place| expected(prior.as_ref(), space, place, rules.bound_us);
        let tail = |(place, it): &(&Place, &Reading)| {
            bent((it.tail_us / rules.bound_us).ln()) - before(place)[0]
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

    /// What is believed of a place.
    pub(super) fn at(&self, space: &Space, place: &Place) -> View {
        let at = space.coordinates(place);
        let [tail, watts] = expected(self.prior.as_ref(), space, place, self.bound_us);
        View { tail: raised(self.tail.at(&at), tail), watts: raised(self.watts.at(&at), watts) }
    }

    /// What is believed of many places, with their coordinates.
    pub(super) fn at_all(&self, space: &Space, places: &[(Place, Vec<f64>)]) -> Vec<View> {
        let points = || places.iter().map(|(_, at)| at.as_slice());
        let (tails, watts) = (self.tail.at_all(points()), self.watts.at_all(points()));
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

    /// Probability that one more reading lets a place stay.
    pub(super) fn may_stay(&self, tail: Belief) -> f64 {
        let (known, noise) = (tail.deviation, self.tail.noise_deviation());
        let both = known.hypot(noise).max(f64::MIN_POSITIVE);
        let (left, moved) = (known * noise / both, known * known / both);
        let limit = -self.confidence * left.hypot(DOUBT);
        probability_below(Belief { mean: tail.mean, deviation: moved }, limit)
    }
}

impl View {
    /// Probability of meeting the bound.
    pub(super) fn meets(&self) -> f64 {
        probability_below(doubted(self.tail), 0.0)
    }

    /// Probability of being no further over the bound than what may be tried.
    pub(super) fn is_near(&self) -> f64 {
        probability_below(doubted(self.tail), bent(NEAR.ln()))
    }

    /// Logarithm of the expected share by which power falls below `best` there,
    /// were it known `doubt` times worse than the model believes.
    pub(super) fn log_gain(&self, best: f64, doubt: f64) -> f64 {
        let deviation = doubt * self.watts.deviation;
        log_expected_decrease(Belief { deviation, ..self.watts }, best)
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
    [bent(tail - bound_us.ln()), watts]
}

fn raised(belief: Belief, by: f64) -> Belief {
    Belief { mean: belief.mean + by, ..belief }
}

/// A belief that is never surer than trials can be.
fn doubted(belief: Belief) -> Belief {
    Belief { deviation: belief.deviation.hypot(DOUBT), ..belief }
}

/// The logarithm of a tail in bounds: as it is below 0, bent towards [`CEILING`] above.
fn bent(log: f64) -> f64 {
    if log <= 0.0 { log } else { CEILING * log / (CEILING + log) }
}

/// The inverse of [`bent`]; near the ceiling, ten bounds.
fn straight(bent: f64) -> f64 {
    if bent <= 0.0 { bent } else { (CEILING * bent / (CEILING - bent).max(1e-9)).min(10f64.ln()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_bent_above_its_bound_only_and_back() {
        for log in [-3.0, -0.01, 0.0, 0.1, 1.0, 2.0] {
            assert!((straight(bent(log)) - log).abs() < 1e-9, "{log}");
        }
        assert!(bent(100.0) < CEILING && bent(0.1) > 0.08);
        assert_eq!(straight(CEILING), 10f64.ln());
    }
}
