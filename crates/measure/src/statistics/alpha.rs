//! Error probabilities of several tests, whose number may not be known beforehand.

/// How an error probability is divided among tests that follow each other, so that the sum
/// over all of them, however many there will be, is at most the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlphaSchedule {
    /// `6 / (pi^2 k^2)` of the whole for the k-th test: 61 % for the first, .006 % for the
    /// hundredth.
    Square,
    /// `1 / (2.1098 (k + 1) ln(k + 1)^2)`: 49 % for the first, .022 % for the hundredth. It
    /// leaves more to late tests, as those of a controller that runs for weeks.
    Logarithmic,
}

/// The sum of `1 / (n ln(n)^2)` from n = 2, rounded up.
const LOGARITHMIC_SUM: f64 = 2.1098;

impl AlphaSchedule {
    /// Returns the error probability of the `test`-th test, counted from 1, of `alpha` in all.
    pub fn alpha(self, alpha: f64, test: u64) -> f64 {
        let test = test.max(1) as f64;
        match self {
            Self::Square => alpha * 6.0 / (std::f64::consts::PI * test).powi(2),
            Self::Logarithmic => {
                let next = test + 1.0;
                alpha / (LOGARITHMIC_SUM * next * next.ln().powi(2))
            }
        }
    }
}

/// Returns which of several tests may be claimed, so that one is claimed wrongly with
/// probability `alpha` at most. `chances` are the probabilities, without any effect, of results
/// as extreme as these.
///
/// Source: Holm, Scandinavian Journal of Statistics 6, 1979. The tests may depend on each
/// other in any way.
pub fn holm(chances: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|one, other| chances[*one].total_cmp(&chances[*other]));
    let mut claimed = vec![false; chances.len()];
    for (rank, at) in order.into_iter().enumerate() {
        if chances[at].is_nan() || chances[at] * (chances.len() - rank) as f64 > alpha {
            break;
        }
        claimed[at] = true;
    }
    claimed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tests_together_err_no_more_than_the_whole() {
        for (schedule, rest) in [
            // The rest after a million tests: the tail of the series.
            (AlphaSchedule::Square, 6.0 / std::f64::consts::PI.powi(2) / 1e6),
            (AlphaSchedule::Logarithmic, 1.0 / (2.1098 * 1e6_f64.ln())),
        ] {
            let sum: f64 = (1..=1_000_000).map(|test| schedule.alpha(0.01, test)).sum();
            let all = sum / 0.01 + rest;
            assert!((0.9999..=1.0001).contains(&all), "{schedule:?}: {all}");
            assert!(sum < 0.01, "{schedule:?}");
        }
    }

    #[test]
    fn of_several_tests_the_clearest_may_be_claimed_first() {
        // Holm's steps at 5 %: .01 <= .05/4, .015 <= .05/3, .03 > .05/2, and the rest are not.
        let claimed = holm(&[0.01, 0.04, 0.03, 0.015], 0.05);
        assert_eq!(claimed, [true, false, false, true]);
        assert_eq!(holm(&[0.05], 0.05), [true]);
        assert_eq!(holm(&[f64::NAN, 0.001], 0.05), [false, true]);
    }

    #[test]
    fn the_logarithmic_schedule_leaves_more_to_late_tests() {
        let first = |schedule: AlphaSchedule| schedule.alpha(0.01, 1);
        let hundredth = |schedule: AlphaSchedule| schedule.alpha(0.01, 100);
        let [square, logarithmic] = [AlphaSchedule::Square, AlphaSchedule::Logarithmic];
        assert!(first(square) > first(logarithmic));
        assert!(hundredth(logarithmic) > 3.0 * hundredth(square));
        assert_eq!(square.alpha(0.01, 0), first(square), "tests are counted from one");
    }
}
