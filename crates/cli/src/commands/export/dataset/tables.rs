//! The tables of one day of a run as Parquet.
//!
//! Rows of `app_minutes`, `latencies` and `minutes` add up over files: a minute that two
//! exports share has a row in each file.

use super::RUNS;
use anyhow::Context;
use lull_agent::recorded::{
    AppInstance, Database, DaySums, PodNames, RunLabel, SummedApp, TailObjective,
};
use lull_control::{Machine, Objective};
use lull_lab::parquet_table::{Column, Kind, ParquetTable, TableValue};
use rusqlite::OptionalExtension;

/// Rows of a row group: a few megabytes.
const BLOCK: usize = 65_536;

/// The sources of the tables of a day.
pub(super) struct DayTables<'a> {
    pub(super) record: &'a Database,
    pub(super) label: &'a RunLabel,
    pub(super) apps: &'a [SummedApp],
    pub(super) day: &'a DaySums,
}

/// The columns after `run` and `first_epoch`, which all tables have.
type Columns = &'static [(&'static str, Kind)];
/// The cells of a row after these two.
type Row = Vec<Cell>;

/// The value of a cell.
#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Missing,
    Integer(i64),
    Real(f64),
    Text(String),
    Truth(bool),
}

const RUN_COLUMNS: Columns = &[
    ("last_epoch", Kind::Integer),
    ("first_unix_s", Kind::Integer),
    ("last_unix_s", Kind::Integer),
    ("started_unix_s", Kind::Integer),
    ("policy", Kind::Text),
    ("seed", Kind::Text),
    ("machine", Kind::Text),
    ("cores", Kind::Integer),
    ("kernel", Kind::Text),
    ("lull_version", Kind::Text),
    ("power_source", Kind::Text),
    ("is_ended", Kind::Truth),
];
const APP_COLUMNS: Columns = &[
    ("app", Kind::Text),
    ("is_latency_critical", Kind::Truth),
    ("ideal_ns", Kind::Integer),
    ("solo_per_s", Kind::Real),
    ("is_solo_given", Kind::Truth),
];
const OBJECTIVE_COLUMNS: Columns = &[
    ("app", Kind::Text),
    ("is_first", Kind::Truth),
    ("percentile", Kind::Real),
    ("bound_ns", Kind::Integer),
];
const MINUTE_COLUMNS: Columns = &[
    ("minute_unix_s", Kind::Integer),
    ("policy", Kind::Text),
    ("epochs", Kind::Integer),
    ("safe_epochs", Kind::Integer),
    ("judged_epochs", Kind::Integer),
    ("missed_epochs", Kind::Integer),
    ("seconds", Kind::Real),
    ("joules", Kind::Real),
    ("measured_seconds", Kind::Real),
    ("busy_core_seconds", Kind::Real),
];
const APP_MINUTE_COLUMNS: Columns = &[
    ("minute_unix_s", Kind::Integer),
    ("policy", Kind::Text),
    ("app", Kind::Text),
    ("namespace", Kind::Text),
    ("pod", Kind::Text),
    ("container", Kind::Text),
    ("workload", Kind::Text),
    ("requests", Kind::Integer),
    ("late_requests", Kind::Integer),
    ("progress_per_s_sum", Kind::Real),
    ("progress_epochs", Kind::Integer),
    ("cpu_seconds", Kind::Real),
    ("joules", Kind::Real),
    ("measured_seconds", Kind::Real),
];
const LATENCY_COLUMNS: Columns = &[
    ("policy", Kind::Text),
    ("app", Kind::Text),
    ("namespace", Kind::Text),
    ("pod", Kind::Text),
    ("container", Kind::Text),
    ("workload", Kind::Text),
    ("has_objective", Kind::Truth),
    ("percentile", Kind::Real),
    ("bound_ns", Kind::Integer),
    ("latency_ns", Kind::Integer),
    ("count", Kind::Integer),
];

impl DayTables<'_> {
    /// Returns the file of a table.
    pub(super) fn to_parquet(&self, table: &str) -> anyhow::Result<Vec<u8>> {
        let (columns, rows) = match table {
            RUNS => (RUN_COLUMNS, vec![self.run()?]),
            "apps" => (APP_COLUMNS, self.apps.iter().map(app_row).collect()),
            "objectives" => {
                (OBJECTIVE_COLUMNS, self.apps.iter().flat_map(objective_rows).collect())
            }
            "minutes" => (MINUTE_COLUMNS, self.minutes()),
            "app_minutes" => (APP_MINUTE_COLUMNS, self.app_minutes()),
            "latencies" => (LATENCY_COLUMNS, self.latencies()),
            _ => anyhow::bail!("a dataset has no table `{table}`"),
        };
        self.write(table, columns, &rows)
            .with_context(|| format!("cannot make the table `{table}`"))
    }

    fn write(&self, table: &str, columns: Columns, rows: &[Row]) -> anyhow::Result<Vec<u8>> {
        let head =
            [Column::required("run", Kind::Text), Column::required("first_epoch", Kind::Integer)];
        let rest = columns.iter().map(|(name, kind)| Column::optional(name, *kind));
        let mut bytes = Vec::new();
        let mut file =
            ParquetTable::new(&mut bytes, table, head.into_iter().chain(rest).collect())?;
        for block in rows.chunks(BLOCK) {
            file.append(block.len(), |row, column| match column {
                0 => TableValue::Text(&self.label.run),
                1 => TableValue::Integer(self.day.epochs.0),
                _ => block[row][column - 2].as_value(),
            })?;
        }
        file.finish()?;
        Ok(bytes)
    }

    fn run(&self) -> anyhow::Result<Row> {
        let database = &self.record.database;
        let text = |sql: &str| {
            let found = database.query_row(sql, [], |row| row.get::<_, String>(0)).optional();
            // Older records have no table of sources.
            found.unwrap_or_default()
        };
        let fact = |key: &str| text(&format!("SELECT value FROM run WHERE key = '{key}'"));
        let machine: Option<Machine> =
            fact("machine").and_then(|json| serde_json::from_str(&json).ok());
        let source = "SELECT source FROM sources WHERE metric = 'power_watts' AND source != '' \
                      ORDER BY rowid DESC LIMIT 1";
        let (first, last) = self.day.ends_unix_s;
        Ok(vec![
            Cell::Integer(self.day.epochs.1),
            Cell::Integer(first),
            Cell::Integer(last),
            Cell::Integer(self.label.started.as_second()),
            Cell::Text(self.label.policy.clone()),
            fact("seed").into(),
            machine.as_ref().map(|machine| machine.name.clone()).into(),
            machine.map_or(Cell::Missing, |machine| Cell::Integer(machine.cores.len() as i64)),
            fact("kernel").into(),
            fact("lull_version").into(),
            text(source).into(),
            Cell::Truth(fact("ended").is_some()),
        ])
    }

    fn minutes(&self) -> Vec<Row> {
        let row = |((minute_unix_s, policy), sums): (
            &(i64, String),
            &lull_agent::recorded::MinuteSums,
        )| {
            vec![
                Cell::Integer(*minute_unix_s),
                Cell::Text(policy.clone()),
                count(sums.epochs),
                count(sums.safe_epochs),
                count(sums.judged_epochs),
                count(sums.missed_epochs),
                Cell::Real(sums.seconds),
                known(sums.joules, sums.measured_seconds),
                Cell::Real(sums.measured_seconds),
                Cell::Real(sums.busy_core_seconds),
            ]
        };
        self.day.minutes.iter().map(row).collect()
    }

    fn app_minutes(&self) -> Vec<Row> {
        let all = self.day.app_minutes.iter();
        let row = |((minute_unix_s, policy, of), sums): (
            &(i64, String, AppInstance),
            &lull_agent::recorded::AppMinuteSums,
        )| {
            let mut row = vec![Cell::Integer(*minute_unix_s), Cell::Text(policy.clone())];
            row.extend(instance_cells(of));
            row.extend([
                count(sums.requests),
                count(sums.late_requests),
                Cell::Real(sums.progress_per_s_sum),
                count(sums.progress_epochs),
                Cell::Real(sums.cpu_seconds),
                known(sums.joules, sums.measured_seconds),
                Cell::Real(sums.measured_seconds),
            ]);
            row
        };
        all.map(row).collect()
    }

    fn latencies(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (key, counts) in &self.day.latencies {
            rows.extend(counts.iter().map(|(latency_ns, requests)| {
                let mut row = vec![Cell::Text(key.policy.clone())];
                row.extend(instance_cells(&key.of));
                row.extend(objective_cells(key.objective));
                row.extend([count(*latency_ns), count(*requests)]);
                row
            }));
        }
        rows
    }
}

/// The name of an app, and the names of the pod that it was; those that it has not are missing.
fn instance_cells(of: &AppInstance) -> [Cell; 5] {
    let name =
        |name: &String| if name.is_empty() { Cell::Missing } else { Cell::Text(name.clone()) };
    let PodNames { namespace, pod, container, workload } = &*of.pod;
    let app = Cell::Text(of.app.clone());
    [app, name(namespace), name(pod), name(container), name(workload)]
}

/// Whether requests had an objective to meet, and which.
fn objective_cells(objective: Option<TailObjective>) -> [Cell; 3] {
    let percent = objective.map(|objective| Cell::Real(objective.percent()));
    let bound_ns = objective.map(|objective| count(objective.bound.0));
    [
        Cell::Truth(objective.is_some()),
        percent.unwrap_or(Cell::Missing),
        bound_ns.unwrap_or(Cell::Missing),
    ]
}

fn app_row(app: &SummedApp) -> Row {
    vec![
        Cell::Text(app.spec.name.clone()),
        Cell::Truth(app.spec.is_latency_critical()),
        app.spec.ideal.map_or(Cell::Missing, |ideal| count(ideal.0)),
        app.solo_per_s.map_or(Cell::Missing, Cell::Real),
        Cell::Truth(app.spec.solo_per_s.is_some()),
    ]
}

/// A row for each objective that bounds a percentile. The first is what policies steer by.
fn objective_rows(app: &SummedApp) -> Vec<Row> {
    let tails = app.spec.objectives.iter().filter_map(|objective| match objective {
        Objective::Tail { percentile, bound } => Some((*percentile, *bound)),
        _ => None,
    });
    let row =
        |(index, (percentile, bound)): (usize, (lull_measure::Percentile, lull_measure::Nanos))| {
            vec![
                Cell::Text(app.spec.name.clone()),
                Cell::Truth(index == 0),
                Cell::Real(percentile.percent()),
                count(bound.0),
            ]
        };
    tails.enumerate().map(row).collect()
}

fn count(value: u64) -> Cell {
    Cell::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

/// An energy, if it was measured at all.
fn known(joules: f64, measured_seconds: f64) -> Cell {
    if measured_seconds > 0.0 { Cell::Real(joules) } else { Cell::Missing }
}

impl Cell {
    fn as_value(&self) -> TableValue<'_> {
        match self {
            Self::Missing => TableValue::Missing,
            Self::Integer(value) => TableValue::Integer(*value),
            Self::Real(value) => TableValue::Real(*value),
            Self::Text(text) => TableValue::Text(text),
            Self::Truth(value) => TableValue::Truth(*value),
        }
    }
}

impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Missing, Self::Text)
    }
}
