//! Linux `schedutil`: a quarter above what the scheduler says is used.
//!
//! kernel/sched/cpufreq_schedutil.c:
//!
//! ```text
//! f = 1.25 f_max util/max     utilisation scaled by frequency (arm64, x86 with APERF/MPERF)
//! f = 1.25 f_now util/max     where it is not (`invariant = false`)
//! ```
//!
//! and the next frequency of the table that is not below. `util` is PELT: a
//! geometric average of running time with a half-life of 32 ms,
//!
//! ```text
//! util <- util y^t + busy (1 - y^t),  y^32ms = 1/2
//! ```
//!
//! with `busy` scaled by f/f_max if invariant. A domain takes its busiest
//! core. A core that had no idle moment since the last decision is not
//! slowed down.
//!
//! A plant shows the busy share of an epoch, not each wake-up. PELT over an
//! epoch of constant share is exact; within an epoch nothing is known, so
//! epochs of a few milliseconds give what the kernel gives. Left out because
//! no plant shows it: real-time and deadline bandwidth, interrupt pressure,
//! the boost for tasks that wake from I/O, and uclamp.
//!
//! Checked against: the kernel's formulas; PELT against its closed form.

use crate::config::{accept_any, config, read, text};
use crate::entry::{ConfigSchema, Entry, Family, NaturalEpoch, PolicyKind};
use crate::toolkit::domains::{Choice, Governor, Load, PerDomain, Table};
use lull_control::{Capability, Reason};
use lull_measure::catalogue::CORE_UTILISATION;
use lull_measure::{Hertz, Nanos};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "schedutil",
    paper: "Linux, kernel/sched/cpufreq_schedutil.c and pelt.c",
    summary: "A quarter above the decaying average of utilisation (PELT).",
    kind: PolicyKind {
        needs: &[Capability::Frequency, Capability::Utilisation],
        epoch: NaturalEpoch::Key("rate_limit"),
        ..PolicyKind::new(Family::Frequency)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        let config: Config = read(table)?;
        Ok(Box::new(PerDomain::new(machine, || Schedutil::new(config.clone()))))
    },
};

config! {
    /// The kernel's constants.
    struct Config checked by accept_any {
        /// Shortest time between decisions (rate_limit_us: the driver's transition delay,
        /// 1 to 10 ms, often 2 ms).
        #[serde(serialize_with = "text")]
        rate_limit: Nanos = Nanos::from_millis(2),
        /// Time after which past utilisation counts half (PELT: 32 ms).
        #[serde(serialize_with = "text")]
        half_life: Nanos = Nanos::from_millis(32),
        /// Whether utilisation is scaled by the frequency it was seen at.
        invariant: bool = true,
    }
}

/// One domain's governor.
struct Schedutil {
    config: Config,
    /// PELT's average, in shares of the domain's full capacity.
    util: f64,
}

impl Schedutil {
    fn new(config: Config) -> Self {
        Self { config, util: 0.0 }
    }

    /// Lets a share of an interval pass.
    fn decay(&mut self, busy: f64, interval: Nanos) {
        let half_lives = interval.as_secs_f64() / self.config.half_life.as_secs_f64();
        let kept = 0.5f64.powf(half_lives);
        self.util = if kept.is_nan() { busy } else { self.util * kept + busy * (1.0 - kept) };
    }
}

impl Governor for Schedutil {
    fn window(&self) -> Nanos {
        self.config.rate_limit
    }

    fn after(&mut self, table: &Table, load: Option<Load>, _: Nanos) -> Option<Choice> {
        let Load { busiest, length, frequency: now, .. } = load?;
        let highest = table.highest();
        let (scale, base) = match self.config.invariant {
            true => (now.0 as f64 / highest.0 as f64, highest),
            false => (1.0, now),
        };
        self.decay(busiest * scale, length);
        let wanted = table.at_or_above(Hertz((1.25 * base.0 as f64 * self.util) as u64));
        let never_idle = busiest >= 1.0;
        let frequency = if never_idle { wanted.max(table.closest(now)) } else { wanted };
        let (metric, value, threshold) = (CORE_UTILISATION, self.util, 0.8);
        Some(Choice {
            frequency,
            reason: Reason::Threshold { metric, app: None, value, threshold },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::domains::testing::{run, table};

    fn schedutil(text: &str) -> Schedutil {
        Schedutil::new(read(&text.parse().unwrap()).unwrap())
    }

    #[test]
    fn pelt_is_half_way_after_its_half_life() {
        let mut governor = schedutil("");
        governor.decay(1.0, Nanos::from_millis(32));
        assert!((governor.util - 0.5).abs() < 1e-12);
        governor.decay(0.0, Nanos::from_millis(64));
        assert!((governor.util - 0.125).abs() < 1e-12);
    }

    #[test]
    fn pelt_does_not_depend_on_how_an_epoch_is_cut() {
        let (mut one, mut many) = (schedutil(""), schedutil(""));
        one.decay(0.7, Nanos::from_millis(50));
        for _ in 0..50 {
            many.decay(0.7, Nanos::from_millis(1));
        }
        assert!((one.util - many.util).abs() < 1e-12);
    }

    #[test]
    fn a_busy_core_climbs_to_the_top_and_an_idle_one_sinks() {
        let mut governor = schedutil("");
        let mut loads = vec![1.0; 100];
        loads.extend([0.0; 100]);
        let frequencies = run(&mut governor, &table(), &loads);
        assert_eq!((frequencies[99], frequencies[199]), (2_000, 1_000));
        assert!(frequencies[..100].is_sorted(), "{frequencies:?}");
    }

    #[test]
    fn a_settled_load_gets_a_quarter_of_headroom() {
        // Full-speed share 0.6 of 2000 MHz, a quarter more: 1500, so 1600 of the table.
        let mut governor = schedutil("");
        let (table, mut now) = (table(), Hertz(2_000_000_000));
        for _ in 0..300 {
            let busiest = (0.6 * 2e9 / now.0 as f64).min(1.0);
            let length = governor.window();
            let load = Load { busiest, mean: busiest, length, frequency: now };
            now = governor.after(&table, Some(load), Nanos::ZERO).unwrap().frequency;
        }
        assert_eq!(now, Hertz(1_600_000_000));
    }

    #[test]
    fn without_invariance_the_current_frequency_is_the_base() {
        let mut governor = schedutil("invariant = false\nhalf_life = \"1ns\"");
        let at = |governor: &mut Schedutil, busiest: f64, frequency: u64| {
            let (length, frequency) = (Nanos::from_millis(2), Hertz(frequency * 1_000_000));
            let load = Load { busiest, mean: busiest, length, frequency };
            governor.after(&table(), Some(load), Nanos::ZERO).unwrap().frequency.0 / 1_000_000
        };
        // 1.25 * 1200 * 0.8 = 1200: 80 % load keeps the frequency.
        assert_eq!(at(&mut governor, 0.8, 1_200), 1_200);
        assert_eq!(at(&mut governor, 0.9, 1_200), 1_400);
    }

    #[test]
    fn a_core_that_never_idled_is_not_slowed_down() {
        let mut governor = schedutil("");
        assert_eq!(run(&mut governor, &table(), &[1.0])[0], 1_000);
        let load = Load {
            busiest: 1.0,
            mean: 1.0,
            length: Nanos::from_millis(2),
            frequency: Hertz(2_000_000_000),
        };
        let kept = governor.after(&table(), Some(load), Nanos::ZERO).unwrap().frequency;
        assert_eq!(kept, Hertz(2_000_000_000), "its average is still low, but it may need more");
    }
}
