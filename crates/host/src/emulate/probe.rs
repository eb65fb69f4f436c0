//! How much slower a core is for a loop of known work.
//!
//! The loop runs on the core with the cycler and without it in short windows in
//! turn, so that a change of its frequency is in both. It is of the real-time
//! class itself, below the cycler: what else runs on the core would come and go
//! between windows (normal loops measured 1.8 to 2.8 for 2 beside two
//! compilers). The ratio of a pair is one sample; the median counts, since a
//! machine's other guests only ever spoil some.

use super::Cycler;
use crate::sys::sched::{RESET_ON_FORK, SchedState, set_affinity, set_scheduling};
use lull_control::CoreId;
use lull_measure::Nanos;
use std::hint::black_box;
use std::io;
use std::thread::scope;
use std::time::{Duration, Instant};

/// Pairs of windows, and how long a window is: a second in all.
const PAIRS: usize = 15;
const WINDOW: Duration = Duration::from_millis(25);
/// The pause after each pair: real-time threads may not have the core all the time.
const REST: Duration = Duration::from_millis(15);
/// The time that the cycler needs to begin or end its pause.
const SETTLE: Duration = Duration::from_millis(5);
/// Steps of the loop between two looks at the clock: some 10 us.
const STEPS: u32 = 10_000;

/// How many times slower the core is with the cycler busy for this long each period.
///
/// # Errors
/// If the loop's thread cannot be had or pinned.
pub(super) fn slowdown(core: CoreId, cycler: &Cycler, busy: Nanos) -> io::Result<f64> {
    let measure = || -> io::Result<Vec<f64>> {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        set_affinity(me, &[core].into_iter().collect())?;
        let policy = libc::SCHED_FIFO.cast_unsigned() | RESET_ON_FORK;
        set_scheduling(me, SchedState { policy, rt_priority: 1, nice: 0 })?;
        Ok((0..PAIRS).map(|_| pair(cycler, busy)).collect())
    };
    let measured = scope(|scope| {
        std::thread::Builder::new()
            .name("lull-probe".to_owned())
            .spawn_scoped(scope, measure)
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })??;
    Ok(median(measured))
}

fn pair(cycler: &Cycler, busy: Nanos) -> f64 {
    cycler.set_busy(Nanos::ZERO);
    std::thread::sleep(SETTLE);
    let whole = rate();
    cycler.set_busy(busy);
    std::thread::sleep(SETTLE);
    let slowed = rate();
    std::thread::sleep(REST);
    whole / slowed
}

/// Rounds of the loop a second, over a window.
fn rate() -> f64 {
    let (begin, mut rounds, mut seed) = (Instant::now(), 0u32, 1u64);
    loop {
        for _ in 0..STEPS {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        seed = black_box(seed);
        rounds += 1;
        let spent = begin.elapsed();
        if spent >= WINDOW {
            return f64::from(rounds) / spent.as_secs_f64();
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spoilt_pair_does_not_count() {
        assert_eq!(median(vec![2.0, 9.0, 2.1, 0.1, 1.9]), 2.0);
    }
}
