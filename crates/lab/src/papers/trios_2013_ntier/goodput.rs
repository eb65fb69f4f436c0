//! Fig. 1(d): replies within 2 s per watt, with DVFS off and on.

use super::SEED_FILE;
use super::paper::paper;
use super::system::{Clock, DVFS_TIERS, NTier, trial};
use super::table2::CHOICES;
use crate::prelude::*;
use crate::trial::{estimate, paired, power_w};
use lull_measure::Nanos;
use lull_sim::Totals;
use lull_sim::stats::{Estimate, Failure, Runs};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ntier-goodput",
    paper: "Wang et al. 2013, Fig. 1(d)",
    seed_file: SEED_FILE,
    summary: "Replies within 2 s per watt: DVFS wins at low load and loses at high load",
    run,
};

/// Replies later than this earn nothing (section 2).
const PROFITABLE: Nanos = Nanos::from_secs(2);
const CLIENTS: [u32; 9] = [1000, 2000, 4000, 6000, 8000, 10_000, 12_000, 14_000, 16_000];
/// Static power of a server as a share of a busy core's at P0.
const STATIC: [f64; 3] = [FITTED, 0.5, 0.0];
/// The share at which the printed best loads come out.
const FITTED: f64 = 1.0;

/// One load with DVFS off and on.
struct ClockRuns {
    clients: u32,
    full: Runs,
    dvfs: Runs,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (seconds, replications) = setup.either((200, 8), (40, 2));
    setup.progress.expect(2 * CLIENTS.len() as u64 * replications);
    let load = |clients| {
        let model = NTier::table2(clients).model();
        let run = |clock| {
            let trial = trial(&model, clock, &DVFS_TIERS, setup.seed, seconds);
            trial.run(0..replications, &setup.progress)
        };
        Ok::<_, Failure>(ClockRuns {
            clients,
            full: run(Clock::FullSpeed)?,
            dvfs: run(Clock::FITTED)?,
        })
    };
    let loads = CLIENTS.into_iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let paper = paper();
    let title = format!("{}, Fig. 1(d): {}", paper.venue, paper.title);
    let mut report = EXPERIMENT.report(title, setup);
    report.choices = choices();
    report.rows = STATIC.iter().flat_map(|share| rows(&loads, *share)).collect();
    report.figures =
        vec![Drawing::from_figures(EXPERIMENT.name, &STATIC.map(|share| figure(&loads, share)))?];
    Ok(report)
}

fn choices() -> Vec<String> {
    let own = "hidden choice: power by eq. 3 of Tomcat and MySQL plus a static part as large as a \
               busy core at P0; the figure was measured at the wall and prints no watts. Smaller \
               static parts move the best load of DVFS down, see their rows";
    CHOICES[..2].iter().chain([&own]).map(ToString::to_string).collect()
}

/// Goodput per power, in replies per joule (of V² GHz).
fn efficiency(static_share: f64) -> impl Fn(&Totals) -> f64 {
    let p0 = paper().pstate[0].state.dynamic_power(1.0).0;
    let dynamic = power_w(&DVFS_TIERS);
    move |totals| {
        let good = totals.apps[0].answered - totals.apps[0].latency.count_above(PROFITABLE);
        let servers = totals.servers.iter().filter(|server| DVFS_TIERS.contains(&server.tier));
        let idle = static_share * p0 * servers.count() as f64;
        good as f64 / totals.span.as_secs_f64() / (dynamic(totals) + idle)
    }
}

/// Whether a clock is full speed.
type Pick = fn(&ClockRuns) -> &Runs;
const FULL: Pick = |load| &load.full;
const DVFS: Pick = |load| &load.dvfs;

fn best(loads: &[ClockRuns], share: f64, runs: Pick) -> Estimate {
    let value = efficiency(share);
    let all: Vec<Vec<f64>> = loads.iter().map(|load| runs(load).values(&value)).collect();
    let best = |replication: usize| {
        let each = loads.iter().zip(&all);
        let best = each.max_by(|a, b| a.1[replication].total_cmp(&b.1[replication]));
        best.map_or(f64::NAN, |(load, _)| f64::from(load.clients))
    };
    let replications = all.iter().map(Vec::len).min().unwrap_or(0);
    estimate_of(&(0..replications).map(best).collect::<Vec<_>>())
}

/// Efficiency of DVFS against full speed at a load, in percent.
fn against(loads: &[ClockRuns], share: f64, clients: u32) -> Estimate {
    let Some(load) = loads.iter().find(|load| load.clients == clients) else {
        return estimate_of(&[]);
    };
    let runs = [&load.dvfs, &load.full];
    paired(runs, efficiency(share), |[dvfs, full]| 100.0 * dvfs / full)
}

/// Held at [`FITTED`], reported at the other shares.
fn rows(loads: &[ClockRuns], share: f64) -> Vec<Row> {
    let why = "another static share, to show what the figure depends on";
    let row = |what: &str, unit, paper: Printed, ours: &Estimate, held| {
        let name = format!("{what}, static share {share}");
        match share == FITTED {
            true => Row::held(name, unit, paper, ours, held),
            false => Row::reported(name, unit, paper, ours, why),
        }
    };
    let number = Printed::Number;
    let near = Absolute(2000.0);
    let claim = Printed::Claim;
    vec![
        row("best load, full speed", "clients", number(14_000.0), &best(loads, share, FULL), near),
        row("best load, DVFS on", "clients", number(10_000.0), &best(loads, share, DVFS), near),
        row(
            "DVFS against full speed at 4K clients",
            "%",
            claim("wins"),
            &against(loads, share, 4000),
            AtLeast(100.0),
        ),
        row(
            "DVFS against full speed at 14K clients",
            "%",
            claim("loses"),
            &against(loads, share, 14_000),
            AtMost(100.0),
        ),
    ]
}

fn figure(loads: &[ClockRuns], share: f64) -> Figure {
    let value = efficiency(share);
    let points = |runs: Pick| {
        let point = |load: &ClockRuns| {
            Point::from_estimate(f64::from(load.clients), &estimate(runs(load), &value))
        };
        loads.iter().map(point).collect::<Vec<_>>()
    };
    Figure::new(
        format!("Goodput per power, static power {share} of a busy core at P0"),
        Axis::linear("clients"),
        Axis::linear("replies within 2 s per V² GHz s"),
    )
    .with_curve("full speed", CurveStyle::Line, points(FULL))
    .with_curve("DVFS on", CurveStyle::Line, points(DVFS))
}
