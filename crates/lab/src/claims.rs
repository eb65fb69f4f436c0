//! The papers' quantitative claims as data, and what our runs say about each.
//!
//! Each paper has a `claims.toml` beside its experiments: what it claims, where that is printed,
//! which systems it compares, and the row of an experiment that answers it with a tolerance and
//! the reason for that, or the reason why no row does. [`results`] holds measured rows; a
//! claim's verdict is that of the row's 95 % interval. [`page`] makes `docs/reproduction.md`.

pub mod check;
pub mod page;
pub mod results;

use crate::report::{Comparison, Report, Tolerance, Verdict};
use lull_sim::stats::Estimate;
use results::{Length, MeasuredRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

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
pub const VALUES: usize = 5;

/// The budget of an experiment whose interval reaches across a bound: most seeds that it is
/// given. [`check`] refuses recorded rows of more.
pub const SEED_BUDGET: usize = 20;

/// The claims of one paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperClaims {
    /// Authors, year and name, such as `Li et al. 2025 (REEF)`.
    pub paper: String,
    /// The systems that claims compare, each with its implementation here.
    pub systems: BTreeMap<String, String>,
    /// The claims, those of abstract and conclusion first.
    pub claim: Vec<Claim>,
    /// Rows of which the paper prints no number, and which miss the bound that we set for them.
    #[serde(default)]
    pub missed: Vec<MissedRow>,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in our words.
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
    /// The tolerance that the row must keep.
    pub tolerance: Option<ToleranceEntry>,
    /// The value at which the order of the systems turns, where the tolerance does not imply it:
    /// 0 of a difference, 1 of a ratio, 100 of a ratio in percent. An interval on its other side
    /// contradicts the claim. A count and a bound of a target have none.
    pub neutral: Option<f64>,
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
    /// The attempts to reproduce a claim that is missed.
    #[serde(default)]
    pub tried: String,
    /// Whether nothing was tried. A missed claim states `tried` or this.
    #[serde(default, skip_serializing)]
    pub untried: bool,
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
    /// The value at which the order turns, as of a claim.
    pub neutral: Option<f64>,
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

/// The verdict of our runs on a claim.
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
    fn tolerance(self, printed: Option<f64>, has_one_side: bool) -> Tolerance {
        let half = |neutral: f64| match printed {
            Some(printed) if has_one_side => Tolerance::half_of(printed, neutral),
            Some(printed) => Tolerance::half_to_twice(printed, neutral),
            None => Tolerance::AtLeast(neutral),
        };
        match self {
            Self::Relative(fraction) => Tolerance::Relative(fraction),
            Self::Absolute(amount) => Tolerance::Absolute(amount),
            Self::AtLeast(bound) => Tolerance::AtLeast(bound),
            Self::AtMost(bound) => Tolerance::AtMost(bound),
            Self::Between([low, high]) => Tolerance::Between(low, high),
            Self::HalfOfChange(_) => half(0.0),
            Self::HalfOfRatio(_) => half(1.0),
        }
    }

    /// The value at which the order turns, if the rule is about a change or a ratio.
    fn neutral(self) -> Option<f64> {
        match self {
            Self::HalfOfChange(_) => Some(0.0),
            Self::HalfOfRatio(_) => Some(1.0),
            _ => None,
        }
    }
}

/// The claims of this build's files. A file that cannot be read has none here: [`check`] has the
/// error, and a test reads all.
static CLAIMS: LazyLock<Vec<Claim>> = LazyLock::new(|| {
    let papers = FILES.iter().filter_map(|(_, text)| toml::from_str::<PaperClaims>(text).ok());
    papers.flat_map(|paper| paper.claim).collect()
});

/// Judges each row of a report that answers a claim by what the claim is compared with.
pub fn judge_rows(mut report: Report) -> Report {
    let is_of = |claim: &&Claim, name: &str| {
        claim
            .row
            .as_ref()
            .is_some_and(|row| row.experiment == report.experiment && row.name == name)
    };
    let judged = std::mem::take(&mut report.rows).into_iter().map(|row| {
        let claim = CLAIMS.iter().find(|claim| is_of(claim, &row.row));
        match claim.and_then(Claim::comparison) {
            Some(comparison) => row.answering(comparison),
            None => row,
        }
    });
    let judged = judged.collect();
    Report { rows: judged, ..report }
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

    /// Returns the comparison that its row has to pass.
    fn comparison(&self) -> Option<Comparison> {
        let (entry, printed) = (self.tolerance?, self.printed);
        let tolerance = entry.tolerance(printed, self.has_one_side());
        Some(Comparison { printed, tolerance, neutral: self.neutral.or(entry.neutral()) })
    }

    /// The verdict of the measured rows on it.
    pub fn judge(&self, results: &[MeasuredRow]) -> Finding {
        match self.comparison().filter(|_| self.row.is_some()) {
            Some(comparison) => judge(self.measured(results), &comparison),
            None => Finding::NoRow,
        }
    }

    /// Whether a parameter of the model was set so that the row has the printed figure, or was
    /// chosen after the row was known to miss it: then the row tests nothing.
    pub fn is_calibrated(&self) -> bool {
        self.calibrated || self.row.as_ref().is_some_and(|row| row.name.ends_with("(calibrated)"))
    }

    /// Describes the tolerance.
    fn tolerance_text(&self) -> String {
        self.comparison().map_or_else(String::new, |it| it.tolerance.to_string())
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
    fn comparison(&self) -> Comparison {
        let tolerance = self.tolerance.tolerance(None, true);
        Comparison { printed: None, tolerance, neutral: self.neutral }
    }

    /// The verdict of the measured rows on it.
    pub fn judge(&self, results: &[MeasuredRow]) -> Finding {
        judge(self.row.measured(results), &self.comparison())
    }
}

/// Judges a measured row by its comparison.
fn judge(measured: Option<&MeasuredRow>, to: &Comparison) -> Finding {
    let estimate = measured.and_then(MeasuredRow::estimate);
    let enough = |it: &Estimate| it.values == 0 || it.values >= VALUES;
    let Some(estimate) = estimate.filter(enough) else { return Finding::TooFew };
    if measured.is_some_and(|row| row.length == Length::Quick) {
        return Finding::Quick(estimate);
    }
    Finding::Judged(to.judge(&estimate), estimate)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(tolerance: &str, printed: Option<f64>) -> Claim {
        let printed = printed.map_or_else(String::new, |it| format!("printed = {it:?}\n"));
        let text = format!(
            "text = \"x is faster\"\nunit = \"%\"\nsystems = [\"x\"]\n{printed}{tolerance}\n\
             row = {{ experiment = \"ahq-cores\", name = \"speed\" }}\n"
        );
        toml::from_str(&text).unwrap()
    }

    fn verdict(claim: &Claim, mean: f64) -> Verdict {
        let header = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n";
        let row = format!("ahq-cores,speed,%,,{mean},0.5,5,full,1 2 3 4 5,\n");
        let rows = results::parse(&(header.to_owned() + &row)).unwrap();
        claim.judge(&rows).verdict().unwrap()
    }

    #[test]
    fn the_other_sign_contradicts_a_tolerance_of_each_kind() {
        let kinds = [
            "relative = 0.5",
            "absolute = 3.0",
            "between = [-6.0, -1.0]",
            "at-most = -1.0",
            "half-of-change = true",
        ];
        for kind in kinds {
            let of =
                |neutral: &str| claim(&format!("tolerance = {{ {kind} }}{neutral}"), Some(-3.54));
            let signed = of("\nneutral = 0.0");
            assert_eq!(verdict(&signed, 17.9), Verdict::Contradicts, "{kind}");
            assert_eq!(verdict(&signed, -3.5), Verdict::Pass, "{kind}");
            let wanted = match kind {
                "half-of-change = true" => Verdict::Contradicts,
                _ => Verdict::Fail,
            };
            assert_eq!(verdict(&of(""), 17.9), wanted, "{kind} without a turning point");
        }
    }

    #[test]
    fn a_bound_of_a_count_or_a_target_has_no_sign_to_contradict() {
        assert_eq!(verdict(&claim("tolerance = { at-most = 1.0 }", None), 4.0), Verdict::Fail);
        let at_least = claim("tolerance = { at-least = 0.0 }\nneutral = 0.0", None);
        assert_eq!(verdict(&at_least, -4.0), Verdict::Contradicts);
    }

    #[test]
    fn a_row_of_a_run_has_the_verdict_of_the_claim_that_it_answers() {
        let claim = CLAIMS.iter().find(|claim| claim.row.is_some()).unwrap();
        let (row, comparison) = (claim.row.as_ref().unwrap(), claim.comparison().unwrap());
        let experiment = crate::registry::find(&row.experiment).unwrap();
        let setup = crate::experiment::Setup::new("test");
        let mut report = experiment.report("a title", &setup);
        let ours = Estimate { mean: 1e9, half_width: 0.5, values: 5 };
        let loose = Tolerance::AtLeast(0.0);
        report.rows.push(crate::report::Row::held(row.name.clone(), "%", 1.0, ours, loose));
        report.rows.push(crate::report::Row::held("another", "%", 1.0, ours, loose));
        let judged = judge_rows(report);
        assert_eq!(judged.rows[0].tolerance, comparison.tolerance);
        assert_eq!(judged.rows[0].guard, Some(loose));
        assert_eq!((judged.rows[1].tolerance, judged.rows[1].guard), (loose, None));
    }
}
