//! The kernel's governors of frequencies that no policy sets.

use crate::model::{Checked, range};
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};

/// A frequency governor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Governor {
    /// Always the highest.
    Performance,
    /// Always the lowest.
    Powersave,
    /// Linux's ondemand (drivers/cpufreq/cpufreq_ondemand.c): the highest above `up`, else in
    /// proportion to the load of the busiest core that shares the frequency.
    Ondemand {
        /// How often it looks.
        period: Nanos,
        /// Load above which it chooses the highest.
        up: f64,
        /// Whether time in which a core is idle but one of its threads waits
        /// for I/O is load (`io_is_busy`, the default on Intel).
        #[serde(default = "on_intel")]
        io_is_busy: bool,
    },
}

const fn on_intel() -> bool {
    true
}

impl Default for Governor {
    /// `ondemand` with the kernel's usual 10 ms and 95 %.
    fn default() -> Self {
        Self::Ondemand { period: Nanos::from_millis(10), up: 0.95, io_is_busy: on_intel() }
    }
}

impl Governor {
    /// Checks its numbers; `key` is where it is written.
    pub(crate) fn check(self, key: &str) -> Checked {
        let Self::Ondemand { period, up, .. } = self else { return Ok(()) };
        let is_long = period >= Nanos::from_micros(1);
        range(period.0 as f64, is_long, "at least 1 us", &format!("{key}.ondemand.period"))?;
        range(up, up > 0.0 && up <= 1.0, "in (0, 1]", &format!("{key}.ondemand.up"))
    }

    /// How often it samples the load; `None` if it never does.
    pub(crate) fn period(self) -> Option<Nanos> {
        match self {
            Self::Ondemand { period, .. } => Some(period),
            Self::Performance | Self::Powersave => None,
        }
    }

    /// Whether waiting for I/O is load.
    pub(crate) fn is_io_busy(self) -> bool {
        matches!(self, Self::Ondemand { io_is_busy: true, .. })
    }

    /// The frequency from now on, of those from `lowest` to `highest`, until it next samples
    /// the load: `now` if it samples.
    pub(crate) fn unsampled(self, now: Hertz, lowest: Hertz, highest: Hertz) -> Hertz {
        match self {
            Self::Performance => highest,
            Self::Powersave => lowest,
            Self::Ondemand { .. } => now,
        }
    }

    /// How far above the lowest frequency it wants to be at this load, as a share of the range;
    /// `None` if it wants the highest. Machines round to their own steps.
    pub(crate) fn share_of_range(self, load: f64) -> Option<f64> {
        match self {
            Self::Performance => None,
            Self::Powersave => Some(0.0),
            Self::Ondemand { up, .. } => (load <= up).then_some(load),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Hertz = Hertz(1_000_000_000);
    const HIGH: Hertz = Hertz(3_000_000_000);

    #[test]
    fn only_ondemand_samples_and_follows_the_load_up_to_its_threshold() {
        let ondemand = Governor::default();
        assert_eq!(ondemand.period(), Some(Nanos::from_millis(10)));
        assert_eq!(ondemand.share_of_range(0.5), Some(0.5));
        assert_eq!(ondemand.share_of_range(0.95), Some(0.95));
        assert_eq!(ondemand.share_of_range(0.96), None);
        assert_eq!(ondemand.unsampled(Hertz(5), LOW, HIGH), Hertz(5));
        for (governor, at) in [(Governor::Performance, HIGH), (Governor::Powersave, LOW)] {
            assert_eq!(governor.period(), None);
            assert_eq!(governor.unsampled(Hertz(5), LOW, HIGH), at);
        }
        assert_eq!(Governor::Performance.share_of_range(0.0), None);
        assert_eq!(Governor::Powersave.share_of_range(1.0), Some(0.0));
    }

    #[test]
    fn waiting_for_io_is_load_unless_a_model_says_otherwise() {
        #[derive(Deserialize)]
        struct Document {
            governor: Governor,
        }
        let read = |text: &str| toml::from_str::<Document>(text).unwrap().governor;
        let governor = read("governor = { ondemand = { period = \"10ms\", up = 0.95 } }");
        assert_eq!(governor, Governor::default());
        assert!(governor.is_io_busy());
        let text = "governor = { ondemand = { period = \"10ms\", up = 0.95, io_is_busy = false } }";
        assert!(!read(text).is_io_busy());
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_key() {
        let refused = |period, up| {
            let governor = Governor::Ondemand { period, up, io_is_busy: true };
            governor.check("scaling.governor").unwrap_err().key
        };
        let period = Nanos::from_millis(10);
        assert_eq!(refused(Nanos(999), 0.9), "scaling.governor.ondemand.period");
        for up in [0.0, 1.1, f64::NAN] {
            assert_eq!(refused(period, up), "scaling.governor.ondemand.up");
        }
        assert!(Governor::Powersave.check("governor").is_ok());
    }
}
