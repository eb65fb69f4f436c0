//! Figs. 8 and 12: response time over the length of the burst cycle.

use super::SEED_FILE;
use super::paper::paper;
use super::system::{Clock, DVFS_TIERS, MYSQL, NTier, trial};
use crate::cycles::{Cycle, nearest, response_figure, worst};
use crate::prelude::*;
use crate::trial::response_ms;
use lull_measure::Nanos;
use lull_sim::stats::{Estimate, Failure};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ntier-burst",
    paper: "Wang et al. 2013, Figs. 8 and 12",
    seed_file: SEED_FILE,
    summary: "Response time over the length of the burst cycle: worst at 2 s, fine at both ends",
    run,
};

/// Burst cycles in milliseconds.
pub(super) const CYCLES_MS: [u64; 11] =
    [100, 200, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 16_000];

/// One variant of the system over all cycles.
struct Sweep {
    name: &'static str,
    cycles: Vec<Cycle>,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let replications = setup.either(6, 2);
    setup.progress.expect(4 * replications * CYCLES_MS.len() as u64);
    let sweep = |name, clock, tiers: &[usize], pools: bool| -> Result<Sweep, Failure> {
        let mut cycles = Vec::new();
        for cycle_ms in CYCLES_MS {
            let model = system(cycle_ms, pools).model();
            // Whole cycles, and enough of the longest.
            let trial = trial(&model, clock, tiers, setup.seed, setup.either(192, 32));
            let runs = trial.run(0..replications, &setup.progress)?;
            let cycle = Nanos::from_millis(cycle_ms);
            cycles.push(Cycle { cycle, responses_ms: runs.values(response_ms(0)), errors: vec![] });
        }
        Ok(Sweep { name, cycles })
    };
    let one = sweep("one DVFS tier", Clock::FITTED, &[MYSQL], false)?;
    let both = sweep("both DVFS tiers", Clock::FITTED, &DVFS_TIERS, false)?;
    let pools = sweep("both DVFS tiers, pools", Clock::FITTED, &DVFS_TIERS, true)?;
    let full = sweep("full speed", Clock::FullSpeed, &DVFS_TIERS, false)?;
    let paper = paper();
    let title = format!("{}, Figs. 8 and 12: {}", paper.venue, paper.title);
    let mut report = EXPERIMENT.report(title, setup);
    report.choices = choices();
    report.rows = rows(&one, &full);
    report.rows.extend([&both, &pools].map(peak_row));
    report.figures =
        vec![Drawing::from_figures(EXPERIMENT.name, &[figure(&[one, both, pools, full])])?];
    Ok(report)
}

fn choices() -> Vec<String> {
    [
        "12,000 and 4,000 clients in turn, each for half of the cycle; the others are frozen \
         while they think",
        "hidden choice: DVFS on MySQL only, and no pools: Figs. 9 to 11 speak of \"the server\". \
         With the pools of Table 2 long cycles are worse than 2 s, as they must be if 12,000 \
         steady clients lose 10 %: Fig. 8 and Table 2 need different parameters",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn system(cycle_ms: u64, pools: bool) -> NTier {
    let bursts = NTier::bursts(Nanos::from_millis(cycle_ms));
    if !pools {
        return bursts;
    }
    NTier { bursts: bursts.bursts, ..NTier::table2(bursts.clients) }
}

/// The highest response time of all cycles.
fn peak(sweep: &Sweep) -> Estimate {
    let at = worst(&sweep.cycles, |cycle| cycle.response_ms().mean);
    at.map_or_else(|| estimate_of(&[]), |at| sweep.cycles[at].response_ms())
}

/// The cycle at which the response time is highest, in seconds.
fn worst_s(sweep: &Sweep) -> Estimate {
    let replications = sweep.cycles.iter().map(|cycle| cycle.responses_ms.len()).min();
    let of_one = |replication: usize| {
        let at = worst(&sweep.cycles, |cycle| cycle.responses_ms[replication]);
        at.map_or(f64::NAN, |at| sweep.cycles[at].seconds())
    };
    estimate_of(&(0..replications.unwrap_or(0)).map(of_one).collect::<Vec<_>>())
}

fn at(sweep: &Sweep, cycle_s: f64) -> Estimate {
    nearest(&sweep.cycles, cycle_s).map_or_else(|| estimate_of(&[]), Cycle::response_ms)
}

fn rows(one: &Sweep, full: &Sweep) -> Vec<Row> {
    let worst = peak(one);
    let ratio = |estimate: Estimate| Estimate {
        mean: 100.0 * estimate.mean / worst.mean,
        half_width: 100.0 * estimate.half_width / worst.mean,
        ..estimate
    };
    let ends = AtMost(65.0);
    let no_number = "the figures survive as curves without numbers";
    vec![
        Row::held("worst burst cycle", "s", 2.0, worst_s(one), Between(1.5, 4.0)),
        Row::held("response at 0.2 s against the worst", "%", "good", ratio(at(one, 0.2)), ends),
        Row::held("response at 8 s against the worst", "%", "good", ratio(at(one, 8.0)), ends),
        Row::held("response at 16 s against the worst", "%", "good", ratio(at(one, 16.0)), ends),
        Row::reported("response at the worst cycle", "ms", Printed::Nothing, worst, no_number),
        Row::reported("full speed at 2 s", "ms", Printed::Nothing, at(full, 2.0), no_number),
    ]
}

fn peak_row(sweep: &Sweep) -> Row {
    let why = "the parameters of Table 2, or nearer to them than those of the rows above";
    let name = format!("worst burst cycle: {}", sweep.name);
    Row::compared(name, "s", 2.0, worst_s(sweep), Between(1.5, 4.0)).because(why)
}

fn figure(sweeps: &[Sweep]) -> Figure {
    let title = "Mean response time over the burst cycle, 12,000 / 4,000 clients";
    let sweeps: Vec<_> = sweeps.iter().map(|sweep| (sweep.name, &*sweep.cycles)).collect();
    response_figure(title, &sweeps)
}
