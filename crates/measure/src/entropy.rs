//! System entropy: one number for how much co-location hurts.
//!
//! Ah-Q (Liu et al. 2024), section V, equations 11 to 17. For a latency-critical
//! app with ideal tail latency `TL0` (alone, all resources it can use), tail
//! latency `TL1` now and bound `M`:
//!
//! ```text
//! tolerance            A   = 1 - TL0/M
//! interference         R   = 1 - TL0/TL1
//! remaining tolerance  ReT = 1 - TL1/M   where TL1 < M, else 0
//! untolerated          Q   = 1 - M/TL1   where TL1 > M, else 0
//! E_LC = mean of Q      E_BE = 1 - m / sum(solo/real)
//! E_S  = RI * E_LC + (1 - RI) * E_BE
//! ```
//!
//! The paper branches on `A > R`; that is the same as `TL1 < M` and loses no
//! digits. Edge cases the paper leaves open: an ideal latency above the bound
//! is [`LcReading::new`]'s error; `TL1 < TL0` is noise and counts as no
//! interference; a best-effort app without progress makes E_BE 1; one that
//! runs faster than alone counts as 1.

use crate::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Relative importance of latency-critical apps, RI (Ah-Q, section V-B).
///
/// In [0, 1]; the paper advises [0.5, 1] where resources are scarce.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
#[schemars(inline, with = "f64")]
pub struct RelativeImportance(f64);

impl RelativeImportance {
    /// RI from its number.
    ///
    /// # Errors
    /// If it is outside [0, 1].
    pub fn new(value: f64) -> Result<Self, EntropyError> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(EntropyError::Importance(value))
        }
    }

    /// The number, in [0, 1].
    pub const fn value(self) -> f64 {
        self.0
    }
}

impl Default for RelativeImportance {
    /// 0.8, the paper's value.
    fn default() -> Self {
        Self(0.8)
    }
}

impl TryFrom<f64> for RelativeImportance {
    type Error = EntropyError;

    fn try_from(value: f64) -> Result<Self, EntropyError> {
        Self::new(value)
    }
}

impl From<RelativeImportance> for f64 {
    fn from(importance: RelativeImportance) -> Self {
        importance.0
    }
}

/// Why an entropy cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum EntropyError {
    /// RI outside [0, 1].
    #[error("relative importance {0} is outside 0 to 1")]
    Importance(f64),
    /// The app misses its bound even alone.
    #[error("the ideal tail latency {ideal} is above the bound {bound}: no policy can meet it")]
    Infeasible {
        /// Tail latency with all resources.
        ideal: Nanos,
        /// The objective's bound.
        bound: Nanos,
    },
    /// A latency of zero has no ratio.
    #[error("tail latencies and bounds must be above zero")]
    Zero,
}

/// One latency-critical app's three latencies, all at the objective's percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LcReading {
    ideal: Nanos,
    measured: Nanos,
    bound: Nanos,
}

impl LcReading {
    /// A reading from ideal (TL0), measured (TL1) and bound (M).
    ///
    /// # Errors
    /// If one is zero or the ideal is above the bound.
    pub fn new(ideal: Nanos, measured: Nanos, bound: Nanos) -> Result<Self, EntropyError> {
        if ideal == Nanos::ZERO || measured == Nanos::ZERO || bound == Nanos::ZERO {
            return Err(EntropyError::Zero);
        }
        if ideal > bound {
            return Err(EntropyError::Infeasible { ideal, bound });
        }
        Ok(Self { ideal, measured, bound })
    }

    /// TL1, the tail latency measured.
    pub const fn measured(&self) -> Nanos {
        self.measured
    }

    /// A, the slow-down the bound leaves room for, in [0, 1) (eq. 11).
    pub fn tolerance(&self) -> f64 {
        1.0 - ratio(self.ideal, self.bound)
    }

    /// R, the slow-down suffered, in [0, 1) (eq. 12).
    pub fn interference(&self) -> f64 {
        (1.0 - ratio(self.ideal, self.measured)).max(0.0)
    }

    /// ReT, the room left before the bound, in [0, 1) (eq. 13).
    pub fn remaining_tolerance(&self) -> f64 {
        if self.measured < self.bound { 1.0 - ratio(self.measured, self.bound) } else { 0.0 }
    }

    /// Q, the slow-down beyond the bound, in [0, 1) (eq. 14).
    pub fn untolerated(&self) -> f64 {
        if self.measured > self.bound { 1.0 - ratio(self.bound, self.measured) } else { 0.0 }
    }
}

/// One best-effort app's progress alone and now, in any one unit (IPC in the paper).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BeReading {
    /// Progress per second alone on the machine; above zero.
    pub solo: f64,
    /// Progress per second now; zero if it makes no progress.
    pub real: f64,
}

impl BeReading {
    /// Slow-down solo/real: 1 unharmed, infinite if it makes no progress.
    pub fn slowdown(&self) -> f64 {
        self.solo / self.real
    }
}

/// E_LC, E_BE and E_S of one moment, each in [0, 1], 0 being best.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SystemEntropy {
    /// E_LC; `None` without a latency-critical app.
    pub lc: Option<f64>,
    /// E_BE; `None` without a best-effort app.
    pub be: Option<f64>,
    /// E_S with RI 1 where there is no BE app and 0 where there is no LC app.
    pub system: f64,
}

impl SystemEntropy {
    /// Returns E_S; `None` if neither part has a value, so that nothing is known of any app.
    pub fn known(&self) -> Option<f64> {
        (self.lc.is_some() || self.be.is_some()).then_some(self.system)
    }
}

/// E_LC, the mean of Q (eq. 15); `None` without apps.
pub fn lc_entropy(apps: &[LcReading]) -> Option<f64> {
    mean(apps.iter().map(LcReading::untolerated))
}

/// E_BE, one minus the harmonic mean of normalised progress (eq. 16); `None` without apps.
pub fn be_entropy(apps: &[BeReading]) -> Option<f64> {
    mean(apps.iter().map(|app| app.slowdown().max(1.0))).map(|slowdown| 1.0 - 1.0 / slowdown)
}

/// E_S from its parts (eq. 17); 0 for a machine without apps.
pub fn combine(lc: Option<f64>, be: Option<f64>, importance: RelativeImportance) -> SystemEntropy {
    let ri = importance.value();
    let system = match (lc, be) {
        (Some(lc), Some(be)) => ri * lc + (1.0 - ri) * be,
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => 0.0,
    };
    SystemEntropy { lc, be, system }
}

/// E_S of a set of apps.
pub fn system_entropy(
    lc: &[LcReading],
    be: &[BeReading],
    importance: RelativeImportance,
) -> SystemEntropy {
    combine(lc_entropy(lc), be_entropy(be), importance)
}

/// Tolerance ability TA, the sum of A (eq. 1): a number without unit.
pub fn tolerance_ability(apps: &[LcReading]) -> f64 {
    apps.iter().map(LcReading::tolerance).sum()
}

fn ratio(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0 as f64
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(value: f64) -> Nanos {
        Nanos((value * 1e6).round() as u64)
    }

    /// One app of Table II: TL0, TL1, M in ms, then A, R, ReT, Q as recomputed.
    type Row = ([f64; 3], [f64; 4]);

    /// One block: rows, then A, R, ReT, E_LC of the system, E_BE as printed, E_S.
    type Block = ([Row; 3], [f64; 6]);

    /// Seed 004 Table II with 6, 7 and 8 cores. The R column of the 7-core
    /// block is printed one row too low; these are the values of eq. 12.
    const TABLE_II: [Block; 3] = [
        (
            [
                ([2.77, 23.99, 4.22], [0.3436, 0.8845, 0.0, 0.8241]),
                ([2.80, 16.54, 10.53], [0.7341, 0.8307, 0.0, 0.3634]),
                ([1.41, 14.35, 3.98], [0.6457, 0.9017, 0.0, 0.7226]),
            ],
            [0.5745, 0.8723, 0.0, 0.6367, 0.20, 0.5494],
        ),
        (
            [
                ([2.77, 7.13, 4.22], [0.3436, 0.6115, 0.0, 0.4081]),
                ([2.80, 6.78, 10.53], [0.7341, 0.5870, 0.3561, 0.0]),
                ([1.41, 5.65, 3.98], [0.6457, 0.7504, 0.0, 0.2956]),
            ],
            [0.5745, 0.6497, 0.1187, 0.2346, 0.03, 0.1937],
        ),
        (
            [
                ([2.77, 4.18, 4.22], [0.3436, 0.3373, 0.0095, 0.0]),
                ([2.80, 4.43, 10.53], [0.7341, 0.3679, 0.5793, 0.0]),
                ([1.41, 3.53, 3.98], [0.6457, 0.6006, 0.1131, 0.0]),
            ],
            [0.5745, 0.4353, 0.2339, 0.0, 0.02, 0.0040],
        ),
    ];

    fn assert_close(got: f64, want: f64, what: &str) {
        // The table has four digits, so half of the last one is all that may differ.
        assert!((got - want).abs() <= 5.1e-5, "{what}: {got}, the table says {want}");
    }

    fn reading([ideal, measured, bound]: [f64; 3]) -> LcReading {
        LcReading::new(millis(ideal), millis(measured), millis(bound)).unwrap()
    }

    #[test]
    fn entropy_is_known_once_one_part_is() {
        let of = |lc, be| combine(lc, be, RelativeImportance::default()).known();
        assert_eq!(of(None, None), None);
        assert_eq!((of(Some(0.5), None), of(None, Some(0.0))), (Some(0.5), Some(0.0)));
    }

    #[test]
    fn every_app_row_of_table_ii() {
        for (rows, _) in TABLE_II {
            for (inputs, [a, r, ret, q]) in rows {
                let app = reading(inputs);
                assert_close(app.tolerance(), a, "A");
                assert_close(app.interference(), r, "R");
                assert_close(app.remaining_tolerance(), ret, "ReT");
                assert_close(app.untolerated(), q, "Q");
            }
        }
    }

    #[test]
    fn every_system_row_of_table_ii() {
        for (rows, [a, r, ret, e_lc, e_be, e_s]) in TABLE_II {
            let apps = rows.map(|(inputs, _)| reading(inputs));
            assert_close(mean(apps.iter().map(LcReading::tolerance)).unwrap(), a, "A");
            assert_close(mean(apps.iter().map(LcReading::interference)).unwrap(), r, "R");
            let left = mean(apps.iter().map(LcReading::remaining_tolerance));
            assert_close(left.unwrap(), ret, "ReT");
            let lc = lc_entropy(&apps);
            assert_close(lc.unwrap(), e_lc, "E_LC");
            let all = combine(lc, Some(e_be), RelativeImportance::default());
            assert_close(all.system, e_s, "E_S");
            assert_close(tolerance_ability(&apps), 1.7234, "TA");
        }
    }

    #[test]
    fn the_limits_of_the_papers_scenarios_one_and_two() {
        let missed = [reading([2.77, 7.13, 4.22])];
        let slowed = [BeReading { solo: 2.0, real: 1.0 }];
        let ri = RelativeImportance::default();
        assert_eq!(system_entropy(&missed, &[], ri).system, missed[0].untolerated());
        assert_eq!(system_entropy(&[], &slowed, ri).system, 0.5);
        assert_eq!(system_entropy(&[], &[], ri).system, 0.0);
    }

    #[test]
    fn a_best_effort_app_without_progress_is_entropy_one() {
        assert_eq!(be_entropy(&[BeReading { solo: 1.0, real: 0.0 }]), Some(1.0));
    }

    #[test]
    fn running_faster_than_alone_counts_as_alone() {
        let faster = [BeReading { solo: 1.0, real: 2.0 }];
        assert_eq!(be_entropy(&faster), Some(0.0));
    }

    #[test]
    fn on_the_bound_nothing_is_left_and_nothing_missed() {
        let app = reading([1.0, 4.0, 4.0]);
        assert_eq!((app.remaining_tolerance(), app.untolerated()), (0.0, 0.0));
    }

    #[test]
    fn an_unreachable_bound_and_zeroes_are_refused() {
        let (one, two) = (Nanos(1), Nanos(2));
        let infeasible = EntropyError::Infeasible { ideal: two, bound: one };
        assert_eq!(LcReading::new(two, two, one), Err(infeasible));
        assert_eq!(LcReading::new(one, Nanos::ZERO, two), Err(EntropyError::Zero));
        assert!(RelativeImportance::new(1.01).is_err());
        assert!(RelativeImportance::new(f64::NAN).is_err());
    }

    prop_compose! {
        fn any_lc()(
            ideal in 1u64..1 << 40,
            room in 0u64..1 << 40,
            measured in 1u64..1 << 42,
        ) -> LcReading {
            LcReading::new(Nanos(ideal), Nanos(measured), Nanos(ideal + room)).unwrap()
        }
    }

    proptest! {
        #[test]
        fn all_stay_between_zero_and_one(
            lc in prop::collection::vec(any_lc(), 0..6),
            be in prop::collection::vec((1e-3..1e6, 0.0..1e6), 0..6),
            ri in 0.0..=1.0,
        ) {
            let be: Vec<_> = be.into_iter().map(|(solo, real)| BeReading { solo, real }).collect();
            let all = system_entropy(&lc, &be, RelativeImportance::new(ri).unwrap());
            for value in [all.lc.unwrap_or(0.0), all.be.unwrap_or(0.0), all.system] {
                prop_assert!((0.0..=1.0).contains(&value), "{value}");
            }
        }

        #[test]
        fn the_branch_is_the_papers_comparison_of_a_and_r(app in any_lc()) {
            // A > R with room for rounding is TL1 < M (spec-004 section 2).
            let (a, r) = (app.tolerance(), app.interference());
            if a > r + 1e-9 { prop_assert!(app.untolerated() == 0.0) }
            if r > a + 1e-9 { prop_assert!(app.remaining_tolerance() == 0.0) }
        }

        #[test]
        fn a_slower_app_never_lowers_entropy(app in any_lc(), more in 0u64..1 << 40) {
            let slower = LcReading { measured: Nanos(app.measured.0 + more), ..app };
            prop_assert!(slower.untolerated() >= app.untolerated());
            prop_assert!(slower.remaining_tolerance() <= app.remaining_tolerance());
        }
    }
}
