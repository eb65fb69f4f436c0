//! A server as a fluid: bursts of work, a backlog, and a governor.
//!
//! The smallest model in which a governor can be in step with its load or out
//! of step: work flows in at a high or a low rate, in turns of half a cycle,
//! and flows out at a speed proportional to the frequency. No randomness, so
//! what is seen is the controller's doing alone.

use super::*;
use crate::toolkit::domains::testing::{load, xeon};

/// Load while high and low, as shares of the full speed: 3 to 1 as in section 4.2.
const HIGH: f64 = 0.85;
const LOW: f64 = HIGH / 3.0;
/// Time step of the integration; every window is a whole number of them.
const TICK: Nanos = Nanos::from_millis(1);

/// Mean backlog in seconds of work at full speed, which is what the paper's Error counts.
pub(crate) fn mean_backlog_s(governor: &mut impl Governor, cycle_s: f64) -> f64 {
    let table = xeon();
    let full = table.highest().0 as f64;
    let first = governor.start(&table).map_or(table.lowest(), |choice| choice.frequency);
    let (mut frequency, mut backlog, mut sum) = (first, 0.0f64, 0.0);
    let (mut busy, mut elapsed) = (0.0, Nanos::ZERO);
    let ticks = 200_000;
    for tick in 0..ticks {
        let now = TICK * tick;
        let is_high = (now.as_secs_f64() / cycle_s).fract() >= 0.5;
        let arriving = if is_high { HIGH } else { LOW } * TICK.as_secs_f64();
        let capacity = frequency.0 as f64 / full * TICK.as_secs_f64();
        let done = (backlog + arriving).min(capacity);
        backlog += arriving - done;
        sum += backlog;
        busy += done / capacity;
        elapsed += TICK;
        if elapsed >= governor.window() {
            let ticks = elapsed.0 / TICK.0;
            let share = load(busy / ticks as f64, elapsed, frequency);
            if let Some(choice) = governor.after(&table, share, now) {
                frequency = choice.frequency;
            }
            (busy, elapsed) = (0.0, Nanos::ZERO);
        }
    }
    sum / ticks as f64
}
