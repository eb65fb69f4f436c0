//! Linux `conservative`: small steps up and down.
//!
//! drivers/cpufreq/cpufreq_conservative.c. Every sampling period, with `load`
//! the utilisation of the domain's busiest core and a step of 5 % of f_max:
//!
//! ```text
//! load > up_threshold      requested += step, the highest of the table not above it
//! load < down_threshold    requested -= step, the lowest of the table not below it
//!                          (only every sampling_down_factor-th period)
//! ```
//!
//! The request is remembered beside the frequency it gave, so that steps
//! smaller than the table's add up. The kernel takes one more step down for
//! every period that an idle core slept through; windows here are not
//! deferred, so those periods are seen, with a load of 0, one by one.
//! `ignore_nice_load` (0 by default) is left out.
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
    name: "conservative",
    paper: "Linux, drivers/cpufreq/cpufreq_conservative.c",
    summary: "Climbs and descends in small steps between two load thresholds.",
    kind: PolicyKind {
        needs: &[Capability::Frequency, Capability::Utilisation],
        epoch: NaturalEpoch::Key("sampling_period"),
        ..PolicyKind::new(Family::Frequency)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        let config: Config = read(table)?;
        Ok(Box::new(PerDomain::new(machine, || Conservative::new(config.clone()))))
    },
};

config! {
    /// The kernel's tunables.
    struct Config checked by check {
        /// Time between samples (1000 transition latencies, at least 2 ticks; usually 10 ms).
        #[serde(serialize_with = "text")]
        sampling_period: Nanos = Nanos::from_millis(10),
        /// Load above which it steps up (DEF_FREQUENCY_UP_THRESHOLD: 0.8).
        up_threshold: f64 = 0.8,
        /// Load below which it steps down (DEF_FREQUENCY_DOWN_THRESHOLD: 0.2).
        down_threshold: f64 = 0.2,
        /// A step as a share of the highest frequency (DEF_FREQUENCY_STEP: 0.05).
        freq_step: f64 = 0.05,
        /// How many periods pass between steps down (DEF_SAMPLING_DOWN_FACTOR: 1).
        sampling_down_factor: u32 = 1,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("sampling_period", config.sampling_period)?;
    fraction("up_threshold", config.up_threshold)?;
    fraction("down_threshold", config.down_threshold)?;
    fraction("freq_step", config.freq_step)?;
    if config.down_threshold >= config.up_threshold {
        let message = "`down_threshold` must be below `up_threshold`".to_owned();
        return Err(wrong("down_threshold", message));
    }
    if (1..=10).contains(&config.sampling_down_factor) {
        return Ok(());
    }
    Err(wrong("sampling_down_factor", "`sampling_down_factor` goes from 1 to 10".to_owned()))
}

/// One domain's governor.
struct Conservative {
    config: Config,
    requested: Option<u64>,
    skipped: u32,
}

impl Conservative {
    fn new(config: Config) -> Self {
        Self { config, requested: None, skipped: 0 }
    }

    fn step(&self, table: &Table) -> u64 {
        (table.highest().0 as f64 * self.config.freq_step) as u64
    }
}

impl Governor for Conservative {
    fn window(&self) -> Nanos {
        self.config.sampling_period
    }

    fn after(&mut self, table: &Table, load: Option<Load>, _: Nanos) -> Option<Choice> {
        let Load { busiest: value, frequency: now, .. } = load?;
        let (lowest, highest) = (table.lowest().0, table.highest().0);
        let requested = self.requested.unwrap_or(now.0).clamp(lowest, highest);
        let choose = |frequency, threshold| {
            let metric = CORE_UTILISATION;
            let reason = Reason::Threshold { metric, app: None, value, threshold };
            Some(Choice { frequency, reason })
        };
        if value > self.config.up_threshold {
            self.skipped = 0;
            let wanted = (requested + self.step(table)).min(highest);
            self.requested = Some(wanted);
            return choose(table.at_or_below(Hertz(wanted)), self.config.up_threshold);
        }
        self.skipped += 1;
        if self.skipped < self.config.sampling_down_factor {
            return None;
        }
        self.skipped = 0;
        if value >= self.config.down_threshold {
            return None;
        }
        let wanted = requested.saturating_sub(self.step(table)).max(lowest);
        self.requested = Some(wanted);
        choose(table.at_or_above(Hertz(wanted)), self.config.down_threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::domains::testing::{run, table};

    fn conservative(text: &str) -> Conservative {
        Conservative::new(read(&text.parse().unwrap()).unwrap())
    }

    #[test]
    fn steps_smaller_than_the_tables_add_up() {
        // 5 % of 2000 MHz are 100 MHz; the table has 200.
        let mut governor = conservative("");
        let up = run(&mut governor, &table(), &[0.9; 11]);
        assert_eq!(up[..4], [1_000, 1_200, 1_200, 1_400]);
        assert_eq!(up[9..], [2_000, 2_000]);
    }

    #[test]
    fn on_the_way_down_the_next_higher_of_the_table_is_taken() {
        let mut governor = conservative("");
        governor.requested = Some(2_000_000_000);
        let down = run(&mut governor, &table(), &[0.1; 4]);
        assert_eq!(down, [2_000, 1_800, 1_800, 1_600]);
    }

    #[test]
    fn between_the_thresholds_nothing_happens() {
        assert_eq!(
            run(&mut conservative(""), &table(), &[0.9, 0.9, 0.5, 0.2]),
            [1_000, 1_200, 1_200, 1_200]
        );
    }

    #[test]
    fn the_down_factor_skips_periods_on_the_way_down_only() {
        let mut governor = conservative("sampling_down_factor = 3\nfreq_step = 0.1");
        governor.requested = Some(2_000_000_000);
        let loads = [0.1, 0.1, 0.1, 0.1, 0.9];
        assert_eq!(run(&mut governor, &table(), &loads)[2..], [1_800, 1_800, 2_000]);
    }

    #[test]
    fn thresholds_upside_down_are_refused() {
        assert!(read::<Config>(&"down_threshold = 0.9".parse().unwrap()).is_err());
    }
}
