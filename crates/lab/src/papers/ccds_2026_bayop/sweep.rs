//! Figs. 3, 4 and 5: memcached over the study's pairs of delay and frequency.

use super::system::{LOADS, OBJECTIVES, Scenario, run as length, scenario, study};
use super::trials::measured;
use super::{SEED_FILE, mutilate};
use crate::prelude::*;
use crate::server::{Cell, ServerSetting, pareto, sweep};
use lull_sim::netserver::{Moderation, NetServerModel};
use lull_sim::stats::Failure;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "bayop-sweep",
    paper: "Dong et al. 2026, Figs. 3, 4 and 5",
    seed_file: SEED_FILE,
    summary: "tail and power of memcached over 342 pairs of interrupt delay and frequency",
    run,
};

/// One stack over all pairs at all loads, and as its kernel runs it.
struct Swept {
    cells: Vec<Cell>,
    by_default: Vec<Cell>,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (scenario, choices) = scenario();
    let linux = swept(setup, &scenario.linux())?;
    let ebbrt = swept(setup, &scenario.ebbrt())?;
    let older = by_older_driver(setup, &scenario)?;
    let mut report = EXPERIMENT.report("CCDS 2026, Figs. 3 to 5: memcached, study", setup);
    report.choices = choices;
    report.rows.extend(fig5(&linux));
    report.rows.extend(fig4(&linux, &ebbrt));
    for load in LOADS {
        report.rows.extend(front(&linux, load));
        report.rows.extend(savings(&linux, &older, load));
        report.rows.extend(specialised(&linux, &ebbrt, load));
        report.rows.extend(by_mutilate(setup, &scenario.linux(), linux.best(load))?);
    }
    report.figures = vec![
        Drawing::from_figures("bayop-sweep-fronts", &fronts(&linux, &ebbrt))?,
        Drawing::from_figures("bayop-sweep-delays", &delays(&linux))?,
    ];
    Ok(report)
}

fn swept(setup: &Setup<'_>, model: &NetServerModel) -> Result<Swept, LabError> {
    let (settings, run) = (study(model)?.settings(), length(setup));
    let cells = sweep(model, &LOADS, &settings, run, &setup.progress).map_err(Failure::from)?;
    let by_default = [ServerSetting::DEFAULT];
    let by_default = sweep(model, &LOADS, &by_default, run, &setup.progress);
    Ok(Swept { cells, by_default: by_default.map_err(Failure::from)? })
}

/// Linux as it runs by itself, under the rule that its driver had before 4.15.
fn by_older_driver(setup: &Setup<'_>, scenario: &Scenario) -> Result<Vec<Cell>, LabError> {
    let mut model = scenario.linux();
    model.nic.moderation = Moderation::IxgbeClassic;
    let settings = [ServerSetting::DEFAULT];
    let cells = sweep(&model, &LOADS, &settings, length(setup), &setup.progress);
    Ok(cells.map_err(Failure::from)?)
}

impl Swept {
    fn at(&self, load: f64) -> Vec<&Cell> {
        self.cells.iter().filter(|cell| cell.rate_per_s == load).collect()
    }

    fn cell(&self, load: f64, ghz: f64, delay_us: f64) -> Option<&Cell> {
        let near = |value: Option<f64>, wanted: f64| {
            value.is_some_and(|value| (value - wanted).abs() < 1e-6)
        };
        let setting =
            |cell: &ServerSetting| near(cell.frequency_ghz, ghz) && near(cell.delay_us, delay_us);
        self.cells.iter().find(|cell| cell.rate_per_s == load && setting(&cell.setting()))
    }

    /// The cell of least power that meets the first objective.
    fn best(&self, load: f64) -> Option<&Cell> {
        let good = self.at(load).into_iter().filter(|cell| OBJECTIVES[0].met_by(cell));
        good.min_by(|a, b| a.watts.total_cmp(&b.watts))
    }

    fn by_default(&self, load: f64) -> Option<&Cell> {
        self.by_default.iter().find(|cell| cell.rate_per_s == load)
    }
}

fn value_or_max(value: Option<f64>) -> f64 {
    value.unwrap_or(f64::MAX)
}

/// At 400 K and 1.3 GHz no delay misses 500 us, and some delay does not.
fn fig5(linux: &Swept) -> Vec<Row> {
    let p99 = |delay| linux.cell(400e3, 1.3, delay).map(|cell| cell.p99_us);
    let between = super::system::DELAYS_US.iter().filter(|delay| (50.0..=280.0).contains(*delay));
    let least = between.filter_map(|delay| p99(*delay)).reduce(f64::min);
    let mut rows = vec![
        Row::held(
            "400 K, 1.3 GHz, delay 0: p99 (calibrated)",
            "us",
            "above 500",
            value_or_max(p99(0.0)),
            AtLeast(500.0),
        ),
        Row::held(
            "400 K, 1.3 GHz, best delay of 50 to 280 us: p99",
            "us",
            "below 500",
            value_or_max(least),
            AtMost(500.0),
        ),
    ];
    let power = |ghz| linux.cell(400e3, ghz, 100.0).map(|cell| cell.watts);
    let falls = power(1.3).zip(power(2.9)).map(|(low, high)| low / high);
    rows.push(Row::held(
        "400 K, delay 100 us: power at 1.3 over 2.9 GHz",
        "1",
        "falls",
        value_or_max(falls),
        AtMost(1.0),
    ));
    rows
}

/// Delays save cycles, and the specialised stack needs fewer.
fn fig4(linux: &Swept, ebbrt: &Swept) -> Vec<Row> {
    let cycles =
        |swept: &Swept, ghz, delay| swept.cell(400e3, ghz, delay).map(|cell| cell.cycles_a_request);
    let saved = |ghz| {
        let pair = cycles(linux, ghz, 400.0).zip(cycles(linux, ghz, 0.0));
        pair.map(|(long, none)| 100.0 * (1.0 - long / none))
    };
    let why = "instructions are printed and cycles modelled";
    let held = |ghz: f64| {
        Row::held(
            format!("400 K, {ghz} GHz, delay 400 us: fewer cycles than without"),
            "%",
            30.0,
            value_or_max(saved(ghz)),
            Between(25.0, 45.0),
        )
        .because(why)
    };
    let ratio = cycles(linux, 2.9, 100.0).zip(cycles(ebbrt, 2.9, 100.0));
    vec![
        held(1.3),
        held(2.9),
        Row::reported(
            "400 K, 2.9 GHz, delay 100 us: cycles of Linux over EbbRT",
            "1",
            2.5,
            value_or_max(ratio.map(|(linux, ebbrt)| linux / ebbrt)),
            "the costs of EbbRT were set by it",
        ),
    ]
}

/// Fig. 3: the front of latency and power bends between its ends.
fn front(linux: &Swept, load: f64) -> Vec<Row> {
    let cells: Vec<Cell> = linux.at(load).into_iter().cloned().collect();
    let points: Vec<_> =
        pareto(&cells, 99.0).iter().map(|cell| (cell.p99_us, cell.watts)).collect();
    let kilo = load / 1e3;
    vec![Row::held(
        format!("{kilo} K: bend of the front (0 straight, 1 a right angle)"),
        "1",
        "L-shaped",
        value_or_max(Some(bend(&points))),
        AtLeast(0.2),
    )]
}

/// How far a front bends towards its corner: the largest distance below the
/// chord between its ends, both axes scaled to 1, over that of a right angle.
fn bend(points: &[(f64, f64)]) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 0.0 };
    let (wide, high) = (last.0 - first.0, first.1 - last.1);
    if wide <= 0.0 || high <= 0.0 {
        return 0.0;
    }
    let below = |(x, y): &(f64, f64)| 1.0 - (x - first.0) / wide - (y - last.1) / high;
    points.iter().map(below).fold(0.0, f64::max)
}

fn savings(linux: &Swept, older: &[Cell], load: f64) -> Vec<Row> {
    let kilo = load / 1e3;
    let best = linux.best(load).map(|cell| cell.watts);
    let saved = |by_default: Option<f64>| {
        best.zip(by_default).map(|(best, watts)| 100.0 * (1.0 - best / watts))
    };
    let older = older.iter().find(|cell| cell.rate_per_s == load).map(|cell| cell.watts);
    let why = "the best pair against ondemand: printed power is not to be had from anything that \
               is printed; a lower voltage and uncore power alone move it by 20 points";
    vec![
        Row::change(
            format!("{kilo} K: power saved by the best pair with p99 < 500 us"),
            "%",
            76.0,
            value_or_max(saved(linux.by_default(load).map(|cell| cell.watts))),
        )
        .because(why),
        Row::reported(
            format!("{kilo} K: the same against the driver's rule before Linux 4.15"),
            "%",
            Printed::Nothing,
            value_or_max(saved(older)),
            "the paper's kernel, 5.5.17, has the newer rule, which the row above is against",
        ),
    ]
}

const SAVES: &str = "power that the best of EbbRT saves over the best of Linux";

/// EbbRT at its best against Linux by itself and against Linux at its best.
fn specialised(linux: &Swept, ebbrt: &Swept, load: f64) -> [Row; 2] {
    let pair = linux.by_default(load).zip(ebbrt.best(load));
    let ratio = pair.map(|(linux, ebbrt)| linux.watts / ebbrt.watts);
    let pair = linux.best(load).zip(ebbrt.best(load));
    let saved = pair.map(|(linux, ebbrt)| 100.0 * (1.0 - ebbrt.watts / linux.watts));
    let why = "an entry into an idle state costs what makes the printed residency of the state its \
               break-even at our watts; this was chosen after an entry of its exit latency at full \
               power gave the wrong sign (200 K: -40 %), so that the row tests nothing";
    let kilo = load / 1e3;
    [
        Row::ratio(
            format!("{kilo} K: power of Linux over the best of EbbRT (calibrated)"),
            2.0,
            value_or_max(ratio),
        )
        .because(why),
        Row::change(format!("{kilo} K: {SAVES} (calibrated)"), "%", 40.0, value_or_max(saved))
            .because(why),
    ]
}

/// Returns the values that the paper's load generator would have printed for the best pair.
fn by_mutilate(
    setup: &Setup<'_>,
    model: &NetServerModel,
    best: Option<&Cell>,
) -> Result<Option<Row>, LabError> {
    let Some(best) = best else { return Ok(None) };
    let run = length(setup);
    let (cell, latency) =
        measured(model, best.rate_per_s, best.setting(), run).map_err(Failure::from)?;
    let printed = mutilate::percentile_us(&latency, 99.0);
    let why = "its histogram has bins of 10 %, and 500 us lies within one bin: the paper cannot \
               distinguish a tail from its bound more finely than this";
    Ok(Some(Row::reported(
        format!("{} K: p99 of the best pair as mutilate has it, off by", best.rate_per_s / 1e3),
        "%",
        Printed::Nothing,
        value_or_max(printed.map(|us| 100.0 * (us / cell.p99_us - 1.0))),
        why,
    )))
}

fn fronts(linux: &Swept, ebbrt: &Swept) -> Vec<Figure> {
    let panel = |load: f64| {
        let points = |swept: &Swept| -> Vec<Point> {
            let cells: Vec<Cell> = swept.at(load).into_iter().cloned().collect();
            pareto(&cells, 99.0).iter().map(|it| Point::at(it.p99_us, it.watts)).collect()
        };
        let alone = linux.by_default(load).map(|it| Point::at(it.p99_us, it.watts));
        Figure::new(
            format!("memcached, {} K requests/s: what no other pair beats", load / 1e3),
            Axis::log("p99 (us)"),
            Axis::linear("power (W)"),
        )
        .with_curve("Linux-static", CurveStyle::Line, points(linux))
        .with_curve("EbbRT-static", CurveStyle::Line, points(ebbrt))
        .with_curve("Linux", CurveStyle::Points, alone)
    };
    LOADS.map(panel).into()
}

fn delays(linux: &Swept) -> Vec<Figure> {
    let axis = |label: &str| Axis::linear(label.to_owned());
    let curve = |ghz: f64, of: fn(&Cell) -> f64| {
        let points = super::system::DELAYS_US.iter().filter_map(move |delay| {
            linux.cell(400e3, ghz, *delay).map(|cell| Point::at(*delay, of(cell)))
        });
        points.collect::<Vec<_>>()
    };
    let panel = |label: &str, of: fn(&Cell) -> f64| {
        let frame = Figure::new("400 K requests/s", axis("interrupt delay (us)"), axis(label));
        [1.3, 1.6, 2.0, 2.9].into_iter().fold(frame, |figure, ghz| {
            figure.with_curve(format!("{ghz} GHz"), CurveStyle::Line, curve(ghz, of))
        })
    };
    vec![panel("p99 (us)", |it| it.p99_us.min(1500.0)), panel("power (W)", |it| it.watts)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_front_has_no_bend_and_a_corner_has_all() {
        assert_eq!(bend(&[(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]), 0.0);
        assert!((bend(&[(0.0, 1.0), (0.0, 0.0), (1.0, 0.0)]) - 1.0).abs() < 1e-9);
        assert_eq!(bend(&[]), 0.0);
    }
}
