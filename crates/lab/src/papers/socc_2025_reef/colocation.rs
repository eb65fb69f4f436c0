//! Fig. 21: MySQL with three compute-bound apps on the same machine.

use super::SEED_FILE;
use super::os::FAIR;
use super::steered::{Scheme, Times, before_change, courses};
use super::system::{
    GateCell, choices, hertz, in_c6, mysql, p99_ms, p999_ms, self_serving, throughput, watts,
};
use crate::prelude::*;
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
    let all = [satori?, apples?, reef?, both?].map(|courses| before_change(&courses));
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

/// MySQL itself.
fn server(all: &[GateCell; 4]) -> Vec<Row> {
    let [satori, apples, reef, both] = all;
    let held = |what: &str, printed, value: fn(&GatedTotals) -> f64, tolerance| {
        let row = format!("MySQL: {what}, REEF against SATORI");
        Row::held(row, "%", printed, reef.change_percent(satori, value), tolerance)
    };
    let why = "the result of AppleS depends on its turns and cap, which are ours";
    let more = "spins of 512 threads on the cores that SATORI gives them; what the paper's \
                co-runners take of caches and memory, from REEF too, is not modelled";
    vec![
        Row::compared(
            "MySQL: throughput, REEF against SATORI",
            "%",
            57.38,
            reef.change_percent(satori, throughput),
            Between(28.7, 114.8),
        )
        .around(0.0)
        .because(more),
        held("P99", -81.64, p99_ms, AtMost(-30.0)),
        held("P99.9", -83.00, p999_ms, AtMost(-30.0)),
        held("instructions a query", -61.09, instructions, AtMost(-40.0)),
        Row::held(
            "MySQL: throughput, AppleS against SATORI",
            "%",
            "higher",
            apples.change_percent(satori, throughput),
            AtLeast(0.0),
        ),
        Row::compared(
            "MySQL: throughput, REEF against AppleS",
            "%",
            "higher",
            reef.change_percent(apples, throughput),
            AtLeast(0.0),
        )
        .because(why),
        Row::compared(
            "MySQL: P99, REEF against AppleS",
            "%",
            "lower",
            reef.change_percent(apples, p99_ms),
            AtMost(0.0),
        )
        .because(why),
        Row::reported(
            "MySQL: throughput, REEF with SATORI against REEF",
            "%",
            "little changed",
            both.change_percent(reef, throughput),
            "SATORI goes on trying divisions, and counts only what it sees of a gated server",
        ),
    ]
}

/// Returns the rows of the neighbours, and of the machine.
fn neighbours(all: &[GateCell; 4]) -> Vec<Row> {
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
            &reef.change_percent(satori, co_runners),
            Absolute(3.0),
        ),
        compared(
            "co-runners: speed, REEF against AppleS",
            Printed::Claim("higher"),
            &reef.change_percent(apples, co_runners),
            AtLeast(0.0),
        ),
        compared(
            "co-runners: speed, REEF with SATORI against REEF",
            Printed::Number(2.78),
            &both.change_percent(reef, co_runners),
            AtLeast(0.0),
        ),
        compared(
            "power, REEF against SATORI",
            Printed::Number(0.46),
            &reef.change_percent(satori, watts),
            Absolute(2.0),
        ),
        Row::reported(
            "CPU frequency, REEF against SATORI",
            "%",
            Printed::Nothing,
            reef.change_percent(satori, hertz),
            busy,
        ),
        Row::reported(
            "C6 residency, REEF",
            "%",
            Printed::Nothing,
            reef.mean(|served| 100.0 * in_c6(served)),
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
fn percent_of_all(ours: &GateCell, theirs: &GateCell) -> Estimate {
    let pairs = ours.runs.iter().zip(&theirs.runs);
    let each = pairs.map(|(ours, theirs)| {
        let server = throughput(ours) / throughput(theirs);
        let others = co_runners(ours) / co_runners(theirs);
        let apps = CO_RUNNERS.len() as f64;
        100.0 * ((server + apps * others) / (apps + 1.0) - 1.0)
    });
    estimate_of(&each.collect::<Vec<_>>())
}
