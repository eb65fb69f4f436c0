//! Section 4.1 and Figs. 9 to 11: the control error over the burst cycle.

use super::SEED_FILE;
use super::burst::CYCLES_MS;
use super::paper::paper;
use super::system::{Clock, MYSQL, NTier, trial};
use crate::backlog::{ControlError, ErrorMeter};
use crate::cycles::{self, BACKLOG, WINDOW, axis, worst};
use crate::prelude::*;
use crate::trial::response_ms;
use lull_measure::Nanos;
use lull_sim::Totals;
use lull_sim::stats::{Estimate, Failure};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ntier-error",
    paper: "Wang et al. 2013, section 4.1 and Figs. 9 to 11",
    seed_file: SEED_FILE,
    summary: "The control error: largest when burst cycle and climb have similar lengths",
    run,
};

/// How much of the run is drawn, at these cycles.
const SHOWN_S: f64 = 16.0;
const SHOWN_MS: [u64; 3] = [8000, 2000, 200];

/// One burst cycle, its replications together.
struct WatchedCycle {
    measured: cycles::Cycle,
    watchers: Vec<ErrorWatcher>,
}

/// The errors followed in one replication.
struct ErrorWatcher {
    error: ErrorMeter,
    cycle_s: f64,
    /// Error over time of the first server, in ms of work.
    trace: Vec<Point>,
    begin_s: Option<f64>,
    /// Windows of the first server in the right P-state, and all of them.
    right: u64,
    windows: u64,
    /// Time from the start of a high half to the first arrival at P0 in it, each.
    climbs_s: Vec<f64>,
    climbed: bool,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (seconds, replications) = setup.either((192, 6), (32, 2));
    setup.progress.expect(CYCLES_MS.len() as u64 * replications);
    let follow = |cycle_ms: u64| -> Result<WatchedCycle, Failure> {
        let model = NTier::bursts(Nanos::from_millis(cycle_ms)).model();
        let trial = trial(&model, Clock::FITTED, &[MYSQL], setup.seed, seconds);
        let first = trial.plants()[0].server;
        let cycle_s = cycle_ms as f64 / 1e3;
        let start = || ErrorWatcher::new(ErrorMeter::new(&trial, 0), cycle_s);
        let runs =
            trial.replicate(0..replications, &setup.progress, start, |watcher, turned| {
                let error_s = watcher.error.observe(turned);
                if turned.plant == 0 {
                    let pstate = turned.engine.pstate(first, 0);
                    watcher.note(turned.seen.time.as_secs_f64(), pstate, error_s);
                }
            })?;
        let (totals, watchers): (Vec<Totals>, Vec<ErrorWatcher>) = runs.into_iter().unzip();
        let measured = cycles::Cycle {
            cycle: Nanos::from_millis(cycle_ms),
            responses_ms: totals.iter().map(response_ms(0)).collect(),
            errors: watchers.iter().map(|watcher| watcher.error.read()).collect(),
        };
        Ok(WatchedCycle { measured, watchers })
    };
    let cycles = CYCLES_MS.into_iter().map(follow).collect::<Result<Vec<_>, _>>()?;
    let paper = paper();
    let title = format!("{}, section 4.1: {}", paper.venue, paper.title);
    let mut report = EXPERIMENT.report(title, setup);
    report.choices = choices();
    report.rows = rows(&cycles);
    let figures = [vec![sweep_figure(&cycles)], trace_figures(&cycles)].concat();
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures)?];
    Ok(report)
}

fn choices() -> Vec<String> {
    [
        "reading: the error is the backlog at the end of each window, as the algorithm of section \
         4.1 adds it up (work launched less work completed, a task at its mean); the formula \
         |util * clock * TW - required| is shown beside it",
        "the system of Fig. 8: 12,000 and 4,000 clients in turn, DVFS on MySQL, no pools, a step \
         down goes to P8",
    ]
    .map(str::to_owned)
    .to_vec()
}

impl ErrorWatcher {
    fn new(error: ErrorMeter, cycle_s: f64) -> Self {
        Self {
            error,
            cycle_s,
            trace: Vec::new(),
            begin_s: None,
            right: 0,
            windows: 0,
            climbs_s: Vec::new(),
            climbed: false,
        }
    }

    fn note(&mut self, time_s: f64, pstate: usize, error_s: f64) {
        let begin_s = *self.begin_s.get_or_insert(time_s);
        if time_s - begin_s <= SHOWN_S {
            self.trace.push(Point::at(time_s - begin_s, error_s * 1e3));
        }
        // A cycle begins with its high half; a window belongs to where it ended.
        let into_s = (time_s - 1e-9) % self.cycle_s;
        let high = into_s < self.cycle_s / 2.0;
        self.windows += 1;
        self.right += u64::from(if high { pstate == 0 } else { pstate == 2 });
        if !high {
            self.climbed = false;
        } else if pstate == 0 && !std::mem::replace(&mut self.climbed, true) {
            self.climbs_s.push(into_s);
        }
    }
}

impl WatchedCycle {
    fn seconds(&self) -> f64 {
        self.measured.seconds()
    }

    fn error_ms(&self, part: fn(&ControlError) -> f64) -> Estimate {
        self.measured.error_ms(part)
    }

    fn right_percent(&self) -> Estimate {
        let share =
            |watcher: &ErrorWatcher| 100.0 * watcher.right as f64 / watcher.windows.max(1) as f64;
        estimate_of(&self.watchers.iter().map(share).collect::<Vec<_>>())
    }

    /// Mean climb of each replication.
    fn climb_s(&self) -> Estimate {
        let climbs = self.watchers.iter().map(|watcher| estimate_of(&watcher.climbs_s).mean);
        estimate_of(&climbs.collect::<Vec<_>>())
    }
}

/// The cycle at which a part of the error is largest, in seconds.
fn worst_s(cycles: &[WatchedCycle], part: fn(&ControlError) -> f64) -> Estimate {
    let all: Vec<_> = cycles.iter().map(|cycle| cycle.measured.clone()).collect();
    let replications = all.iter().map(|cycle| cycle.errors.len()).min().unwrap_or(0);
    let of_one = |replication: usize| {
        let at = worst(&all, |cycle| part(&cycle.errors[replication]));
        at.map_or(f64::NAN, |at| all[at].seconds())
    };
    estimate_of(&(0..replications).map(of_one).collect::<Vec<_>>())
}

/// Correlation of error and response over the cycles, in each replication.
fn correlations(cycles: &[WatchedCycle]) -> Estimate {
    let measured = || cycles.iter().map(|cycle| &cycle.measured);
    let replications = measured().map(|cycle| cycle.errors.len()).min().unwrap_or(0);
    let pair =
        |cycle: &cycles::Cycle, at: usize| (BACKLOG(&cycle.errors[at]), cycle.responses_ms[at]);
    let of_one = |at: usize| correlation(&measured().map(|it| pair(it, at)).collect::<Vec<_>>());
    estimate_of(&(0..replications).map(of_one).collect::<Vec<_>>())
}

fn rows(cycles: &[WatchedCycle]) -> Vec<Row> {
    let between = Between(1.5, 4.0);
    let mut rows = vec![
        Row::held("cycle of the largest mean error", "s", 2.0, worst_s(cycles, BACKLOG), between),
        Row::compared("the same by the formula", "s", 2.0, worst_s(cycles, WINDOW), between),
        Row::held(
            "correlation of error and response over cycles",
            "1",
            "strong",
            correlations(cycles),
            AtLeast(0.9),
        ),
    ];
    if let Some(slow) = cycles.iter().find(|cycle| cycle.seconds() == 8.0) {
        let why = "noise in a window of 50 ms also sends a busy server down, which the paper's \
                   sketch of one cycle leaves out";
        rows.push(Row::held(
            "cycle 8 s, climb from P8 to P0",
            "s",
            1.0,
            slow.climb_s(),
            Absolute(0.1),
        ));
        let name = "cycle 8 s, time in the right P-state";
        let right = slow.right_percent();
        rows.push(Row::compared(name, "%", 87.5, right, Absolute(5.0)).because(why));
    }
    for cycle in cycles {
        let name = format!("cycle {} s, mean error", cycle.seconds());
        let why = "the figures survive as curves without numbers";
        rows.push(Row::reported(name, "ms", Printed::Nothing, cycle.error_ms(BACKLOG), why));
    }
    rows
}

/// Pearson's correlation coefficient; NaN where one side does not vary.
pub(super) fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let count = pairs.len() as f64;
    let (sum_x, sum_y) = pairs.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let product = |f: fn(f64, f64) -> f64| -> f64 {
        pairs.iter().map(|(x, y)| f(x - mean_x, y - mean_y)).sum()
    };
    product(|x, y| x * y) / (product(|x, _| x * x) * product(|_, y| y * y)).sqrt()
}

fn sweep_figure(cycles: &[WatchedCycle]) -> Figure {
    let points = |part| -> Vec<Point> {
        cycles
            .iter()
            .map(|cycle| Point::from_estimate(cycle.seconds(), &cycle.error_ms(part)))
            .collect()
    };
    Figure::new(
        "Control error over the burst cycle, per server",
        axis(),
        Axis::linear("mean error (ms of work at P0)"),
    )
    .with_curve("backlog (algorithm)", CurveStyle::Line, points(BACKLOG))
    .with_curve("|done - required| (formula)", CurveStyle::Line, points(WINDOW))
}

fn trace_figures(cycles: &[WatchedCycle]) -> Vec<Figure> {
    let shown = cycles.iter().filter(|cycle| {
        SHOWN_MS.iter().any(|ms| (*ms as f64 / 1e3 - cycle.seconds()).abs() < 1e-9)
    });
    shown
        .map(|cycle| {
            let points =
                cycle.watchers.first().map_or_else(Vec::new, |watcher| watcher.trace.clone());
            Figure::new(
                format!("Error of one server over time, burst cycle {} s", cycle.seconds()),
                Axis::linear("time (s)").between(0.0, SHOWN_S),
                Axis::linear("error (ms of work at P0)"),
            )
            .with_curve("error", CurveStyle::Trace, points)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_is_one_on_a_line_and_minus_one_on_a_falling_one() {
        let line = |slope: f64| [1.0, 2.0, 4.0].map(|x| (x, slope * x + 3.0));
        assert!((correlation(&line(2.0)) - 1.0).abs() < 1e-12);
        assert!((correlation(&line(-0.5)) + 1.0).abs() < 1e-12);
        assert!(correlation(&line(0.0)).is_nan());
    }
}
