//! `lull calibrate power`: a model of this machine's power, fitted to its meter.

use super::machine;
use crate::cli::CalibratePowerArgs;
use crate::commands::{print_json, save};
use crate::progress;
use lull_agent::power_file::{Calibration, PowerFile};
use lull_control::Capability;
use lull_control::CoreId;
use lull_host::calibrate::Bench;
use lull_host::calibrate::power::{PowerSample, Step, fit, steps};
use lull_host::gauges::idle::IdleState;
use lull_host::{Roots, probe};

pub(crate) fn run(args: &CalibratePowerArgs) -> anyhow::Result<()> {
    machine::check(&args.measure)?;
    let to = save::Destination::new(&args.output)?;
    let roots = Roots::default();
    let meter = machine::meter(&roots)?;
    let here = probe::machine(&roots)?;
    let cores = machine::cores()?;
    let sets_frequency = here.capabilities.has(Capability::Frequency);
    let plan = steps(&cores, sets_frequency, has_depth(&roots));
    let samples = machine::measured(&args.measure, |bench| all(bench, &plan, args))?;
    let found = fit(&samples)?;
    let calibration = Calibration {
        machine: here.name,
        cores: cores.len(),
        meter: meter.trim_start_matches("measured by ").to_owned(),
        steps: samples.len(),
        off_watts: found.left_out.0,
        residual_watts: found.residual.0,
        explained_ratio: found.explained,
        notes: found.notes,
        version: lull_agent::VERSION.to_owned(),
    };
    let file = PowerFile::new(&found.model, calibration);
    save::all(&[(&to, toml::to_string(&file)?.into_bytes())])?;
    // All knobs are restored: from here on a closed pipe may end the process.
    sigpipe::reset();
    if args.measure.json {
        return print_json(&file);
    }
    print(&file, args);
    Ok(())
}

/// Whether the cores have at least two idle states with an exit latency, so that a
/// shallow and a deeper one can be distinguished.
fn has_depth(roots: &Roots) -> bool {
    let states = IdleState::read_all(roots, CoreId(0)).unwrap_or_default();
    states.iter().filter(|state| state.exit_latency.0 > 0).count() > 1
}

fn all(
    bench: &mut Bench,
    plan: &[Step],
    args: &CalibratePowerArgs,
) -> anyhow::Result<Vec<PowerSample>> {
    let each = args.measure.settle + args.measure.dwell;
    let bar = progress::seconds((each.as_secs_f64() * plan.len() as f64) as u64);
    let mut samples = Vec::new();
    for step in plan {
        samples.push(bench.step(step)?);
        bar.inc(each.as_secs_f64().round() as u64);
    }
    bar.finish_and_clear();
    Ok(samples)
}

fn print(file: &PowerFile, args: &CalibratePowerArgs) {
    let Calibration { machine, meter, steps, off_watts, explained_ratio, notes, .. } =
        &file.calibration;
    println!("{}", file.model().source());
    println!(
        "{steps} steps on {machine} against {meter}: off by {off_watts:.2} W on steps left out of \
         the fit, {:.1} % of the variance explained",
        100.0 * explained_ratio
    );
    for note in notes {
        println!("  {note}");
    }
    println!("written: {}", args.output.display());
}
