//! Threads that keep cores busy, or wake them repeatedly, one each.

use crate::sys::sched::set_affinity;
use lull_control::{CoreId, CoreSet};
use lull_measure::Nanos;
use std::hint::black_box;
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Additions and multiplications between two checks of whether to continue.
const ROUND: u64 = 4096;
/// The kernel may be late by this many nanoseconds to wake several at once; the
/// usual 50 us would be longer than the shortest sleeps.
const SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// Threads at work until this is dropped.
#[derive(Debug)]
pub struct BusyThreads {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    /// Keeps these cores busy with arithmetic that stays in registers. Other
    /// work takes other power.
    ///
    /// # Errors
    /// If a thread cannot be started, or may not run on a core.
    pub fn busy(cores: &[CoreId]) -> io::Result<Self> {
        Self::on(cores, |over| {
            let mut value = 1_u64;
            while !over.load(Ordering::Relaxed) {
                for step in 0..ROUND {
                    value = black_box(value.wrapping_mul(6_364_136_223_846_793_005) + step);
                }
            }
        })
    }

    /// Puts these cores to sleep for this long, repeatedly.
    ///
    /// # Errors
    /// As [`BusyThreads::busy`].
    pub fn asleep(cores: &[CoreId], span: Nanos) -> io::Result<Self> {
        let span = std::time::Duration::from_nanos(span.0);
        Self::on(cores, move |over| {
            // If the slack is refused sleeps are longer, and the residency shows it.
            let _ = rustix::thread::set_current_timer_slack(Some(SLACK_NS));
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(span);
            }
        })
    }

    fn on(
        cores: &[CoreId],
        work: impl Fn(&AtomicBool) + Copy + Send + 'static,
    ) -> io::Result<Self> {
        let mut crew = Self { over: Arc::default(), threads: Vec::new() };
        for core in cores {
            let over = Arc::clone(&crew.over);
            let (result, answer) = channel();
            let name = format!("calibrate-{core}");
            let core = *core;
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                if is_on(core, &result) {
                    work(&over);
                }
            })?;
            crew.threads.push(thread);
            answer.recv().map_err(io::Error::other)??;
        }
        Ok(crew)
    }
}

/// Moves to a core, reports whether that worked and whether it is there.
fn is_on(core: CoreId, result: &Sender<io::Result<()>>) -> bool {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let went = set_affinity(me, &CoreSet::from_iter([core]));
    let is_there = went.is_ok();
    let went = went.map_err(|error| {
        io::Error::new(error.kind(), format!("core {core} cannot be used: {error}"))
    });
    // The other end waits for just this.
    let _ = result.send(went);
    is_there
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock::process_cpu_time;
    use crate::sys::sched::affinity_of;

    fn here() -> Vec<CoreId> {
        affinity_of(std::process::id().cast_signed()).unwrap().iter().take(1).collect()
    }

    #[test]
    fn a_busy_crew_uses_cpu_time_until_it_is_dropped() {
        let used = || process_cpu_time(std::process::id().cast_signed()).unwrap();
        let before = used();
        let crew = BusyThreads::busy(&here()).unwrap();
        while used() < before + Nanos::from_millis(20) {
            std::thread::yield_now();
        }
        drop(crew);
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let error = BusyThreads::asleep(&[CoreId(1000)], Nanos::from_millis(1)).unwrap_err();
        assert!(error.to_string().contains("core 1000"), "{error}");
    }
}
