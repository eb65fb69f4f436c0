//! The cost of the house rules, which run before every commit.

use super::stats::{Summary, interleave};
use super::{Bench, Context, process, report::Report};
use anyhow::Result;
use std::process::{Command, Stdio};

pub(super) const BENCH: Bench = Bench {
    name: "tidy",
    about: "The house rules over the whole tree: time, CPU and memory of `cargo xtask tidy`",
    run,
};

const ROUNDS: usize = 7;
/// Above this, people stop running it before each commit.
const WALL_S_MAX: f64 = 5.0;

fn run(context: &Context) -> Result<Report> {
    let xtask = context.build("xtask", "xtask")?;
    let mut costs = Vec::new();
    let [wall_s] = interleave(
        ROUNDS,
        &mut [&mut || {
            let mut command = Command::new(&xtask);
            command.current_dir(&context.root).arg("tidy").stdout(Stdio::null());
            let cost = process::cost(&mut command)?;
            costs.push(cost);
            Ok(cost.wall_s)
        }],
    )?;
    let counted = &costs[costs.len() - ROUNDS..];
    let mut report = Report::default();
    report.bounded("time", Summary::new(wall_s), "s", 0.0..=WALL_S_MAX);
    report.reported("CPU time", Summary::new(counted.iter().map(|cost| cost.cpu_s)), "s");
    let memory = Summary::new(counted.iter().map(|cost| cost.rss_peak_mib));
    report.reported("peak resident memory", memory, "MiB");
    report.note(format!("{ROUNDS} runs of the optimised binary; the first run warms up."));
    Ok(report)
}
