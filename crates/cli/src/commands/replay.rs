//! `lull replay`: predicts what other policies would have done with a recorded run.
//!
//! The recorded policy is replayed first, on a simulated machine fitted to the record.
//! Other policies are predicted only if that replay reproduces the record.

use super::UsageError;
use crate::cli::ReplayArgs;
use crate::progress::parts;
use crate::say::notice;
use crate::signals::stop_flag;
use crate::text::{number, table};
use lull_agent::recorded::{Recorded, Wanted};
use lull_lab::progress::Progress;
use lull_lab::replay::{Effort, Fit, Replay, ReplayError, Reproduced, Reproduction, Steered};
use lull_lab::scenario::Outcome;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// The result of a replay.
#[derive(Debug, Serialize)]
struct Report<'a> {
    run: String,
    /// The policy that acted.
    policy: &'a str,
    skip_s: f64,
    /// Share of the recorded epochs that were simulated.
    share: f64,
    replications: u64,
    fit: &'a Fit,
    reproduction: &'a [Reproduced],
    /// The largest error and its figure.
    error: f64,
    error_of: &'a str,
    error_max: f64,
    /// Possible error of the demand of requests, as a share of the demand.
    demand_error: f64,
    notices: &'a [String],
    /// Absent where the record was not reproduced.
    prediction: Option<&'a Outcome>,
}

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    if !(args.max_error > 0.0 && args.max_error.is_finite()) {
        let what = format!("--max-error {}: write a percentage above 0", args.max_error);
        return Err(UsageError(what).into());
    }
    let wanted = Wanted { part: args.part.as_deref(), skip: args.skip };
    let recorded = Recorded::read(&args.run, wanted)?;
    let stop = stop_flag()?;
    let is_stopped = || stop.load(Ordering::Relaxed);
    let effort = Effort { replications: args.seeds, seed: args.seed, ..Effort::default() };
    let steered = |policy: &str| Steered {
        policy: policy.to_owned(),
        config: recorded.config.under(policy).policy_keys,
    };
    let others: Vec<Steered> = args.policy.iter().map(|policy| steered(policy)).collect();
    for name in &args.policy {
        lull_policies::POLICIES
            .find(name)
            .map_err(|error| UsageError(format!("--policy: {error}")))?;
    }
    let refuse = |error: ReplayError| refusal(args, error);
    let replay = Replay::new(&recorded.recording, steered(&recorded.policy), effort, &is_stopped)
        .map_err(refuse)?;
    others.iter().try_for_each(|other| replay.check_policy(other)).map_err(refuse)?;
    recorded.notices.iter().for_each(notice);
    replayed(args, &recorded, &replay, &others)
}

/// Calibrates the model, replays the record, and predicts if the replay reproduces it.
fn replayed(
    args: &ReplayArgs,
    recorded: &Recorded,
    replay: &Replay<'_>,
    others: &[Steered],
) -> anyhow::Result<()> {
    let refuse = |error: ReplayError| refusal(args, error);
    let bar = parts().with_message("calibrating");
    let progress = Progress::new(|done, expected| {
        bar.set_length(expected);
        bar.set_position(done);
    });
    let fit = replay.calibrate(&progress).map_err(refuse)?;
    bar.set_message("replaying");
    let reproduction = replay.reproduce(&fit, &progress).map_err(refuse)?;
    let (error, of) = worst(&reproduction);
    let is_good = error <= args.max_error / 100.0;
    let prediction = match is_good {
        true => Some(replay.predict(&fit, &reproduction, others, &progress).map_err(refuse)?),
        false => None,
    };
    bar.finish_and_clear();
    let report = Report {
        run: args.run.display().to_string(),
        policy: &recorded.policy,
        skip_s: recorded.recording.skip.as_secs_f64(),
        share: reproduction.share,
        replications: args.seeds,
        fit: &fit,
        reproduction: &reproduction.figures,
        error,
        error_of: of,
        error_max: args.max_error / 100.0,
        demand_error: reproduction.demand_error,
        notices: &recorded.notices,
        prediction: prediction.as_ref().map(|prediction| &prediction.outcome),
    };
    if args.json {
        super::print_json(&report)?;
    } else {
        print(&report);
    }
    if is_good {
        return Ok(());
    }
    let what = format!(
        "{}: the replay of `{}` is off by {} % in {of}, above --max-error {} %: nothing is \
         predicted. Record on a quieter machine, longer, or choose the steady part with --skip",
        args.run.display(),
        recorded.policy,
        number(100.0 * error),
        args.max_error
    );
    Err(UsageError(what).into())
}

/// Returns the largest error and its figure; without any figure the error is too large for a
/// prediction.
fn worst(reproduction: &Reproduction) -> (f64, &str) {
    let found = reproduction.worst();
    found.map_or((f64::INFINITY, "all figures: too few answers to judge any"), |(figure, error)| {
        (error, figure.quantity.id.as_str())
    })
}

/// Classifies an error: a fault of the record or of the policies is bad input.
fn refusal(args: &ReplayArgs, error: ReplayError) -> anyhow::Error {
    let run = args.run.display();
    match error {
        ReplayError::Unfit(why) => UsageError(format!("{run} cannot be replayed: {why}")).into(),
        ReplayError::Policy(_) | ReplayError::Beyond { .. } | ReplayError::Model(_) => {
            UsageError(format!("{run}: {error}")).into()
        }
        ReplayError::Stopped => error.into(),
    }
}

fn print(report: &Report<'_>) {
    println!(
        "{}: the run under `{}` as recorded, and replayed {} times\n",
        report.run, report.policy, report.replications
    );
    let rows = report.reproduction.iter().map(|figure| {
        let known = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let error =
            figure.error.map_or_else(String::new, |error| format!("{} %", number(100.0 * error)));
        let quantity = &figure.quantity;
        let (measured, replayed) = (known(figure.measured), known(figure.replayed));
        vec![quantity.name.clone(), quantity.unit.to_owned(), measured, replayed, error]
    });
    println!("{}", table(&["figure", "unit", "measured", "replayed", "error"], rows));
    println!(
        "\nlargest error {} % ({}); up to {} % is answered",
        number(100.0 * report.error),
        report.error_of,
        number(100.0 * report.error_max)
    );
    if report.share < 1.0 {
        println!(
            "of the recorded epochs that count, a part was simulated: {} %, in windows spread \
             evenly",
            number(100.0 * report.share)
        );
    }
    let Some(outcome) = report.prediction else { return };
    println!();
    super::sim::show::outcome(outcome);
    println!(
        "- intervals are of the simulation, with what requests demand {} % smaller and larger; how \
         far the model itself is off, the errors say",
        number(100.0 * report.demand_error)
    );
    report.notices.iter().for_each(|notice| println!("- {notice}"));
}
