//! The result of an experiment: rows that compare the paper with our measurement, each with a
//! verdict; figures; and the choices made where the paper states nothing.

mod verdict;

pub use verdict::{Tolerance, Verdict};

use crate::figure::{DrawError, Figure, svg};
use crate::trial::estimate_of;
use lull_sim::stats::Estimate;
use serde::{Serialize, Serializer};

/// The result of one experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its name in `lull lab`.
    pub experiment: &'static str,
    /// File name of the paper's text among our sources; empty for theory.
    pub seed_file: &'static str,
    /// What it shows.
    pub title: String,
    /// Choices that the paper does not print, and readings of unclear places.
    pub choices: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
    /// The pictures; in JSON their file names.
    pub figures: Vec<Drawing>,
    /// Commit of the program.
    pub commit: String,
    /// Seeds of the random numbers.
    pub seeds: Vec<u64>,
    /// Seeds that parameters were fitted or searched on. None of `seeds` is among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found_on: Vec<u64>,
    /// Whether lengths were cut down (`--quick`), so that tolerances need not hold.
    pub quick: bool,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Which figure: `14K clients, DVFS on`.
    pub row: String,
    /// What is printed.
    pub paper: Printed,
    /// What was measured or simulated.
    pub ours: f64,
    /// Ends of the 95 % interval; `None` for a single value.
    pub ci95: Option<[f64; 2]>,
    /// Unit of both.
    pub unit: &'static str,
    /// The tolerance that the row is held to.
    #[serde(serialize_with = "as_text")]
    pub tolerance: Tolerance,
    /// Whether the row is within its tolerance.
    pub verdict: Verdict,
    /// Why the paper's number is not comparable, or another remark on the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a paper prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Printed {
    /// A number.
    Number(f64),
    /// A claim in words.
    Claim(&'static str),
    /// Nothing.
    Nothing,
}

impl From<f64> for Printed {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<f64>> for Printed {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Nothing, Self::Number)
    }
}

impl From<&'static str> for Printed {
    fn from(claim: &'static str) -> Self {
        Self::Claim(claim)
    }
}

/// What a row compares with the paper: an estimate, or a single value without interval.
pub trait Measured {
    /// The value with its interval.
    fn estimate(self) -> Estimate;
}

impl Measured for Estimate {
    fn estimate(self) -> Estimate {
        self
    }
}

impl Measured for &Estimate {
    fn estimate(self) -> Estimate {
        *self
    }
}

impl Measured for f64 {
    fn estimate(self) -> Estimate {
        estimate_of(&[self])
    }
}

/// A picture with its file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawing {
    /// Such as `ntier-table2.svg`.
    pub file: String,
    /// Its text.
    pub svg: String,
}

impl Serialize for Drawing {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.file)
    }
}

fn as_text<S: Serializer>(tolerance: &Tolerance, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(tolerance)
}

impl Drawing {
    /// Draws figures below each other.
    ///
    /// # Errors
    /// If the drawing library fails.
    pub fn from_figures(name: &str, panels: &[Figure]) -> Result<Self, DrawError> {
        Ok(Self { file: format!("{name}.svg"), svg: svg(panels)? })
    }
}

impl Row {
    /// A row that is held to a tolerance.
    pub fn held(
        row: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Printed>,
        ours: impl Measured,
        tolerance: Tolerance,
    ) -> Self {
        let (paper, ours) = (paper.into(), ours.estimate());
        let printed = match paper {
            Printed::Number(number) => Some(number),
            Printed::Claim(_) | Printed::Nothing => None,
        };
        let verdict = tolerance.judge(printed, &ours);
        let interval = [ours.mean - ours.half_width, ours.mean + ours.half_width];
        let ci95 = ours.half_width.is_finite().then_some(interval);
        Self { row: row.into(), paper, ours: ours.mean, ci95, unit, tolerance, verdict, why: None }
    }

    /// A row for information, with the reason why it is not held to the paper's number.
    pub fn reported(
        row: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Printed>,
        ours: impl Measured,
        why: impl Into<String>,
    ) -> Self {
        Self::held(row, unit, paper, ours, Tolerance::None).because(why)
    }

    /// Adds a remark to the row.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// The cells of a table for people, as [`Report::HEADER`].
    fn cells(&self) -> Vec<String> {
        let paper = match &self.paper {
            Printed::Number(number) => number_text(*number),
            Printed::Claim(claim) => (*claim).to_owned(),
            Printed::Nothing => "-".to_owned(),
        };
        let half = self.ci95.map(|[low, high]| (high - low) / 2.0);
        let half = half.map_or(String::new(), |half| format!(" ± {}", number_text(half)));
        let ours = number_text(self.ours) + &half;
        let tolerance = self.tolerance.to_string();
        let unit = self.unit.to_owned();
        vec![self.row.clone(), paper, ours, unit, tolerance, self.verdict.to_string()]
    }
}

impl Report {
    /// Heads of the columns of [`Report::table`].
    pub const HEADER: [&'static str; 6] = ["row", "paper", "ours", "unit", "tolerance", "verdict"];

    /// The rows as cells of a table for people.
    pub fn table(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(Row::cells).collect()
    }

    /// The remarks below the table: choices, then each reason once with the rows it is about.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.choices.clone();
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.rows {
            let Some(why) = row.why.as_deref() else { continue };
            match reasons.iter_mut().find(|(known, _)| *known == why) {
                Some((_, rows)) => rows.push(&row.row),
                None => reasons.push((why, vec![&row.row])),
            }
        }
        remarks.extend(reasons.into_iter().map(|(why, rows)| {
            let named =
                if rows.len() > 3 { vec![rows[0], "...", rows[rows.len() - 1]] } else { rows };
            format!("{}: {why}", named.join(", "))
        }));
        remarks
    }

    /// How many rows passed, failed, and were only reported.
    pub fn tally(&self) -> [usize; 3] {
        [Verdict::Pass, Verdict::Fail, Verdict::Reported]
            .map(|wanted| self.rows.iter().filter(|row| row.verdict == wanted).count())
    }
}

/// A number with four significant digits, or as many as an integer has.
pub(crate) fn number_text(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let digits = usize::try_from(3 - magnitude).unwrap_or(0).min(9);
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(mean: f64, half_width: f64) -> Estimate {
        Estimate { mean, half_width, values: 8 }
    }

    fn report() -> Report {
        let held = Tolerance::Relative(0.05);
        let reason = "the demand is not printed";
        Report {
            experiment: "example",
            seed_file: "000.txt",
            title: "an example".to_owned(),
            choices: vec!["threads: 75".to_owned()],
            rows: vec![
                Row::held("a", "req/s", Printed::Number(1517.0), estimate(1551.3, 35.0), held),
                Row::reported("b", "req/s", Printed::Number(1.0), estimate(2.0, 0.1), reason),
                Row::reported("c", "s", Printed::Nothing, estimate(0.5, f64::INFINITY), reason),
            ],
            figures: vec![Drawing { file: "example.svg".to_owned(), svg: "<svg/>".to_owned() }],
            commit: "abc".to_owned(),
            seeds: vec![1],
            found_on: Vec::new(),
            quick: false,
        }
    }

    #[test]
    fn json_has_the_promised_shape() {
        let json = serde_json::to_value(report()).unwrap();
        let row = &json["rows"][0];
        assert_eq!((&row["row"], &row["paper"]), (&"a".into(), &1517.0.into()));
        assert_eq!(row["ci95"][0], 1516.3);
        assert_eq!((&row["tolerance"], &row["verdict"]), (&"±5 %".into(), &"pass".into()));
        assert!(row.get("why").is_none());
        assert_eq!(json["rows"][1]["verdict"], "reported");
        assert_eq!(json["rows"][2]["paper"], serde_json::Value::Null);
        assert_eq!(json["rows"][2]["ci95"], serde_json::Value::Null);
        assert_eq!(json["figures"][0], "example.svg");
    }

    #[test]
    fn reasons_are_given_once_with_their_rows() {
        let remarks = report().remarks();
        assert_eq!(remarks, ["threads: 75", "b, c: the demand is not printed"]);
        assert_eq!(report().tally(), [1, 0, 2]);
    }

    #[test]
    fn a_table_shows_no_more_digits_than_are_known() {
        assert_eq!(report().table()[0][1..3], ["1517", "1551 ± 35"]);
        assert_eq!([29370.4, 0.013_49, 18.73].map(number_text), ["29370", "0.01349", "18.73"]);
    }
}
