//! Tolerances: when a measured figure agrees with a printed one.

use lull_sim::stats::Estimate;
use serde::Serialize;
use std::fmt;

/// What a row is held to.
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

/// Whether a row is within its tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Within the tolerance.
    Pass,
    /// Outside.
    Fail,
    /// The row is for information: it is not held to the paper's number.
    Reported,
}

impl Tolerance {
    /// Judges an estimate; a rule about the printed number needs one.
    pub fn judge(self, printed: Option<f64>, ours: &Estimate) -> Verdict {
        let mean = ours.mean;
        let off = |limit: &dyn Fn(f64) -> f64| {
            printed.is_some_and(|printed| (mean - printed).abs() <= limit(printed.abs()))
        };
        let holds = match self {
            Self::Relative(fraction) => off(&|printed| fraction * printed),
            Self::Absolute(amount) => off(&|_| amount),
            Self::AtLeast(bound) => mean >= bound,
            Self::AtMost(bound) => mean <= bound,
            Self::Between(low, high) => (low..=high).contains(&mean),
            Self::Exact { fraction, factor } => {
                off(&|printed| fraction * printed)
                    && printed.is_some_and(|printed| ours.near(printed, factor))
            }
            Self::None => return Verdict::Reported,
        };
        if holds { Verdict::Pass } else { Verdict::Fail }
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
            Self::Reported => "reported",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(mean: f64, half_width: f64) -> Estimate {
        Estimate { mean, half_width, values: 8 }
    }

    #[test]
    fn each_rule_passes_inside_and_fails_outside() {
        use Tolerance::*;
        let cases = [
            (Relative(0.05), 1550.0, 1600.0),
            (Absolute(30.0), 1530.0, 1531.0),
            (AtLeast(90.0), 90.0, 89.9),
            (AtMost(25.0), 25.0, 25.1),
            (Between(1.5, 4.0), 4.0, 4.1),
        ];
        for (tolerance, inside, outside) in cases {
            let judge = |mean| tolerance.judge(Some(1500.0), &estimate(mean, 1.0));
            assert_eq!((judge(inside), judge(outside)), (Verdict::Pass, Verdict::Fail));
        }
    }

    #[test]
    fn an_exact_value_must_be_near_and_inside_the_interval() {
        let exact = Tolerance::Exact { fraction: 0.005, factor: 1.0 };
        let judge = |mean, half| exact.judge(Some(1.0), &estimate(mean, half));
        assert_eq!(judge(1.004, 0.005), Verdict::Pass);
        assert_eq!(judge(1.004, 0.003), Verdict::Fail, "outside the interval");
        assert_eq!(judge(1.006, 0.1), Verdict::Fail, "too far off");
    }

    #[test]
    fn a_rule_about_a_printed_number_fails_without_one() {
        assert_eq!(Tolerance::Relative(0.5).judge(None, &estimate(1.0, 0.0)), Verdict::Fail);
        let nothing = Tolerance::Between(0.0, 1.0).judge(None, &estimate(f64::NAN, 0.0));
        assert_eq!(nothing, Verdict::Fail);
    }
}
