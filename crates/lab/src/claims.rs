//! The papers' quantitative claims as data, and what our runs say about each.
//!
//! Each paper has a `claims.toml` beside its experiments: what it claims, where that is printed,
//! which systems it compares, and the row of an experiment that answers it with a tolerance and
//! the reason for that, or the reason why no row does. [`results`] holds measured rows; a
//! claim's verdict is that of the row's 95 % interval. [`page`] makes `docs/reproduction.md`.

pub mod check;
pub mod page;
pub mod results;

use crate::report::{Tolerance, Verdict};
use lull_sim::stats::Estimate;
use results::{Length, MeasuredRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The claims files of this build: path in the source tree, and text.
pub const FILES: [(&str, &str); 5] = [
    (
        "crates/lab/src/papers/socc_2025_reef/claims.toml",
        include_str!("papers/socc_2025_reef/claims.toml"),
    ),
    (
        "crates/lab/src/papers/ccds_2026_bayop/claims.toml",
        include_str!("papers/ccds_2026_bayop/claims.toml"),
    ),
    (
        "crates/lab/src/papers/micro_2017_eetl/claims.toml",
        include_str!("papers/micro_2017_eetl/claims.toml"),
    ),
    (
        "crates/lab/src/papers/trios_2013_ntier/claims.toml",
        include_str!("papers/trios_2013_ntier/claims.toml"),
    ),
    (
        "crates/lab/src/papers/tpds_2024_ahq/claims.toml",
        include_str!("papers/tpds_2024_ahq/claims.toml"),
    ),
];

/// The measured rows of this build.
pub const RESULTS: &str = include_str!("claims/results.csv");

/// Independent values without which a row has no verdict.
const VALUES: usize = 5;

/// The budget of an experiment whose interval reaches across a bound: most seeds that it is
/// given. [`check`] refuses recorded rows of more.
pub const SEED_BUDGET: usize = 20;

/// The claims of one paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperClaims {
    /// Authors, year and name, such as `Li et al. 2025 (REEF)`.
    pub paper: String,
    /// Each system that claims compare, and what plays it here.
    pub systems: BTreeMap<String, String>,
    /// The claims, those of abstract and conclusion first.
    pub claim: Vec<Claim>,
    /// Rows of which the paper prints no number, and which miss the bound that we set them.
    #[serde(default)]
    pub missed: Vec<MissedRow>,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What is claimed, in our words.
    pub text: String,
    /// Where it is printed: abstract, section, figure or table.
    #[serde(default)]
    pub place: String,
    /// The printed number, in the unit of the row.
    pub printed: Option<f64>,
    /// Its unit.
    #[serde(default)]
    pub unit: String,
    /// The system that is claimed for, then those that it is compared with.
    pub systems: Vec<String>,
    /// Server, load and machine of the claim.
    #[serde(default)]
    pub conditions: String,
    /// What the row is compared with.
    pub tolerance: Option<ToleranceEntry>,
    /// Why the tolerance is as wide as it is.
    #[serde(default)]
    pub why: String,
    /// Whether a parameter of the model was set to the claim's number, or chosen after the row
    /// was known to miss it. A row whose name ends with `(calibrated)` does not need this key.
    #[serde(default, skip_serializing)]
    pub calibrated: bool,
    /// Experiment and row that answer it.
    pub row: Option<RowName>,
    /// Why no row answers it.
    #[serde(default)]
    pub none: String,
    /// What was tried where the claim is missed.
    #[serde(default)]
    pub tried: String,
    /// The most likely reason of the miss.
    #[serde(default)]
    pub mechanism: String,
}

/// A row of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowName {
    /// The experiment.
    pub experiment: String,
    /// The row's name in its report.
    pub name: String,
}

/// A row that answers no claim, and misses its bound.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissedRow {
    /// Experiment and row.
    pub row: RowName,
    /// The bound that it misses.
    pub tolerance: ToleranceEntry,
    /// Where the bound is from, and the most likely reason of the miss.
    pub why: String,
}

/// A tolerance as a file states it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToleranceEntry {
    /// A fraction of the printed number.
    Relative(f64),
    /// An amount in the unit of the row.
    Absolute(f64),
    /// No less than this.
    AtLeast(f64),
    /// No more than this.
    AtMost(f64),
    /// Between these.
    Between([f64; 2]),
    /// Half to twice the printed change, with its sign; without an upper side if the claim's
    /// text has one side.
    HalfOfChange(bool),
    /// Half to twice the way from 1 to the printed ratio, on its side; likewise.
    HalfOfRatio(bool),
}

/// What our runs say about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// A row with enough independent values at full length.
    Judged(Verdict, Estimate),
    /// The row was run quickly only, which decides nothing.
    Quick(Estimate),
    /// The row has too few independent values.
    TooFew,
    /// No row answers the claim.
    NoRow,
}

impl ToleranceEntry {
    /// The tolerance, and the value at which the order of the systems turns.
    fn tolerance(self, printed: Option<f64>, has_one_side: bool) -> (Tolerance, Option<f64>) {
        let half = |neutral: f64| {
            let tolerance = match printed {
                Some(printed) if has_one_side => Tolerance::half_of(printed, neutral),
                Some(printed) => Tolerance::half_to_twice(printed, neutral),
                None => Tolerance::AtLeast(neutral),
            };
            (tolerance, Some(neutral))
        };
        let plain = |tolerance: Tolerance| (tolerance, tolerance.turning_point());
        match self {
            Self::Relative(fraction) => plain(Tolerance::Relative(fraction)),
            Self::Absolute(amount) => plain(Tolerance::Absolute(amount)),
            Self::AtLeast(bound) => plain(Tolerance::AtLeast(bound)),
            Self::AtMost(bound) => plain(Tolerance::AtMost(bound)),
            Self::Between([low, high]) => plain(Tolerance::Between(low, high)),
            Self::HalfOfChange(_) => half(0.0),
            Self::HalfOfRatio(_) => half(1.0),
        }
    }
}

impl Claim {
    /// Whether the claim is one of abstract or conclusion.
    pub fn is_headline(&self) -> bool {
        ["abstract", "conclusion"].iter().any(|part| self.place.starts_with(part))
    }

    /// Whether the text claims a largest or a least figure, which another one may exceed.
    fn has_one_side(&self) -> bool {
        ["up to", "at least"].iter().any(|words| self.text.contains(words))
    }

    /// The measured row that answers it.
    fn measured<'r>(&self, results: &'r [MeasuredRow]) -> Option<&'r MeasuredRow> {
        self.row.as_ref()?.measured(results)
    }

    /// The verdict of the measured rows on it.
    pub fn judge(&self, results: &[MeasuredRow]) -> Finding {
        let Some(entry) = self.tolerance.filter(|_| self.row.is_some()) else {
            return Finding::NoRow;
        };
        let tolerance = entry.tolerance(self.printed, self.has_one_side());
        judge(self.measured(results), self.printed, tolerance)
    }

    /// Whether a parameter of the model was set so that the row has the printed figure, or was
    /// chosen after the row was known to miss it: then the row tests nothing.
    pub fn is_calibrated(&self) -> bool {
        self.calibrated || self.row.as_ref().is_some_and(|row| row.name.ends_with("(calibrated)"))
    }

    /// The tolerance in words.
    fn tolerance_text(&self) -> String {
        let text = |entry: ToleranceEntry| {
            entry.tolerance(self.printed, self.has_one_side()).0.to_string()
        };
        self.tolerance.map_or_else(String::new, text)
    }
}

impl RowName {
    /// The measured row of this name.
    fn measured<'r>(&self, results: &'r [MeasuredRow]) -> Option<&'r MeasuredRow> {
        let is_it = |row: &&MeasuredRow| row.experiment == self.experiment && row.row == self.name;
        results.iter().find(is_it)
    }
}

impl MissedRow {
    /// The bound.
    fn bound(&self) -> Tolerance {
        self.tolerance.tolerance(None, true).0
    }

    /// The verdict of the measured rows on it.
    pub fn judge(&self, results: &[MeasuredRow]) -> Finding {
        let bound = self.bound();
        judge(self.row.measured(results), None, (bound, bound.turning_point()))
    }
}

/// What a measured row says about a tolerance with its turning point.
fn judge(
    measured: Option<&MeasuredRow>,
    printed: Option<f64>,
    (tolerance, neutral): (Tolerance, Option<f64>),
) -> Finding {
    let estimate = measured.and_then(MeasuredRow::estimate);
    let enough = |it: &Estimate| it.values == 0 || it.values >= VALUES;
    let Some(estimate) = estimate.filter(enough) else { return Finding::TooFew };
    if measured.is_some_and(|row| row.length == Length::Quick) {
        return Finding::Quick(estimate);
    }
    Finding::Judged(tolerance.judge(printed, neutral, &estimate), estimate)
}

impl Finding {
    /// The verdict, if there is one.
    pub fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Judged(verdict, _) => Some(verdict),
            Self::Quick(_) | Self::TooFew | Self::NoRow => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Judged(verdict, _) => f.pad(&verdict.to_string().to_lowercase()),
            Self::Quick(_) => f.pad("quick run only"),
            Self::TooFew => f.pad("too few values"),
            Self::NoRow => f.pad("no row"),
        }
    }
}
