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
use lull_agent::recorded::{RecordPart, Recorded};
use lull_lab::PolicySource;
use lull_lab::progress::Progress;
use lull_lab::replay::{Effort, Fit, Replay, ReplayError, Reproduced, Steered};
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
    let wanted = RecordPart { part: args.part.as_deref(), skip: args.skip };
    let recorded = Recorded::read(&args.run, wanted)?;
    let stop = stop_flag()?;
    let is_stopped = || stop.load(Ordering::Relaxed);
    let effort = Effort { replications: args.seeds, seed: args.seed, ..Effort::default() };
    let others = args.policy.iter().map(|name| {
        let policy = PolicySource::registered(name).map(|policy| recorded.steered(policy));
        policy.map_err(|error| UsageError(format!("--policy: {error}")))
    });
    let others = others.collect::<Result<Vec<_>, UsageError>>()?;
    let refuse = |error: ReplayError| refusal(args, error);
    let replay =
        Replay::new(&recorded.recording, recorded.acted(), effort, &is_stopped).map_err(refuse)?;
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
    let bar = parts().with_message("calibrating");
    let progress = Progress::new(|done, expected| {
        bar.set_length(expected);
        bar.set_position(done);
    });
    let answer = replay
        .answer(others, args.max_error / 100.0, &progress, || bar.set_message("replaying"))
        .map_err(|error| refusal(args, error))?;
    let reproduction = &answer.reproduction;
    bar.finish_and_clear();
    let report = Report {
        run: args.run.display().to_string(),
        policy: &recorded.policy,
        skip_s: recorded.recording.skip.as_secs_f64(),
        share: reproduction.share,
        replications: args.seeds,
        fit: &answer.fit,
        reproduction: &reproduction.figures,
        error: answer.error,
        error_of: &answer.error_of,
        error_max: answer.error_max,
        demand_error: reproduction.demand_error,
        notices: &recorded.notices,
        prediction: answer.prediction.as_ref(),
    };
    if args.json {
        super::print_json(&report)?;
    } else {
        print(&report);
    }
    match &answer.prediction {
        Some(_) => Ok(()),
        None => Err(UsageError(answer.shortfall(args.run.display(), &recorded.policy)).into()),
    }
}

/// Classifies an error: a fault of the record or of the policies is bad input.
fn refusal(args: &ReplayArgs, error: ReplayError) -> anyhow::Error {
    match error {
        ReplayError::Stopped => error.into(),
        other => UsageError(other.of_run(args.run.display())).into(),
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
