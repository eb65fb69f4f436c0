//! `lull calibrate idle`: measures how long cores must sleep to save energy.

use super::machine;
use crate::cli::CalibrateIdleArgs;
use crate::commands::{UsageError, print_json};
use crate::progress;
use crate::text::table;
use anyhow::Context;
use lull_control::CoreId;
use lull_host::Roots;
use lull_host::calibrate::Bench;
use lull_host::calibrate::idle::{BreakEven, Edge, Point, SLEEPS_US, break_even};
use lull_host::gauges::idle::IdleState;
use lull_host::knobs::hold::HoldRequest;
use lull_measure::{Nanos, Watts};
use serde::Serialize;

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Report {
    idle_state: String,
    /// The sleep from which the kernel enters the state, if it states one.
    target_residency_us: Option<f64>,
    meter: String,
    cores: usize,
    /// Power of the machine with all those cores awake, before and after.
    awake_watts: [f64; 2],
    points: Vec<Row>,
    /// Shorter stays cost more energy than staying awake.
    costs_until: Bound,
    /// Longer stays cost less energy than staying awake.
    saves_from: Bound,
    fitted: Option<Fitted>,
}

#[derive(Debug, Serialize)]
struct Row {
    sleep_us: f64,
    stay_us: f64,
    entries_per_second: f64,
    /// Power of one core beyond its power awake.
    extra_watts: f64,
}

/// A stay, and whether it lies before, at or beyond the measured range.
#[derive(Debug, Serialize)]
struct Bound {
    is: &'static str,
    stay_us: f64,
}

#[derive(Debug, Serialize)]
struct Fitted {
    break_even_us: f64,
    entry_joules: f64,
    saving_watts: f64,
    off_watts: f64,
}

/// The planned measurements.
struct Plan {
    state: IdleState,
    cores: Vec<CoreId>,
    sleeps: Vec<Nanos>,
}

pub(crate) fn run(args: &CalibrateIdleArgs) -> anyhow::Result<()> {
    machine::check(&args.measure)?;
    let roots = Roots::default();
    let plan = Plan::new(args, &roots)?;
    let meter = machine::meter(&roots)?;
    let (awake, points) = machine::measured(&args.measure, |bench| plan.measure(bench, args))?;
    // A difference in power below that of two unchanged measurements is not a difference.
    let noise = Watts((awake[0].0 - awake[1].0).abs() / 2.0 / plan.cores.len() as f64);
    let found = break_even(&points, noise)?;
    let report = Report {
        idle_state: plan.state.name.clone(),
        target_residency_us: plan.state.target_residency.map(Nanos::as_micros_f64),
        meter: meter.trim_start_matches("measured by ").to_owned(),
        cores: plan.cores.len(),
        awake_watts: awake.map(|watts| watts.0),
        points: points.iter().map(Row::from_point).collect(),
        costs_until: Bound::from_edge(found.costs_until),
        saves_from: Bound::from_edge(found.saves_from),
        fitted: fitted(&found),
    };
    // All knobs are restored: from here on a closed pipe may end the process.
    sigpipe::reset();
    if args.measure.json {
        return print_json(&report);
    }
    print(&report);
    Ok(())
}

impl Plan {
    fn new(args: &CalibrateIdleArgs, roots: &Roots) -> anyhow::Result<Self> {
        let here = machine::cores()?;
        let cores = match &args.cores {
            None => here,
            Some(wanted) => {
                if let Some(core) = wanted.iter().find(|core| !here.contains(core)) {
                    let why = format!("--cores {wanted}: core {core} is not to be used here");
                    return Err(UsageError(why).into());
                }
                wanted.iter().collect()
            }
        };
        let first = *cores.first().context("no core to measure")?;
        let states = IdleState::read_all(roots, first)
            .map_err(|why| anyhow::anyhow!("idle states cannot be measured here: {why}"))?;
        let state = match &args.idle_state {
            None => states.last().cloned(),
            Some(name) => states.iter().find(|state| state.name == *name).cloned(),
        };
        let known = || states.iter().map(|state| state.name.as_str()).collect::<Vec<_>>();
        let state = state.ok_or_else(|| {
            let wanted = args.idle_state.as_deref().unwrap_or_default();
            UsageError(format!("--idle-state {wanted}: there are {}", known().join(", ")))
        })?;
        let sleeps = match args.sleep.is_empty() {
            true => SLEEPS_US.map(Nanos::from_micros).to_vec(),
            false => args.sleep.clone(),
        };
        Ok(Self { state, cores, sleeps })
    }

    /// Measures the power of awake cores before and after, and a point for each sleep in between.
    fn measure(
        &self,
        bench: &mut Bench,
        args: &CalibrateIdleArgs,
    ) -> anyhow::Result<([Watts; 2], Vec<Point>)> {
        let each = (args.measure.settle + args.measure.dwell).as_secs_f64();
        let bar = progress::seconds((each * (self.sleeps.len() + 2) as f64) as u64);
        bench.hold(HoldRequest::IdleState(self.state.name.clone()))?;
        let before = bench.awake(&self.cores)?;
        bar.inc(each.round() as u64);
        let mut points = Vec::new();
        for sleep in &self.sleeps {
            points.push(bench.asleep(&self.cores, &self.state.name, *sleep, before)?);
            bar.inc(each.round() as u64);
        }
        let after = bench.awake(&self.cores)?;
        bar.finish_and_clear();
        Ok(([before, after], points))
    }
}

impl Row {
    fn from_point(point: &Point) -> Self {
        Self {
            sleep_us: point.sleep.as_micros_f64(),
            stay_us: point.stay.as_micros_f64(),
            entries_per_second: point.entries_per_s,
            extra_watts: point.extra.0,
        }
    }
}

impl Bound {
    fn from_edge(edge: Edge) -> Self {
        let (is, stay) = match edge {
            Edge::Before(stay) => ("before", stay),
            Edge::At(stay) => ("at", stay),
            Edge::Beyond(stay) => ("beyond", stay),
        };
        Self { is, stay_us: stay.as_micros_f64() }
    }
}

fn fitted(found: &BreakEven) -> Option<Fitted> {
    found.fitted.map(|entry| Fitted {
        break_even_us: entry.break_even.as_micros_f64(),
        entry_joules: entry.cost.0,
        saving_watts: entry.saving.0,
        off_watts: entry.residual.0,
    })
}

fn print(report: &Report) {
    let rows = report.points.iter().map(|point| {
        vec![
            format!("{:.0}", point.sleep_us),
            format!("{:.0}", point.stay_us),
            format!("{:.0}", point.entries_per_second),
            format!("{:+.3}", point.extra_watts),
        ]
    });
    let header = ["sleep, us", "stay, us", "entries/s", "W a core beyond awake"];
    println!("{}\n", table(&header, rows));
    let Bound { is, stay_us } = &report.saves_from;
    println!("{} saves {is} {stay_us:.0} us (T)", report.idle_state);
    let Bound { is, stay_us } = &report.costs_until;
    println!("it costs more than staying awake until {is} {stay_us:.0} us");
    match &report.fitted {
        Some(fit) => println!(
            "fitted: an entry costs {:.3e} J, sleep saves {:.3} W a core, even at {:.0} us, off by \
             {:.3} W",
            fit.entry_joules, fit.saving_watts, fit.break_even_us, fit.off_watts
        ),
        None => println!("no curve of an entry's cost fits"),
    }
    if let Some(target_us) = report.target_residency_us {
        println!("the kernel enters it for {target_us:.0} us or more");
    }
    let [before, after] = report.awake_watts;
    println!(
        "{} cores, by {}: {before:.2} W awake before, {after:.2} W after",
        report.cores, report.meter
    );
}
