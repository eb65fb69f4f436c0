//! Fig. 2 and equations 1 to 3: the break-even time of C6, and how batches lengthen idle time.

use super::SEED_FILE;
use super::system::{BREAK_EVEN, GateBench, choices, mongo, set_connections, tail_ms};
use crate::prelude::*;
use lull_measure::ideal_batch::{Overhead, batch_idle, smallest_batch};
use lull_measure::{Hertz, Nanos, Percentile, Watts};
use lull_sim::idle::{EntryCost, IdleState};
use lull_sim::model::Distribution;
use lull_sim::oversubscribed::{GatedTotals, OversubscribedModel};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-c6",
    paper: "Li et al. 2025, Fig. 2 and equations 1 to 3",
    seed_file: SEED_FILE,
    summary: "When a deep idle state pays, and what batches make of short gaps",
    run,
};

/// Powers of the worked example; the figure's axis has no printed values.
const C0: Watts = Watts(3.0);
const DEEP: Watts = Watts(0.3);

fn c6(entry: EntryCost) -> IdleState {
    let transition = Nanos::from_micros(133);
    let state = IdleState::new("C6", Nanos::from_micros(400), transition, DEEP);
    IdleState { transition, entry, ..state }
}

/// Returns a model with one break-even at 1 ms (A), and one with a plateau from 300 us on (B).
fn models() -> [(&'static str, IdleState); 2] {
    let from = Nanos::from_micros(300);
    [
        ("one break-even", c6(EntryCost::BreakEven { at: BREAK_EVEN, watts: C0 })),
        ("plateau", c6(EntryCost::Plateau { from, to: BREAK_EVEN, watts: C0 })),
    ]
}

/// Power of a stay over that of C0.
fn over_c0(state: &IdleState, stay_us: u64) -> f64 {
    let stay = Nanos::from_micros(stay_us);
    state.energy(stay, Hertz(0)).over(stay).unwrap_or_default().0 / C0.0
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let mut report = EXPERIMENT.report("REEF, Fig. 2 and equations 1 to 3", setup);
    report.choices = choices(&mongo().1);
    report.rows = stays();
    report.rows.extend(batches());
    report.rows.extend(simulated(setup)?);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[figure()])?];
    Ok(report)
}

fn stays() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, state) in models() {
        let row = |stay_us, claim, held| {
            let ours = over_c0(&state, stay_us);
            let text = format!("{name}: power of stays of {stay_us} us over C0's");
            Row::held(text, "1", claim, Formula(ours), held)
        };
        rows.push(row(100, "above 1", AtLeast(1.0)));
        rows.push(row(299, "above 1", AtLeast(1.0)));
        rows.push(row(1001, "below 1", AtMost(1.0)));
        rows.push(row(5000, "below 1", AtMost(1.0)));
        let between = over_c0(&state, 600);
        rows.push(Row::reported(
            format!("{name}: power of stays of 600 us over C0's"),
            "1",
            Printed::Nothing,
            Formula(between),
            "the paper states nothing about stays between 300 and 1000 us",
        ));
    }
    rows
}

fn batches() -> Vec<Row> {
    let micros = Nanos::from_micros;
    let overhead = Overhead { processing: micros(100), scheduling: micros(5), wakeup: micros(89) };
    let exactly = |value: f64| Between(value, value);
    let gap = micros(500);
    let mut rows: Vec<Row> = [306.0, 706.0, 1106.0, 1506.0, 1906.0]
        .into_iter()
        .zip(1..)
        .map(|(wanted, queries)| {
            let ours = batch_idle(queries, gap, overhead).as_micros_f64();
            let text = format!("equation 3: idle after {queries} of 100 us at gaps of 500 us");
            Row::held(text, "us", Printed::Nothing, Formula(ours), exactly(wanted))
        })
        .collect();
    let fewest = smallest_batch(BREAK_EVEN, gap, overhead).map_or(f64::NAN, |few| few as f64);
    rows.push(Row::held(
        "smallest batch that sleeps longer than 1 ms",
        "queries",
        Printed::Nothing,
        Formula(fewest),
        exactly(3.0),
    ));
    rows
}

/// 256 connections with 2000 queries a second in all, on a server without a
/// device to wait for.
fn calm() -> OversubscribedModel {
    let mut model = set_connections(&mongo().0, 256);
    model.query.io = Distribution::constant(Nanos::from_micros(1));
    model.query.round_trip = Distribution::exponential(Nanos::from_millis(128));
    model.cores = 2;
    model
}

/// Returns the effect of rests on the idle time of a calm server (section 3.2).
fn simulated(setup: &Setup<'_>) -> Result<Vec<Row>, LabError> {
    let bench = GateBench::settled(setup);
    let model = calm();
    let open = bench.cell(&model, "open", "")?;
    let slept = |served: &GatedTotals| served.c6_opportunity(BREAK_EVEN).unwrap_or(f64::NAN);
    let why = "the paper shows equation 2 and no value of it; on 2 cores, 2000 queries/s";
    let mut rows = vec![Row::reported(
        "C6 opportunity of 1 ms, no gate",
        "1",
        Printed::Nothing,
        open.mean(slept),
        why,
    )];
    for pause_ms in [1, 2, 5] {
        let config = format!(
            "cap = 4\nbatch = 1\nload_per_s = 1e6\nleast_pause = \
             \"{pause_ms}ms\""
        );
        let cell = bench.cell(&model, "reef", &config)?;
        let row = format!("C6 opportunity of 1 ms, rests of {pause_ms} ms over none");
        rows.push(Row::held(row, "1", "above 1", cell.over(&open, slept), AtLeast(1.0)));
        let wait = cell.minus(&open, 1.0, |served| tail_ms(served, Percentile::P50));
        let row = format!("median latency that rests of {pause_ms} ms add");
        rows.push(Row::reported(row, "ms", Printed::Nothing, wait, why));
    }
    Ok(rows)
}

fn figure() -> Figure {
    let stays = (1..=50).map(|step| 100 * step);
    let [a, b] = models();
    let points = |state: IdleState| {
        stays.clone().map(move |stay| Point::at(stay as f64, C0.0 * over_c0(&state, stay)))
    };
    Figure::new(
        "Power of a core that is sent to C6 for a time",
        Axis::linear("stay (us)"),
        Axis::linear("W"),
    )
    .with_curve(a.0, CurveStyle::Line, points(a.1).skip(2))
    .with_curve(b.0, CurveStyle::Line, points(b.1).skip(2))
    .mark(C0.0, "C0")
}
