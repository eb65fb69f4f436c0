//! On/off comparison: alternating blocks, paired differences, confidence intervals.
//!
//! A pair is one block without and one with the policy, next to each other in
//! time, so that slow drift of the machine cancels. The interval is that of Student's
//! t over the pairs, which is wide for few pairs.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the 95 % interval; `None` with fewer than two values.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// Computes the estimate from independent values; `None` without any.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let half_width = (values.len() > 1).then(|| {
            let deviation = (squares / (count - 1.0)).sqrt();
            t_95(count - 1.0) * deviation / count.sqrt()
        });
        Some(Self { mean, half_width })
    }

    /// Whether the interval excludes zero, so that there is a difference.
    pub fn is_clear(&self) -> bool {
        self.half_width.is_some_and(|half| self.mean.abs() > half)
    }
}

/// The two-sided 95 % quantile of Student's t.
fn t_95(freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975))
}

/// One quantity without and with the policy, block by block.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Paired {
    off: Vec<f64>,
    on: Vec<f64>,
}

impl Paired {
    /// Adds one pair; a pair with a missing half is left out.
    pub fn push(&mut self, off: Option<f64>, on: Option<f64>) {
        if let (Some(off), Some(on)) = (off, on) {
            self.off.push(off);
            self.on.push(on);
        }
    }

    /// Without the policy.
    pub fn off(&self) -> Option<Estimate> {
        Estimate::from_values(&self.off)
    }

    /// With the policy.
    pub fn on(&self) -> Option<Estimate> {
        Estimate::from_values(&self.on)
    }

    /// On minus off, over pairs.
    pub fn difference(&self) -> Option<Estimate> {
        let differences: Vec<_> = self.on.iter().zip(&self.off).map(|(on, off)| on - off).collect();
        Estimate::from_values(&differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Mean 3, sd 1.5811, n = 5: 2.7764 * 1.5811 / sqrt(5) = 1.9632.
        let estimate = Estimate::from_values(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(estimate.mean, 3.0);
        assert!((estimate.half_width.unwrap() - 1.9632).abs() < 1e-4, "{estimate:?}");
        assert!(estimate.is_clear());
    }

    #[test]
    fn one_value_claims_nothing() {
        let estimate = Estimate::from_values(&[7.0]).unwrap();
        assert_eq!(estimate.half_width, None);
        assert!(!estimate.is_clear());
        assert_eq!(Estimate::from_values(&[]), None);
    }

    #[test]
    fn drift_common_to_both_halves_cancels() {
        let mut paired = Paired::default();
        for drift in [0.0, 100.0, 200.0, 300.0] {
            paired.push(Some(10.0 + drift), Some(8.0 + drift));
        }
        let difference = paired.difference().unwrap();
        assert_eq!((difference.mean, difference.half_width), (-2.0, Some(0.0)));
        assert!(difference.is_clear());
    }

    #[test]
    fn a_half_without_a_value_is_left_out() {
        let mut paired = Paired::default();
        paired.push(None, Some(1.0));
        assert_eq!(paired.difference(), None);
    }
}
