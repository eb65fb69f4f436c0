//! Fig. 21: MySQL with three compute-bound apps on the same machine.

use super::SEED_FILE;
use super::os::FAIR;
use super::steered::{Course, Scheme, Times, courses};
use super::system::{choices, hertz, in_c6, mysql, self_serving, tail_ms, throughput, watts};
use crate::prelude::*;
use lull_measure::Percentile;
use lull_sim::oversubscribed::{CoRunner, GatedTotals, OversubscribedModel};
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-colocation",
    paper: "Li et al. 2025, Fig. 21 and section 5.4",
    seed_file: SEED_FILE,
    summary: "MySQL and three apps that compute, under SATORI, AppleS, REEF, and REEF with SATORI",
    run,
};

/// The PARSEC apps of section 5.1, in the spelling of the paper.
const CO_RUNNERS: [&str; 3] = ["frecmine", "streamcluster", "fluidanimate"];
/// Threads of each (ours: 24 cores, three apps).
const THREADS: u32 = 8;

fn model() -> OversubscribedModel {
    let co_runner =
        CO_RUNNERS.map(|name| CoRunner { name: name.to_owned(), threads: THREADS }).to_vec();
    OversubscribedModel { scheduler: FAIR, co_runner, ..mysql().0 }
}

fn schemes() -> [Scheme; 4] {
    let window = "window = \"500ms\"";
    let satori = || Some(("satori", String::new()));
    let reef = || ("reef", format!("batch = 2\n{window}"));
    let scheme = |name, gate, policy| Scheme { name, gate, policy };
    [
        scheme("SATORI", ("open", String::new()), satori()),
        scheme("AppleS", ("apples", window.to_owned()), None),
        scheme("REEF", reef(), None),
        scheme("REEF+SATORI", reef(), satori()),
    ]
}

/// Mean speed of the co-runners, over their threads' alone.
fn co_runners(served: &GatedTotals) -> f64 {
    let each = (0..CO_RUNNERS.len()).map(|index| served.co_runner_cores(index));
    each.sum::<f64>() / f64::from(THREADS) / CO_RUNNERS.len() as f64
}

fn instructions(served: &GatedTotals) -> f64 {
    served.instructions
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let model = model();
    let times = match setup.quick {
        true => Times { settled: 6, change: 8, end: 8 },
        false => Times { settled: 15, change: 25, end: 25 },
    };
    let later: Vec<_> = model.class.iter().map(|class| class.objective).collect();
    let polled = self_serving(&model);
    let all = schemes().map(|scheme| {
        let model = if scheme.gate.0 == "apples" { &polled } else { &model };
        courses(setup, model, &later, &scheme, times)
    });
    let [satori, apples, reef, both] = all;
    let all = [satori?, apples?, reef?, both?];
    let mut report = EXPERIMENT.report("REEF, Fig. 21", setup);
    report.choices = choices(&mysql().1);
    report.choices.push(
        "eight threads an app that never block, under a fair scheduler; SATORI divides cores \
         only, for caches are not modelled, and reads instructions as on a host, with which a \
         server that wastes them looks busy; AppleS and REEF share all cores with the apps"
            .to_owned(),
    );
    report.rows = server(&all);
    report.rows.extend(neighbours(&all));
    Ok(report)
}

fn ratio(ours: &[Course], theirs: &[Course], value: fn(&GatedTotals) -> f64) -> Estimate {
    let pairs = ours.iter().zip(theirs);
    let each = pairs.map(|(ours, theirs)| value(&ours.before) / value(&theirs.before));
    estimate_of(&each.collect::<Vec<_>>())
}

fn percent(ours: &[Course], theirs: &[Course], value: fn(&GatedTotals) -> f64) -> Estimate {
    let ratio = ratio(ours, theirs, value);
    let mean = 100.0 * (ratio.mean - 1.0);
    Estimate { mean, half_width: 100.0 * ratio.half_width, ..ratio }
}

fn p99(served: &GatedTotals) -> f64 {
    tail_ms(served, Percentile::P99)
}

fn p999(served: &GatedTotals) -> f64 {
    tail_ms(served, Percentile::P999)
}

/// MySQL itself.
fn server(all: &[Vec<Course>; 4]) -> Vec<Row> {
    let [satori, apples, reef, both] = all;
    let held = |what: &str, printed, value: fn(&GatedTotals) -> f64, tolerance| {
        let row = format!("MySQL: {what}, REEF against SATORI");
        Row::held(row, "%", printed, percent(reef, satori, value), tolerance)
    };
    let why = "the result of AppleS depends on its turns and cap, which are ours";
    let more = "spins of 512 threads on the cores that SATORI gives them; what the paper's \
                co-runners take of caches and memory, from REEF too, is not modelled";
    vec![
        Row::compared(
            "MySQL: throughput, REEF against SATORI",
            "%",
            57.38,
            percent(reef, satori, throughput),
            Between(28.7, 114.8),
        )
        .around(0.0)
        .because(more),
        held("P99", -81.64, p99, AtMost(-30.0)),
        held("P99.9", -83.00, p999, AtMost(-30.0)),
        held("instructions a query", -61.09, instructions, AtMost(-40.0)),
        Row::held(
            "MySQL: throughput, AppleS against SATORI",
            "%",
            "higher",
            percent(apples, satori, throughput),
            AtLeast(0.0),
        ),
        Row::compared(
            "MySQL: throughput, REEF against AppleS",
            "%",
            "higher",
            percent(reef, apples, throughput),
            AtLeast(0.0),
        )
        .because(why),
        Row::compared(
            "MySQL: P99, REEF against AppleS",
            "%",
            "lower",
            percent(reef, apples, p99),
            AtMost(0.0),
        )
        .because(why),
        Row::reported(
            "MySQL: throughput, REEF with SATORI against REEF",
            "%",
            "little changed",
            percent(both, reef, throughput),
            "SATORI goes on trying divisions, and counts only what it sees of a gated server",
        ),
    ]
}

/// Those beside it, and the machine.
fn neighbours(all: &[Vec<Course>; 4]) -> Vec<Row> {
    let [satori, apples, reef, both] = all;
    let busy = "apps that always compute leave no core idle, and their speed does not \
                depend on caches: what a server takes, they lose";
    let compared = |row: &str, printed, ours: &Estimate, tolerance| {
        Row::compared(row, "%", printed, ours, tolerance).because(busy)
    };
    vec![
        compared(
            "co-runners: speed, REEF against SATORI",
            Printed::Number(-3.54),
            &percent(reef, satori, co_runners),
            Absolute(3.0),
        ),
        compared(
            "co-runners: speed, REEF against AppleS",
            Printed::Claim("higher"),
            &percent(reef, apples, co_runners),
            AtLeast(0.0),
        ),
        compared(
            "co-runners: speed, REEF with SATORI against REEF",
            Printed::Number(2.78),
            &percent(both, reef, co_runners),
            AtLeast(0.0),
        ),
        compared(
            "power, REEF against SATORI",
            Printed::Number(0.46),
            &percent(reef, satori, watts),
            Absolute(2.0),
        ),
        Row::reported(
            "CPU frequency, REEF against SATORI",
            "%",
            Printed::Nothing,
            percent(reef, satori, hertz),
            busy,
        ),
        Row::reported(
            "C6 residency, REEF",
            "%",
            Printed::Nothing,
            estimate_of(
                &reef.iter().map(|course| 100.0 * in_c6(&course.before)).collect::<Vec<_>>(),
            ),
            busy,
        ),
        Row::compared(
            "speed of all four, REEF against SATORI",
            "%",
            9.0,
            percent_of_all(reef, satori),
            Between(4.5, 18.0),
        )
        .around(0.0),
    ]
}

/// Mean change of four apps' speeds.
fn percent_of_all(ours: &[Course], theirs: &[Course]) -> Estimate {
    let pairs = ours.iter().zip(theirs);
    let each = pairs.map(|(ours, theirs)| {
        let server = throughput(&ours.before) / throughput(&theirs.before);
        let others = co_runners(&ours.before) / co_runners(&theirs.before);
        let apps = CO_RUNNERS.len() as f64;
        100.0 * ((server + apps * others) / (apps + 1.0) - 1.0)
    });
    estimate_of(&each.collect::<Vec<_>>())
}
