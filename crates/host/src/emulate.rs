//! A slow core on a machine that has none: emulated heterogeneity.
//!
//! EETL (Haque et al., MICRO-50), section 5.2: a thread of high priority is busy
//! for a share `1 - 1/x` of every short period, so that all other threads on its
//! core see a core that is `x` times slower. Here the thread is pinned and in the
//! real-time class, so that it runs before all normal threads.
//!
//! No setting of the machine is changed: scheduling class and core are the thread's own
//! and end with it. When the process ends in any way, the core is at full speed again.
//!
//! What the core loses is more than the busy share (two switches a period, cold
//! caches after each), so the share is not believed but measured: a loop runs
//! beside the cycler and without it in turn (`probe.rs`), and the busy time is
//! corrected until the loop is slowed by the requested factor.

mod cpufreq;
mod cycler;
mod probe;

pub use cpufreq::{CpufreqError, CpufreqPlan, EmulatedCpufreq, PState};
pub use cycler::Cycler;

use crate::Roots;
use crate::files::read_value;
use lull_control::CoreId;
use lull_measure::Nanos;
use std::io;

/// How far the measured slow-down may be off (ours; the paper prints none).
pub const TOLERANCE: f64 = 0.05;
/// The paper's periods are 100 to 500 us.
pub const PERIOD: Nanos = Nanos::from_micros(250);
/// Corrections of the busy time before giving up.
const CORRECTIONS: usize = 6;
/// Near enough to stop correcting, in slow-downs.
const NEAR: f64 = 0.01;
/// The difference that must remain between the cycler's share and the kernel's budget for real-time
/// threads, which others use too.
const THROTTLE_ROOM: f64 = 0.03;
/// The kernel's budget where it is off or cannot be read.
const ALL: f64 = 1.0;

/// A core that is made slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Emulated {
    /// The core.
    pub core: CoreId,
    /// How many times slower, above 1.
    pub slowdown: f64,
    /// Length of a duty cycle.
    pub period: Nanos,
}

/// Why a core cannot be slowed down, or is not slowed by the requested factor.
#[derive(Debug, thiserror::Error)]
pub enum EmulateError {
    /// No slow-down, or one that leaves nothing.
    #[error(
        "a slow-down of {slowdown} cannot be emulated: write more than 1, and {most:.1} at most \
         (the kernel's throttle on real-time threads leaves {budget:.0} % of a core to them)"
    )]
    Range {
        /// The requested value.
        slowdown: f64,
        /// The largest possible.
        most: f64,
        /// The budget in percent.
        budget: f64,
    },
    /// A period that no timer keeps.
    #[error("a period of {0} cannot be kept: write 50us to 10ms (the paper's are 100 to 500 us)")]
    Period(Nanos),
    /// The kernel refuses core, class or thread.
    #[error(
        "cannot put a real-time thread on core {core}, which needs root, CAP_SYS_NICE or a limit \
         of real-time priority (ulimit -r), and a core that is online and allowed"
    )]
    Refused {
        /// The core.
        core: CoreId,
        /// The kernel's error.
        source: io::Error,
    },
    /// The loop could not be run.
    #[error("cannot measure how fast core {core} is")]
    Probe {
        /// The core.
        core: CoreId,
        /// The system's error.
        source: io::Error,
    },
    /// The slow-down differs from the requested one.
    #[error(
        "core {core} is {measured:.2} times slower, planned {planned} within {percent:.0} %; \
         something else may use the core: try again, another core, or a longer period",
        percent = 100.0 * TOLERANCE
    )]
    Missed {
        /// The core.
        core: CoreId,
        /// The requested value.
        planned: f64,
        /// The slow-down that the loop measured.
        measured: f64,
    },
}

impl Emulated {
    /// Share of each period that the plan takes from the core: `1 - 1/x`.
    pub fn share(&self) -> f64 {
        1.0 - 1.0 / self.slowdown
    }

    /// Whether it can be had under the kernel's throttle.
    ///
    /// # Errors
    /// [`EmulateError::Range`] or [`EmulateError::Period`].
    pub fn check(&self, roots: &Roots) -> Result<(), EmulateError> {
        if !(Nanos::from_micros(50)..=Nanos::from_millis(10)).contains(&self.period) {
            return Err(EmulateError::Period(self.period));
        }
        let budget = real_time_budget(roots);
        let most_share = budget - THROTTLE_ROOM;
        let fits = self.slowdown > 1.0 && self.slowdown.is_finite() && self.share() <= most_share;
        if fits {
            return Ok(());
        }
        let (slowdown, most) = (self.slowdown, 1.0 / (1.0 - most_share));
        Err(EmulateError::Range { slowdown, most, budget: 100.0 * budget })
    }

    /// Slows the core down, measures, and corrects until the slow-down is as planned.
    ///
    /// # Errors
    /// If the plan is out of range, the kernel refuses, or the measured
    /// slow-down stays off by more than [`TOLERANCE`]; the core is then whole again.
    pub fn start(self, roots: &Roots) -> Result<(Cycler, f64), EmulateError> {
        self.check(roots)?;
        let cycler = self.cycler()?;
        let (_, measured) = self.calibrate(&cycler, roots)?;
        Ok((cycler, measured))
    }

    /// Starts a cycler of this core and period that pauses.
    fn cycler(self) -> Result<Cycler, EmulateError> {
        Cycler::start(self).map_err(|source| EmulateError::Refused { core: self.core, source })
    }

    /// Returns the busy time that slows the core down as planned, and the slow-down that was
    /// measured with it. The cycler takes this time when this returns.
    fn calibrate(&self, cycler: &Cycler, roots: &Roots) -> Result<(Nanos, f64), EmulateError> {
        let core = self.core;
        let most = self.period.scale(real_time_budget(roots) - THROTTLE_ROOM);
        let mut busy = self.period.scale(self.share());
        let mut measured = f64::NAN;
        for _ in 0..CORRECTIONS {
            measured = probe::slowdown(core, cycler, busy)
                .map_err(|source| EmulateError::Probe { core, source })?;
            if (measured / self.slowdown - 1.0).abs() <= NEAR {
                break;
            }
            busy = self.corrected(busy, measured).min(most);
        }
        // The last correction has not been measured yet.
        if (measured / self.slowdown - 1.0).abs() > NEAR {
            measured = probe::slowdown(core, cycler, busy)
                .map_err(|source| EmulateError::Probe { core, source })?;
        }
        self.judge(measured)?;
        Ok((busy, measured))
    }

    /// Returns the busy time that gives the planned slow-down, from the slow-down that
    /// was measured with `busy`.
    fn corrected(&self, busy: Nanos, measured: f64) -> Nanos {
        let lost = 1.0 - 1.0 / measured.max(1.0);
        let wanted = busy.0 as f64 + (self.share() - lost) * self.period.0 as f64;
        Nanos(wanted.clamp(0.0, self.period.0 as f64) as u64)
    }

    /// Accepts a slow-down within [`TOLERANCE`] of the plan.
    fn judge(&self, measured: f64) -> Result<(), EmulateError> {
        // A NaN is not within any tolerance.
        if (measured / self.slowdown - 1.0).abs() <= TOLERANCE {
            return Ok(());
        }
        Err(EmulateError::Missed { core: self.core, planned: self.slowdown, measured })
    }
}

/// Share of a core that the kernel lets real-time threads have.
fn real_time_budget(roots: &Roots) -> f64 {
    let read = |name: &str| read_value::<i64>(&roots.proc.join("sys/kernel").join(name)).ok();
    match (read("sched_rt_runtime_us"), read("sched_rt_period_us")) {
        (Some(runtime), Some(period)) if runtime >= 0 && period > 0 => {
            (runtime as f64 / period as f64).min(ALL)
        }
        _ => ALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(slowdown: f64) -> Emulated {
        Emulated { core: CoreId(0), slowdown, period: PERIOD }
    }

    fn roots(runtime_us: &str) -> (tempfile::TempDir, Roots) {
        let tree = tempfile::tempdir().unwrap();
        let kernel = tree.path().join("sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("sched_rt_runtime_us"), runtime_us).unwrap();
        std::fs::write(kernel.join("sched_rt_period_us"), "1000000\n").unwrap();
        let roots = Roots { proc: tree.path().to_owned(), ..Roots::default() };
        (tree, roots)
    }

    #[test]
    fn twice_slower_is_half_of_every_period() {
        assert_eq!(plan(2.0).share(), 0.5);
        assert!((plan(4.0).share() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn what_the_kernels_throttle_forbids_is_refused_with_the_most_there_is() {
        let (_tree, throttled) = roots("950000\n");
        assert!(plan(2.0).check(&throttled).is_ok() && plan(12.0).check(&throttled).is_ok());
        let text = plan(20.0).check(&throttled).unwrap_err().to_string();
        assert!(text.contains("12.5 at most") && text.contains("95 %"), "{text}");
        let (_tree, free) = roots("-1\n");
        assert!(plan(20.0).check(&free).is_ok());
        for none in [1.0, 0.5, f64::NAN, f64::INFINITY] {
            assert!(plan(none).check(&free).is_err(), "{none}");
        }
    }

    #[test]
    fn periods_that_no_timer_keeps_are_refused() {
        let (_tree, free) = roots("-1\n");
        let short = Emulated { period: Nanos::from_micros(10), ..plan(2.0) };
        assert!(short.check(&free).unwrap_err().to_string().contains("50us to 10ms"));
    }

    #[test]
    fn a_correction_gives_back_what_switching_took() {
        // Busy for 125 of 250 us the loop lost 0.54 of its time: 10 us less.
        let measured = 1.0 / (1.0 - 0.54);
        let busy = plan(2.0).corrected(Nanos::from_micros(125), measured);
        assert!((busy.as_micros_f64() - 115.0).abs() < 0.01, "{busy}");
        // A loop that was not slowed at all (a throttled cycler) is corrected by the whole share.
        assert_eq!(plan(2.0).corrected(Nanos::ZERO, 0.9), Nanos::from_micros(125));
    }

    #[test]
    fn a_slow_down_counts_within_five_percent_of_the_plan() {
        for good in [1.91, 1.95, 2.0, 2.09] {
            assert!(plan(2.0).judge(good).is_ok(), "{good}");
        }
        for bad in [1.89, 2.11, f64::NAN] {
            let text = plan(2.0).judge(bad).unwrap_err().to_string();
            assert!(text.contains("planned 2 within 5 %"), "{text}");
        }
    }
}
