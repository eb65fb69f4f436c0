//! Means with 95 % Student-t intervals.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Half the width of the 95 % interval; infinite for a single value.
    pub half_width: f64,
    /// Number of independent values.
    pub values: usize,
}

impl Estimate {
    /// Mean and interval of independent values; `None` without any.
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
                quantile_975(count - 1) * error
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
}

/// The 97.5 % quantile of Student's t.
fn quantile_975(freedom: usize) -> f64 {
    let t = StudentsT::new(0.0, 1.0, freedom as f64).expect("freedom is at least 1");
    t.inverse_cdf(0.975)
}

/// Mean and interval from one long run: its series is cut into equal batches,
/// whose means are nearly independent if the batches are long.
///
/// `None` if there are fewer values than batches, or fewer than 2 batches.
pub fn batch_means(series: &[f64], batches: usize) -> Option<Estimate> {
    let length = series.len().checked_div(batches)?;
    if length == 0 || batches < 2 {
        return None;
    }
    // Drop the values that do not fill a batch at the start, nearest to the warm-up.
    let rest = series.len() - length * batches;
    let means: Vec<f64> = series[rest..]
        .chunks_exact(length)
        .map(|batch| batch.iter().sum::<f64>() / length as f64)
        .collect();
    Estimate::from_values(&means)
}

/// Returns mean and interval of the differences `ours - theirs` of replications with
/// the same requests (common random numbers).
///
/// Much narrower than two separate intervals, because common variation cancels.
/// `None` if the numbers of replications differ or are 0.
pub fn paired(ours: &[f64], theirs: &[f64]) -> Option<Estimate> {
    if ours.len() != theirs.len() {
        return None;
    }
    let differences: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
    Estimate::from_values(&differences)
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
    }

    #[test]
    fn one_value_says_nothing_about_its_error() {
        assert_eq!(Estimate::from_values(&[]), None);
        assert_eq!(Estimate::from_values(&[7.0]).unwrap().half_width, f64::INFINITY);
    }

    #[test]
    fn batches_leave_off_the_start_and_refuse_too_short_a_series() {
        let series = [100.0, 1.0, 1.0, 3.0, 3.0];
        let estimate = batch_means(&series, 2).unwrap();
        assert_eq!((estimate.mean, estimate.values), (2.0, 2));
        assert_eq!(batch_means(&series, 6), None);
        assert_eq!(batch_means(&series, 1), None);
        assert_eq!(batch_means(&series, 0), None);
    }

    #[test]
    fn pairing_cancels_what_both_share() {
        let theirs = [10.0, 20.0, 30.0];
        let ours = [11.0, 21.0, 31.0];
        let difference = paired(&ours, &theirs).unwrap();
        assert_eq!((difference.mean, difference.half_width), (1.0, 0.0));
        assert_eq!(paired(&ours, &theirs[..2]), None);
    }
}
