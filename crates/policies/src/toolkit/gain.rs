//! A gain estimated from noisy comparisons, with its standard error.

/// Standard errors above zero at which a gain is significant. With up to nine looks at the best
/// two of four equal settings, the false positive rate is 2 % where the ratios' standard
/// deviation is 0.1, and 8 % where it is 0.15.
const SURE: f64 = 3.0;
/// Prior standard deviation of the logarithm of a ratio, which counts as one observation:
/// three ratios may agree by chance.
const SCATTER: f64 = 0.25;

/// The mean logarithm of some ratios, and its standard error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gain {
    log: f64,
    error: f64,
}

impl Gain {
    /// Estimates the gain from at least one ratio, each above zero.
    pub(crate) fn from_ratios(ratios: impl ExactSizeIterator<Item = f64> + Clone) -> Self {
        let (count, logs) = (ratios.len() as f64, ratios.map(f64::ln));
        let log = logs.clone().sum::<f64>() / count;
        let squares: f64 = logs.map(|one| (one - log).powi(2)).sum();
        Self { log, error: (squares + SCATTER * SCATTER).sqrt() / count }
    }

    /// Returns the geometric mean of the ratios.
    pub(crate) fn ratio(self) -> f64 {
        self.log.exp()
    }

    /// Returns whether the gain is at least `least`; without `surely`, whether it may be, within
    /// one standard error.
    pub(crate) fn is(self, least: f64, surely: bool) -> bool {
        let slack = if surely { 0.0 } else { self.error };
        self.log + slack >= least.ln()
    }

    /// Returns whether the gain is significantly above one.
    pub(crate) fn is_sure(self) -> bool {
        self.log >= SURE * self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(ratios: &[f64]) -> Gain {
        Gain::from_ratios(ratios.iter().copied())
    }

    #[test]
    fn a_large_gain_is_sure_after_three_and_a_small_one_after_many() {
        assert!(gain(&[1.4, 1.5, 1.6]).is_sure());
        assert!(!gain(&[1.1, 1.1, 1.1]).is_sure(), "three may agree by chance");
        assert!(gain(&[1.1; 9]).is_sure());
        assert!(!gain(&[1.5]).is_sure(), "nothing is known of the scatter");
    }

    #[test]
    fn one_that_stands_out_casts_doubt_on_all() {
        assert!(gain(&[1.4; 5]).is_sure());
        assert!(!gain(&[1.4, 1.4, 1.4, 1.4, 0.4]).is_sure());
        assert!(gain(&[1.4, 1.4, 1.4, 1.4, 0.4]).is(1.1, false), "it may be all the same");
        assert!(!gain(&[0.9; 9]).is(1.1, false));
    }

    #[test]
    fn the_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!((gain(&[4.0, 0.25]).ratio() - 1.0).abs() < 1e-12);
        assert!(gain(&[1.2, 1.2]).is(1.19, true) && !gain(&[1.2, 1.2]).is(1.21, true));
    }
}
