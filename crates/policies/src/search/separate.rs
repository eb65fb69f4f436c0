//! Our method: tail and power have a model each, and a reading has a value.
//!
//! There are two Gaussian processes, of the logarithm of tail over bound and of the logarithm of
//! power. A tail counts in full up to ten times the bound, which is also what is assumed for a
//! server that answers nothing.
//!
//! Noise differs by setting: most settings repeat within a percent, and one that is near
//! saturation, or shares its cores, varies by an order of magnitude. Where a setting has three
//! readings or more, the part of their variance that exceeds the common noise is added to the
//! noise of these readings, so that they do not blur all other settings, and is part of the
//! prediction for that setting.
//!
//! A candidate is accepted if one more trial meets the bound with a probability of `final_floor`
//! ([`super::evidence`]). The value of one more reading of it is therefore
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

use super::evidence::MIN_STD_DEV;
use super::prior::{Prior, PriorMean};
use super::reading::Reading;
use super::rules::Rules;
use super::space::{Place, Space};
use crate::toolkit::surrogate::{
    GaussianProcess, Posterior, log_expected_improvement, probability_below,
};
use statrs::distribution::{ContinuousCDF, Normal};
use std::collections::BTreeMap;

/// Tail over bound at which readings are capped: what is assumed without an answer.
const TAIL_CAP: f64 = 10.0;
/// Readings of a setting from which its own noise is estimated.
const OWN_NOISE: usize = 3;
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
    /// Variance of readings beyond the common noise, where a setting has any.
    excess: Vec<(Place, f64)>,
}

/// The posteriors at one candidate: of the logarithm of tail over bound, and of the logarithm of
/// power in watts.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) tail: Posterior,
    pub(super) watts: Posterior,
    /// Standard deviation of one reading of the tail.
    noise: f64,
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
            capped(it.tail_us / rules.bound_us) - before(place)[0]
        };
        let watts = |(place, it): &(&Place, &Reading)| it.watts.ln() - before(place)[1];
        let tails: Vec<_> = readings.iter().map(tail).collect();
        let powers: Vec<_> = readings.iter().map(watts).collect();
        let tail = GaussianProcess::fit_each(&inputs, &tails)?;
        let excess = excess_noise(readings, &tails, tail.noise_std_dev().powi(2));
        let extra = |place: &Place| of_place(&excess, place);
        let extras: Vec<_> = readings.iter().map(|(place, _)| extra(place)).collect();
        let tail = if excess.is_empty() { tail } else { tail.with_extra_noise(&tails, &extras)? };
        Some(Self {
            tail,
            excess,
            watts: GaussianProcess::fit_each(&inputs, &powers)?,
            prior,
            bound_us: rules.bound_us,
            confidence: Normal::standard().inverse_cdf(rules.final_floor.clamp(0.5, 0.999_999)),
        })
    }

    /// Returns the posteriors at a candidate.
    pub(super) fn at(&self, space: &Space, place: &Place) -> View {
        let at = space.coordinates(place);
        self.view(space, place, self.tail.posterior(&at), self.watts.posterior(&at))
    }

    /// Returns the posteriors at many candidates, given with their coordinates.
    pub(super) fn at_all(&self, space: &Space, places: &[(Place, Vec<f64>)]) -> Vec<View> {
        let points = || places.iter().map(|(_, at)| at.as_slice());
        let (tails, watts) = (self.tail.posteriors(points()), self.watts.posteriors(points()));
        let all = tails.into_iter().zip(watts).zip(places);
        all.map(|((tail, watts), (place, _))| self.view(space, place, tail, watts)).collect()
    }

    fn view(&self, space: &Space, place: &Place, tail: Posterior, watts: Posterior) -> View {
        let noise = self.tail.noise_std_dev().hypot(of_place(&self.excess, place).sqrt());
        if self.prior.is_none() {
            return View { tail, watts, noise };
        }
        let [more_tail, more_watts] = expected(self.prior.as_ref(), space, place, self.bound_us);
        View { tail: raised(tail, more_tail), watts: raised(watts, more_watts), noise }
    }

    /// Returns the probability that one more reading makes a candidate acceptable.
    pub(super) fn may_be_accepted(&self, view: &View) -> f64 {
        let (known, noise) = (view.tail.std_dev, view.noise);
        let both = known.hypot(noise).max(f64::MIN_POSITIVE);
        let (left, moved) = (known * noise / both, known * known / both);
        let limit = -self.confidence * left.hypot(noise).hypot(MIN_STD_DEV);
        probability_below(Posterior { mean: view.tail.mean, std_dev: moved }, limit)
    }
}

/// Returns the variance of the readings of each setting beyond the common noise.
fn excess_noise(readings: &[(&Place, &Reading)], tails: &[f64], common: f64) -> Vec<(Place, f64)> {
    let mut by_place: BTreeMap<&Place, Vec<f64>> = BTreeMap::new();
    for ((place, _), tail) in readings.iter().zip(tails) {
        by_place.entry(place).or_default().push(*tail);
    }
    let excess = |(place, tails): (&Place, Vec<f64>)| {
        if tails.len() < OWN_NOISE {
            return None;
        }
        let count = tails.len() as f64;
        let mean = tails.iter().sum::<f64>() / count;
        let variance = tails.iter().map(|tail| (tail - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (variance > common).then(|| (place.clone(), variance - common))
    };
    by_place.into_iter().filter_map(excess).collect()
}

/// The excess of a setting; 0 if it has none.
fn of_place(excess: &[(Place, f64)], place: &Place) -> f64 {
    excess.iter().find(|(one, _)| one == place).map_or(0.0, |(_, variance)| *variance)
}

impl View {
    /// Returns the probability that one more reading meets the bound.
    pub(super) fn meets(&self) -> f64 {
        let Posterior { mean, std_dev } = widened(self.tail);
        probability_below(Posterior { mean, std_dev: std_dev.hypot(self.noise) }, 0.0)
    }

    /// Returns the probability that the tail is below, or close to, the bound.
    pub(super) fn is_near(&self) -> f64 {
        probability_below(widened(self.tail), NEAR.ln())
    }

    /// Returns the logarithm of the expected share by which power falls below `best`, if the
    /// standard deviation of power were `widening` times the model's.
    pub(super) fn log_gain(&self, best: f64, widening: f64) -> f64 {
        let std_dev = widening * self.watts.std_dev;
        log_expected_improvement(Posterior { std_dev, ..self.watts }, best)
    }

    /// The tail, in microseconds.
    pub(super) fn tail_us(&self, bound_us: f64) -> f64 {
        bound_us * self.tail.mean.exp()
    }
}

/// The prior mean of both processes at a place.
fn expected(prior: Option<&Prior>, space: &Space, place: &Place, bound_us: f64) -> [f64; 2] {
    let Some(prior) = prior else { return [0.0; 2] };
    let [tail, watts] = prior.logs(&space.values(place));
    [capped(tail.exp() / bound_us), watts]
}

fn raised(posterior: Posterior, by: f64) -> Posterior {
    Posterior { mean: posterior.mean + by, ..posterior }
}

/// Widens a posterior to the least standard deviation that trials can reach.
fn widened(posterior: Posterior) -> Posterior {
    Posterior { std_dev: posterior.std_dev.hypot(MIN_STD_DEV), ..posterior }
}

/// The logarithm of tail over bound, up to [`TAIL_CAP`].
fn capped(tail_over_bound: f64) -> f64 {
    tail_over_bound.min(TAIL_CAP).ln()
}

#[cfg(test)]
mod tests {
    use super::super::rules::Method;
    use super::super::space::Space;
    use super::*;
    use crate::testing::{lc_spec, machine};
    use lull_control::Capability;

    #[test]
    fn one_setting_with_bursts_does_not_make_the_others_doubtful() {
        let space =
            Space::from_machine(&machine(4), &[lc_spec("a")], &[Capability::Cores]).unwrap();
        let rules = Rules::new(Method::Apart, 60e3, 30);
        let reading = |ms: f64| Reading { tail_us: 1e3 * ms, watts: 10.0, requests: 200, late: 0 };
        let places: Vec<_> = space.places().collect();
        let bursts = [3.7, 3.3, 300.0, 3.8, 227.0, 524.0, 5.9].map(reading);
        let quiet = [4.0, 4.5, 6.1, 4.2, 4.4].map(reading);
        let mut all: Vec<_> = bursts.iter().map(|it| (&places[0], it)).collect();
        all.extend(quiet.iter().map(|it| (&places[1], it)));
        let models = Models::fit(&space, &rules, &all).unwrap();
        let [first, second] = [&places[0], &places[1]].map(|it| models.at(&space, it).meets());
        assert!(first < 0.8 && second > 0.95, "{first} {second}");
    }
}
