//! The values of knobs: one type for each kind of value, and [`Value`], which is any of them.
//!
//! A knob's row names the [`ValueKind`] of its values. Bounds, hysteresis, the safe state and the
//! conformance suite depend on the kind only, so a new knob of a known kind needs no code there.

use crate::CoreSet;
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of a knob's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A set of cores.
    Cores,
    /// A scheduling class with its priority.
    Scheduling,
    /// On or off.
    Switch,
    /// A set of cache ways.
    Ways,
    /// A share in percent.
    Percent,
    /// A frequency in hertz.
    Frequency,
    /// When a network interface interrupts.
    Coalescing,
    /// A number of things, at least 1.
    Count,
    /// A span of time.
    Time,
    /// How a processor weighs energy against performance.
    EnergyPreference,
}

/// A value of a knob, without the knob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A set of cores.
    Cores(CoreSet),
    /// A scheduling class with its priority.
    Scheduling(Scheduling),
    /// On or off.
    Switch(bool),
    /// A set of cache ways.
    Ways(WayMask),
    /// A share in percent.
    Percent(u8),
    /// A frequency.
    Frequency(Hertz),
    /// When a network interface interrupts.
    Coalescing(Coalescing),
    /// A count, such as the transactions that a gate admits.
    Count(u32),
    /// A span of time.
    Time(Nanos),
    /// How a processor weighs energy against performance.
    EnergyPreference(EnergyPreference),
}

impl Value {
    /// Its kind.
    pub const fn kind(&self) -> ValueKind {
        match self {
            Self::Cores(_) => ValueKind::Cores,
            Self::Scheduling(_) => ValueKind::Scheduling,
            Self::Switch(_) => ValueKind::Switch,
            Self::Ways(_) => ValueKind::Ways,
            Self::Percent(_) => ValueKind::Percent,
            Self::Frequency(_) => ValueKind::Frequency,
            Self::Coalescing(_) => ValueKind::Coalescing,
            Self::Count(_) => ValueKind::Count,
            Self::Time(_) => ValueKind::Time,
            Self::EnergyPreference(_) => ValueKind::EnergyPreference,
        }
    }

    /// The value as a number in the base unit: how many cores, ways or things, a share in 0 to 1,
    /// hertz or seconds; `None` where one number does not say it.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Cores(cores) => Some(cores.len() as f64),
            Self::Ways(ways) => Some(f64::from(ways.count())),
            Self::Percent(percent) => Some(f64::from(*percent) / 100.0),
            Self::Frequency(hertz) => Some(hertz.0 as f64),
            Self::Count(count) => Some(f64::from(*count)),
            Self::Time(span) => Some(span.as_secs_f64()),
            Self::Scheduling(_)
            | Self::Switch(_)
            | Self::Coalescing(_)
            | Self::EnergyPreference(_) => None,
        }
    }
}

impl ValueKind {
    /// A value that every machine with such a knob could take, for tests of refusals.
    pub fn example(self) -> Value {
        match self {
            Self::Cores => Value::Cores(CoreSet::first(1)),
            Self::Scheduling => Value::Scheduling(Scheduling::Idle),
            Self::Switch => Value::Switch(false),
            Self::Ways => Value::Ways(WayMask::run(0, 1)),
            Self::Percent => Value::Percent(50),
            Self::Frequency => Value::Frequency(Hertz(1_000_000_000)),
            Self::Coalescing => Value::Coalescing(Coalescing::Delay(Nanos(2_000))),
            Self::Count => Value::Count(2),
            Self::Time => Value::Time(Nanos(1_000_000)),
            Self::EnergyPreference => Value::EnergyPreference(EnergyPreference(128)),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cores(cores) => cores.fmt(f),
            Self::Scheduling(class) => class.fmt(f),
            Self::Switch(is_on) => f.write_str(if *is_on { "on" } else { "off" }),
            Self::Ways(ways) => ways.fmt(f),
            Self::Percent(percent) => write!(f, "{percent} %"),
            Self::Frequency(hertz) => hertz.fmt(f),
            Self::Coalescing(how) => how.fmt(f),
            Self::Count(count) => count.fmt(f),
            Self::Time(span) => span.fmt(f),
            Self::EnergyPreference(preference) => preference.fmt(f),
        }
    }
}

/// When a network interface interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coalescing {
    /// The driver adapts the ITR delay itself.
    Adaptive,
    /// A fixed ITR delay: the least time between two interrupts of a queue.
    Delay(Nanos),
}

impl fmt::Display for Coalescing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adaptive => write!(f, "adaptive ITR delay"),
            Self::Delay(delay) => write!(f, "ITR delay {delay}"),
        }
    }
}

/// How a processor that chooses its own frequency weighs energy against performance: from 0 for
/// performance alone to 255 for energy alone (Documentation/admin-guide/pm/intel_pstate.rst,
/// "Energy vs Performance Hints").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnergyPreference(pub u8);

impl EnergyPreference {
    /// The names that the kernel has, with the number of each unless the driver knows the
    /// processor better (intel_pstate.c: epp_values, amd-pstate.c: epp_values).
    pub const NAMED: [(Self, &'static str); 4] = [
        (Self(0), "performance"),
        (Self(128), "balance_performance"),
        (Self(192), "balance_power"),
        (Self(255), "power"),
    ];

    /// Parses what the kernel shows: a name, or a number from 0 to 255. Returns `None` for
    /// `default`, the name of a number that the kernel does not show.
    pub fn parse(text: &str) -> Option<Self> {
        let named = Self::NAMED.iter().find(|(_, name)| *name == text);
        named.map(|(preference, _)| *preference).or_else(|| text.parse().ok().map(Self))
    }
}

/// Formats the preference as the kernel reads it: its name, or the number.
impl fmt::Display for EnergyPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.iter().find(|(preference, _)| preference == self) {
            Some((_, name)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

/// A scheduling class with its priority (sched(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// SCHED_OTHER with a nice value, -20 to 19.
    Normal {
        /// The nice value.
        nice: i8,
    },
    /// SCHED_IDLE: runs when nothing else wants to.
    Idle,
    /// SCHED_RR with a priority, 1 to 99.
    RoundRobin {
        /// The priority.
        priority: u8,
    },
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal { nice } => write!(f, "SCHED_OTHER nice {nice}"),
            Self::Idle => write!(f, "SCHED_IDLE"),
            Self::RoundRobin { priority } => write!(f, "SCHED_RR priority {priority}"),
        }
    }
}

/// A set of cache ways, bit 0 the first way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WayMask(pub u64);

impl WayMask {
    /// `count` ways from `first` on; at most 64 ways in all.
    pub fn run(first: u32, count: u32) -> Self {
        let ones = u64::MAX.checked_shr(64 - count.min(64)).unwrap_or(0);
        Self(ones.checked_shl(first).unwrap_or(0))
    }

    /// Number of ways.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the ways are one run.
    pub const fn is_contiguous(self) -> bool {
        self.count() == 64 - self.0.leading_zeros() - self.0.trailing_zeros() % 64
    }
}

impl fmt::Display for WayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_energy_preference_is_read_and_shown_as_the_kernel_does() {
        for (text, number) in
            [("performance", 0), ("balance_power", 192), ("power", 255), ("77", 77), ("0", 0)]
        {
            assert_eq!(EnergyPreference::parse(text), Some(EnergyPreference(number)), "{text}");
        }
        for text in ["default", "", "256", "-1", "Power"] {
            assert_eq!(EnergyPreference::parse(text), None, "{text}");
        }
        let shown = [0, 128, 77].map(|number| EnergyPreference(number).to_string());
        assert_eq!(shown, ["performance", "balance_performance", "77"]);
    }

    #[test]
    fn way_masks_are_runs_of_bits() {
        assert_eq!(WayMask::run(2, 3), WayMask(0b11100));
        assert_eq!(WayMask::run(0, 64).count(), 64);
        assert_eq!(WayMask::run(5, 0).count(), 0);
        assert!(WayMask(0b1110).is_contiguous());
        assert!(WayMask(1 << 63).is_contiguous());
        assert!(!WayMask(0b1010).is_contiguous());
    }
}
