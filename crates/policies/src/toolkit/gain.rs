//! How surely something is better, where each comparison scatters.

/// Standard errors that a gain is to be away from none to be sure: with up to
/// nine looks at the best two of four settings, all alike, 2 % are found to be
/// better where ratios scatter by .1, 8 % where they do by .15.
const SURE: f64 = 3.0;
/// What a ratio scatters by, as a logarithm, as if it had been seen once before:
/// three may agree by chance.
const SCATTER: f64 = 0.25;

/// The mean of some ratios, by their logarithms, and its standard error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gain {
    log: f64,
    error: f64,
}

impl Gain {
    /// Of one ratio or more, each above zero.
    pub(crate) fn of(ratios: impl ExactSizeIterator<Item = f64> + Clone) -> Self {
        let (count, logs) = (ratios.len() as f64, ratios.map(f64::ln));
        let log = logs.clone().sum::<f64>() / count;
        let squares: f64 = logs.map(|one| (one - log).powi(2)).sum();
        Self { log, error: (squares + SCATTER * SCATTER).sqrt() / count }
    }

    /// The geometric mean.
    pub(crate) fn ratio(self) -> f64 {
        self.log.exp()
    }

    /// Whether it is this much; if not `surely`, whether it may be, by one standard error.
    pub(crate) fn is(self, least: f64, surely: bool) -> bool {
        let slack = if surely { 0.0 } else { self.error };
        self.log + slack >= least.ln()
    }

    /// Whether it is more than one by more than scatter explains.
    pub(crate) fn is_sure(self) -> bool {
        self.log >= SURE * self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ratios: &[f64]) -> Gain {
        Gain::of(ratios.iter().copied())
    }

    #[test]
    fn a_large_gain_is_sure_after_three_and_a_small_one_after_many() {
        assert!(of(&[1.4, 1.5, 1.6]).is_sure());
        assert!(!of(&[1.1, 1.1, 1.1]).is_sure(), "three may agree by chance");
        assert!(of(&[1.1; 9]).is_sure());
        assert!(!of(&[1.5]).is_sure(), "nothing is known of the scatter");
    }

    #[test]
    fn one_that_stands_out_casts_doubt_on_all() {
        assert!(of(&[1.4; 5]).is_sure());
        assert!(!of(&[1.4, 1.4, 1.4, 1.4, 0.4]).is_sure());
        assert!(of(&[1.4, 1.4, 1.4, 1.4, 0.4]).is(1.1, false), "it may be all the same");
        assert!(!of(&[0.9; 9]).is(1.1, false));
    }

    #[test]
    fn the_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!((of(&[4.0, 0.25]).ratio() - 1.0).abs() < 1e-12);
        assert!(of(&[1.2, 1.2]).is(1.19, true) && !of(&[1.2, 1.2]).is(1.21, true));
    }
}
