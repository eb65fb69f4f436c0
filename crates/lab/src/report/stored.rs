//! Reports that are kept in files, so that the seeds of an experiment can be run apart.
//!
//! Numbers are kept as text, because the shortest text of a number reads back as the same number
//! and JSON has no text for one that is not finite.

use super::{Drawing, Printed, Report, Row, Tolerance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// All of a report but the name of its experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredReport {
    title: String,
    choices: Vec<String>,
    rows: Vec<StoredRow>,
    /// File names with their pictures.
    figures: Vec<(String, String)>,
    commit: String,
    seeds: Vec<u64>,
    found_on: Vec<u64>,
    quick: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredRow {
    row: String,
    printed: Option<String>,
    claim: Option<String>,
    ours: String,
    ci95: Option<[String; 2]>,
    values: usize,
    unit: String,
    tolerance: (String, Vec<String>),
    neutral: Option<String>,
    held: bool,
    #[serde(default)]
    guard: Option<(String, Vec<String>)>,
    why: Option<String>,
}

impl From<&Report> for StoredReport {
    fn from(report: &Report) -> Self {
        Self {
            title: report.title.clone(),
            choices: report.choices.clone(),
            rows: report.rows.iter().map(StoredRow::from).collect(),
            figures: report.figures.iter().map(|it| (it.file.clone(), it.svg.clone())).collect(),
            commit: report.commit.clone(),
            seeds: report.seeds.clone(),
            found_on: report.found_on.clone(),
            quick: report.quick,
        }
    }
}

impl From<&Row> for StoredRow {
    fn from(row: &Row) -> Self {
        let (printed, claim) = match row.paper {
            Printed::Number(number) => (Some(number.to_string()), None),
            Printed::Claim(claim) => (None, Some(claim.to_owned())),
            Printed::Nothing => (None, None),
        };
        Self {
            row: row.row.clone(),
            printed,
            claim,
            ours: row.ours.to_string(),
            ci95: row.ci95.map(|ends| ends.map(|end| end.to_string())),
            values: row.values,
            unit: row.unit.to_owned(),
            tolerance: parts(row.tolerance),
            neutral: row.neutral.map(|neutral| neutral.to_string()),
            held: row.held,
            guard: row.guard.map(parts),
            why: row.why.clone(),
        }
    }
}

impl StoredReport {
    /// The report of the experiment with this name and file of its paper; `None` if a number or
    /// a tolerance cannot be read.
    pub fn into_report(self, experiment: &'static str, seed_file: &'static str) -> Option<Report> {
        let drawing = |(file, svg)| Drawing { file, svg };
        Some(Report {
            experiment,
            seed_file,
            title: self.title,
            choices: self.choices,
            rows: self.rows.into_iter().map(StoredRow::into_row).collect::<Option<_>>()?,
            figures: self.figures.into_iter().map(drawing).collect(),
            commit: self.commit,
            seeds: self.seeds,
            found_on: self.found_on,
            quick: self.quick,
        })
    }
}

impl StoredRow {
    fn into_row(self) -> Option<Row> {
        let number = |text: &str| text.parse::<f64>().ok();
        let paper = match (&self.printed, &self.claim) {
            (Some(printed), _) => Printed::Number(number(printed)?),
            (None, Some(claim)) => Printed::Claim(interned(claim)),
            (None, None) => Printed::Nothing,
        };
        let ends = match &self.ci95 {
            Some([low, high]) => Some([number(low)?, number(high)?]),
            None => None,
        };
        let row = Row {
            row: self.row,
            paper,
            ours: number(&self.ours)?,
            ci95: ends,
            values: self.values,
            unit: interned(&self.unit),
            tolerance: tolerance(&self.tolerance)?,
            neutral: self.neutral.as_deref().map_or(Some(None), |it| number(it).map(Some))?,
            held: self.held,
            guard: self.guard.as_ref().map_or(Some(None), |it| tolerance(it).map(Some))?,
            verdict: super::Verdict::Open,
            why: self.why,
        };
        let verdict = row.tolerance.judge(row.printed(), row.neutral, &row.estimate());
        Some(Row { verdict, ..row })
    }
}

/// A tolerance by name and numbers.
fn parts(tolerance: Tolerance) -> (String, Vec<String>) {
    let (name, numbers) = match tolerance {
        Tolerance::Relative(fraction) => ("relative", vec![fraction]),
        Tolerance::Absolute(amount) => ("absolute", vec![amount]),
        Tolerance::AtLeast(bound) => ("at least", vec![bound]),
        Tolerance::AtMost(bound) => ("at most", vec![bound]),
        Tolerance::Between(low, high) => ("between", vec![low, high]),
        Tolerance::Exact { fraction, factor } => ("exact", vec![fraction, factor]),
        Tolerance::None => ("none", Vec::new()),
    };
    (name.to_owned(), numbers.iter().map(f64::to_string).collect())
}

/// Reads [`parts`].
fn tolerance((name, numbers): &(String, Vec<String>)) -> Option<Tolerance> {
    let numbers = numbers.iter().map(|text| text.parse().ok()).collect::<Option<Vec<f64>>>()?;
    Some(match (&**name, &*numbers) {
        ("relative", [fraction]) => Tolerance::Relative(*fraction),
        ("absolute", [amount]) => Tolerance::Absolute(*amount),
        ("at least", [bound]) => Tolerance::AtLeast(*bound),
        ("at most", [bound]) => Tolerance::AtMost(*bound),
        ("between", [low, high]) => Tolerance::Between(*low, *high),
        ("exact", [fraction, factor]) => Tolerance::Exact { fraction: *fraction, factor: *factor },
        ("none", []) => Tolerance::None,
        _ => return None,
    })
}

/// A text that lives as long as the process, once each: units and claims are constants of the
/// experiments, so that there are few.
fn interned(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.get(text) {
        return found;
    }
    let kept: &'static str = Box::leak(text.into());
    known.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;
    use lull_sim::stats::Estimate;

    fn report() -> Report {
        Report {
            experiment: "example",
            seed_file: "000.txt",
            title: "a title".to_owned(),
            choices: vec!["threads: 75".to_owned()],
            rows: Vec::new(),
            figures: vec![Drawing { file: "a.svg".to_owned(), svg: "<svg/>".to_owned() }],
            commit: "abc".to_owned(),
            seeds: vec![1],
            found_on: vec![3, 4],
            quick: true,
        }
    }

    #[test]
    fn a_report_is_read_from_its_json_as_it_was_written() {
        let mut report = report();
        let ours = Estimate { mean: 0.1 + 0.2, half_width: 1.0 / 3.0, values: 7 };
        let bounds = [
            Tolerance::Relative(0.1),
            Tolerance::Absolute(2.0),
            Tolerance::AtLeast(0.0),
            Tolerance::AtMost(1.0),
            Tolerance::Between(-0.5, 1.0 / 3.0),
            Tolerance::Exact { fraction: 0.01, factor: 3.0 },
        ];
        for (number, tolerance) in bounds.into_iter().enumerate() {
            report.rows.push(Row::held(format!("row {number}"), "ms", 0.3, ours, tolerance));
        }
        let guard = Some(Tolerance::AtMost(2.0));
        let row = Row::held("guarded", "ms", 0.3, ours, Tolerance::Relative(0.1));
        report.rows.push(Row { guard, ..row });
        report.rows.push(Row::compared("claim", "1", "higher", f64::NAN, Tolerance::AtLeast(1.0)));
        report.rows.push(Row::reported("other", "s", Printed::Nothing, 2.0, "no number"));
        let text = serde_json::to_string(&StoredReport::from(&report)).unwrap();
        let read: StoredReport = serde_json::from_str(&text).unwrap();
        let read = read.into_report("example", "000.txt").unwrap();
        // NaN is not equal to itself.
        assert_eq!(format!("{read:?}"), format!("{report:?}"));
        assert!(read.rows.iter().any(|row| row.verdict == Verdict::Reported));
    }

    #[test]
    fn a_tolerance_that_is_none_is_refused() {
        let mut report = report();
        report.rows.push(Row::held("a", "1", 1.0, 1.0, Tolerance::Relative(0.1)));
        let mut stored = StoredReport::from(&report);
        stored.rows[0].tolerance.0 = "about".to_owned();
        assert!(stored.into_report("example", "000.txt").is_none());
    }
}
