//! How a server's tail and power answer to ITR delay and frequency.
//!
//! Dong et al., CCDS 2026, section 4, with `f` relative to the highest frequency:
//!
//! ```text
//! tail     L = Z / f^(1+a) + phi ITR            (eqs. 1 and 2)
//! energy   E = gamma (phi ITR) f^beta           (eq. 3), a request
//! ```
//!
//! Equation 3 makes energy proportional to the delay and nothing at a delay of
//! zero, against the study's own result that longer delays save. It is kept as
//! a historical form ([`Form::Printed`]) and never used to decide. The authors'
//! earlier *timeline* ([`Form::Timeline`]) adds up what a core does between two
//! requests: it waits to detect one (`ITR`), works (`A / f^(1+a)`), and rests.
//! [`Form::Coalesced`] is ours: `P = c f^b (ITR + 30 us)^d`, in which a longer
//! delay may save or cost; with eqs. 1 and 2 it can be the prior mean of a
//! search.
//!
//! Fitting: least squares of logarithms by Levenberg and Marquardt's method
//! (MINPACK's, in the crate of that name) from several starts; the paper used
//! Adam. How well it fits and how far the starts ended from each other is part
//! of the answer.

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use lull_control::Rng;
use nalgebra::storage::Owned;
use nalgebra::{DMatrix, DVector, Dyn};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// The smallest gap between interrupts under [`Form::Coalesced`], which adds to a delay (ours).
const LEAST_GAP_US: f64 = 30.0;
/// Step of a difference quotient.
const STEP: f64 = 1e-6;

/// The form of the energy half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Equation 3, as printed.
    Printed,
    /// The authors' timeline.
    Timeline,
    /// Ours.
    Coalesced,
}

/// One measured setting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// ITR delay, in microseconds.
    pub delay_us: f64,
    /// Frequency relative to the highest, in (0, 1].
    pub speed: f64,
    /// Mean time between two requests of one core, in microseconds.
    pub gap_us: f64,
    /// The tail, in microseconds.
    pub tail_us: f64,
    /// Power, in watts (energy a request at a fixed rate, but for a factor).
    pub watts: f64,
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Response {
    /// The form of its energy half.
    pub form: Form,
    /// Its parameters by name.
    pub parameters: Vec<(&'static str, f64)>,
    /// Standard deviation of each over the starts whose fit is as good as the best.
    pub spread: Vec<f64>,
    /// How well tails fit.
    pub tail: FitQuality,
    /// How well power fits.
    pub power: FitQuality,
    theta: Vec<f64>,
}

/// How well one half of a model fits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FitQuality {
    /// Share of the variance of logarithms that is explained; negative if less than by their mean.
    pub r2: f64,
    /// Mean deviation relative to the measurements.
    pub mape: f64,
}

/// Fits a form to measured settings from this many starts; `None` with fewer than six settings, or
/// if no start converges.
pub fn fit(form: Form, measured: &[Measured], starts: usize, rng: &mut Rng) -> Option<Response> {
    // Equation 3 has no logarithm at a delay of zero.
    let usable: Vec<_> =
        measured.iter().copied().filter(|it| form != Form::Printed || it.delay_us >= 2.0).collect();
    if usable.len() < 6 {
        return None;
    }
    let ends: Vec<_> = (0..starts.max(1))
        .filter_map(|start| descend(form, &usable, begin(form, &usable, start, rng)))
        .collect();
    let (theta, loss) = ends.iter().min_by(|a, b| a.1.total_cmp(&b.1))?.clone();
    let equals: Vec<_> = ends.iter().filter(|end| end.1 <= 1.01 * loss + 1e-9).collect();
    let natural = |theta: &[f64]| form.parameters(theta);
    let parameters = natural(&theta);
    let spread = (0..parameters.len())
        .map(|at| deviation(equals.iter().map(|end| natural(&end.0)[at].1)))
        .collect();
    let good = |of: fn(&Measured) -> f64, by: fn(Form, &[f64], &Measured) -> f64| {
        goodness(usable.iter().map(|it| (of(it), by(form, &theta, it))))
    };
    Some(Response {
        form,
        tail: good(|it| it.tail_us, tail_us),
        power: good(|it| it.watts, watts),
        parameters,
        spread,
        theta,
    })
}

impl Response {
    /// Returns the predicted tail in microseconds; the measured values are not used.
    pub fn tail_us(&self, at: &Measured) -> f64 {
        tail_us(self.form, &self.theta, at)
    }

    /// The power that it expects, in watts.
    pub fn watts(&self, at: &Measured) -> f64 {
        watts(self.form, &self.theta, at)
    }

    /// The parameter of this name.
    pub fn parameter(&self, name: &str) -> Option<f64> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

impl Form {
    /// Returns the parameters in their own units. The fit uses logarithms of positive ones and the
    /// logit of phi.
    fn parameters(self, theta: &[f64]) -> Vec<(&'static str, f64)> {
        let exp = |at: usize| theta[at].exp();
        let mut all = vec![("Z", exp(0)), ("a", theta[1]), ("phi", logistic(theta[2]))];
        match self {
            Self::Printed => all.extend([("gamma", exp(3)), ("beta", theta[4])]),
            Self::Timeline => all.extend([
                ("static", exp(3)),
                ("B", exp(4)),
                ("b", theta[5]),
                ("quiescent", exp(6)),
                ("A", exp(7)),
            ]),
            Self::Coalesced => all.extend([("c", exp(3)), ("b", theta[4]), ("d", theta[5])]),
        }
        all
    }
}

fn tail_us(_: Form, theta: &[f64], at: &Measured) -> f64 {
    theta[0].exp() / at.speed.powf(1.0 + theta[1]) + logistic(theta[2]) * at.delay_us
}

fn watts(form: Form, theta: &[f64], at: &Measured) -> f64 {
    match form {
        Form::Printed => {
            theta[3].exp() * logistic(theta[2]) * at.delay_us * at.speed.powf(theta[4])
        }
        Form::Coalesced => {
            let gap = (at.delay_us + LEAST_GAP_US) / LEAST_GAP_US;
            theta[3].exp() * at.speed.powf(theta[4]) * gap.powf(theta[5])
        }
        Form::Timeline => {
            // A period holds the requests that arrive during the delay, at least one.
            let period_us = at.gap_us.max(at.delay_us);
            let requests = period_us / at.gap_us;
            let work_us = requests * theta[7].exp() / at.speed.powf(1.0 + theta[1]);
            let rest_us = (period_us - work_us).max(0.0);
            let working = theta[3].exp() + theta[4].exp() * at.speed.powf(2.0 + theta[5]);
            (working * work_us + theta[6].exp() * rest_us) / period_us.max(work_us)
        }
    }
}

/// Returns a start: plausible scales from the measurements, exponents at random.
fn begin(form: Form, measured: &[Measured], start: usize, rng: &mut Rng) -> Vec<f64> {
    let median = |of: &dyn Fn(&Measured) -> f64| {
        let mut all: Vec<_> = measured.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2].max(1e-12).ln()
    };
    let (tail, power) = (median(&|it| it.tail_us), median(&|it| it.watts));
    // The first start has no chance in it.
    let wide = if start == 0 { 0.0 } else { 2.0 };
    let mut any = |centre: f64| centre + wide * (rng.random::<f64>() - 0.5);
    let mut theta = vec![any(tail), any(-0.3), any(1.0)];
    match form {
        Form::Printed => {
            let delay = median(&|it| it.delay_us);
            theta.extend([any(power - delay), any(1.0)]);
        }
        Form::Timeline => {
            let gap = median(&|it| it.gap_us);
            theta.extend([any(power), any(power), any(0.0), any(power - 1.0), any(gap - 1.0)]);
        }
        Form::Coalesced => theta.extend([any(power), any(0.7), any(-0.1)]),
    }
    theta
}

/// Deviations of both logarithms at some parameters.
struct Deviations<'a> {
    form: Form,
    measured: &'a [Measured],
    theta: DVector<f64>,
}

impl Deviations<'_> {
    fn at(&self, theta: &DVector<f64>) -> DVector<f64> {
        let theta = theta.as_slice();
        let both = |it: &Measured| {
            let log = |value: f64| value.clamp(1e-300, 1e300).ln();
            let tail = log(tail_us(self.form, theta, it)) - it.tail_us.ln();
            [tail, log(watts(self.form, theta, it)) - it.watts.ln()]
        };
        let all = self.measured.iter().flat_map(both);
        DVector::from_iterator(2 * self.measured.len(), all)
    }
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Deviations<'_> {
    type ParameterStorage = Owned<f64, Dyn>;
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;

    fn set_params(&mut self, theta: &DVector<f64>) {
        self.theta.clone_from(theta);
    }

    fn params(&self) -> DVector<f64> {
        self.theta.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        let all = self.at(&self.theta);
        all.iter().all(|value| value.is_finite()).then_some(all)
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let columns: Vec<_> = (0..self.theta.len())
            .map(|axis| {
                let moved = |by: f64| {
                    let mut theta = self.theta.clone();
                    theta[axis] += by;
                    self.at(&theta)
                };
                (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
            })
            .collect();
        let all = DMatrix::from_columns(&columns);
        all.iter().all(|value| value.is_finite()).then_some(all)
    }
}

/// Downhill from a start: where that ends, and the mean square there.
fn descend(form: Form, measured: &[Measured], begin: Vec<f64>) -> Option<(Vec<f64>, f64)> {
    let theta = DVector::from_vec(begin);
    let (end, _) = LevenbergMarquardt::new().minimize(Deviations { form, measured, theta });
    let square = end.residuals()?.norm_squared() / measured.len() as f64;
    Some((end.theta.as_slice().to_vec(), square))
}

fn goodness(pairs: impl Iterator<Item = (f64, f64)>) -> FitQuality {
    let pairs: Vec<_> = pairs.collect();
    let count = pairs.len() as f64;
    let mean = pairs.iter().map(|(measured, _)| measured.ln()).sum::<f64>() / count;
    let total: f64 = pairs.iter().map(|(measured, _)| (measured.ln() - mean).powi(2)).sum();
    let left: f64 = pairs
        .iter()
        .map(|(measured, fitted)| (measured.ln() - fitted.max(1e-300).ln()).powi(2))
        .sum();
    let off = pairs.iter().map(|(measured, fitted)| (fitted / measured - 1.0).abs()).sum::<f64>();
    FitQuality { r2: 1.0 - left / total.max(1e-300), mape: off / count }
}

fn deviation(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<_> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_distr::{Distribution, Normal};

    /// The grid of Dong et al. (CCDS 2026, section 3.5, with the public scripts' delays).
    fn grid() -> impl Iterator<Item = (f64, f64)> {
        let delays = [2.0, 4.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0];
        let speeds = (12..=29).map(|tenths| f64::from(tenths) / 29.0);
        speeds.flat_map(move |speed| delays.map(|delay| (delay, speed)))
    }

    fn synthetic(power: impl Fn(f64, f64) -> f64) -> Vec<Measured> {
        let mut rng = Rng::seed_from_u64(11);
        let noise = Normal::new(0.0, 0.02).unwrap();
        let mut noisy = |value: f64| {
            let off: f64 = noise.sample(&mut rng);
            value * off.exp()
        };
        grid()
            .map(|(delay_us, speed)| Measured {
                delay_us,
                speed,
                gap_us: 40.0,
                tail_us: noisy(120.0 / speed.powf(0.6) + 0.8 * delay_us),
                watts: noisy(power(delay_us, speed)),
            })
            .collect()
    }

    fn near(response: &Response, name: &str, value: f64) {
        let got = response.parameter(name).unwrap();
        assert!((got / value - 1.0).abs() < 0.05, "{name}: {got} for {value}");
    }

    #[test]
    fn the_printed_model_is_recovered_from_its_own_data() {
        let data = synthetic(|delay, speed| 0.05 * 0.8 * delay * speed.powf(1.3));
        let fitted = fit(Form::Printed, &data, 10, &mut Rng::seed_from_u64(1)).unwrap();
        for (name, value) in [("Z", 120.0), ("a", -0.4), ("phi", 0.8), ("gamma", 0.05)] {
            near(&fitted, name, value);
        }
        near(&fitted, "beta", 1.3);
        assert!(fitted.tail.r2 > 0.98 && fitted.power.r2 > 0.98, "{fitted:?}");
        assert!(fitted.spread.iter().all(|spread| *spread < 0.05), "{:?}", fitted.spread);
    }

    #[test]
    fn where_longer_delays_save_the_printed_energy_is_worse_than_none() {
        let data = synthetic(|delay, speed| 60.0 * speed.powf(0.7) * (1.0 + 30.0 / (delay + 20.0)));
        let mut rng = Rng::seed_from_u64(1);
        let printed = fit(Form::Printed, &data, 4, &mut rng).unwrap();
        let ours = fit(Form::Coalesced, &data, 4, &mut rng).unwrap();
        assert!(printed.power.r2 < 0.0, "{:?}", printed.power);
        assert!(ours.power.r2 > 0.9 && ours.tail.r2 > 0.95, "{ours:?}");
    }

    #[test]
    fn the_timeline_explains_work_and_rest() {
        let data = synthetic(|_, speed| {
            let busy = (18.0 / speed) / 40.0;
            busy * (10.0 + 20.0 * speed.powf(2.5)) + (1.0 - busy) * 4.0
        });
        let fitted = fit(Form::Timeline, &data, 6, &mut Rng::seed_from_u64(1)).unwrap();
        assert!(fitted.power.r2 > 0.9, "{fitted:?}");
    }

    #[test]
    fn too_little_is_not_fitted() {
        let data = synthetic(|delay, _| delay);
        assert_eq!(fit(Form::Printed, &data[..5], 1, &mut Rng::seed_from_u64(1)), None);
    }
}
