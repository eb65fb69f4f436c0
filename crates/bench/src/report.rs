//! A benchmark's result: rows with bounds, as a page for people and as JSON.

use super::machine::Machine;
use super::stats::Summary;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// The results of a benchmark.
#[derive(Default)]
pub(super) struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// One figure.
struct Row {
    what: String,
    value: Summary,
    unit: &'static str,
    /// The bound on the median; none if the figure is only reported.
    bound: Option<RangeInclusive<f64>>,
    /// The statistic that must keep the bound.
    decisive: Decisive,
}

/// The statistic of a value that decides whether it keeps its bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decisive {
    Median,
    /// The lower end of its interval.
    Low,
    /// The upper end of its interval.
    High,
}

impl Report {
    /// Adds a figure without a bound.
    pub(super) fn reported(&mut self, what: &str, value: Summary, unit: &'static str) {
        self.rows.push(Row::new(what, value, unit, None));
    }

    /// Adds a figure whose median must lie in `bound`: `0.0..=1.2`, `20e3..=f64::INFINITY`.
    pub(super) fn bounded(
        &mut self,
        what: &str,
        value: Summary,
        unit: &'static str,
        bound: RangeInclusive<f64>,
    ) {
        self.rows.push(Row::new(what, value, unit, Some(bound)));
    }

    /// Adds a figure with an interval whose lower end must be at least `least`.
    pub(super) fn bounded_below(
        &mut self,
        what: &str,
        value: Summary,
        unit: &'static str,
        least: f64,
    ) {
        let row = Row::new(what, value, unit, Some(least..=f64::INFINITY));
        self.rows.push(Row { decisive: Decisive::Low, ..row });
    }

    /// Adds a figure with an interval whose upper end must be at most `most`.
    pub(super) fn bounded_above(
        &mut self,
        what: &str,
        value: Summary,
        unit: &'static str,
        most: f64,
    ) {
        let row = Row::new(what, value, unit, Some(0.0..=most));
        self.rows.push(Row { decisive: Decisive::High, ..row });
    }

    /// Adds a sentence on how the figures were measured.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Number of bounds that were not kept.
    pub(super) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict() == "missed").count()
    }

    /// The page that `bench-results/` keeps.
    pub(super) fn markdown(&self, name: &str, about: &str, machine: &Machine) -> String {
        let mut page = format!("# {name}\n\n{about}.\n\n{machine}\n");
        page += "| what | median | quartiles | unit | bound | verdict |\n";
        page += "|---|---:|---:|---|---|---|\n";
        for row in &self.rows {
            let (what, unit, Summary { median, low, high }) = (&row.what, row.unit, row.value);
            let (median, low, high) = (short(median), short(low), short(high));
            let (bound, verdict) = (row.bound_text(), row.verdict());
            // Writing into a String cannot fail.
            let _ = writeln!(
                page,
                "| {what} | {median} | {low} .. {high} | {unit} | {bound} | {verdict} |"
            );
        }
        for note in &self.notes {
            let _ = write!(page, "\n{note}\n");
        }
        page
    }

    /// The same for programs.
    pub(super) fn json(&self, name: &str, machine: &Machine) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({ "bench": name, "machine": machine.json(), "rows": rows, "notes": self.notes })
    }
}

impl Row {
    fn new(
        what: &str,
        value: Summary,
        unit: &'static str,
        bound: Option<RangeInclusive<f64>>,
    ) -> Self {
        Self { what: what.to_owned(), value, unit, bound, decisive: Decisive::Median }
    }

    fn verdict(&self) -> &'static str {
        let decisive = match self.decisive {
            Decisive::Median => self.value.median,
            Decisive::Low => self.value.low,
            Decisive::High => self.value.high,
        };
        match &self.bound {
            None => "reported",
            Some(bound) if bound.contains(&decisive) => "kept",
            Some(_) => "missed",
        }
    }

    fn bound_text(&self) -> String {
        let Some(bound) = &self.bound else { return "–".to_owned() };
        match (*bound.start(), *bound.end()) {
            (least, _) if self.decisive == Decisive::Low => {
                format!("lower end >= {}", short(least))
            }
            (_, most) if self.decisive == Decisive::High => format!("upper end <= {}", short(most)),
            (least, f64::INFINITY) => format!(">= {}", short(least)),
            (0.0 | f64::NEG_INFINITY, most) => format!("<= {}", short(most)),
            (least, most) => format!("{} .. {}", short(least), short(most)),
        }
    }

    fn json(&self) -> Value {
        // JSON knows no infinity: an open side is null.
        let side = |value: f64| value.is_finite().then_some(value);
        json!({
            "what": self.what,
            "median": self.value.median,
            "low": self.value.low,
            "high": self.value.high,
            "unit": self.unit,
            "bound": self.bound.as_ref().map(|bound| [side(*bound.start()), side(*bound.end())]),
            "bound_on": match self.decisive {
                Decisive::Median => "median",
                Decisive::Low => "low",
                Decisive::High => "high",
            },
            "verdict": self.verdict(),
        })
    }
}

/// Three significant digits, and no exponent for what people read.
fn short(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = usize::try_from(2 - magnitude).unwrap_or(0);
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let value = Summary { median: 1.5, low: 1.25, high: 2.0 };
        let mut report = Report::default();
        report.reported("plain", value, "ns");
        report.bounded("low enough", value, "ratio", 0.0..=2.0);
        report.bounded("too low", value, "1/s", 20e3..=f64::INFINITY);
        report.note("Run in turn.");
        report
    }

    #[test]
    fn a_missed_bound_differs_from_a_kept_one_and_from_none() {
        let report = report();
        assert_eq!(report.missed(), 1);
        let page = report.markdown("name", "About", &Machine::here(&xtask::root()));
        assert!(page.contains("| plain | 1.50 | 1.25 .. 2.00 | ns | – | reported |"), "{page}");
        assert!(page.contains("| ratio | <= 2.00 | kept |"), "{page}");
        assert!(page.contains("| 1/s | >= 20000 | missed |"), "{page}");
        assert!(page.ends_with("\nRun in turn.\n"), "{page}");
    }

    #[test]
    fn a_bound_on_the_lower_end_is_missed_where_only_the_middle_keeps_it() {
        let mut report = Report::default();
        let value = |low| Summary { median: 1.0, low, high: 1.1 };
        report.bounded_below("wide", value(0.9), "ratio", 0.97);
        report.bounded_below("narrow", value(0.98), "ratio", 0.97);
        assert_eq!(report.missed(), 1);
        let page = report.markdown("name", "About", &Machine::here(&xtask::root()));
        assert!(
            page.contains("| wide | 1.00 | 0.900 .. 1.10 | ratio | lower end >= 0.970 | missed")
        );
        assert!(page.contains("| lower end >= 0.970 | kept |"), "{page}");
    }

    #[test]
    fn json_has_an_open_side_as_null() {
        let json = report().json("name", &Machine::here(&xtask::root()));
        assert_eq!(json["rows"][2]["bound"], json!([20e3, null]));
        assert_eq!(json["rows"][0]["bound"], Value::Null);
        assert_eq!(json["rows"][1]["verdict"], "kept");
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [0.0, 0.001_234, 1.234, 12.34, 123.4, 123_456.7, -1.5].map(short);
        assert_eq!(figures, ["0.00", "0.00123", "1.23", "12.3", "123", "123457", "-1.50"]);
    }
}
