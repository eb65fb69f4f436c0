//! Figs. 9, 10, 1 and 2: asymmetric cores against DVFS cores of the same power.

use super::SEED_FILE;
use super::curves::{DispatcherCurve, panels};
use super::system::{AMP_LOADS, DispatchBench, Scenario, judged, scenario};
use crate::prelude::*;
use lull_control::dispatcher::CoreSpeed;
use lull_measure::Nanos;
use lull_sim::dispatch::DispatchModel;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-amp",
    paper: "Haque et al. 2017, Figs. 1, 2, 9 and 10",
    seed_file: SEED_FILE,
    summary: "EETL, S2F, TL and EE on two fast and thirteen slow cores, and on four DVFS cores",
    run,
};

const DVFS_LOADS: [f64; 5] = [10.0, 25.0, 40.0, 50.0, 60.0];
const FINANCE_LOADS: [f64; 4] = [50.0, 100.0, 200.0, 300.0];

/// All dispatchers on both machines.
struct AmpCurves {
    eetl: DispatcherCurve,
    tail: DispatcherCurve,
    ee: DispatcherCurve,
    fixed: DispatcherCurve,
    eetl_dvfs: DispatcherCurve,
    tail_dvfs: DispatcherCurve,
    /// The largest loads of both machines under TL, and under EETL.
    most: [f64; 2],
    most_eetl: [f64; 2],
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = DispatchBench::judging(setup, scenario.lucene_target)?;
    let measured = measure(&bench, &scenario)?;
    let mut report = judged(
        &EXPERIMENT,
        format!("{}, Figs. 9 and 10: {}", scenario.venue, scenario.title),
        setup,
    );
    report.rows = rows(&measured);
    report.rows.extend(fig_1_rows(setup, &scenario)?);
    let figure = [
        &measured.eetl,
        &measured.tail,
        &measured.ee,
        &measured.fixed,
        &measured.eetl_dvfs,
        &measured.tail_dvfs,
    ]
    .map(|curve| DispatcherCurve::new(&*curve.name, curve.cells.clone()));
    report.figures = vec![Drawing::from_figures(
        EXPERIMENT.name,
        &panels("Lucene, p99 below 200 ms", &figure, 200.0),
    )?];
    finance(&scenario, setup, &mut report)?;
    Ok(report)
}

pub(super) fn curve(
    bench: &DispatchBench<'_>,
    model: &DispatchModel,
    dispatcher: &str,
    config: &str,
    name: &str,
    loads: &[f64],
) -> Result<DispatcherCurve, LabError> {
    let cell = |rate: &f64| bench.cell(model, dispatcher, config, *rate);
    Ok(DispatcherCurve::new(name, loads.iter().map(cell).collect::<Result<_, _>>()?))
}

fn measure(bench: &DispatchBench<'_>, scenario: &Scenario) -> Result<AmpCurves, LabError> {
    let (amp, dvfs) = (scenario.default_amp(), scenario.dvfs(4));
    let on_amp = |dispatcher, name| curve(bench, &amp, dispatcher, "", name, &AMP_LOADS);
    let on_dvfs = |dispatcher, name| curve(bench, &dvfs, dispatcher, "", name, &DVFS_LOADS);
    let most = |dispatcher| -> Result<[f64; 2], LabError> {
        Ok([
            bench.most_load(&amp, dispatcher, 60.0, 150.0)?,
            bench.most_load(&dvfs, dispatcher, 30.0, 90.0)?,
        ])
    };
    Ok(AmpCurves {
        eetl: on_amp("eetl", "EETL-AMP")?,
        tail: on_amp("tl", "TL-AMP")?,
        ee: on_amp("ee", "EE-AMP")?,
        fixed: on_amp("s2f", "S2F-AMP")?,
        eetl_dvfs: on_dvfs("eetl", "EETL-DVFS")?,
        tail_dvfs: on_dvfs("tl", "TL-DVFS")?,
        most: most("tl")?,
        most_eetl: most("eetl")?,
    })
}

fn rows(measured: &AmpCurves) -> Vec<Row> {
    let AmpCurves { eetl, tail, ee, fixed, eetl_dvfs, tail_dvfs, most, most_eetl } = measured;
    let ratios = [
        ("EETL-DVFS / EETL-AMP energy, 10/s (calibrated)", 1.18, eetl_dvfs, eetl, 10.0, 1.1, 1.3),
        ("EETL-DVFS / EETL-AMP energy, 50/s (calibrated)", 2.0, eetl_dvfs, eetl, 50.0, 1.6, 2.2),
        ("TL-AMP / EETL-AMP energy, 10/s (calibrated)", 2.45, tail, eetl, 10.0, 2.0, 2.6),
        ("TL-AMP / EETL-AMP energy, 66/s (calibrated)", 1.5, tail, eetl, 66.0, 1.35, 1.75),
        ("EETL-AMP / TL-AMP energy, 120/s: they meet", 1.0, eetl, tail, 120.0, 0.9, 1.1),
    ];
    let mut rows = Vec::new();
    for (name, printed, ours, theirs, rate, low, high) in ratios {
        let over = ours.at(rate).energy_over(theirs.at(rate));
        rows.push(Row::held(name, "1", printed, over, Between(low, high)));
    }
    let name = "TL-AMP / TL-DVFS energy, 60/s";
    let half = tail.at(60.0).energy_over(tail_dvfs.at(60.0));
    let why = "section 6.2 states \"half the power\" without the load";
    rows.push(Row::ratio(name, 0.5, half).because(why));
    rows.extend(load_rows(*most));
    let [amp, dvfs] = most_eetl;
    let name = "largest load under EETL, 2F-13S over 4 DVFS cores";
    rows.push(Row::ratio(name, 1.82, amp / dvfs));
    for rate in [10.0, 25.0, 50.0, 66.0, 80.0] {
        let name = format!("EETL-AMP p99, {rate}/s");
        // The paper's own figure shows points up to 3 % above the line.
        let held = AtMost(206.0);
        rows.push(Row::held(name, "ms", 200.0, eetl.at(rate).tail(), held));
    }
    let same = paired_ratio(&eetl.at(100.0).tail_ms, &tail.at(100.0).tail_ms, |ms| *ms);
    let name = "EETL-AMP / TL-AMP p99, 100/s";
    rows.push(Row::compared(name, "1", 1.0, same, Relative(0.05)).because(
        "section 6.2: a threshold of 0 \"behaves exactly the same as TL-AMP, with the two policies \
         attaining the same tail latency\"; 100/s is above the largest load within 200 ms, which \
         section 4.2 calls a little less",
    ));
    rows.extend(shape_rows(ee, fixed, eetl));
    rows
}

/// Fig. 1: the shorter and the longer half of the requests, each request alone on one core. The
/// median of the demand is set to the printed p99 of the shorter half.
fn fig_1_rows(setup: &Setup<'_>, scenario: &Scenario) -> Result<Vec<Row>, LabError> {
    let model = scenario.default_amp();
    let mut profile = model.profile(8000, setup.seed)?;
    profile.sort_unstable();
    let [slow, fast] = [&model.types[0], &model.types[1]];
    // The profile is in time on a core of speed 1, which is the slow one.
    let p99_ms =
        |half: &[Nanos], core: &CoreSpeed| half[half.len() * 99 / 100].as_millis_f64() / core.speed;
    let (shorter, longer) = profile.split_at(profile.len() / 2);
    let energy = |core: &CoreSpeed| core.watts.0 / core.speed;
    let peaks = "peak powers and speeds of Table 4, without static power";
    let target_ms = scenario.lucene_target.as_millis_f64();
    Ok(vec![
        Row::held(
            "p99 of the shorter half on slow cores (calibrated)",
            "ms",
            83.0,
            p99_ms(shorter, slow),
            Relative(0.05),
        ),
        Row::compared(
            "p99 of the longer half on slow cores",
            "ms",
            "misses 200",
            p99_ms(longer, slow),
            AtLeast(target_ms),
        ),
        Row::compared(
            "p99 of the longer half on fast cores",
            "ms",
            "meets 200",
            p99_ms(longer, fast),
            AtMost(target_ms),
        ),
        Row::ratio(
            "energy of a request, fast over slow core (calibrated)",
            3.0,
            Formula(energy(fast) / energy(slow)),
        )
        .because(peaks),
    ])
}

fn load_rows([amp, dvfs]: [f64; 2]) -> Vec<Row> {
    let near = Relative(0.2);
    vec![
        Row::held("largest load of 2F-13S (calibrated)", "1/s", 100.0, amp, near),
        Row::held("largest load of 4 DVFS cores (calibrated)", "1/s", 50.0, dvfs, near),
        Row::held(
            "largest load, 2F-13S over 4 DVFS cores",
            "1",
            "almost twice",
            amp / dvfs,
            Between(1.6, 2.2),
        ),
    ]
}

fn shape_rows(ee: &DispatcherCurve, fixed: &DispatcherCurve, eetl: &DispatcherCurve) -> Vec<Row> {
    let excess = |rate: f64| fixed.at(rate).tail().mean - 200.0;
    let grows = excess(100.0) - excess(10.0);
    let why = "the fixed threshold misses by a few percent at every load here; in the paper it \
               holds up to 20/s";
    vec![
        Row::held("EE-AMP p99, 10/s: misses", "ms", "misses", ee.at(10.0).tail(), AtLeast(206.0)),
        Row::held(
            "S2F's excess over the target grows, 10 to 100/s",
            "ms",
            "grows",
            grows,
            AtLeast(5.0),
        ),
        Row::compared(
            "S2F-AMP p99, 25/s",
            "ms",
            "above 200",
            fixed.at(25.0).tail(),
            AtLeast(200.0),
        )
        .because(why),
        Row::compared("EETL-AMP p99, 100/s", "ms", 200.0, eetl.at(100.0).tail(), AtMost(206.0))
            .because(
                "at the largest load the controller still settles after 30 epochs; with TL the \
                 same load just meets the target",
            ),
    ]
}

/// Fig. 10, the finance server.
fn finance(scenario: &Scenario, setup: &Setup<'_>, report: &mut Report) -> Result<(), LabError> {
    let bench = DispatchBench::judging(setup, scenario.finance_target)?;
    let with = |model: DispatchModel| DispatchModel { work: scenario.finance(), ..model };
    let (amp, dvfs) = (with(scenario.default_amp()), with(scenario.dvfs(4)));
    let eetl = curve(&bench, &amp, "eetl", "", "EETL-AMP", &FINANCE_LOADS)?;
    let tail = curve(&bench, &amp, "tl", "", "TL-AMP", &FINANCE_LOADS)?;
    let eetl_dvfs = curve(&bench, &dvfs, "eetl", "", "EETL-DVFS", &FINANCE_LOADS)?;
    let claim = "below";
    for rate in [50.0, 100.0, 200.0] {
        report.rows.push(Row::held(
            format!("finance, EETL-AMP p99, {rate}/s"),
            "ms",
            100.0,
            eetl.at(rate).tail(),
            AtMost(103.0),
        ));
        for other in [&tail, &eetl_dvfs] {
            let name = format!("finance, EETL-AMP / {} energy, {rate}/s", other.name);
            let ours = eetl.at(rate).energy_over(other.at(rate));
            report.rows.push(Row::held(name, "1", claim, ours, AtMost(0.98)));
        }
    }
    report.choices.push(
        "finance demand: lengths of the built-in options server, scaled so that p99 is 0.69 of \
         the target on a fast core as Lucene's is; Fig. 10's curves have no printed numbers"
            .to_owned(),
    );
    let figure = panels("Finance, p99 below 100 ms", &[eetl, tail, eetl_dvfs], 100.0);
    report.figures.push(Drawing::from_figures("eetl-amp-finance", &figure)?);
    Ok(())
}
