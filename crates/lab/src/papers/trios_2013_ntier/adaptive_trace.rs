//! Figs. 16 and 17: the adjustment period and the error over time, 11,000 clients.

use super::system::{Clock, DVFS_TIERS, INTERVALS, NTier, Windows, trial};
use crate::backlog::{ControlError, ErrorMeter};
use crate::prelude::*;
use crate::trial::response_ms;
use lull_control::{Rhythm, RhythmRule};
use lull_measure::Nanos;
use lull_sim::Totals;

/// How much of the run is drawn.
const SHOWN_S: f64 = 40.0;
/// The plant that is drawn: the first MySQL, behind two Tomcats.
const PLANT: usize = 2;

/// One clock at 11,000 clients, its replications together.
pub(super) struct Trace {
    name: &'static str,
    runs: Vec<(Totals, PeriodWatcher)>,
}

/// The periods, bursts and backlog of one replication, and the clock's error.
struct PeriodWatcher {
    error: ErrorMeter,
    rhythm: Rhythm,
    /// Whether the drawn plant was in its lowest state since its last arrival at the highest.
    was_lowest: bool,
    bursts: Vec<Nanos>,
    periods: Vec<Point>,
    backlog: Vec<Point>,
    begin: Option<Nanos>,
}

/// Runs the original and the adaptive clock.
pub(super) fn traces(setup: &Setup<'_>) -> Result<[Trace; 2], LabError> {
    let (seconds, replications) = setup.either((200, 6), (40, 2));
    setup.progress.expect(2 * replications);
    let model = NTier::table2(11_000).model();
    let follow = |name, clock| {
        let trial = trial(&model, clock, &DVFS_TIERS, setup.seed, seconds);
        let server = trial.plants()[PLANT].server;
        let start = || PeriodWatcher::new(ErrorMeter::new(&trial, 0));
        let runs =
            trial.replicate(0..replications, &setup.progress, start, |watcher, turned| {
                let backlog_s = watcher.error.observe(turned);
                if turned.plant == PLANT {
                    watcher.note(turned.seen.time, turned.engine.pstate(server, 0), backlog_s);
                }
            })?;
        Ok::<_, LabError>(Trace { name, runs })
    };
    let adaptive = Clock::Adaptive(Windows::Scaled);
    Ok([follow("original", Clock::FITTED)?, follow("adaptive", adaptive)?])
}

impl PeriodWatcher {
    fn new(error: ErrorMeter) -> Self {
        Self {
            error,
            rhythm: Rhythm::new(RhythmRule { intervals: INTERVALS, ..RhythmRule::default() }),
            was_lowest: false,
            bursts: Vec::new(),
            periods: Vec::new(),
            backlog: Vec::new(),
            begin: None,
        }
    }

    /// The same rule as the policy's, applied to the P-states it sets.
    fn note(&mut self, time: Nanos, pstate: usize, backlog_s: f64) {
        self.was_lowest |= pstate == 2;
        if pstate == 0 && std::mem::take(&mut self.was_lowest) {
            self.rhythm.burst(time);
            self.bursts.push(time);
        }
        let begin = *self.begin.get_or_insert(time);
        let x = (time - begin).as_secs_f64();
        if x <= SHOWN_S {
            self.periods.push(Point::at(x, self.rhythm.period(time).as_millis_f64()));
            self.backlog.push(Point::at(x, backlog_s * 1e3));
        }
    }

    /// r² of eq. 1's prediction of the next burst interval.
    fn goodness(&self) -> f64 {
        let gaps: Vec<f64> =
            self.bursts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let Some(targets) = gaps.get(INTERVALS..).filter(|rest| rest.len() > 1) else {
            return f64::NAN;
        };
        let mean = targets.iter().sum::<f64>() / targets.len() as f64;
        let total: f64 = targets.iter().map(|gap| (gap - mean).powi(2)).sum();
        let missed = gaps.windows(INTERVALS + 1).map(|window| {
            let predicted = window[..INTERVALS].iter().sum::<f64>() / INTERVALS as f64;
            (window[INTERVALS] - predicted).powi(2)
        });
        1.0 - missed.sum::<f64>() / total
    }
}

impl Trace {
    fn error_ms(&self, part: fn(&ControlError) -> f64) -> Vec<f64> {
        self.runs.iter().map(|(_, watcher)| 1e3 * part(&watcher.error.read())).collect()
    }

    fn responses(&self) -> Vec<f64> {
        self.runs.iter().map(|(totals, _)| response_ms(0)(totals)).collect()
    }
}

/// Error and response of the adaptive clock against the original's, and r².
pub(super) fn trace_rows(traces: &[Trace; 2]) -> Vec<Row> {
    let [original, adaptive] = traces;
    let ratio = |ours: Vec<f64>, theirs: &[f64]| {
        let each = ours.iter().zip(theirs).map(|(ours, theirs)| 100.0 * ours / theirs);
        estimate_of(&each.collect::<Vec<_>>())
    };
    let smaller = AtMost(100.0);
    let claim = "smaller";
    let backlog = |error: &ControlError| error.backlog_mean_s;
    let errors = ratio(adaptive.error_ms(backlog), &original.error_ms(backlog));
    let responses = ratio(adaptive.responses(), &original.responses());
    let goodness: Vec<f64> = adaptive
        .runs
        .iter()
        .map(|(_, watcher)| watcher.goodness())
        .filter(|r| r.is_finite())
        .collect();
    let why = "k, the data and the fit are not printed; at a steady 11,000 clients bursts are \
               noise and their intervals cannot be predicted";
    vec![
        Row::held(
            "11K clients, mean error of adaptive against original",
            "%",
            claim,
            errors,
            smaller,
        ),
        Row::held(
            "11K clients, response of adaptive against original",
            "%",
            claim,
            responses,
            smaller,
        ),
        Row::reported("r² of the moving average of eq. 1", "1", 0.912, estimate_of(&goodness), why),
    ]
}

/// Figs. 16 and 17.
pub(super) fn trace_figures(traces: &[Trace; 2]) -> Vec<Figure> {
    let across = || Axis::linear("time (s)").between(0.0, SHOWN_S);
    let first = |trace: &Trace, points: fn(&PeriodWatcher) -> &Vec<Point>| {
        trace.runs.first().map_or_else(Vec::new, |(_, watcher)| points(watcher).clone())
    };
    let period = Axis::linear("adjustment period (ms)").between(0.0, 550.0);
    let title = "Adjustment period of one MySQL server, 11,000 clients";
    let periods = Figure::new(title, across(), period).with_curve(
        "adaptive",
        CurveStyle::Steps,
        first(&traces[1], |watcher| &watcher.periods),
    );
    let title = "Error of the same server: work waiting at the end of each window";
    let errors = Figure::new(title, across(), Axis::linear("error (ms of work at P0)"));
    let errors = traces.iter().fold(errors, |figure, trace| {
        figure.with_curve(trace.name, CurveStyle::Trace, first(trace, |watcher| &watcher.backlog))
    });
    vec![periods, errors]
}
