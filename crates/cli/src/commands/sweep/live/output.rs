//! The output and files of a sweep of a running server.

use crate::say::notice;
use crate::text::{estimate, number, table};
use lull_agent::profile::{ProfiledLoad, objective_text};
use lull_agent::sweep::analysis::{KnobEffect, SettingSummary};
use lull_agent::sweep::rows::columns;
use lull_agent::sweep::{Measured, Sweep, SweepTrial};
use lull_lab::figure::{Axis, CurveStyle, Figure, Point, svg};
use lull_lab::parquet_table::{Column, Kind, ParquetTable, TableValue};
use lull_measure::statistics::Estimate;
use lull_measure::{Nanos, Percentile};
use serde::Serialize;

/// A sweep that has ended.
pub(super) struct Swept {
    pub(super) sweep: Sweep,
    /// The class of the machine.
    pub(super) machine: String,
    pub(super) app: String,
    pub(super) objective: (Percentile, Nanos),
    /// The source of the power: a meter or a model.
    pub(super) energy: String,
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Document {
    machine: String,
    app: String,
    objective: String,
    rate_per_s: f64,
    seed: u32,
    trials: usize,
    /// The source of the power: a meter or a model.
    energy: String,
    settings: Vec<SettingSummary>,
    effects: Vec<KnobEffect>,
    /// The setting of least power that is shown to meet the bound.
    best: Option<SettingSummary>,
}

/// Returns the rate of requests per second of each trial that has a reading.
pub(super) fn rates(sweep: &Sweep) -> impl Iterator<Item = f64> {
    let measured = sweep.trials().iter().filter_map(|trial| trial.outcome.as_ref().ok());
    measured.map(|it| it.rate_per_s)
}

/// Returns the mean rate of requests per second of all trials.
pub(super) fn mean_rate(sweep: &Sweep) -> Option<f64> {
    let rates: Vec<f64> = rates(sweep).collect();
    Some(Estimate::from_values(&rates)?.mean)
}

impl Swept {
    /// The mean rate of requests per second.
    pub(super) fn rate_per_s(&self) -> f64 {
        mean_rate(&self.sweep).unwrap_or_default()
    }

    /// Returns the entry of this load for a profile; `None` if no setting is shown to meet the
    /// bound, or no knob could be set.
    pub(super) fn profiled(&self) -> Option<ProfiledLoad> {
        let best = self.sweep.best()?;
        let mut values = best.values;
        for knob in self.sweep.useless_knobs() {
            values.remove(&knob);
        }
        (!values.is_empty()).then(|| ProfiledLoad {
            rate_per_s: self.rate_per_s(),
            values,
            tail_us: best.tail_us.into(),
            watts: best.watts.into(),
            energy: self.energy.clone(),
            evidence: best.evidence,
        })
    }

    /// Prints the front and the best setting, and says what the trials do not show.
    pub(super) fn show(&self, json: bool) -> anyhow::Result<()> {
        let (settings, effects) = (self.sweep.summaries(), self.sweep.effects());
        let best = self.sweep.best();
        for knob in self.sweep.useless_knobs() {
            notice(format_args!("{knob} was refused at all other levels: no profile sets it"));
        }
        for effect in effects.iter().filter(|effect| !effect.is_shown) {
            let [low, high] = effect.levels;
            notice(format_args!(
                "no trial shows that {} changes tail, power, throughput or progress between {low} \
                 and {high}: it may be accepted and do nothing",
                effect.knob
            ));
        }
        if best.is_none() {
            self.say_that_none_meets(&settings);
        }
        if json {
            return crate::commands::print_json(&self.document(settings, effects, best));
        }
        self.print(&settings, best.as_ref());
        Ok(())
    }

    fn document(
        &self,
        settings: Vec<SettingSummary>,
        effects: Vec<KnobEffect>,
        best: Option<SettingSummary>,
    ) -> Document {
        Document {
            machine: self.machine.clone(),
            app: self.app.clone(),
            objective: objective_text(self.objective),
            rate_per_s: self.rate_per_s(),
            seed: self.sweep.seed(),
            trials: self.sweep.trials().len(),
            energy: self.energy.clone(),
            settings,
            effects,
            best,
        }
    }

    fn say_that_none_meets(&self, settings: &[SettingSummary]) {
        let fastest = settings.iter().min_by(|a, b| a.tail_us.mean.total_cmp(&b.tail_us.mean));
        let Some(fastest) = fastest else { return };
        notice(format_args!(
            "no setting of {} is shown to meet {}; the lowest tail was {} us with {}: {}",
            settings.len(),
            objective_text(self.objective),
            number(fastest.tail_us.mean),
            fastest.setting,
            fastest.evidence
        ));
    }

    fn print(&self, settings: &[SettingSummary], best: Option<&SettingSummary>) {
        let mut front: Vec<_> = settings.iter().filter(|it| it.on_front).collect();
        front.sort_by(|a, b| a.watts.mean.total_cmp(&b.watts.mean));
        let row = |it: &&SettingSummary| {
            vec![
                it.setting.clone(),
                estimate(Some(it.tail_us)),
                if it.meets { "met" } else { "not shown" }.to_owned(),
                estimate(Some(it.watts)),
                estimate(Some(it.completed_per_s)),
                it.progress_per_s.map_or(String::new(), |it| estimate(Some(it))),
            ]
        };
        let has_progress = settings.iter().any(|it| it.progress_per_s.is_some());
        let tail = format!("{} (us)", self.objective.0);
        let head = ["setting", &tail, "objective", "power (W)", "requests/s", "progress/s"];
        let columns = head.len() - usize::from(!has_progress);
        let shown = front.iter().map(|it| row(it).into_iter().take(columns).collect());
        println!("{}", table(&head[..columns], shown));
        println!(
            "{} settings at {} requests/s; shown are those that no other beats in tail, power{} \
             throughput",
            settings.len(),
            number(self.rate_per_s()),
            if has_progress { ", progress of best-effort apps and" } else { " and" }
        );
        println!("power: {}", self.energy);
        if let Some(best) = best {
            println!("least power within the bound: {}; {}", best.setting, best.evidence);
        }
    }

    /// Returns the rows as Parquet, with the results of each row's setting.
    pub(super) fn parquet(&self) -> anyhow::Result<Vec<u8>> {
        let (settings, space) = (self.sweep.summaries(), self.sweep.space());
        let names = columns(space);
        let knobs = space.dimensions().len();
        let column = |(at, name): (usize, &String)| match at - at.min(knobs) {
            0 if at == 0 => Column::required(name, Kind::Integer),
            0 => Column::required(name, Kind::Real),
            1..=4 => Column::optional(name, Kind::Real),
            5 | 6 => Column::optional(name, Kind::Integer),
            7 => Column::optional(name, Kind::Real),
            _ => Column::optional(name, Kind::Text),
        };
        let further = ["on_front", "meets"].map(|name| Column::required(name, Kind::Truth));
        let all = names.iter().enumerate().map(column).chain(further).collect();
        let mut bytes = Vec::new();
        let mut file = ParquetTable::new(&mut bytes, "lull_sweep", all)?;
        let trials = self.sweep.trials();
        let values: Vec<_> = trials.iter().map(|trial| space.values(&trial.point)).collect();
        file.append(trials.len(), |row, column| {
            let trial = &trials[row];
            let summary = settings.iter().find(|it| it.point == trial.point);
            match column {
                0 => TableValue::Integer(trial.block as i64 + 1),
                _ if column <= knobs => TableValue::Real(values[row][column - 1]),
                _ => cell(trial, summary, column - knobs - 1),
            }
        })?;
        file.finish()?;
        Ok(bytes)
    }

    /// Returns settings and front as an SVG: power over tail, and, with best-effort apps, their
    /// progress over each of the two.
    pub(super) fn figure(&self) -> anyhow::Result<Vec<u8>> {
        let mut settings = self.sweep.summaries();
        settings.sort_by(|a, b| a.tail_us.mean.total_cmp(&b.tail_us.mean));
        let (percentile, bound) = self.objective;
        let tail = format!("{percentile} (us), bound {} us", bound.as_micros_f64());
        let title = format!("{}, {} requests/s", self.app, number(self.rate_per_s()));
        let watts = || Axis::linear("power (W)");
        let (of_tail, of_watts) =
            (|it: &SettingSummary| it.tail_us, |it: &SettingSummary| it.watts);
        let front = Figure::new(title.clone(), Axis::log(tail.clone()), watts())
            .with_curve("settings", CurveStyle::Points, points(settings.iter(), of_tail, of_watts))
            .with_curve("front", CurveStyle::Line, points(on_front(&settings), of_tail, of_watts));
        let mut figures = vec![front];
        if settings.iter().all(|it| it.progress_per_s.is_some()) {
            let of_progress = |it: &SettingSummary| it.progress_per_s.unwrap_or(it.completed_per_s);
            for (axis, of) in [(Axis::log(tail), of_tail as Quantity), (watts(), of_watts)] {
                let progress = Axis::linear("best-effort progress (1/s)");
                // The projection of a front of three is not a line.
                let figure = Figure::new(title.clone(), axis, progress)
                    .with_curve(
                        "settings",
                        CurveStyle::Points,
                        points(settings.iter(), of, of_progress),
                    )
                    .with_curve(
                        "front",
                        CurveStyle::Points,
                        points(on_front(&settings), of, of_progress),
                    );
                figures.push(figure);
            }
        }
        Ok(svg(&figures)?.into_bytes())
    }
}

/// One of the quantities of a setting.
type Quantity = fn(&SettingSummary) -> Estimate;

fn on_front(settings: &[SettingSummary]) -> impl Iterator<Item = &SettingSummary> {
    settings.iter().filter(|it| it.on_front)
}

/// One quantity of settings over another one, with its interval.
fn points<'a>(
    settings: impl Iterator<Item = &'a SettingSummary>,
    x: Quantity,
    y: Quantity,
) -> impl Iterator<Item = Point> {
    settings.map(move |it| {
        let Estimate { mean, half_width, .. } = y(it);
        let interval = half_width.is_finite().then_some([mean - half_width, mean + half_width]);
        Point { x: x(it).mean, y: mean, interval }
    })
}

/// The value of a trial in one of the columns behind those of the knobs.
fn cell<'a>(
    trial: &'a SweepTrial,
    summary: Option<&SettingSummary>,
    column: usize,
) -> TableValue<'a> {
    let number = |of: fn(&Measured) -> f64| {
        trial.outcome.as_ref().map_or(TableValue::Missing, |it| TableValue::Real(of(it)))
    };
    let count = |of: fn(&Measured) -> u64| {
        trial.outcome.as_ref().map_or(TableValue::Missing, |it| TableValue::Integer(of(it) as i64))
    };
    let refusal = trial.outcome.as_ref().err();
    match column {
        0 => number(|it| it.rate_per_s),
        1 => number(|it| it.completed_per_s),
        2 => number(|it| it.reading.tail_us),
        3 => number(|it| it.reading.watts),
        4 => count(|it| it.reading.requests),
        5 => count(|it| it.reading.late),
        6 => trial
            .outcome
            .as_ref()
            .ok()
            .and_then(|it| it.reading.progress_per_s)
            .map_or(TableValue::Missing, TableValue::Real),
        7 => refusal
            .and_then(|it| it.knob)
            .map_or(TableValue::Missing, |knob| TableValue::Text(knob.name())),
        8 => refusal.map_or(TableValue::Missing, |it| TableValue::Text(&it.why)),
        9 => TableValue::Truth(summary.is_some_and(|it| it.on_front)),
        _ => TableValue::Truth(summary.is_some_and(|it| it.meets)),
    }
}
