//! The length of the warm-up: MSER-5.
//!
//! White, Cobb and Spratt, A comparison of five steady-state truncation
//! heuristics for simulation, WSC 2000: of the means of batches of five,
//! leave off as many as makes the standard error of the rest smallest.

/// Values per batch.
const BATCH: usize = 5;

/// Number of values to leave off at the start; `None` if the rule finds no
/// steady state, which shows as a best cut in the second half of the run.
pub fn mser5(series: &[f64]) -> Option<usize> {
    let batches: Vec<f64> =
        series.chunks_exact(BATCH).map(|batch| batch.iter().sum::<f64>() / BATCH as f64).collect();
    let best = best_cut(&batches)?;
    (best <= batches.len() / 2).then_some(best * BATCH)
}

/// Returns the cut with the smallest standard error of the batches behind it; the last few batches
/// are not candidates, because few data have a small error by chance.
fn best_cut(batches: &[f64]) -> Option<usize> {
    let last = batches.len().checked_sub(BATCH)?;
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let mut best = None;
    // Centred, so that squares of large means do not cancel badly.
    let centre = batches.iter().sum::<f64>() / batches.len() as f64;
    for (cut, batch) in batches.iter().enumerate().rev() {
        let value = batch - centre;
        count += 1.0;
        sum += value;
        squares += value * value;
        let error = (squares - sum * sum / count) / (count * count);
        if cut <= last && best.is_none_or(|(least, _)| error <= least) {
            best = Some((error, cut));
        }
    }
    best.map(|(_, cut)| cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A noise without trend, the same each time.
    fn noise(index: usize) -> f64 {
        ((index * 7919) % 101) as f64 / 101.0 - 0.5
    }

    #[test]
    fn a_decaying_start_is_cut_off_and_the_rest_kept() {
        let series: Vec<f64> =
            (0..2000).map(|n| 10.0 + 20.0 * (-(n as f64) / 50.0).exp() + noise(n)).collect();
        let cut = mser5(&series).unwrap();
        assert!((100..500).contains(&cut), "{cut}");
    }

    #[test]
    fn a_steady_series_loses_next_to_nothing() {
        let series: Vec<f64> = (0..2000).map(|n| 10.0 + noise(n)).collect();
        assert!(mser5(&series).unwrap() < 200);
    }

    #[test]
    fn a_series_that_never_settles_is_recognised() {
        let rises = |n: usize| if n < 1500 { n as f64 } else { 1500.0 };
        let series: Vec<f64> = (0..2000).map(rises).collect();
        assert_eq!(mser5(&series), None);
        assert_eq!(mser5(&[1.0; 10]), None, "too short to tell");
    }
}
