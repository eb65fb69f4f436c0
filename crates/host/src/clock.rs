//! The kernel's clocks, as time since each of them began.

use lull_measure::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Reads a clock.
pub(crate) fn read(clock: ClockId) -> Nanos {
    let now = clock_gettime(clock);
    Nanos(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}

/// The time since boot, in clock ticks, as the kernel gives the start times of processes.
pub(crate) fn boot_ticks() -> u64 {
    let nanos_per_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    read(ClockId::Boottime).0 / nanos_per_tick
}

/// Reads `CLOCK_MONOTONIC`, which gauges, pages and programs in the kernel use.
pub fn monotonic() -> Nanos {
    read(ClockId::Monotonic)
}
