//! BayOp's costs: one suggestion after thirty trials, and the study's sweep.

mod ax;
mod peers;
mod recorded;
mod surfaces;

use super::process::own_cpu_s;
use super::python::Python;
use super::stats::{BoxedContender, Summary, interleave_all, ns_each};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result};
use lull_control::{Capability, Rng};
use lull_lab::progress::Progress;
use lull_lab::server::{ServerFile, ServerScenario, sweep};
use lull_policies::search::{Dimension, Level, Method, PriorMean, Reading, Rules, Search, Space};
use rand::{RngExt, SeedableRng};
use std::hint::black_box;
use std::time::Instant;
use surfaces::Surface;

pub(super) const BENCH: Bench = Bench {
    name: "suggest",
    about: "One suggestion of the search over 9,000 points after 30 trials, by method; and the \
            study's sweep of memcached (with --full searches by Ax, Optuna, SMAC3 and Sobol points \
            beside ours, 4 GB to install)",
    run,
};

const ROUNDS: usize = 15;
/// Searches beside Ax, which takes a minute for each.
const SEARCHES: usize = 7;
/// Trials before the suggestion.
const TRIALS: usize = 30;
/// Delays of 0 to 998 us in steps of 2, times frequencies of 1.2 to 2.9 GHz.
const DELAYS: u16 = 500;
const FREQUENCIES: u16 = 18;
const SUGGESTION_MAX_MS: f64 = 20.0;
const BOUND_US: f64 = 500.0;
/// The sweep's, on two cores.
const SWEEP_MAX_S: f64 = 120.0;
const CORES: f64 = 2.0;
const SWEEPS: usize = 1;

fn run(context: &Context) -> Result<Report> {
    let mut report = Report::default();
    suggestions(&mut report)?;
    let text = std::fs::read_to_string(context.root.join("examples/tune/netserver.toml"))?;
    let file: ServerFile = toml::from_str(&text)?;
    let server = file.check()?;
    if context.is_full {
        let wanted = peers::wanted()?;
        let python = peers::installed(context, &wanted)?;
        if wanted.contains(&peers::AX) {
            beside_ax(&python, &mut report)?;
        }
        let mut surfaces = Surface::all(&server)?;
        surfaces.extend(recorded::surfaces(&context.root.join(recorded::DIRECTORY))?);
        peers::compare(&python, &wanted, &surfaces, &mut report)?;
    }
    sweeps(&server, &mut report)?;
    Ok(report)
}

fn suggestions(report: &mut Report) -> Result<()> {
    let ways = [
        ("suggestion, ours", Method::Apart, PriorMean::Constant),
        ("suggestion, ours with the response model", Method::Apart, PriorMean::Response),
        ("suggestion, the paper's penalty", Method::Penalty, PriorMean::Constant),
    ];
    let contender = |(_, method, prior)| -> BoxedContender<'_> {
        let mut round = 0;
        Box::new(move || {
            round += 1;
            suggestion_ms(method, prior, round)
        })
    };
    let costs = interleave_all(ROUNDS, &mut ways.map(contender).into_iter().collect::<Vec<_>>())?;
    for ((what, method, _), costs) in ways.into_iter().zip(costs) {
        let cost = Summary::new(costs);
        match method {
            Method::Apart => report.bounded(what, cost, "ms", 0.0..=SUGGESTION_MAX_MS),
            _ => report.reported(what, cost, "ms"),
        }
    }
    report.note(format!(
        "Suggestions: CPU time of one thread, {ROUNDS} rounds in turn, each after the first \
         {TRIALS} trials of a search of its own over {} points of a server by formulas with 2 % \
         of noise; hyper-parameters are fitted again for each.",
        u32::from(DELAYS) * u32::from(FREQUENCIES)
    ));
    Ok(())
}

/// Measures the time of the suggestion after [`TRIALS`] trials of one search.
fn suggestion_ms(method: Method, prior: PriorMean, seed: u64) -> Result<f64> {
    // The last trials measure the likely choice again, which is not a suggestion.
    let rules = Rules { prior, confirm: 0, ..Rules::new(method, BOUND_US, TRIALS + 1) };
    let mut search = Search::new(space(), rules);
    let mut rng = Rng::seed_from_u64(seed);
    for _ in 0..TRIALS {
        let next = search.ask(&mut rng).context("the search ended early")?;
        let reading = server(&search.space().values(&next.point), &mut rng);
        search.tell(next.point, Ok(reading));
    }
    Ok(ns_each(1, || drop(black_box(search.ask(&mut rng)))) / 1e6)
}

/// The cost and the result of a search of [`TRIALS`] trials.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// CPU time of one more suggestion.
    took_ms: f64,
    /// Delay and frequency.
    chosen: [f64; 2],
}

/// How far a point is from the best.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Gap {
    /// Power over that of the best point that meets the bound, less one.
    over_pct: f64,
    /// Whether it misses the bound.
    violates: bool,
}

/// Searches of both on the same servers, in turn.
fn beside_ax(python: &Python, report: &mut Report) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for seed in 1..=SEARCHES as u64 {
        ours.push(search(seed)?);
        theirs.push(ax::search(python, seed)?);
    }
    let least = least_watts();
    for (who, found) in [("ours", &ours), ("Ax", &theirs)] {
        let gaps: Vec<Gap> = found.iter().map(|found| gap(least, &found.chosen)).collect();
        let took = Summary::new(found.iter().map(|found| found.took_ms));
        report.reported(&format!("suggestion beside Ax, {who}"), took, "ms");
        let over = Summary::new(gaps.iter().map(|gap| gap.over_pct));
        report.reported(&format!("power of the choice over the best, {who}"), over, "%");
        let violations = gaps.iter().filter(|gap| gap.violates).count();
        let name = format!("choices of {SEARCHES} that violate, {who}");
        report.reported(&name, Summary::new([violations as f64]), "choices");
    }
    report.note(format!(
        "Beside Ax: {SEARCHES} searches of {TRIALS} trials each, in turn, on the same server by \
         formulas; Ax with its defaults, power as objective and the tail as outcome constraint, \
         on one thread. A choice is judged by the formulas without noise; one that violates \
         may well take less than the best that does not. {}",
        python.versions(&["ax-platform", "botorch"])?
    ));
    Ok(())
}

/// One search of ours.
fn search(seed: u64) -> Result<Found> {
    let mut search = Search::new(space(), Rules::new(Method::Apart, BOUND_US, TRIALS));
    let mut rng = Rng::seed_from_u64(seed);
    while let Some(next) = search.ask(&mut rng) {
        let reading = server(&search.space().values(&next.point), &mut rng);
        search.tell(next.point, Ok(reading));
    }
    let choice = search.choice().context("a search without a choice")?;
    let values = search.space().values(&choice.point);
    let took_ms = suggestion_ms(Method::Apart, PriorMean::Constant, seed)?;
    Ok(Found { took_ms, chosen: [values[0], values[1]] })
}

/// Power of the best point that meets the bound.
fn least_watts() -> f64 {
    let space = space();
    let truths = space.points().map(|point| truth(&space.values(&point)));
    let met = truths.filter(|(tail_us, _)| *tail_us <= BOUND_US);
    met.map(|(_, watts)| watts).fold(f64::INFINITY, f64::min)
}

fn gap(least: f64, values: &[f64]) -> Gap {
    let (tail_us, watts) = truth(values);
    Gap { over_pct: (watts / least - 1.0) * 100.0, violates: tail_us > BOUND_US }
}

/// The knobs of Dong et al. 2026, section 3.2: delays on their square root.
fn space() -> Space {
    let most = f64::from(DELAYS - 1).sqrt();
    let levels = |count: u16, level: &dyn Fn(f64) -> (f64, f64)| -> Vec<Level> {
        let all = (0..count).map(|number| level(f64::from(number)));
        all.map(|(value, at)| Level { value, at, settings: Vec::new() }).collect()
    };
    let delays = levels(DELAYS, &|number| (2.0 * number, number.sqrt() / most));
    let frequencies =
        levels(FREQUENCIES, &|number| (1.2 + 0.1 * number, number / f64::from(FREQUENCIES - 1)));
    Space::new(vec![
        Dimension { knob: Capability::Coalescing, levels: delays, fast: 10 },
        Dimension { knob: Capability::Frequency, levels: frequencies, fast: FREQUENCIES - 1 },
    ])
}

/// Equations 1 and 2 with a queue that runs away, and power that delays and
/// frequencies move.
fn server(values: &[f64], rng: &mut Rng) -> Reading {
    let (tail_us, watts) = truth(values);
    let tail_us = tail_us * (1.0 + 0.04 * (rng.random::<f64>() - 0.5));
    let late = u64::from(tail_us > BOUND_US) * 2000;
    Reading { tail_us, watts, requests: 100_000, late, progress_per_s: None }
}

/// Its tail in microseconds and its power, without noise.
fn truth(values: &[f64]) -> (f64, f64) {
    let (delay, ghz) = (values[0], values[1]);
    let load = (0.9 + 20.0 / (delay + 40.0)) / ghz;
    let queue = if load < 0.97 { 1.0 / (1.0 - load) } else { 40.0 };
    let watts = 25.0 + 12.0 * ghz.powi(2) + 600.0 / (delay + 40.0);
    (60.0 * queue / ghz.powf(0.6) + 0.8 * delay, watts)
}

fn sweeps(scenario: &ServerScenario, report: &mut Report) -> Result<()> {
    let settings = scenario.grid.settings();
    let count = settings.len() * scenario.rates_per_s.len();
    let (mut cpu_s, mut wall_s) = (Vec::new(), Vec::new());
    for _ in 0..SWEEPS {
        let (cpu, wall) = (own_cpu_s(), Instant::now());
        let progress = Progress::silent();
        black_box(sweep(
            &scenario.model,
            &scenario.rates_per_s,
            &settings,
            scenario.run,
            &progress,
        )?);
        cpu_s.push((own_cpu_s() - cpu) / CORES);
        wall_s.push(wall.elapsed().as_secs_f64());
    }
    let what = format!("sweep of {count} pairs: CPU time over {CORES} cores");
    report.bounded(&what, Summary::new(cpu_s), "s", 0.0..=SWEEP_MAX_S);
    report.reported(&format!("sweep of {count} pairs: time"), Summary::new(wall_s), "s");
    report.note(format!(
        "The sweep is that of examples/tune/netserver.toml, {} simulated for each pair after {}; \
         its pairs are independent and run on all cores, so that the time on idle cores is the \
         CPU time over their number.",
        scenario.run.length, scenario.run.warmup
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_is_the_papers_and_the_server_has_points_on_both_sides_of_the_bound() {
        let space = space();
        assert_eq!(space.size(), 9000);
        let mut rng = Rng::seed_from_u64(1);
        let met = space
            .points()
            .filter(|point| server(&space.values(point), &mut rng).tail_us <= BOUND_US);
        let met = met.count();
        assert!((1000..8000).contains(&met), "{met}");
    }

    #[test]
    fn a_choice_is_judged_by_the_best_point_that_meets_the_bound() {
        let (space, least) = (space(), least_watts());
        let values = space.points().map(|point| space.values(&point));
        let all: Vec<Gap> = values.map(|values| gap(least, &values)).collect();
        let met = all.iter().filter(|gap| !gap.violates);
        assert!(met.clone().all(|gap| gap.over_pct >= 0.0));
        assert_eq!(met.filter(|gap| gap.over_pct == 0.0).count(), 1);
        assert!(all.iter().any(|gap| gap.violates && gap.over_pct < 0.0));
    }
}
