//! Tolerances and verdicts: when an interval agrees with a printed figure.

use lull_sim::stats::Estimate;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The tolerance that a row is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tolerance {
    /// At most this fraction away from the printed number.
    Relative(f64),
    /// At most this much away from the printed number, in the row's unit.
    Absolute(f64),
    /// No less than this.
    AtLeast(f64),
    /// No more than this.
    AtMost(f64),
    /// Between these, both included.
    Between(f64, f64),
    /// An exact value: at most this fraction away, and inside the 95 %
    /// interval widened by `factor`. Many intervals at once need the factor:
    /// each alone misses one time in twenty.
    Exact {
        /// Largest relative deviation.
        fraction: f64,
        /// Factor on the half width.
        factor: f64,
    },
    /// No tolerance: the row is for information, and its remark gives the reason.
    None,
}

/// A tolerance with the value that it applies to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The printed number, if there is one.
    pub printed: Option<f64>,
    /// The accepted range.
    pub tolerance: Tolerance,
    /// The value that means no difference: 0 of a difference, 1 of a ratio.
    pub neutral: Option<f64>,
}

impl Comparison {
    /// Judges an estimate by its whole interval.
    pub fn judge(&self, ours: &Estimate) -> Verdict {
        self.tolerance.judge(self.printed, self.neutral, ours)
    }

    /// Returns how many values an open row needs for a verdict if its mean and the spread of
    /// its values stay: the interval must be no wider than the distance of the mean to the
    /// nearest bound that it reaches across. `None` if the mean is on the bound, or the row has
    /// no interval.
    pub fn values_to_decide(&self, ours: &Estimate) -> Option<usize> {
        let reached = self.tolerance.range(self.printed).into_iter();
        let distances = reached.map(|bound| (ours.mean - bound).abs());
        let nearest = distances.filter(|it| it.is_finite()).fold(f64::INFINITY, f64::min);
        let factor = (ours.half_width / nearest).powi(2);
        let needed = (ours.values as f64 * factor).ceil();
        needed.is_finite().then_some(needed as usize)
    }
}

/// The result of comparing the 95 % interval of a row with the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval is within the tolerance.
    Pass,
    /// The whole interval is outside.
    Fail,
    /// The interval lies on the other side of the neutral value than the printed figure: the
    /// sign or the order differs from the paper's.
    Contradicts,
    /// The interval reaches across the tolerance's end, or there is no interval.
    Open,
    /// The row cannot be compared with the paper; its remark gives the reason.
    Reported,
}

impl Tolerance {
    /// Least and largest value that is accepted. A rule about the printed number needs one,
    /// and accepts nothing without it.
    fn range(self, printed: Option<f64>) -> [f64; 2] {
        let around = |amount: f64| match printed {
            Some(printed) => [printed - amount, printed + amount],
            None => [f64::INFINITY, f64::NEG_INFINITY],
        };
        match self {
            Self::Relative(fraction) | Self::Exact { fraction, .. } => {
                around(fraction * printed.unwrap_or_default().abs())
            }
            Self::Absolute(amount) => around(amount),
            Self::AtLeast(bound) => [bound, f64::INFINITY],
            Self::AtMost(bound) => [f64::NEG_INFINITY, bound],
            Self::Between(low, high) => [low, high],
            Self::None => [f64::NEG_INFINITY, f64::INFINITY],
        }
    }

    /// Returns whether a single value is accepted. This is not a verdict: it ignores how far
    /// the value would be on other random numbers.
    pub fn accepts(self, printed: Option<f64>, value: f64) -> bool {
        let [low, high] = self.range(printed);
        // The ends are decimal numbers, and so is a formula's result to their last digit.
        let slack = 1e-12 * value.abs();
        value.is_finite() && low - slack <= value && value <= high + slack
    }

    /// The value at which the order of two systems turns, if bound and unit say so: a difference
    /// has one side of 0, a ratio one side of 1 or of 100 %. A bound of 0 on a number without
    /// unit is a count that may be zero, and a bound of 1 core or 1 % is a size.
    pub(crate) fn turning_point(self, unit: &str) -> Option<f64> {
        let (Self::AtLeast(bound) | Self::AtMost(bound)) = self else { return None };
        let units_of_ratios: &[&str] = match bound {
            0.0 => return (unit != "1").then_some(bound),
            1.0 => &["1", "times", ""],
            100.0 => &["%"],
            _ => return None,
        };
        units_of_ratios.contains(&unit).then_some(bound)
    }

    /// Half to twice a printed figure's distance from `neutral`, on its side: what a model of
    /// another machine can be held to, the sign and the order of the size. Of a ratio below 1,
    /// twice the distance is that of its inverse: one half allows one third.
    pub fn half_to_twice(printed: f64, neutral: f64) -> Self {
        let distance = printed - neutral;
        let half = rounded(neutral + 0.5 * distance);
        let is_inverse = neutral == 1.0 && distance < 0.0;
        let twice = if is_inverse {
            (1e4 * printed / (2.0 - printed)).round() / 1e4
        } else {
            rounded(neutral + 2.0 * distance)
        };
        Self::Between(half.min(twice), half.max(twice))
    }

    /// The same without an upper side, for a value printed as "up to" or "at least".
    pub fn half_of(printed: f64, neutral: f64) -> Self {
        let bound = rounded(neutral + 0.5 * (printed - neutral));
        if printed < neutral { Self::AtMost(bound) } else { Self::AtLeast(bound) }
    }

    /// Judges an estimate by its whole interval. `neutral` is the value that means no difference: 0
    /// of a difference, 1 of a ratio.
    pub fn judge(self, printed: Option<f64>, neutral: Option<f64>, ours: &Estimate) -> Verdict {
        let (mean, half) = (ours.mean, ours.half_width);
        if self == Self::None {
            return Verdict::Reported;
        }
        if mean.is_nan() {
            return Verdict::Fail;
        }
        let (low, high) = (mean - half, mean + half);
        let paper_is_above = |neutral: f64| match (printed, self) {
            (Some(printed), _) if printed != neutral => Some(printed > neutral),
            (_, Self::AtLeast(_)) => Some(true),
            (_, Self::AtMost(_)) => Some(false),
            (_, Self::Between(low, _)) if low >= neutral => Some(true),
            (_, Self::Between(_, high)) if high <= neutral => Some(false),
            _ => None,
        };
        let reversed = neutral.is_some_and(|neutral| match paper_is_above(neutral) {
            Some(true) => high < neutral,
            Some(false) => low > neutral,
            None => false,
        });
        let misses = match self {
            Self::Exact { factor, .. } => {
                half.is_finite() && !printed.is_some_and(|printed| ours.near(printed, factor))
            }
            _ => false,
        };
        let [least, most] = self.range(printed);
        if reversed {
            Verdict::Contradicts
        } else if misses || high < least || low > most {
            Verdict::Fail
        } else if self.accepts(printed, low) && self.accepts(printed, high) {
            Verdict::Pass
        } else {
            Verdict::Open
        }
    }
}

/// A bound without the last digits of binary arithmetic, which would be printed.
fn rounded(bound: f64) -> f64 {
    (1e6 * bound).round() / 1e6
}

impl Verdict {
    /// All verdicts, in the order of [`crate::report::Report::tally`].
    pub const ALL: [Self; 5] =
        [Self::Pass, Self::Fail, Self::Contradicts, Self::Open, Self::Reported];

    /// Whether the paper's figure is missed.
    pub fn is_miss(self) -> bool {
        matches!(self, Self::Fail | Self::Contradicts)
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |fraction: &f64| ((fraction * 1e4).round()) / 100.0;
        match self {
            Self::Relative(fraction) => write!(f, "±{} %", percent(fraction)),
            Self::Absolute(amount) => write!(f, "±{amount}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::Between(low, high) => write!(f, "{low} to {high}"),
            Self::Exact { fraction, .. } => write!(f, "±{} % and interval", percent(fraction)),
            Self::None => f.write_str("-"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Contradicts => "CONTRADICTS",
            Self::Open => "open",
            Self::Reported => "reported",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Tolerance::{Absolute, AtLeast, AtMost, Between, Exact, Relative};
    use super::*;

    fn estimate(mean: f64, half_width: f64) -> Estimate {
        Estimate { mean, half_width, values: 8 }
    }

    #[test]
    fn each_rule_passes_inside_fails_outside_and_is_open_across_its_end() {
        let cases = [
            (Relative(0.05), 1550.0, 1600.0, 1575.0),
            (Absolute(30.0), 1520.0, 1540.0, 1530.0),
            (AtLeast(90.0), 95.0, 85.0, 90.0),
            (AtMost(25.0), 20.0, 30.0, 25.0),
            (Between(15.0, 40.0), 38.0, 42.5, 40.0),
        ];
        for (tolerance, inside, outside, across) in cases {
            let judge = |mean| tolerance.judge(Some(1500.0), None, &estimate(mean, 2.0));
            assert_eq!(
                [inside, outside, across].map(judge),
                [Verdict::Pass, Verdict::Fail, Verdict::Open],
                "{tolerance}"
            );
        }
    }

    #[test]
    fn a_single_value_decides_nothing_and_an_exact_one_everything() {
        let judge = |half| AtMost(25.0).judge(None, None, &estimate(1.0, half));
        assert_eq!((judge(f64::INFINITY), judge(0.0)), (Verdict::Open, Verdict::Pass));
        assert!(AtMost(25.0).accepts(None, 1.0) && !AtMost(25.0).accepts(None, f64::NAN));
    }

    #[test]
    fn the_other_sign_than_the_printed_contradicts_only_if_the_interval_excludes_the_printed() {
        let judge = |mean| AtLeast(10.0).judge(Some(29.4), Some(0.0), &estimate(mean, 2.0));
        assert_eq!(judge(-11.8), Verdict::Contradicts);
        assert_eq!(judge(-1.0), Verdict::Fail, "zero is in the interval");
        assert_eq!(judge(3.0), Verdict::Fail, "the sign is the paper's, the size is not");
        // A claim in words has its side from the tolerance.
        let below = AtMost(1.0);
        let judge = |mean| below.judge(None, below.turning_point("1"), &estimate(mean, 0.1));
        assert_eq!(
            [0.8, 1.05, 1.2].map(judge),
            [Verdict::Pass, Verdict::Open, Verdict::Contradicts]
        );
        let range = Between(5.0, 36.0);
        assert_eq!(range.judge(None, Some(0.0), &estimate(-4.0, 1.0)), Verdict::Contradicts);
        assert_eq!(range.judge(None, Some(0.0), &estimate(3.0, 1.0)), Verdict::Fail);
    }

    #[test]
    fn a_bound_is_a_turning_point_only_in_the_unit_of_a_difference_or_a_ratio() {
        let points = [
            (AtLeast(0.0), "%", Some(0.0)),
            (AtMost(0.0), "", Some(0.0)),
            (AtMost(0.0), "1", None),
            (AtMost(1.0), "times", Some(1.0)),
            (AtMost(1.0), "cores", None),
            (AtLeast(1.0), "%", None),
            (AtMost(100.0), "%", Some(100.0)),
            (AtMost(100.0), "ms", None),
            (AtLeast(25.0), "%", None),
        ];
        for (tolerance, unit, wanted) in points {
            assert_eq!(tolerance.turning_point(unit), wanted, "{tolerance} {unit}");
        }
        let cores =
            AtMost(1.0).judge(None, AtMost(1.0).turning_point("cores"), &estimate(4.0, 1.0));
        assert_eq!(cores, Verdict::Fail);
    }

    #[test]
    fn more_than_twice_a_printed_change_is_no_reproduction_of_it() {
        let judge = |printed, neutral, mean| {
            let tolerance = Tolerance::half_to_twice(printed, neutral);
            tolerance.judge(Some(printed), Some(neutral), &estimate(mean, 0.01))
        };
        let change = [15.0, 4.0, 3.0, 16.0, -1.0].map(|mean| judge(7.6, 0.0, mean));
        let wanted =
            [Verdict::Pass, Verdict::Pass, Verdict::Fail, Verdict::Fail, Verdict::Contradicts];
        assert_eq!(change, wanted);
        let fall = [-15.0, -4.0, -3.0, -16.0, 1.0].map(|mean| judge(-7.6, 0.0, mean));
        assert_eq!(fall, wanted);
        let ratio = [0.7, 0.4, 0.3, 0.8, 1.1].map(|mean| judge(0.5, 1.0, mean));
        assert_eq!(ratio, wanted);
        assert_eq!(Tolerance::half_to_twice(1.4528, 1.0).to_string(), "1.2264 to 1.9056");
        assert_eq!(Tolerance::half_to_twice(2.01, 1.0).to_string(), "1.505 to 3.02");
        let up_to = Tolerance::half_of(7.6, 0.0).judge(Some(7.6), None, &estimate(16.0, 0.01));
        assert_eq!(up_to, Verdict::Pass);
    }

    #[test]
    fn an_open_row_states_how_many_values_would_decide_it() {
        let needed = |mean, half| {
            let ours = Comparison { printed: None, tolerance: AtLeast(10.0), neutral: None };
            ours.values_to_decide(&estimate(mean, half))
        };
        assert_eq!(needed(11.0, 2.0), Some(32), "twice as near as the interval is wide, of 8");
        assert_eq!(needed(10.0, 2.0), None, "on the bound");
        assert_eq!(needed(11.0, f64::INFINITY), None, "a single value");
        let both = Comparison { printed: Some(5.0), tolerance: Absolute(1.0), neutral: None };
        assert_eq!(both.values_to_decide(&estimate(5.5, 1.0)), Some(32), "the nearer end");
    }

    #[test]
    fn an_exact_value_must_be_near_and_inside_the_interval() {
        let exact = Exact { fraction: 0.005, factor: 1.0 };
        let judge = |mean, half| exact.judge(Some(1.0), None, &estimate(mean, half));
        assert_eq!(judge(1.001, 0.003), Verdict::Pass);
        assert_eq!(judge(1.004, 0.003), Verdict::Fail, "the exact value is outside the interval");
        assert_eq!(judge(1.004, 0.005), Verdict::Open, "the interval is wider than the tolerance");
        assert_eq!(judge(1.01, 0.003), Verdict::Fail, "too far off");
    }

    #[test]
    fn a_rule_about_a_printed_number_fails_without_one() {
        assert_eq!(Relative(0.5).judge(None, None, &estimate(1.0, 0.0)), Verdict::Fail);
        let nothing = Between(0.0, 1.0).judge(None, None, &estimate(f64::NAN, 0.0));
        assert_eq!(nothing, Verdict::Fail);
    }
}
