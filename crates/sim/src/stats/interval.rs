//! Intervals of one long run.

use lull_measure::statistics::Estimate;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_leave_off_the_start_and_refuse_too_short_a_series() {
        let series = [100.0, 1.0, 1.0, 3.0, 3.0];
        let estimate = batch_means(&series, 2).unwrap();
        assert_eq!((estimate.mean, estimate.values), (2.0, 2));
        assert_eq!(batch_means(&series, 6), None);
        assert_eq!(batch_means(&series, 1), None);
        assert_eq!(batch_means(&series, 0), None);
    }
}
