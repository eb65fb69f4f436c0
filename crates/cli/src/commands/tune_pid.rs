//! `lull lab tune-pid`: gains from open-loop step responses.

use super::UsageError;
use super::save::{self, Destination};
use crate::cli::TunePidArgs;
use crate::progress::{lab_setup, parts};
use crate::text::table;
use lull_lab::figure::svg;
use lull_lab::tune::{TuneError, Tuned, figures, tune};

pub(crate) fn run(args: &TunePidArgs) -> anyhow::Result<()> {
    super::check_rates(&args.rate)?;
    super::check_target(args.target)?;
    let figure = args.figure.as_deref().map(Destination::new).transpose()?;
    let bar = parts().with_message("tune-pid");
    let setup = lab_setup(&bar, args.seed, args.quick);
    let one = |rate: &f64| tune(&setup, args.target, *rate).map_err(classify);
    let tuned: Vec<Tuned> = args.rate.iter().map(one).collect::<Result<_, _>>()?;
    bar.finish_and_clear();
    if let Some(to) = &figure {
        let drawing = svg(&figures(&tuned, args.target))?;
        save::all(&[(to, drawing.into_bytes())])?;
    }
    if args.json {
        return super::print_json(&tuned);
    }
    print(&tuned);
    Ok(())
}

/// Classifies an error: a load that cannot be controlled, or a target out of reach, is
/// bad input.
fn classify(error: TuneError) -> anyhow::Error {
    match error {
        TuneError::Flat { .. } | TuneError::Overload { .. } => UsageError(error.to_string()).into(),
        TuneError::Lab(error) => error.into(),
    }
}

fn print(tuned: &[Tuned]) {
    let row = |one: &Tuned| {
        vec![
            format!("{}", one.rate_per_s),
            format!("{:.2}", one.plant.gain),
            format!("{:.1}", one.plant.epochs),
            format!("{:.1}", one.plant.dead_epochs),
            format!("{:.2}", one.kp),
            format!("{:.2}", one.ki),
            settles(one),
        ]
    };
    let head = ["requests/s", "ms a ms", "lag (epochs)", "dead (epochs)", "Kp", "Ki", "settles in"];
    println!("{}", table(&head, tuned.iter().map(row)));
    println!("gains for [dispatcher] name = \"eetl\"; an epoch is 500 answers");
}

/// Returns the epoch from which the expected tail stays within 2 % of its final value.
fn settles(one: &Tuned) -> String {
    let Some(end) = one.expected_ms.last() else { return "-".to_owned() };
    let off = |ms: &f64| (ms / end - 1.0).abs() > 0.02;
    match one.expected_ms.iter().rposition(off) {
        Some(epoch) => format!("{} epochs", epoch + 1),
        None => "immediately".to_owned(),
    }
}
