//! Fig. 10 and Table IV: the tail over the arrival rate, and its knee.

use super::paper::{Paper, TableIvRow, ms, paper};
use super::sourced::{self, Parameter};
use super::{SEED_FILE, platform};
use crate::prelude::*;
use lull_measure::{Nanos, Percentile};
use lull_sim::ModelError;
use lull_sim::machine::{Activity, LoadStep, MachineModel, MachineSimulation};
use lull_sim::stats::Failure;
use rayon::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-knee",
    paper: "Liu et al. 2024, Fig. 10 and Table IV",
    seed_file: SEED_FILE,
    summary: "Tail latency over the arrival rate on 1 to 8 cores, and its knee",
    run,
};

const CORES: [u16; 4] = [1, 2, 4, 8];
/// Apps of Fig. 10.
const SHOWN: [&str; 4] = ["xapian", "moses", "img-dnn", "sphinx"];
/// Steps of the rate, as shares of what the cores can serve.
const STEP: f64 = 0.02;
const STEPS: u32 = 49;
/// A step of the tail that is a knee.
const JUMP: f64 = 1.25;

/// One app on some cores.
struct KneeCurve {
    /// The app's row of Table IV.
    printed: TableIvRow,
    cores: u16,
    /// The rate that its threads can serve.
    capacity_per_s: f64,
    /// Rate and tail in ms, ascending; at least one.
    points: Vec<(f64, f64)>,
}

/// The apps, and how long each point is measured.
struct KneeBench {
    model: MachineModel,
    requests: f64,
    seed: u64,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = apps();
    let paper = paper();
    let bench = KneeBench { model, requests: setup.either(60_000.0, 6_000.0), seed: setup.seed };
    let shown = paper.app.iter().filter(|app| SHOWN.contains(&app.name.as_str()));
    let wanted: Vec<_> = shown.flat_map(|app| CORES.map(|cores| (app, cores))).collect();
    setup.progress.expect(wanted.len() as u64);
    let curves: Vec<Result<KneeCurve, ModelError>> = wanted
        .par_iter()
        .map(|(app, cores)| {
            let curve = bench.curve(app, *cores);
            setup.progress.step();
            curve
        })
        .collect();
    let curves = curves.into_iter().collect::<Result<Vec<_>, _>>().map_err(Failure::from)?;
    let mut report = EXPERIMENT.report(paper.titled("Fig. 10 and Table IV"), setup);
    report.choices = choices(&parameters);
    let on_four = curves.iter().filter(|curve| curve.cores == 4);
    report.rows = on_four.flat_map(knee_rows).collect();
    report.rows.extend(bench.table_iv_rows(&paper).map_err(Failure::from)?);
    report.rows.extend(SHOWN.into_iter().map(|app| scaling_row(app, &curves)));
    let drawn: Vec<_> = SHOWN.into_iter().map(|app| figure(app, &curves)).collect();
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &drawn)?];
    Ok(report)
}

/// The apps of platform A with those that only Table IV has.
fn apps() -> (MachineModel, Vec<Parameter>) {
    let (mut model, mut parameters) = sourced::read::<MachineModel>(platform::TEXT);
    let (more, others): (MachineModel, _) = sourced::read(include_str!("table4.toml"));
    model.app.extend(more.app);
    parameters.extend(others);
    (model, parameters)
}

fn choices(parameters: &[Parameter]) -> Vec<String> {
    let mut all = vec![
        "as many threads as cores (section VII-A gives every app 4; Fig. 10 shows that rates grow \
         with cores beyond that)"
            .to_owned(),
        format!(
            "two knees, since the paper defines none: the first step of {} % of capacity on \
             which the tail grows by {JUMP}, and the point farthest from the chord (kneedle)",
            100.0 * STEP
        ),
    ];
    all.extend(sourced::choices(parameters));
    all
}

/// Mean work of an app's requests.
fn work_of(model: &MachineModel, app: &str) -> Nanos {
    let work = model.app.iter().find_map(|it| match &it.activity {
        Activity::Requests { work, .. } if it.name == app => Some(work.mean),
        _ => None,
    });
    work.unwrap_or_default()
}

impl KneeBench {
    /// The tail of an app alone, with as many threads as cores, in ms.
    fn tail_ms(
        &self,
        app: &str,
        cores: u16,
        rate_per_s: f64,
        times: f64,
        seed_offset: u64,
    ) -> Result<f64, ModelError> {
        let mut model = self.model.clone();
        model.cores = cores;
        model.app.retain(|it| it.name == app);
        for it in &mut model.app {
            it.threads = u32::from(cores);
            if let Activity::Requests { load, .. } = &mut it.activity {
                *load = vec![LoadStep { from: Nanos::ZERO, rate_per_s }];
            }
        }
        // Housekeeping at the app's own scale: seconds are short for Sphinx.
        let scale = work_of(&model, app) * 4;
        model.refresh = model.refresh.max(scale);
        model.scheduler.balance = model.scheduler.balance.max(scale);
        let mut node = MachineSimulation::new(&model, self.seed + seed_offset, 0)?;
        let span = Nanos::from_secs_f64(times * self.requests / rate_per_s);
        node.run_until(span.scale(0.1));
        node.forget();
        node.run_until(span.scale(1.1));
        let tail = node.totals().apps[0].latency.quantile(Percentile::P95);
        Ok(tail.map_or(f64::NAN, |tail| tail.as_secs_f64() * 1e3))
    }

    fn curve(&self, app: &TableIvRow, cores: u16) -> Result<KneeCurve, ModelError> {
        let work_s = work_of(&self.model, &app.name).as_secs_f64();
        let capacity_per_s = f64::from(cores) / work_s;
        let point = |step: u32| {
            let rate_per_s = capacity_per_s * STEP * f64::from(step);
            Ok((rate_per_s, self.tail_ms(&app.name, cores, rate_per_s, 1.0, 0)?))
        };
        let points = (1..=STEPS).map(point).collect::<Result<_, ModelError>>()?;
        Ok(KneeCurve { printed: app.clone(), cores, capacity_per_s, points })
    }

    /// The tail at Table IV's load, against its threshold.
    fn table_iv_rows(&self, paper: &Paper) -> Result<Vec<Row>, ModelError> {
        let mut rows: Vec<Row> = Vec::new();
        for printed in &paper.app {
            let name = format!("{}, 4 cores, tail at max load", printed.name);
            let number = printed.bound_ms;
            if self.model.app_named(&printed.name).is_none() {
                let busy = 100.0 * printed.max_load * ms(printed.bound_ms).as_secs_f64() / 4.0;
                rows.push(Row::reported(name, "%", number, busy, IDLE_AT_MAX_LOAD));
                continue;
            }
            // A tail near the knee varies much: longer runs, and more of them.
            let run = |offset| self.tail_ms(&printed.name, 4, printed.max_load, 5.0, offset);
            let tails = (0..4).map(run).collect::<Result<Vec<_>, _>>()?;
            rows.push(Row::held(name, "ms", number, estimate_of(&tails), Relative(0.1)));
        }
        Ok(rows)
    }
}

/// Why Silo has no knee.
const IDLE_AT_MAX_LOAD: &str = "at the printed load four threads would be busy for 7 % of the \
                                time even if every request took the whole threshold: no queue, so \
                                no knee; the load may be in another unit. Ours: that share";

impl KneeCurve {
    /// The first step on which the tail jumps; the last rate if none does.
    fn jump(&self) -> (f64, f64) {
        let pair = self.points.windows(2).find(|pair| pair[1].1 >= JUMP * pair[0].1);
        pair.map_or(self.points[self.points.len() - 1], |pair| pair[0])
    }

    /// The point farthest below the chord from the first to the last point.
    fn kneedle(&self) -> (f64, f64) {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        let below = |point: &(f64, f64)| {
            (point.0 - first.0) / (last.0 - first.0) - (point.1 - first.1) / (last.1 - first.1)
        };
        let farther = |a: (f64, f64), b: &(f64, f64)| if below(b) > below(&a) { *b } else { a };
        self.points.iter().fold(first, farther)
    }

    /// The tail at the point nearest to a rate.
    fn at(&self, rate_per_s: f64) -> f64 {
        let off = |point: &(f64, f64)| (point.0 - rate_per_s).abs();
        let nearer = |a: (f64, f64), b: &(f64, f64)| if off(b) < off(&a) { *b } else { a };
        self.points.iter().fold(self.points[0], nearer).1
    }
}

fn knee_rows(curve: &KneeCurve) -> Vec<Row> {
    let printed = &curve.printed;
    let undefined = "the paper does not define its thresholds: two usual definitions differ \
                     by more than it could print";
    let mut rows = Vec::new();
    for (definition, knee) in [("jump", curve.jump()), ("kneedle", curve.kneedle())] {
        let name = format!("{}, 4 cores, knee by {definition}", printed.name);
        let load = printed.max_load;
        rows.push(Row::reported(name, "requests/s", load, knee.0, undefined));
    }
    let early = curve.at(0.5 * printed.max_load) / curve.at(0.2 * printed.max_load);
    let late = curve.at(0.98 * curve.capacity_per_s) / curve.at(printed.max_load);
    let slow = "slowly at first";
    let name = format!("{}, 4 cores, tail at 50 % over that at 20 % of max load", printed.name);
    rows.push(Row::held(name, "times", slow, early, AtMost(1.5)));
    let steep = "exponentially beyond";
    let name = format!("{}, 4 cores, tail at 98 % of capacity over that at max load", printed.name);
    rows.push(Row::held(name, "times", steep, late, AtLeast(1.5)));
    rows
}

/// Knees move out in proportion to cores, or more: many servers queue less than one.
fn scaling_row(app: &'static str, curves: &[KneeCurve]) -> Row {
    let knee = |cores| {
        let found = curves.iter().find(|curve| curve.printed.name == app && curve.cores == cores);
        found.map_or(f64::NAN, |curve| curve.kneedle().0)
    };
    let name = format!("{app}, knee on 8 cores over that on 1");
    let claim = "grows with cores";
    Row::held(name, "times", claim, knee(8) / knee(1), AtLeast(7.5))
}

fn figure(app: &'static str, curves: &[KneeCurve]) -> Figure {
    let title = format!("{app}: tail over the arrival rate, 1, 2, 4 and 8 cores");
    let y = Axis::log("95th percentile (ms)");
    let empty = Figure::new(title, Axis::linear("arrival rate (requests/s)"), y);
    let mine = curves.iter().filter(|curve| curve.printed.name == app);
    let drawn = mine.fold(empty, |figure, curve| {
        let points = curve.points.iter().map(|(rate, tail)| Point::at(*rate, *tail));
        let name = format!("{} cores", curve.cores);
        figure.with_curve(name, CurveStyle::Trace, points)
    });
    let printed = curves.iter().map(|curve| &curve.printed).find(|printed| printed.name == app);
    printed.into_iter().fold(drawn, |figure, printed| {
        let point = Point::at(printed.max_load, printed.bound_ms);
        figure.printed(2, "Table IV", [point]).mark(printed.bound_ms, "threshold")
    })
}
