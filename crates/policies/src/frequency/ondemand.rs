//! Linux `ondemand`: all or a share, immediately.
//!
//! drivers/cpufreq/cpufreq_ondemand.c since 3.11. Every sampling period, with
//! `load` the utilisation of the domain's busiest core:
//!
//! ```text
//! load > up_threshold   f = f_max, and the next period lasts sampling_down_factor times as long
//! else                  f = f_min + load (f_max - f_min), the closest of the table
//! ```
//!
//! The load is that of wall time, not scaled by the frequency it was seen at.
//!
//! Left out, with the kernel's defaults in mind: `powersave_bias` (0),
//! `ignore_nice_load` (0), `io_is_busy` (what counts as busy is the gauge's
//! matter), and the one-time reuse of the last load after a window that was
//! stretched by sleep: windows here are not deferred by idle cores.
//!
//! Checked against: the kernel's source, line by line.

use crate::config::{config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, NaturalEpoch, PolicyKind};
use crate::toolkit::domains::{Choice, Governor, Load, PerDomain, Table};
use lull_control::{Capability, PolicyError, Reason};
use lull_measure::catalogue::CORE_UTILISATION;
use lull_measure::{Hertz, Nanos};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "ondemand",
    paper: "Linux, drivers/cpufreq/cpufreq_ondemand.c (3.11 and later)",
    summary: "Highest frequency above a load threshold, below it proportional to the load.",
    kind: PolicyKind {
        needs: &[Capability::Frequency, Capability::Utilisation],
        epoch: NaturalEpoch::Key("sampling_period"),
        ..PolicyKind::new(Family::Frequency)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        let config: Config = read(table)?;
        Ok(Box::new(PerDomain::new(machine, || Ondemand::new(config.clone()))))
    },
};

config! {
    /// The kernel's tunables.
    struct Config checked by check {
        /// Time between samples (1000 transition latencies, at least 2 ticks; usually 10 ms).
        #[serde(serialize_with = "text")]
        sampling_period: Nanos = Nanos::from_millis(10),
        /// Load above which the highest frequency is taken (MICRO_FREQUENCY_UP_THRESHOLD: 0.95).
        up_threshold: f64 = 0.95,
        /// Factor by which the sampling period is stretched at the highest frequency
        /// (DEF_SAMPLING_DOWN_FACTOR: 1).
        sampling_down_factor: u32 = 1,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("sampling_period", config.sampling_period)?;
    fraction("up_threshold", config.up_threshold)?;
    if (1..=100_000).contains(&config.sampling_down_factor) {
        return Ok(());
    }
    let message = "`sampling_down_factor` goes from 1 to 100000".to_owned();
    Err(wrong("sampling_down_factor", message))
}

/// One domain's governor.
struct Ondemand {
    config: Config,
    stretch: u32,
}

impl Ondemand {
    fn new(config: Config) -> Self {
        Self { config, stretch: 1 }
    }
}

impl Governor for Ondemand {
    fn window(&self) -> Nanos {
        Nanos(self.config.sampling_period.0.saturating_mul(self.stretch.into()))
    }

    fn after(&mut self, table: &Table, load: Option<Load>, _: Nanos) -> Option<Choice> {
        let Load { busiest: value, frequency, .. } = load?;
        let (lowest, highest) = (table.lowest(), table.highest());
        let threshold = self.config.up_threshold;
        let frequency = if value > threshold {
            // As in the kernel, the period is stretched by the switch to the highest frequency,
            // until it is left.
            if frequency < highest {
                self.stretch = self.config.sampling_down_factor;
            }
            highest
        } else {
            self.stretch = 1;
            let range = (highest.0 - lowest.0) as f64;
            table.closest(Hertz(lowest.0 + (value * range) as u64))
        };
        let metric = CORE_UTILISATION;
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

    fn ondemand(text: &str) -> Ondemand {
        Ondemand::new(read(&text.parse().unwrap()).unwrap())
    }

    #[test]
    fn above_the_threshold_it_jumps_and_below_it_is_proportional() {
        let wanted = [2_000, 2_000, 1_600, 1_400, 1_000];
        assert_eq!(run(&mut ondemand(""), &table(), &[1.0, 0.95, 0.6, 0.45, 0.0]), wanted);
    }

    #[test]
    fn the_down_factor_stretches_the_period_at_the_top_only() {
        let mut governor = ondemand("sampling_down_factor = 10");
        let mut periods = Vec::new();
        for load in [0.5, 1.0, 1.0, 0.5] {
            run(&mut governor, &table(), &[load]);
            periods.push(governor.window().as_millis_f64());
        }
        assert_eq!(periods, [10.0, 100.0, 100.0, 10.0]);
    }

    #[test]
    fn an_unknown_load_changes_nothing() {
        assert_eq!(ondemand("").after(&table(), None, Nanos::ZERO), None);
    }

    #[test]
    fn tunables_out_of_range_are_refused() {
        for text in ["up_threshold = 95", "sampling_down_factor = 0", "sampling_period = \"0s\""] {
            assert!(read::<Config>(&text.parse().unwrap()).is_err(), "{text}");
        }
    }
}
