//! Our method: tail and power have a model each, and a reading has a value.
//!
//! There are two Gaussian processes, of the logarithm of tail over bound and of the logarithm of
//! power; a search of the front has a third one, of the logarithm of the progress that best-effort
//! apps lose, where each reading has it. A tail counts in full up to ten times the bound, which is
//! also what is assumed for a server that answers nothing.
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
//!
//! To be chosen for good takes more than to be accepted: the spread of the trials that confirm a
//! candidate is that of a small sample, and with six of them their mean is 2.18 standard
//! deviations of a trial below the bound. [`Models::may_be_shown`] is the probability of that. The
//! noise of a trial is that of settings with several trials as soon as these have three degrees of
//! freedom, because the process cannot tell the noise of single trials from its own error.

use super::evidence::MIN_STD_DEV;
use super::prior::{Prior, PriorMean};
use super::reading::Reading;
use super::rules::{Method, Rules};
use super::space::{SearchPoint, Space};
use crate::toolkit::surrogate::{
    GaussianProcess, Posterior, log_expected_improvement, probability_below,
};
use lull_measure::statistics::{normal_quantile, student_t_quantile};
use std::collections::BTreeMap;

/// Tail over bound at which readings are capped, and which is assumed without an answer.
const TAIL_CAP: f64 = 10.0;
/// Degrees of freedom from which the noise of repeated trials is used (ours).
const FREEDOM_MIN: usize = 3;
/// Readings of a setting from which its own noise is estimated.
const OWN_NOISE: usize = 3;
/// Tail over bound up to which a candidate counts as close to the bound (ours).
const NEAR: f64 = 1.2;

/// Tail over bound that a safe search does not exceed.
const TWICE: f64 = 2.0;
/// Probability of being within it that a safe search demands of a candidate (ours).
const SAFE: f64 = 0.95;

/// Share of the most progress below which a reading counts as this (ours).
const PROGRESS_FLOOR: f64 = 0.01;

/// The fitted processes and their prior mean.
pub(super) struct Models {
    tail: GaussianProcess,
    watts: GaussianProcess,
    lost: Option<LostProgress>,
    prior: Option<Prior>,
    bound_us: f64,
    /// Standard deviations below the bound at which a candidate is accepted.
    confidence: f64,
    /// Standard deviation of trials of the same setting, over all settings that have several.
    repeated: Option<f64>,
    /// Trials that confirm a candidate.
    trials: usize,
    /// Standard deviations of a trial by which their mean must be below the bound.
    margin: f64,
    /// Variance of readings beyond the common noise, where a setting has any.
    excess: Vec<(SearchPoint, f64)>,
}

/// The progress that best-effort apps lose: the logarithm of the most progress over that of a
/// setting.
struct LostProgress {
    process: GaussianProcess,
    most_per_s: f64,
}

/// The posteriors at one candidate: of the logarithm of tail over bound, of the logarithm of
/// power in watts, and of the logarithm of the progress that is lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) tail: Posterior,
    pub(super) watts: Posterior,
    /// `None` if the search has no such objective.
    pub(super) lost: Option<Posterior>,
    /// Standard deviation of one reading of the tail.
    noise: f64,
}

impl Models {
    /// Fits the models to the readings of a search. Returns `None` with fewer than two.
    pub(super) fn fit(
        space: &Space,
        rules: &Rules,
        readings: &[(&SearchPoint, &Reading)],
    ) -> Option<Self> {
        let prior = match rules.prior {
            PriorMean::Constant => None,
            PriorMean::Response => Prior::fit(space, readings.iter().copied(), rules.bound_us),
        };
        let inputs: Vec<_> = readings.iter().map(|(point, _)| space.coordinates(point)).collect();
        let before = |point: &SearchPoint| expected(prior.as_ref(), space, point, rules.bound_us);
        let tail = |(point, it): &(&SearchPoint, &Reading)| {
            capped(it.tail_us / rules.bound_us) - before(point)[0]
        };
        let watts = |(point, it): &(&SearchPoint, &Reading)| it.watts.ln() - before(point)[1];
        let tails: Vec<_> = readings.iter().map(tail).collect();
        let powers: Vec<_> = readings.iter().map(watts).collect();
        let tail = GaussianProcess::fit_each(&inputs, &tails)?;
        let excess = excess_noise(readings, &tails, tail.noise_std_dev().powi(2));
        let extra = |point: &SearchPoint| excess_at(&excess, point);
        let extras: Vec<_> = readings.iter().map(|(point, _)| extra(point)).collect();
        let tail = if excess.is_empty() { tail } else { tail.with_extra_noise(&tails, &extras)? };
        Some(Self {
            tail,
            excess,
            watts: GaussianProcess::fit_each(&inputs, &powers)?,
            lost: LostProgress::fit(rules, &inputs, readings),
            prior,
            bound_us: rules.bound_us,
            confidence: normal_quantile(rules.final_floor.clamp(0.5, 0.999_999)),
            repeated: repeated_noise(readings, &tails),
            trials: rules.confirmations() + 1,
            margin: margin(rules),
        })
    }

    /// Returns the posteriors at a candidate.
    pub(super) fn at(&self, space: &Space, point: &SearchPoint) -> View {
        let at = space.coordinates(point);
        let view = self.view(space, point, self.tail.posterior(&at), self.watts.posterior(&at));
        View { lost: self.lost.as_ref().map(|it| it.process.posterior(&at)), ..view }
    }

    /// Returns the posteriors at many candidates, given with their coordinates.
    pub(super) fn views_at(
        &self,
        space: &Space,
        candidates: &[(SearchPoint, Vec<f64>)],
    ) -> Vec<View> {
        let inputs = || candidates.iter().map(|(_, at)| at.as_slice());
        let (tails, watts) = (self.tail.posteriors(inputs()), self.watts.posteriors(inputs()));
        let all = tails.into_iter().zip(watts).zip(candidates);
        let mut views: Vec<_> =
            all.map(|((tail, watts), (point, _))| self.view(space, point, tail, watts)).collect();
        if let Some(lost) = &self.lost {
            for (view, lost) in views.iter_mut().zip(lost.process.posteriors(inputs())) {
                view.lost = Some(lost);
            }
        }
        views
    }

    fn view(&self, space: &Space, point: &SearchPoint, tail: Posterior, watts: Posterior) -> View {
        let noise = self.tail.noise_std_dev().hypot(excess_at(&self.excess, point).sqrt());
        if self.prior.is_none() {
            return View { tail, watts, lost: None, noise };
        }
        let [more_tail, more_watts] = expected(self.prior.as_ref(), space, point, self.bound_us);
        let (tail, watts) = (raised(tail, more_tail), raised(watts, more_watts));
        View { tail, watts, lost: None, noise }
    }

    /// Returns the predicted progress of the best-effort apps per second; `None` if the search
    /// has no such objective.
    pub(super) fn progress_per_s(&self, view: &View) -> Option<f64> {
        Some(self.lost.as_ref()?.most_per_s * (-view.lost?.mean).exp())
    }

    /// Returns the probability that one more reading makes a candidate acceptable.
    pub(super) fn may_be_accepted(&self, view: &View) -> f64 {
        let (known, noise) = (view.tail.std_dev, view.noise);
        let both = known.hypot(noise).max(f64::MIN_POSITIVE);
        let (left, moved) = (known * noise / both, known * known / both);
        let limit = -self.confidence * left.hypot(noise).hypot(MIN_STD_DEV);
        probability_below(Posterior { mean: view.tail.mean, std_dev: moved }, limit)
    }

    /// Returns the probability that the trials that confirm a candidate show that it meets the
    /// bound: that their mean is below it by the margin. The mean is not known exactly, and
    /// neither is the spread on which the margin depends.
    pub(super) fn may_be_shown(&self, view: &View) -> f64 {
        let common = self.tail.noise_std_dev();
        let noise = match self.repeated {
            Some(repeated) if view.noise <= common => repeated.max(MIN_STD_DEV),
            _ => view.noise.max(MIN_STD_DEV),
        };
        let margin = self.margin * noise;
        let count = self.trials as f64;
        let of_mean = view.tail.std_dev.hypot(noise / count.sqrt());
        let of_margin = margin / (2.0 * (count - 1.0).max(1.0)).sqrt();
        let all = Posterior { mean: view.tail.mean, std_dev: of_mean.hypot(of_margin) };
        probability_below(all, -margin)
    }
}

impl LostProgress {
    /// Returns `None` unless the search is one of the front and each reading has progress.
    fn fit(
        rules: &Rules,
        inputs: &[Vec<f64>],
        readings: &[(&SearchPoint, &Reading)],
    ) -> Option<Self> {
        if rules.method != Method::Front {
            return None;
        }
        let progress: Option<Vec<f64>> = readings.iter().map(|(_, it)| it.progress_per_s).collect();
        let progress = progress?;
        let most_per_s = progress.iter().copied().fold(0.0, f64::max);
        if most_per_s <= 0.0 {
            return None;
        }
        let lost = |it: &f64| -(it / most_per_s).max(PROGRESS_FLOOR).ln();
        let lost: Vec<f64> = progress.iter().map(lost).collect();
        Some(Self { process: GaussianProcess::fit_each(inputs, &lost)?, most_per_s })
    }
}

/// Returns the pooled standard deviation of the readings of the same setting; `None` with fewer
/// than three degrees of freedom.
fn repeated_noise(readings: &[(&SearchPoint, &Reading)], tails: &[f64]) -> Option<f64> {
    let mut by_point: BTreeMap<&SearchPoint, Vec<f64>> = BTreeMap::new();
    for ((point, _), tail) in readings.iter().zip(tails) {
        by_point.entry(point).or_default().push(*tail);
    }
    let (mut squares, mut freedom) = (0.0, 0);
    for tails in by_point.values() {
        let mean = tails.iter().sum::<f64>() / tails.len() as f64;
        squares += tails.iter().map(|tail| (tail - mean).powi(2)).sum::<f64>();
        freedom += tails.len() - 1;
    }
    (freedom >= FREEDOM_MIN).then(|| (squares / freedom as f64).sqrt())
}

/// Returns how many standard deviations of a trial the mean of confirming trials must be below
/// the bound, so that one more trial meets it with a probability of `final_floor`: that of a
/// prediction interval from their own spread, if they are enough to have one.
fn margin(rules: &Rules) -> f64 {
    let (floor, count) = (rules.final_floor.clamp(0.5, 0.999_999), rules.confirmations() + 1);
    match count < OWN_NOISE {
        true => normal_quantile(floor),
        false => student_t_quantile(floor, count - 1) * (1.0 + 1.0 / count as f64).sqrt(),
    }
}

/// Returns the variance of the readings of each setting beyond the common noise.
fn excess_noise(
    readings: &[(&SearchPoint, &Reading)],
    tails: &[f64],
    common: f64,
) -> Vec<(SearchPoint, f64)> {
    let mut by_point: BTreeMap<&SearchPoint, Vec<f64>> = BTreeMap::new();
    for ((point, _), tail) in readings.iter().zip(tails) {
        by_point.entry(point).or_default().push(*tail);
    }
    let excess = |(point, tails): (&SearchPoint, Vec<f64>)| {
        if tails.len() < OWN_NOISE {
            return None;
        }
        let count = tails.len() as f64;
        let mean = tails.iter().sum::<f64>() / count;
        let variance = tails.iter().map(|tail| (tail - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (variance > common).then(|| (point.clone(), variance - common))
    };
    by_point.into_iter().filter_map(excess).collect()
}

/// The excess of a setting; 0 if it has none.
fn excess_at(excess: &[(SearchPoint, f64)], point: &SearchPoint) -> f64 {
    excess.iter().find(|(one, _)| one == point).map_or(0.0, |(_, variance)| *variance)
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

    /// Whether one more reading is within twice the bound with a probability of 95 %.
    pub(super) fn is_safe(&self) -> bool {
        let Posterior { mean, std_dev } = widened(self.tail);
        probability_below(Posterior { mean, std_dev: std_dev.hypot(self.noise) }, TWICE.ln())
            >= SAFE
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

/// The prior mean of both processes at a point.
fn expected(prior: Option<&Prior>, space: &Space, point: &SearchPoint, bound_us: f64) -> [f64; 2] {
    let Some(prior) = prior else { return [0.0; 2] };
    let [tail, watts] = prior.logs(&space.values(point));
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
        let reading = |ms: f64| Reading {
            tail_us: 1e3 * ms,
            watts: 10.0,
            requests: 200,
            late: 0,
            progress_per_s: None,
        };
        let points: Vec<_> = space.points().collect();
        let bursts = [3.7, 3.3, 300.0, 3.8, 227.0, 524.0, 5.9].map(reading);
        let quiet = [4.0, 4.5, 6.1, 4.2, 4.4].map(reading);
        let mut all: Vec<_> = bursts.iter().map(|it| (&points[0], it)).collect();
        all.extend(quiet.iter().map(|it| (&points[1], it)));
        let models = Models::fit(&space, &rules, &all).unwrap();
        let [first, second] = [&points[0], &points[1]].map(|it| models.at(&space, it).meets());
        assert!(first < 0.8 && second > 0.95, "{first} {second}");
    }
}
