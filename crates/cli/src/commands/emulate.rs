//! `lull lab emulate`: a core made slower by a duty cycler.

use super::UsageError;
use crate::cli::EmulateArgs;
use crate::signals;
use crate::{alongside, say};
use anyhow::bail;
use lull_control::CoreId;
use lull_host::Roots;
use lull_host::emulate::{Cycler, EmulateError, Emulated, TOLERANCE};
use lull_measure::Nanos;
use serde::Serialize;
use std::time::Instant;

/// The output once the core is slow.
#[derive(Serialize)]
struct Accepted {
    core: u16,
    planned_slowdown: f64,
    measured_slowdown: f64,
    tolerance: f64,
}

pub(crate) fn run(args: &EmulateArgs) -> anyhow::Result<()> {
    let stop = signals::stop_request()?;
    let plan = Emulated { core: CoreId(args.core), slowdown: args.slowdown, period: args.period };
    let (cycler, measured) = plan.start(&Roots::default()).map_err(|error| match error {
        EmulateError::Range { .. } | EmulateError::Period(_) => {
            anyhow::Error::new(UsageError(error.to_string()))
        }
        other => other.into(),
    })?;
    announce(args, measured)?;
    let (begin, before) = (Instant::now(), cycler.taken());
    let is_over = || Ok(args.duration.is_some_and(|most| Nanos::from(begin.elapsed()) >= most));
    let outcome = alongside::run(&args.command, &stop, |_| Ok(()), is_over);
    let span = Nanos::from(begin.elapsed());
    let share = check_share(&cycler, before, span, measured);
    drop(cycler);
    outcome.and(share)
}

fn announce(args: &EmulateArgs, measured: f64) -> anyhow::Result<()> {
    if args.json {
        return super::print_json(&Accepted {
            core: args.core,
            planned_slowdown: args.slowdown,
            measured_slowdown: measured,
            tolerance: TOLERANCE,
        });
    }
    say::notice(format_args!(
        "core {} is {measured:.2} times slower for a loop of known work (planned {} within \
         {:.0} %)",
        args.core,
        args.slowdown,
        100.0 * TOLERANCE
    ));
    Ok(())
}

/// Checks that the cycler got its share of the core to the end: a throttle or another
/// real-time thread can take it away without an error.
fn check_share(cycler: &Cycler, before: Nanos, span: Nanos, measured: f64) -> anyhow::Result<()> {
    // A second holds some thousand periods; a shorter span is too noisy to judge.
    if span < Nanos::from_secs(1) {
        return Ok(());
    }
    let share = cycler.taken().saturating_sub(before).as_secs_f64() / span.as_secs_f64();
    let lost = 1.0 - 1.0 / measured;
    say::notice(format_args!("the cycler took {:.1} % of the core", 100.0 * share));
    // The slow-down includes switching costs and the share does not, so that only a share
    // that is too low shows a loss.
    let slow = 1.0 / (1.0 - share.min(0.999));
    if share < lost && slow < (1.0 - 2.0 * TOLERANCE) * measured {
        bail!(
            "the core was slowed less than accepted: the cycler took {:.1} % of it, which is \
             {slow:.2} times slower and not {measured:.2}; is another real-time thread on it, or \
             is the real-time throttle lower than stated?",
            100.0 * share
        );
    }
    Ok(())
}
