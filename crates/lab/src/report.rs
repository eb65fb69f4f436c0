//! The result of an experiment: rows that compare the paper with our measurement, each with a
//! verdict; figures; and the choices made where the paper states nothing.

mod stored;
mod verdict;

pub use stored::StoredReport;
pub use verdict::{Comparison, Tolerance, Verdict};

use crate::figure::{DrawError, Figure, svg};
use crate::trial::estimate_of;
use lull_measure::statistics::student_t_quantile;
use lull_sim::stats::Estimate;
use serde::{Serialize, Serializer};

/// The result of one experiment.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Its name in `lull lab`.
    pub experiment: &'static str,
    /// File name of the paper's text among our sources; empty for theory.
    pub seed_file: &'static str,
    /// The title.
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
    /// The name of the figure: `14K clients, DVFS on`.
    pub row: String,
    /// The value printed in the paper.
    pub paper: Printed,
    /// The measured or simulated value.
    pub ours: f64,
    /// Ends of the 95 % interval; `None` for a single value.
    pub ci95: Option<[f64; 2]>,
    /// Independent values that `ours` is the mean of: replications of all seeds. 0 of an exact
    /// result, which has no random numbers.
    pub values: usize,
    /// Unit of both.
    pub unit: &'static str,
    /// The tolerance that the row is compared with.
    #[serde(serialize_with = "as_text")]
    pub tolerance: Tolerance,
    /// The value that means no difference: 0 of a difference, 1 of a ratio.
    #[serde(skip)]
    pub neutral: Option<f64>,
    /// Whether a miss makes `lull lab run` fail and the regression check watches the row.
    pub held: bool,
    /// The tolerance that a held row must stay within, where a claim that the row answers is
    /// judged by another one.
    #[serde(skip)]
    pub guard: Option<Tolerance>,
    /// The verdict of the interval on the tolerance.
    pub verdict: Verdict,
    /// Why the paper's number is not comparable, or another remark on the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The form in which a paper prints a value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Printed {
    /// A number.
    Number(f64),
    /// A claim as text.
    Claim(&'static str),
    /// No printed value.
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

/// A value that can be compared with the paper's: an estimate, or a single value without interval.
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

/// A result that has no random numbers, such as a formula's.
#[derive(Debug, Clone, Copy)]
pub struct Formula(pub f64);

impl Measured for Formula {
    fn estimate(self) -> Estimate {
        Estimate { mean: self.0, half_width: 0.0, values: 0 }
    }
}

/// A picture with its file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawing {
    /// The file's name, such as `ntier-table2.svg`.
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
    /// Creates a row that is compared with the paper, whatever the result.
    pub fn compared(
        row: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Printed>,
        ours: impl Measured,
        tolerance: Tolerance,
    ) -> Self {
        let (row, paper, measured) = (row.into(), paper.into(), ours.estimate());
        let neutral = match paper {
            Printed::Nothing => None,
            Printed::Number(_) | Printed::Claim(_) => tolerance.turning_point(unit),
        };
        let empty = Self {
            row,
            paper,
            ours: f64::NAN,
            ci95: None,
            values: 0,
            unit,
            tolerance,
            neutral,
            held: false,
            guard: None,
            verdict: Verdict::Open,
            why: None,
        };
        empty.measured(measured)
    }

    /// A row that compares a change, in percent or points, with a printed one: half of it to
    /// twice of it, with its sign.
    pub fn change(
        row: impl Into<String>,
        unit: &'static str,
        printed: f64,
        ours: impl Measured,
    ) -> Self {
        let near = Tolerance::half_to_twice(printed, 0.0);
        Self::compared(row, unit, printed, ours, near).around(0.0)
    }

    /// A row that compares a ratio with a printed one: half of the way from 1 to it, to twice.
    pub fn ratio(row: impl Into<String>, printed: f64, ours: impl Measured) -> Self {
        let near = Tolerance::half_to_twice(printed, 1.0);
        Self::compared(row, "1", printed, ours, near).around(1.0)
    }

    /// A row that must stay within its tolerance.
    pub fn held(
        row: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Printed>,
        ours: impl Measured,
        tolerance: Tolerance,
    ) -> Self {
        Self { held: true, ..Self::compared(row, unit, paper, ours, tolerance) }
    }

    /// A row for information, with the reason why it cannot be compared with the paper.
    pub fn reported(
        row: impl Into<String>,
        unit: &'static str,
        paper: impl Into<Printed>,
        ours: impl Measured,
        why: impl Into<String>,
    ) -> Self {
        Self::compared(row, unit, paper, ours, Tolerance::None).because(why)
    }

    /// Sets the value that means no difference.
    #[must_use]
    pub fn around(mut self, neutral: f64) -> Self {
        self.neutral = Some(neutral);
        let ours = self.estimate();
        self.measured(ours)
    }

    /// The row with another measurement and the verdict on it.
    fn measured(mut self, ours: Estimate) -> Self {
        let interval = [ours.mean - ours.half_width, ours.mean + ours.half_width];
        self.ours = ours.mean;
        self.ci95 = ours.half_width.is_finite().then_some(interval);
        self.values = ours.values;
        self.verdict = self.tolerance.judge(self.printed(), self.neutral, &ours);
        self
    }

    /// Judges the row by what a claim is compared with; a held row keeps its own tolerance as
    /// its guard.
    #[must_use]
    pub(crate) fn answering(mut self, claim: Comparison) -> Self {
        self.guard = self.held.then_some(self.tolerance);
        self.tolerance = claim.tolerance;
        self.neutral = claim.neutral;
        if let (Some(number), None) = (claim.printed, self.printed()) {
            self.paper = Printed::Number(number);
        }
        let ours = self.estimate();
        self.measured(ours)
    }

    /// Whether a held row misses the tolerance that it must stay within.
    fn is_held_and_missed(&self) -> bool {
        let verdict = match self.guard {
            Some(guard) => guard.judge(self.printed(), None, &self.estimate()),
            None => self.verdict,
        };
        self.held && verdict.is_miss()
    }

    /// Returns the measured value.
    pub fn estimate(&self) -> Estimate {
        let half_width = self.ci95.map_or(f64::INFINITY, |[low, high]| (high - low) / 2.0);
        Estimate { mean: self.ours, half_width, values: self.values }
    }

    fn printed(&self) -> Option<f64> {
        match self.paper {
            Printed::Number(number) => Some(number),
            Printed::Claim(_) | Printed::Nothing => None,
        }
    }

    /// Returns whether the mean is within the tolerance that the row must stay within. The
    /// regression check uses it on one seed; a verdict needs the interval.
    pub fn mean_is_within(&self) -> bool {
        self.guard.unwrap_or(self.tolerance).accepts(self.printed(), self.ours)
    }

    /// Adds a remark to the row.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Adds the remark of a comparison that the paper makes in words: its sign alone is judged.
    #[must_use]
    pub(crate) fn by_order(self) -> Self {
        self.because("the order only: the figure has no number")
    }

    /// The cells of a table for people, as [`Report::HEADER`].
    fn cells(&self) -> Vec<String> {
        let paper = match &self.paper {
            Printed::Number(number) => number_text(*number),
            Printed::Claim(claim) => (*claim).to_owned(),
            Printed::Nothing => "-".to_owned(),
        };
        let half = self.ci95.map(|[low, high]| (high - low) / 2.0).filter(|half| *half > 0.0);
        let half = half.map_or(String::new(), |half| format!(" ± {}", number_text(half)));
        let ours = number_text(self.ours) + &half;
        let values = match self.values {
            0 => "exact".to_owned(),
            count if count > 1 && half.is_empty() => format!("{count}, all equal"),
            count => count.to_string(),
        };
        let tolerance = self.tolerance.to_string();
        let unit = self.unit.to_owned();
        vec![self.row.clone(), paper, ours, values, unit, tolerance, self.verdict.to_string()]
    }
}

/// The estimate of all values of several groups, each of which is known by its own estimate:
/// squares within the groups and between their means add up to those of all values.
fn pool(groups: &[Estimate]) -> Estimate {
    let values: usize = groups.iter().map(|group| group.values).sum();
    if values == 0 {
        return groups[0];
    }
    let weighted = |value: &dyn Fn(&Estimate) -> f64| -> f64 {
        groups.iter().map(|group| group.values as f64 * value(group)).sum()
    };
    let mean = weighted(&|group| group.mean) / values as f64;
    let within = |group: &Estimate| match group.values {
        0 | 1 => 0.0,
        count => {
            let error = group.half_width / student_t_quantile(0.975, count - 1);
            (count - 1) as f64 * error * error
        }
    };
    let squares = weighted(&|group| within(group) + (group.mean - mean).powi(2));
    let half_width = match values {
        1 => f64::INFINITY,
        _ => {
            let error = (squares / (values - 1) as f64 / values as f64).sqrt();
            student_t_quantile(0.975, values - 1) * error
        }
    };
    Estimate { mean, half_width, values }
}

impl Report {
    /// Heads of the columns of [`Report::table`].
    pub const HEADER: [&'static str; 7] =
        ["row", "paper", "ours", "values", "unit", "tolerance", "verdict"];

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

    /// How many rows have each verdict, in the order of [`Verdict::ALL`].
    pub fn tally(&self) -> [usize; 5] {
        Verdict::ALL.map(|wanted| self.rows.iter().filter(|row| row.verdict == wanted).count())
    }

    /// How many of the rows that must stay within their tolerance miss it.
    pub fn misses(&self) -> usize {
        self.rows.iter().filter(|row| row.is_held_and_missed()).count()
    }

    /// Whether each compared row has at least this many values, or is exact, and a verdict that is
    /// not open.
    pub fn is_decided_by(&self, values: usize) -> bool {
        let mut compared = self.rows.iter().filter(|row| row.verdict != Verdict::Reported);
        compared.all(|row| {
            let is_enough = row.values == 0 || row.values >= values;
            is_enough && row.verdict != Verdict::Open
        })
    }

    /// Adds the run of the same experiment on another seed: rows of the same name become one
    /// row over the values of both.
    pub fn absorb(&mut self, other: Self) {
        self.seeds.extend(other.seeds);
        for row in other.rows {
            match self.rows.iter_mut().find(|known| known.row == row.row) {
                Some(known) => {
                    let pooled = pool(&[known.estimate(), row.estimate()]);
                    *known = known.clone().measured(pooled);
                }
                None => self.rows.push(row),
            }
        }
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
        assert_eq!(report().tally(), [1, 0, 0, 0, 2]);
    }

    #[test]
    fn seeds_are_pooled_as_if_all_values_had_been_in_one_run() {
        let all = [3.0, 5.0, 4.0, 9.0, 8.0, 2.5, 7.0];
        let (first, rest) = all.split_at(3);
        let whole = estimate_of(&all);
        let pooled = pool(&[estimate_of(first), estimate_of(rest)]);
        assert!((pooled.mean - whole.mean).abs() < 1e-12 && pooled.values == 7);
        assert!((pooled.half_width / whole.half_width - 1.0).abs() < 1e-9);
        let singles: Vec<_> = all.iter().map(|value| estimate_of(&[*value])).collect();
        assert!((pool(&singles).half_width / whole.half_width - 1.0).abs() < 1e-9);
        let formula = Formula(2.0).estimate();
        assert_eq!(pool(&[formula, formula]), formula);
    }

    #[test]
    fn rows_of_one_name_become_one_row_and_their_verdict_is_of_all_values() {
        let of_seed = |seed, ours: f64| Report {
            rows: vec![Row::held("a", "1", "below 1", ours, Tolerance::AtMost(1.0))],
            seeds: vec![seed],
            ..report()
        };
        let mut all = of_seed(1, 0.8);
        assert_eq!((all.rows[0].verdict, all.is_decided_by(3)), (Verdict::Open, false));
        for seed in 2..=3 {
            all.absorb(of_seed(seed, 0.8 + 0.01 * seed as f64));
        }
        assert_eq!((all.rows.len(), all.rows[0].values, &*all.seeds), (1, 3, &[1, 2, 3][..]));
        assert_eq!((all.rows[0].verdict, all.is_decided_by(3)), (Verdict::Pass, true));
        let mut wrong = of_seed(1, 1.2);
        wrong.absorb(of_seed(2, 1.21));
        assert_eq!((wrong.rows[0].verdict, wrong.misses()), (Verdict::Contradicts, 1));
    }

    #[test]
    fn an_open_row_is_not_decided_however_many_values_it_has() {
        let of = |mean| Report {
            rows: vec![Row::compared(
                "a",
                "1",
                "below 1",
                estimate(mean, 0.1),
                Tolerance::AtMost(1.0),
            )],
            ..report()
        };
        assert!(!of(0.95).is_decided_by(5) && of(0.8).is_decided_by(5));
    }

    #[test]
    fn a_row_that_answers_a_claim_is_judged_by_it_and_guarded_by_its_own_tolerance() {
        let held =
            |mean| Row::held("a", "ms", "in time", estimate(mean, 1.0), Tolerance::AtMost(206.0));
        let claim =
            Comparison { printed: Some(200.0), tolerance: Tolerance::AtMost(200.0), neutral: None };
        let of = |mean| Report { rows: vec![held(mean).answering(claim)], ..report() };
        let slow = of(203.0);
        assert_eq!((slow.rows[0].verdict, slow.misses()), (Verdict::Fail, 0));
        assert!(slow.rows[0].mean_is_within());
        assert_eq!(slow.table()[0][1], "200");
        assert_eq!((of(210.0).misses(), of(210.0).rows[0].mean_is_within()), (1, false));
    }

    #[test]
    fn a_table_shows_no_more_digits_than_are_known() {
        assert_eq!(report().table()[0][1..4], ["1517", "1551 ± 35", "8"]);
        assert_eq!([29370.4, 0.013_49, 18.73].map(number_text), ["29370", "0.01349", "18.73"]);
    }
}
