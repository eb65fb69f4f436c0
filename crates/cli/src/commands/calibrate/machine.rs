//! Measurements on this machine: ledger and guard restore its knobs however a measurement
//! ends.

use crate::cli::MeasureArgs;
use crate::commands::{UsageError, put_back};
use crate::say;
use crate::signals;
use anyhow::Context;
use lull_agent::guarded;
use lull_control::{CoreId, Plant};
use lull_host::apps::GRACE;
use lull_host::calibrate::Bench;
use lull_host::gauges::energy::{Energy, PowerModel};
use lull_host::guard::{GuardCommand, Patience, StateDir};
use lull_host::sys::sched::affinity_of;
use lull_host::{HostConfig, HostPlant, Roots};
use lull_measure::Nanos;

/// A measurement shorter than this has readings shorter than a kernel's tick.
const DWELL_MIN: Nanos = Nanos::from_millis(400);

/// Returns the power meter of this machine.
///
/// # Errors
/// If there is none: every meter and why it is missing.
pub(super) fn meter(roots: &Roots) -> anyhow::Result<String> {
    let found = Energy::measured(roots).map(|meter| meter.source().to_string());
    found.map_err(|why| {
        anyhow::anyhow!(
            "nothing measures energy here ({why}): calibrate on a machine of the same kind that \
             has a meter"
        )
    })
}

/// Refuses lengths that are too short to measure.
pub(super) fn check(args: &MeasureArgs) -> Result<(), UsageError> {
    if args.dwell < DWELL_MIN {
        let message = format!("--dwell {:.0}: too short, write {DWELL_MIN:.0} or more", args.dwell);
        return Err(UsageError(message));
    }
    Ok(())
}

/// The cores that this process may use.
pub(super) fn cores() -> anyhow::Result<Vec<CoreId>> {
    let me = std::process::id().cast_signed();
    Ok(affinity_of(me).context("cannot determine which cores may be used")?.iter().collect())
}

/// Runs a measurement that may set the knobs of this machine.
///
/// # Errors
/// If the measurement fails, or a knob cannot be restored after it.
pub(super) fn measured<T>(
    args: &MeasureArgs,
    measure: impl FnOnce(&mut Bench) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let roots = Roots::default();
    let stop = signals::stop_request()?;
    let place = StateDir::locate(args.state.as_deref())?;
    let (ledger, guard) =
        guarded::open_ledger(place, &roots, GuardCommand::default(), &|text| say::notice(text))?;
    let mut plant = HostPlant::new(HostConfig {
        apps: Vec::new(),
        push: None,
        power: PowerModel::default(),
        ledger,
        foreign_wins: true,
        stop,
        roots: roots.clone(),
    })?;
    // The measurement ends where its guard is lost.
    plant.set_guard(guard.clone());
    let mut bench = Bench::new(plant, roots, args.settle, args.dwell)?;
    let found = measure(&mut bench);
    let mut plant = bench.into_plant();
    // Restoring takes a moment. If the guard is lost, it restores all the same.
    let _ = plant.beat(Patience::Long);
    let is_back = put_back(plant.ledger_mut());
    let _ = plant.restore();
    is_back?;
    // No app was started here, so none can be left.
    let _ = plant.close(GRACE)?;
    guard.finish()?;
    found
}
