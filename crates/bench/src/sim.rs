//! The simulator's speed, beside SimPy and Ciw on the same models.
//!
//! Every contender runs in a process of its own on one core and times itself by
//! its CPU time, without its start. All must come to the mean that theory
//! knows: a simulator that is quick and wrong is not a contender.

mod contender;
mod machines;
mod models;
mod ours;

use super::pinned::Pinned;
use super::python::Python;
pub(super) use ours::model;

use super::stats::{BoxedContender, Summary, interleave_all, ratios};
use super::{Bench, Context, process, report::Report};
use anyhow::{Context as _, Result, bail};
use contender::{Contender, Outcome, RateUnit, Simulator};
use lull_sim::theory::{self, ClosedNetwork};
use std::cell::RefCell;
use std::process::{Command, Stdio};

pub(super) const BENCH: Bench = Bench {
    name: "sim",
    about: "The simulator on one core: six models of stations, of which M/M/1 and the closed \
            network beside SimPy 4 and Ciw 3; two machines; and table 2 of Wang et al. 2013",
    run,
};

const ROUNDS: usize = 5;
/// Ours over SimPy, at least.
const OVER_SIMPY_MIN: f64 = 200.0;
/// A contender's mean over the exact one.
const AGREEMENT: std::ops::RangeInclusive<f64> = 0.95..=1.05;
const RESIDENT_MAX_MB: f64 = 100.0;
const TABLE_MAX_S: f64 = 180.0;

/// A model, the counted unit, and the bound in millions a second.
struct Case {
    /// Its name, as the contenders know it.
    model: &'static str,
    /// The title, for people.
    title: &'static str,
    per: RateUnit,
    unit: &'static str,
    least_m: f64,
    /// Exact mean response, where theory knows it.
    response_s: Option<f64>,
    /// The other simulators that run it.
    others: &'static [Simulator],
}

fn cases() -> Result<Vec<Case>> {
    let case = |model, title, least_m| Case {
        model,
        title,
        per: RateUnit::Event,
        unit: "M events/s",
        least_m,
        response_s: None,
        others: &[],
    };
    let requests = |case: Case, unit, response_s, others| Case {
        per: RateUnit::Request,
        unit,
        response_s: Some(response_s),
        others,
        ..case
    };
    let queue = theory::mm1(800.0, 1e-3).context("load 0.8 is stable")?;
    let work_s = machines::WORK.as_secs_f64();
    let shared = theory::mmc(machines::RATE_PER_S, work_s, machines::CORES);
    let shared = shared.context("load 0.8 is stable")?;
    let both: &[Simulator] = &[Simulator::SimPy, Simulator::Ciw];
    Ok(vec![
        requests(case("mm1", "M/M/1", 22.0), "M customers/s", queue.response_s, both),
        requests(
            case("closed", "closed network", 8.3),
            "M completions/s",
            closed_response_s(100, 10.0, [0.100, 0.120, 0.080]),
            both,
        ),
        requests(
            case("sharing", "processor sharing, 1000 customers", 4.0),
            "M completions/s",
            closed_response_s(1000, 7.0, [0.004, 0.0065, 0.005]),
            &[],
        ),
        case("ntier-1/2/1/2", "1/2/1/2", 10.0),
        case("ntier-8/32/8/32", "8/32/8/32", 8.0),
        case(LARGEST, "10,000 servers", 2.0),
        Case {
            response_s: Some(shared.response_s),
            ..case("machine-cores", "machine of cores and run queues", 3.0)
        },
        case("machine-all", "machine of every part", 1.0),
    ])
}

const LARGEST: &str = "ntier-10000";

fn closed_response_s(customers: u32, think_s: f64, work_s: [f64; 3]) -> f64 {
    let stations = work_s.map(|work_s| (work_s, 1)).to_vec();
    theory::mva(&ClosedNetwork { think_s, stations }, customers).response_s
}

fn run(context: &Context) -> Result<Report> {
    let python = Python::install("sim", &context.root)?;
    let cases = cases()?;
    let mut report = Report::default();
    speed(&python, &cases, &mut report)?;
    table(context, &mut report)?;
    report.note(format!(
        "{ROUNDS} rounds in turn, each with its own seed, in processes of their own on one core; \
         CPU time of the simulation alone, but for Ciw, whose warm-up (a tenth) cannot be left \
         out. Means are mean responses over the exact ones: {:.3} ms for M/M/1 at load 0.8, and \
         mean value analysis for the closed models ({:.4} s and {:.5} s). The closed network has \
         100 customers who think 10 s and visit three stations in order of arrival. n-tier \
         models are those of Wang et al. 2013 under DVFS controllers. The machine of cores and \
         run queues has 64 threads on four cores and the mean of M/M/4; that of every part has \
         core types, frequencies, idle states, cache, memory, a network card, a gate with its \
         controller and a dispatcher. Table 2 runs once, on all cores.",
        cases[0].response_s.unwrap_or(f64::NAN) * 1e3,
        cases[1].response_s.unwrap_or(f64::NAN),
        cases[2].response_s.unwrap_or(f64::NAN),
    ));
    report.note(python.versions(&["ciw", "simpy"])?);
    Ok(report)
}

/// All contenders of all models, in turn on one core.
fn speed(python: &Python, cases: &[Case], report: &mut Report) -> Result<()> {
    let ours = std::env::current_exe().context("this program has no path")?;
    let entries: Vec<(&Case, Simulator)> = cases
        .iter()
        .flat_map(|case| [Simulator::Ours].iter().chain(case.others).map(move |by| (case, *by)))
        .collect();
    let seen: Vec<_> = entries.iter().map(|_| RefCell::new(Vec::<Outcome>::new())).collect();
    let pinned = Pinned::to_last_core()?;
    let mut boxed: Vec<BoxedContender<'_>> = Vec::new();
    for ((case, by), seen) in entries.iter().zip(&seen) {
        let contender = Contender { by: *by, model: case.model, ours: &ours, python };
        boxed.push(Box::new(move || {
            let mut seen = seen.borrow_mut();
            let outcome = contender.run(seen.len() as u64)?;
            seen.push(outcome);
            Ok(outcome.rate_per_s(case.per) / 1e6)
        }));
    }
    let rates = interleave_all(ROUNDS, &mut boxed)?;
    drop((boxed, pinned));
    let seen = seen.into_iter().map(RefCell::into_inner);
    let mut found = entries.into_iter().zip(rates).zip(seen).peekable();
    while let Some(((entry, rates), seen)) = found.next() {
        let (case, _) = entry;
        let mut peers = Vec::new();
        while let Some(peer) = found.next_if(|((next, _), _)| next.1 != Simulator::Ours) {
            peers.push(peer);
        }
        let mut all = vec![(Simulator::Ours, rates, seen)];
        all.extend(peers.into_iter().map(|(((_, by), rates), seen)| (by, rates, seen)));
        rows(report, case, &all);
    }
    Ok(())
}

/// Adds the rows of one model: each simulator's rate and mean. The first is ours.
fn rows(report: &mut Report, case: &Case, all: &[(Simulator, Vec<f64>, Vec<Outcome>)]) {
    let what = |figure: &str| format!("{}: {figure}", case.title);
    for (by, rates, _) in all {
        let rate = Summary::new(rates.iter().copied());
        match by {
            Simulator::Ours => {
                report.bounded(&what("lull"), rate, case.unit, case.least_m..=f64::INFINITY);
            }
            _ => report.reported(&what(by.name()), rate, case.unit),
        }
    }
    let ours = &all[0].1;
    for (by, rates, _) in &all[1..] {
        let (name, ratio) = (what(&format!("lull / {}", by.name())), ratios(ours, rates));
        match by {
            Simulator::SimPy => {
                report.bounded(&name, ratio, "ratio", OVER_SIMPY_MIN..=f64::INFINITY);
            }
            _ => report.reported(&name, ratio, "ratio"),
        }
    }
    if let Some(response_s) = case.response_s {
        for (by, _, seen) in all {
            // The first run warms up, but its mean is as good as the others'.
            let mean = Summary::new(seen.iter().map(|one| one.mean_response_s / response_s));
            report.bounded(&what(&format!("mean of {}", by.name())), mean, "ratio", AGREEMENT);
        }
    }
    if case.model == LARGEST {
        let peak = Summary::new(all[0].2.iter().map(|one| one.peak_mb));
        report.bounded(&what("peak resident"), peak, "MB", 0.0..=RESIDENT_MAX_MB);
    }
}

/// A whole table of a paper, as a user runs it.
fn table(context: &Context, report: &mut Report) -> Result<()> {
    let lull = context.build("lull-cli", "lull")?;
    let mut command = Command::new(lull);
    command.args(["lab", "run", "ntier-table2", "--seeds", "1", "--json"]).stdout(Stdio::null());
    let cost = process::cost(&mut command)?;
    if cost.cpu_s <= 0.0 {
        bail!("lull lab took no time");
    }
    let time = Summary::new([cost.wall_s]);
    report.bounded("lull lab run ntier-table2", time, "s", 0.0..=TABLE_MAX_S);
    report.reported("its CPU time", Summary::new([cost.cpu_s]), "s");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_model_of_the_simulator_is_measured_once() {
        let stations = models::benches().into_iter().map(|bench| bench.name);
        let ours: BTreeSet<_> =
            stations.chain(machines::MACHINES.map(|bench| bench.name)).collect();
        let cases = cases().unwrap();
        let here: BTreeSet<_> = cases.iter().map(|case| case.model).collect();
        assert_eq!(here, ours);
        assert_eq!(cases.len(), here.len());
    }

    #[test]
    fn the_exact_means_are_those_of_the_models() {
        let cases = cases().unwrap();
        // M/M/1 at load 0.8: 1 ms / (1 - 0.8); the throughputs of the closed
        // models, customers / (think + response), are known from two programs.
        let means: Vec<f64> = cases.iter().filter_map(|case| case.response_s).collect();
        assert!((means[0] - 5e-3).abs() < 1e-12, "{means:?}");
        assert!((100.0 / (10.0 + means[1]) - 8.1093).abs() < 1e-3, "{means:?}");
        assert!((1000.0 / (7.0 + means[2]) - 140.92).abs() < 0.01, "{means:?}");
    }

    #[test]
    fn a_slow_or_wrong_contender_shows() {
        let outcome = Outcome { mean_response_s: 6e-3, ..Outcome::default() };
        let all = [
            (Simulator::Ours, vec![19.0], vec![Outcome { mean_response_s: 5e-3, ..outcome }]),
            (Simulator::SimPy, vec![0.1], vec![outcome]),
        ];
        let mut report = Report::default();
        rows(&mut report, &cases().unwrap()[0], &all);
        // Too slow, less than 200 times SimPy, and SimPy's mean is wrong.
        assert_eq!(report.missed(), 3);
    }
}
