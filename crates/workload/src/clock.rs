//! The one clock of loads and apps: `CLOCK_MONOTONIC`.

use lull_measure::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, the same for every process of the machine.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // The kernel keeps both parts from being negative on this clock.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
