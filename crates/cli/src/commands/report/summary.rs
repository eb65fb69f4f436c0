//! The tables of a report: one column for each run, or for each part of a run.

use super::RecordedRun;
use crate::text::number;
use lull_agent::proof::{Figure, Proof};
use lull_agent::recorded::{AppResult, Part};
use lull_control::Machine;
use lull_measure::catalogue::{COMPLETED, EPOCH, POWER};
use lull_measure::{Nanos, Percentile};
use serde::Serialize;
use std::collections::BTreeMap;

/// All tables of a report.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// The machine and versions of each run: one column a run.
    pub(super) runs: Table,
    /// Results: one column for each run, or for each part of a run under one policy.
    pub(super) parts: Table,
    /// Latencies at [`PERCENTILES`] in milliseconds, by app and part.
    pub(super) tails: Vec<Tails>,
}

/// Rows of cells; an unknown one is `-`.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    /// Names of the columns after the first.
    pub(super) columns: Vec<String>,
    /// The label of each row, and its cells.
    pub(super) rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// The figures of a proof; the last column says whether a difference is shown.
    pub(super) fn of_proof(proof: &Proof) -> Self {
        let design = &proof.design;
        let columns = [&design.against, &design.policy, "difference", "a difference?"];
        let row = |figure: &Figure| {
            let [name, cells @ ..] = proof.cells(figure);
            (name, cells.into())
        };
        Self {
            columns: columns.map(str::to_owned).into(),
            rows: proof.figures.iter().map(row).collect(),
        }
    }
}

/// Latencies of one app.
#[derive(Debug, Serialize)]
pub(super) struct Tails {
    pub(super) app: String,
    /// Its objective's bound, in milliseconds, with its percentile.
    pub(super) bound: Option<(String, f64)>,
    /// Indexed by part: its name and the latencies.
    pub(super) parts: Vec<(String, Vec<Option<f64>>)>,
}

/// The percentiles at which latencies are shown side by side.
pub(super) const PERCENTILES: [Percentile; 4] =
    [Percentile::P50, Percentile::P95, Percentile::P99, Percentile::P999];

/// A part of a run with a name that is unique in the report.
struct Named<'a> {
    recorded: &'a RecordedRun,
    part: Part<'a>,
    /// Indexed by app.
    apps: Vec<AppResult>,
    name: String,
}

impl Summary {
    /// Summarises these runs; the first `skip` of each phase is left out.
    pub(super) fn from_runs(all: &[RecordedRun], skip: Nanos) -> anyhow::Result<Self> {
        let mut parts = Vec::new();
        for recorded in all {
            for part in Part::all_of(&recorded.run, skip)? {
                let name = match all.len() {
                    1 => part.name.clone(),
                    _ => format!("{} ({})", part.name, recorded.name),
                };
                parts.push(Named { recorded, apps: part.apps(&recorded.run), part, name });
            }
        }
        let apps = app_names(all);
        let tails = apps.iter().filter_map(|app| tails(app, &parts)).collect();
        Ok(Self { runs: runs(all), parts: results(&apps, &parts), tails })
    }
}

/// The apps of all runs, each once, in the order of the first that has them.
fn app_names(all: &[RecordedRun]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for spec in all.iter().flat_map(|recorded| &recorded.run.apps) {
        if !names.contains(&spec.name) {
            names.push(spec.name.clone());
        }
    }
    names
}

fn runs(all: &[RecordedRun]) -> Table {
    let fact = |key: &'static str| {
        move |recorded: &RecordedRun| {
            recorded.facts.get(key).cloned().unwrap_or_else(|| "-".to_owned())
        }
    };
    type RunFact = Box<dyn Fn(&RecordedRun) -> String>;
    let rows: [(&str, RunFact); 9] = [
        ("machine", Box::new(machine)),
        ("kernel", Box::new(fact("kernel"))),
        ("Lull", Box::new(fact("lull_version"))),
        ("began", Box::new(began)),
        ("length", Box::new(length)),
        ("policy", Box::new(fact("policy"))),
        ("shadow", Box::new(fact("shadow"))),
        ("seed", Box::new(fact("seed"))),
        ("ended", Box::new(ended)),
    ];
    let rows = rows.into_iter().map(|(name, of)| (name.to_owned(), all.iter().map(of).collect()));
    Table {
        columns: all.iter().map(|recorded| recorded.name.clone()).collect(),
        rows: rows.collect(),
    }
}

fn machine(recorded: &RecordedRun) -> String {
    let machine = recorded.facts.get("machine").and_then(|text| serde_json::from_str(text).ok());
    let named = |machine: Machine| format!("{}, {} cores", machine.name, machine.cores.len());
    machine.map_or_else(|| "-".to_owned(), named)
}

fn began(recorded: &RecordedRun) -> String {
    let unix_ns = recorded.facts.get("started_unix_ns").and_then(|text| text.parse::<i128>().ok());
    let time = unix_ns.and_then(|unix_ns| jiff::Timestamp::from_nanosecond(unix_ns).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn length(recorded: &RecordedRun) -> String {
    let series = &recorded.series;
    let span_s = span_s(&series.times_s, |epoch| series.value(EPOCH, "", epoch));
    let Some(span_s) = span_s else { return "no epoch".to_owned() };
    format!("{} s, {} epochs", number(span_s), series.times_s.len())
}

/// Returns the time from the beginning of the first epoch to the end of the last, by the times at
/// which epochs ended and the length of each. Times count from before references are measured and
/// loads are started, so that the first epoch begins later than they do.
fn span_s(times_s: &BTreeMap<i64, f64>, length_s: impl Fn(i64) -> Option<f64>) -> Option<f64> {
    let ((first, ended_s), (_, end_s)) = times_s.first_key_value().zip(times_s.last_key_value())?;
    Some(end_s - ended_s + length_s(*first).unwrap_or(0.0))
}

fn ended(recorded: &RecordedRun) -> String {
    recorded.facts.get("ended").cloned().unwrap_or_else(|| "killed, or still running".to_owned())
}

/// A row of the table of parts.
type Row = (String, Vec<String>);

fn results(apps: &[String], parts: &[Named<'_>]) -> Table {
    let row = |name: &str, of: &dyn Fn(&Named<'_>) -> Option<f64>| -> Row {
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        (name.to_owned(), parts.iter().map(|part| shown(of(part))).collect())
    };
    let find = |part: &Named<'_>| part.part.find(&part.recorded.run, &part.recorded.series);
    let found: Vec<_> = parts.iter().map(find).collect();
    let by_found = |name: &str, of: &dyn Fn(usize) -> Option<f64>| -> Row {
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        (name.to_owned(), (0..parts.len()).map(|index| shown(of(index))).collect())
    };
    let epochs = found.iter().map(|found| found.epochs.to_string()).collect();
    let mut rows = vec![
        ("epochs".to_owned(), epochs),
        by_found("E_S", &|index| found[index].system),
        by_found("E_LC", &|index| found[index].lc),
        by_found("E_BE", &|index| found[index].be),
        by_found("epochs that missed a bound, %", &|index| {
            found[index].missed.map(|share| 100.0 * share)
        }),
    ];
    for app in apps {
        rows.extend(rows_of(app, parts, &row));
    }
    rows.push(row("power, W", &|part| {
        let epochs: Vec<i64> = part.part.numbers().concat();
        part.recorded.series.mean(POWER, "", &epochs)
    }));
    rows.push(("power is".to_owned(), parts.iter().map(|part| power_of(part.recorded)).collect()));
    // A row without a known value in any column has no information.
    rows.retain(|(_, cells)| cells.iter().any(|cell| cell != "-"));
    Table { columns: parts.iter().map(|part| part.name.clone()).collect(), rows }
}

/// Returns the source of the power, or the reason why there is none.
pub(super) fn power_of(recorded: &RecordedRun) -> String {
    match (&recorded.power_source, &recorded.power_missing) {
        (Some(source), _) => source.clone(),
        (None, Some(why)) => format!("not measured here: {why}"),
        (None, None) => "-".to_owned(),
    }
}

fn index_of(part: &Named<'_>, app: &str) -> Option<usize> {
    part.recorded.run.apps.iter().position(|spec| spec.name == app)
}

/// A figure of a part; `None` where it is not known.
type PartFigure<'a> = &'a dyn Fn(&Named<'_>) -> Option<f64>;

fn rows_of(app: &str, parts: &[Named<'_>], row: &dyn Fn(&str, PartFigure<'_>) -> Row) -> Vec<Row> {
    let is_lc = |part: &Named<'_>| {
        index_of(part, app).is_some_and(|index| part.recorded.run.apps[index].is_latency_critical())
    };
    if !parts.iter().any(is_lc) {
        let progress = |part: &Named<'_>| part.apps[index_of(part, app)?].progress_per_s;
        return vec![row(&format!("{app}: progress, 1/s"), &progress)];
    }
    let mut rows: Vec<Row> = PERCENTILES
        .iter()
        .map(|at| row(&format!("{app}: {at}, ms"), &|part| latency_ms(part, app, *at)))
        .collect();
    let bound = |part: &Named<'_>| {
        let (_, bound) = part.recorded.run.apps[index_of(part, app)?].tail()?;
        Some(bound.as_millis_f64())
    };
    rows.push(row(&format!("{app}: bound, ms"), &bound));
    rows.push(row(&format!("{app}: requests answered, 1/s"), &|part| {
        part.recorded.series.mean(COMPLETED, app, &part.part.numbers().concat())
    }));
    rows
}

fn latency_ms(part: &Named<'_>, app: &str, at: Percentile) -> Option<f64> {
    part.apps[index_of(part, app)?].latency.quantile(at).map(Nanos::as_millis_f64)
}

fn tails(app: &str, parts: &[Named<'_>]) -> Option<Tails> {
    let with: Vec<_> = parts
        .iter()
        .filter(|part| {
            index_of(part, app)
                .is_some_and(|index| part.recorded.run.apps[index].is_latency_critical())
        })
        .collect();
    let first = with.first()?;
    let bound = first.recorded.run.apps[index_of(first, app)?].tail();
    let bound = bound.map(|(at, bound)| (at.to_string(), bound.as_millis_f64()));
    let of = |part: &&Named<'_>| {
        let latencies = PERCENTILES.iter().map(|at| latency_ms(part, app, *at));
        (part.name.clone(), latencies.collect())
    };
    Some(Tails { app: app.to_owned(), bound, parts: with.iter().map(of).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_begins_with_the_first_epoch_and_not_with_what_is_measured_before() {
        let span_s = |times_s: &[(i64, f64)]| {
            span_s(&times_s.iter().copied().collect(), |epoch| (epoch < 9).then_some(0.5))
        };
        assert_eq!(span_s(&[]), None);
        assert_eq!(span_s(&[(0, 0.5)]), Some(0.5));
        assert_eq!(span_s(&[(0, 0.5), (1, 1.0), (2, 1.5)]), Some(1.5));
        assert_eq!(span_s(&[(0, 8.5)]), Some(0.5), "references were measured before");
        assert_eq!(span_s(&[(7, 4.0), (8, 4.5)]), Some(1.0), "a record of bounded length");
        assert_eq!(span_s(&[(9, 4.0), (10, 4.5)]), Some(0.5), "no length is recorded");
    }
}
