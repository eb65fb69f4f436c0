//! Measured rows in a file: what `lull lab run --save` writes and what claims are judged by.
//!
//! A row a line, as CSV, with the length, the seeds and the commit of its run. Figures of a
//! quick run are shown beside a claim, but decide nothing.

use crate::registry::ALL;
use crate::report::{Printed, Report, Row, Verdict};
use lull_sim::stats::Estimate;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How long the simulations of a run were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// The lengths that the experiment defines.
    Full,
    /// Cut down with `--quick`.
    Quick,
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Quick => "quick",
        })
    }
}

/// One measured row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRow {
    /// The experiment's name.
    pub experiment: String,
    /// The row's name.
    pub row: String,
    /// Its unit.
    pub unit: String,
    /// The printed number in the row, if there is one.
    pub paper: Option<f64>,
    /// The mean; `None` if only the row's name is known.
    pub mean: Option<f64>,
    /// Half the width of the 95 % interval; `None` of a single value.
    pub half_width: Option<f64>,
    /// Independent values; 0 of an exact result.
    pub values: usize,
    /// Length of the run.
    pub length: Length,
    /// Seeds of the run, with blanks between them.
    pub seeds: String,
    /// Commit of the program that ran it; empty if that was not in the history yet.
    pub commit: String,
}

impl MeasuredRow {
    fn new(report: &Report, row: &Row) -> Self {
        let estimate = row.estimate();
        let shown = |value: f64| value.is_finite().then(|| rounded(value));
        let seeds: Vec<_> = report.seeds.iter().map(ToString::to_string).collect();
        Self {
            experiment: report.experiment.to_owned(),
            row: row.row.clone(),
            unit: row.unit.to_owned(),
            paper: match row.paper {
                Printed::Number(number) => Some(rounded(number)),
                Printed::Claim(_) | Printed::Nothing => None,
            },
            mean: shown(estimate.mean),
            half_width: shown(estimate.half_width),
            values: estimate.values,
            length: if report.quick { Length::Quick } else { Length::Full },
            seeds: seeds.join(" "),
            commit: report.commit.clone(),
        }
    }

    /// The mean with its interval.
    pub fn estimate(&self) -> Option<Estimate> {
        let half_width = self.half_width.unwrap_or(f64::INFINITY);
        Some(Estimate { mean: self.mean?, half_width, values: self.values })
    }
}

/// Five significant digits: fewer than random numbers leave, more than anything is read to.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// Reads a file of results.
///
/// # Errors
/// If a line is none of a [`MeasuredRow`]; the error has its number.
pub fn parse(text: &str) -> Result<Vec<MeasuredRow>, csv::Error> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect()
}

/// A run whose rows are to replace recorded ones.
#[derive(Debug, Clone, Copy)]
pub struct NewRun<'a> {
    /// The experiment.
    pub experiment: &'a str,
    /// Length of the run.
    pub length: Length,
    /// How many seeds it has.
    pub seeds: usize,
}

impl NewRun<'_> {
    /// Returns why the rows of this run are worth less than those in the text of a file of
    /// results: `None` if they are not.
    ///
    /// # Errors
    /// If the text is not a file of results.
    pub fn would_weaken(&self, text: &str) -> Result<Option<String>, csv::Error> {
        let rows = parse(text)?;
        let seeds = |row: &MeasuredRow| row.seeds.split_whitespace().count();
        let own = rows.iter().filter(|row| row.experiment == self.experiment);
        let is_better = |row: &&MeasuredRow| {
            row.mean.is_some()
                && row.length == Length::Full
                && (self.length == Length::Quick || seeds(row) > self.seeds)
        };
        Ok(own.filter(is_better).max_by_key(|row| seeds(row)).map(|row| {
            let Self { experiment, length, seeds: ours } = self;
            format!(
                "`{experiment}` is recorded at full length on {} seeds, and this run is at \
                 {length} length on {ours} at most",
                seeds(row)
            )
        }))
    }
}

/// The text of a file of results with the rows of a report in place of earlier ones of the
/// same experiment. Rows of which the paper prints nothing are left out.
///
/// # Errors
/// If the text before is not a file of results.
pub fn merge(before: &str, report: &Report) -> Result<String, csv::Error> {
    let mut rows = parse(before)?;
    rows.retain(|row| row.experiment != report.experiment);
    let kept = report
        .rows
        .iter()
        .filter(|row| row.verdict != Verdict::Reported || !matches!(row.paper, Printed::Nothing));
    rows.extend(kept.map(|row| MeasuredRow::new(report, row)));
    let number = |name: &str| ALL.iter().position(|experiment| experiment.name == name);
    rows.sort_by_key(|row| number(&row.experiment));
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    let bytes = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Tolerance;

    fn report(experiment: &'static str, quick: bool, ours: f64) -> Report {
        let estimate = Estimate { mean: ours, half_width: 0.25, values: 6 };
        Report {
            experiment,
            seed_file: "",
            title: String::new(),
            choices: Vec::new(),
            rows: vec![
                Row::held("a, b", "ms", 2.0, estimate, Tolerance::Relative(0.5)),
                Row::reported("c", "ms", Printed::Nothing, 1.0, "no number is printed"),
            ],
            figures: Vec::new(),
            commit: "abc".to_owned(),
            seeds: vec![1, 2],
            found_on: Vec::new(),
            quick,
        }
    }

    #[test]
    fn a_run_replaces_the_rows_of_its_experiment_and_keeps_the_others() {
        let first = merge("", &report("ahq-cores", false, 1.0)).unwrap();
        let both = merge(&first, &report("ntier-table2", false, 2.123_456)).unwrap();
        let again = merge(&both, &report("ahq-cores", false, 3.0)).unwrap();
        let rows = parse(&again).unwrap();
        let found: Vec<_> = rows.iter().map(|row| (&*row.experiment, row.mean)).collect();
        assert_eq!(found, [("ntier-table2", Some(2.1235)), ("ahq-cores", Some(3.0))]);
        assert_eq!((&*rows[0].row, &*rows[0].seeds, &*rows[0].commit), ("a, b", "1 2", "abc"));
        let estimate = Estimate { mean: 3.0, half_width: 0.25, values: 6 };
        assert_eq!(rows[1].estimate(), Some(estimate));
    }

    #[test]
    fn a_quicker_run_or_one_of_fewer_seeds_would_weaken_recorded_rows() {
        let full = merge("", &report("ahq-cores", false, 1.0)).unwrap();
        let run = |length, seeds| NewRun { experiment: "ahq-cores", length, seeds };
        let why = |text: &str, length, seeds| run(length, seeds).would_weaken(text).unwrap();
        assert_eq!(why(&full, Length::Full, 2), None);
        assert_eq!(why("", Length::Quick, 1), None);
        for (length, seeds) in [(Length::Quick, 2), (Length::Full, 1)] {
            let why = why(&full, length, seeds).unwrap();
            assert!(why.contains("`ahq-cores` is recorded at full length on 2 seeds"), "{why}");
        }
        let quick = merge("", &report("ahq-cores", true, 1.0)).unwrap();
        assert_eq!(why(&quick, Length::Quick, 1), None);
        let other = NewRun { experiment: "ahq-ways", length: Length::Quick, seeds: 1 };
        assert_eq!(other.would_weaken(&full).unwrap(), None);
    }

    #[test]
    fn a_quick_run_is_marked_and_a_damaged_file_is_refused_with_its_line() {
        let text = merge("", &report("ahq-cores", true, 1.0)).unwrap();
        let rows = parse(&text).unwrap();
        assert_eq!((&*rows[0].row, rows[0].length, rows.len()), ("a, b", Length::Quick, 1));
        let full = merge(&text, &report("ahq-cores", false, 1.0)).unwrap();
        assert_eq!(parse(&full).unwrap()[0].length, Length::Full);
        let error = parse(&text.replace(",6,", ",many,")).unwrap_err().to_string();
        assert!(error.contains("line: 2"), "{error}");
    }
}
