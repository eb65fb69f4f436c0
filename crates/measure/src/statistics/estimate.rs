//! Means, differences and ratios with 95 % intervals of Student's t.

use super::distributions::{student_t_cdf, student_t_quantile};
use serde::Serialize;

/// Upper end, as a share, of a two-sided 95 % interval.
const UPPER: f64 = 0.975;

/// A mean with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Half the width of the 95 % interval; infinite for a single value (`null` in JSON).
    pub half_width: f64,
    /// Number of independent values.
    pub values: usize,
}

impl Estimate {
    /// Mean and interval of independent values; `None` without any.
    ///
    /// The values must be independent. Values of consecutive spans of time are not: use the
    /// means of long batches, or differences within pairs.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let half_width = match count {
            1 => f64::INFINITY,
            _ => {
                let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
                let error = (square / (count - 1) as f64 / count as f64).sqrt();
                student_t_quantile(UPPER, count - 1) * error
            }
        };
        Some(Self { mean, half_width, values: count })
    }

    /// Half width over mean; infinite at mean 0.
    pub fn relative(&self) -> f64 {
        self.half_width / self.mean.abs()
    }

    /// Whether a value lies in the interval.
    pub fn covers(&self, value: f64) -> bool {
        self.near(value, 1.0)
    }

    /// Returns whether a value lies within `factor` times the interval. A test of many
    /// intervals needs a factor above 1, because each 95 % interval misses one time in 20.
    pub fn near(&self, value: f64, factor: f64) -> bool {
        (value - self.mean).abs() <= factor * self.half_width
    }

    /// Returns the probability of a mean at least as far from zero if the true one is zero
    /// (two-sided, Student's t). 1 for a single value.
    pub fn chance(&self) -> f64 {
        let Some(freedom) = self.values.checked_sub(2).map(|more| more + 1) else { return 1.0 };
        let error = self.half_width / student_t_quantile(UPPER, freedom);
        match self.mean == 0.0 {
            true => 1.0,
            false => 2.0 * student_t_cdf(-(self.mean / error).abs(), freedom),
        }
    }

    /// Whether the interval excludes zero, so that a difference may be claimed.
    pub fn excludes_zero(&self) -> bool {
        self.mean.abs() > self.half_width
    }
}

/// Returns mean and interval of the differences `ours - theirs` within pairs; `None` if the
/// numbers of values differ or are 0.
///
/// Much narrower than two separate intervals, because variation that both halves of a pair
/// share cancels.
pub fn paired_difference(ours: &[f64], theirs: &[f64]) -> Option<Estimate> {
    if ours.len() != theirs.len() {
        return None;
    }
    let differences: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
    Estimate::from_values(&differences)
}

/// The geometric mean of ratios within pairs, with its 95 % interval.
///
/// The interval is that of the mean logarithm, so that a ratio and its inverse have the same
/// evidence. It is not symmetric round the ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PairedRatio {
    /// Geometric mean of ours over theirs.
    pub ratio: f64,
    /// Lower end of the interval; 0 for a single pair.
    pub low: f64,
    /// Upper end; infinite for a single pair.
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl PairedRatio {
    /// Computes the ratio of pairs of values above zero; `None` if the numbers of values
    /// differ or are 0, or if a value is not above zero.
    pub fn from_pairs(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let is_positive = |values: &[f64]| values.iter().all(|value| *value > 0.0);
        if ours.len() != theirs.len() || !is_positive(ours) || !is_positive(theirs) {
            return None;
        }
        let logs: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| (a / b).ln()).collect();
        let log = Estimate::from_values(&logs)?;
        let at = |offset: f64| (log.mean + offset).exp();
        Some(Self {
            ratio: at(0.0),
            low: at(-log.half_width),
            high: at(log.half_width),
            pairs: log.values,
        })
    }
}

/// Mean and standard error of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// Standard error of the mean; `None` for fewer than two values.
    pub error: Option<f64>,
}

impl Spread {
    /// Computes both; `None` without values.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        Some(Self { mean, error })
    }

    /// Returns |t|: the distance of the mean from 0 in standard errors.
    pub fn t(self) -> f64 {
        match self.error {
            Some(error) if error > 0.0 => (self.mean / error).abs(),
            Some(_) if self.mean != 0.0 => f64::INFINITY,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_use_students_t() {
        // Five values: t = 2.776 with 4 degrees of freedom.
        let estimate = Estimate::from_values(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(estimate.mean, 3.0);
        let expected = 2.776_445 * (2.5_f64 / 5.0).sqrt();
        assert!((estimate.half_width - expected).abs() < 1e-5, "{estimate:?}");
        assert!(estimate.excludes_zero() && estimate.covers(4.9) && !estimate.covers(5.0));
        assert!((estimate.chance() - 0.0132).abs() < 1e-4, "{}", estimate.chance());
        assert!((estimate.relative() - expected / 3.0).abs() < 1e-5);
    }

    #[test]
    fn one_value_says_nothing_about_its_error() {
        assert_eq!(Estimate::from_values(&[]), None);
        let one = Estimate::from_values(&[7.0]).unwrap();
        assert_eq!((one.half_width, one.excludes_zero()), (f64::INFINITY, false));
        assert_eq!(one.chance(), 1.0);
        let pair = PairedRatio::from_pairs(&[3.0], &[1.0]).unwrap();
        assert_eq!((pair.low, pair.high), (0.0, f64::INFINITY));
    }

    #[test]
    fn pairing_cancels_what_both_share() {
        let theirs = [10.0, 20.0, 30.0];
        let ours = [11.0, 21.0, 31.0];
        let difference = paired_difference(&ours, &theirs).unwrap();
        assert_eq!((difference.mean, difference.half_width), (1.0, 0.0));
        assert_eq!(difference.chance(), 0.0);
        assert_eq!(paired_difference(&ours, &theirs[..2]), None);
        let doubled = PairedRatio::from_pairs(&[20.0, 40.0], &theirs[..2]).unwrap();
        assert!((doubled.ratio - 2.0).abs() < 1e-12 && doubled.low > 1.0, "{doubled:?}");
    }

    #[test]
    fn a_ratio_and_its_inverse_have_the_same_evidence() {
        let (ours, theirs) = ([1.2, 1.5, 0.9, 1.3], [1.0, 1.1, 1.0, 1.2]);
        let up = PairedRatio::from_pairs(&ours, &theirs).unwrap();
        let down = PairedRatio::from_pairs(&theirs, &ours).unwrap();
        assert!((up.ratio * down.ratio - 1.0).abs() < 1e-12);
        assert!((up.low * down.high - 1.0).abs() < 1e-12, "{up:?} {down:?}");
        assert_eq!(PairedRatio::from_pairs(&[0.0, 1.0], &[1.0, 1.0]), None);
    }
}
