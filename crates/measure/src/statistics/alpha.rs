//! Error probabilities of several tests, whose number may not be known beforehand.

/// The sum of `1 / (n ln(n)^2)` from n = 2, rounded up.
const LOGARITHMIC_SUM: f64 = 2.1098;

/// Returns the error probability of the `test`-th of tests that follow each other, counted from 1:
/// its share of `alpha`, so that the sum over all of them, however many there will be, is at most
/// `alpha`.
///
/// The shares are `1 / (2.1098 (k + 1) ln(k + 1)^2)`: 49 % for the first, .022 % for the
/// hundredth. They leave more to late tests than a square of the number would, because a
/// controller runs for weeks.
pub fn alpha_of_test(alpha: f64, test: u64) -> f64 {
    let next = test.max(1) as f64 + 1.0;
    alpha / (LOGARITHMIC_SUM * next * next.ln().powi(2))
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
        // The rest after a million tests: the tail of the series.
        let rest = 1.0 / (2.1098 * 1e6_f64.ln());
        let sum: f64 = (1..=1_000_000).map(|test| alpha_of_test(0.01, test)).sum();
        let all = sum / 0.01 + rest;
        assert!((0.9999..=1.0001).contains(&all), "{all}");
        assert!(sum < 0.01, "{sum}");
        assert_eq!(alpha_of_test(0.01, 0), alpha_of_test(0.01, 1), "tests are counted from one");
    }

    #[test]
    fn of_several_tests_the_clearest_may_be_claimed_first() {
        // Holm's steps at 5 %: .01 <= .05/4, .015 <= .05/3, .03 > .05/2, and the rest are not.
        let claimed = holm(&[0.01, 0.04, 0.03, 0.015], 0.05);
        assert_eq!(claimed, [true, false, false, true]);
        assert_eq!(holm(&[0.05], 0.05), [true]);
        assert_eq!(holm(&[f64::NAN, 0.001], 0.05), [false, true]);
    }
}
