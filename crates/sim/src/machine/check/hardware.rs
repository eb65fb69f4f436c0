//! Checks of what cores are made of: frequencies and power.

use crate::machine::model::MachineModel;
use crate::machine::parts::{Power, Scaling};
use crate::model::{Checked, above_0, at_least_0, at_least_one, at_most, range, refuse_if};
use lull_measure::{Hertz, Nanos};

/// Most steps of frequency.
const MOST_STEPS: u64 = 1000;
/// Longest change of frequency.
const LONGEST_CHANGE: Nanos = Nanos::from_millis(10);

pub(super) fn check_scaling(scaling: &Scaling, machine: &MachineModel) -> Checked {
    let (low, high) = (scaling.lowest.0 as f64, machine.frequency.0 as f64);
    let wanted = "above 0 and at most the highest frequency";
    range(low, low >= 1.0 && low <= high, wanted, "scaling.lowest")?;
    check_steps(scaling, machine.frequency)?;
    at_least_one(u64::from(scaling.domain), "cores", "scaling.domain")?;
    let is_uneven = !machine.cores.is_multiple_of(scaling.domain);
    refuse_if(is_uneven, "scaling.domain", "frequency domains must share the cores evenly")?;
    let takes_time = machine.run_queues.is_some() && scaling.latency > Nanos::ZERO;
    let at_once = "frequencies change at once under `run-queues`: leave it out";
    refuse_if(takes_time, "scaling.latency", at_once)?;
    let (latency, is_short) = (scaling.latency.0 as f64, scaling.latency <= LONGEST_CHANGE);
    range(latency, is_short, "at most 10 ms", "scaling.latency")?;
    let Some(period) = scaling.governor.period() else { return Ok(()) };
    scaling.governor.check("scaling.governor")?;
    let longest = "less than the period in which the governor looks";
    range(latency, scaling.latency < period, longest, "scaling.latency")
}

/// Frequencies are even steps, or a list from the lowest to the highest.
fn check_steps(scaling: &Scaling, highest: Hertz) -> Checked {
    let Scaling { lowest, step, steps, .. } = scaling;
    if steps.is_empty() {
        above_0(step.0 as f64, "scaling.step")?;
        let count = (highest.0 - lowest.0) / step.0;
        return at_most(count, MOST_STEPS, "steps of frequency", "scaling.step");
    }
    at_most(steps.len() as u64, MOST_STEPS, "steps of frequency", "scaling.steps")?;
    let reaches = steps.first() == Some(lowest) && steps.last() == Some(&highest);
    let is_wrong = !reaches || !steps.is_sorted_by(|a, b| a < b);
    let order = "list each frequency once, from `lowest` to the machine's `frequency`";
    refuse_if(is_wrong, "scaling.steps", order)
}

pub(super) fn check_power(power: &Power) -> Checked {
    at_least_0(power.active_base.0, "power.active_base")?;
    at_least_0(power.active_dynamic.0, "power.active_dynamic")?;
    at_least_0(power.leakage.0, "power.leakage")?;
    at_least_0(power.fixed.0, "power.fixed")?;
    at_least_0(power.uncore.0, "power.uncore")?;
    let scales = power.uncore_scales;
    range(scales, (0.0..=1.0).contains(&scales), "0 to 1", "power.uncore_scales")?;
    let ratio = power.voltage_ratio;
    range(ratio, (0.01..=1.0).contains(&ratio), "from 0.01 to 1", "power.voltage_ratio")
}
