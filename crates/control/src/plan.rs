//! What a policy wants: settings of knobs, each with its reason.

use crate::{AppId, Capability, CoreSet, DomainId, NicId};
use lull_measure::catalogue::Metric;
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One knob of one plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// Cores of an app.
    Cores(AppId),
    /// Scheduling class of an app.
    Scheduling(AppId),
    /// The kernel's throttle on real-time threads.
    RealTimeThrottle,
    /// Last-level cache ways of an app.
    CacheWays(AppId),
    /// Memory bandwidth share of an app.
    MemoryBandwidth(AppId),
    /// Frequency of a domain.
    Frequency(DomainId),
    /// Interrupt coalescing of a network interface.
    Coalescing(NicId),
    /// C of an app's on-call gate.
    GateCap(AppId),
    /// N of an app's on-call gate.
    GateBatch(AppId),
    /// D of an app's on-call gate.
    GateDelay(AppId),
}

impl Knob {
    /// The capability a plant needs to have the knob.
    pub const fn capability(self) -> Capability {
        match self {
            Self::Cores(_) => Capability::Cores,
            Self::Scheduling(_) => Capability::Scheduling,
            Self::RealTimeThrottle => Capability::RealTimeThrottle,
            Self::CacheWays(_) => Capability::CacheWays,
            Self::MemoryBandwidth(_) => Capability::MemoryBandwidth,
            Self::Frequency(_) => Capability::Frequency,
            Self::Coalescing(_) => Capability::Coalescing,
            Self::GateCap(_) => Capability::GateCap,
            Self::GateBatch(_) => Capability::GateBatch,
            Self::GateDelay(_) => Capability::GateDelay,
        }
    }

    /// The app whose knob it is; `None` for the machine's own.
    pub const fn app(self) -> Option<AppId> {
        match self {
            Self::Cores(app)
            | Self::Scheduling(app)
            | Self::CacheWays(app)
            | Self::MemoryBandwidth(app)
            | Self::GateCap(app)
            | Self::GateBatch(app)
            | Self::GateDelay(app) => Some(app),
            Self::RealTimeThrottle | Self::Frequency(_) | Self::Coalescing(_) => None,
        }
    }
}

/// The wanted or found state of one knob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// The cores an app's threads may run on; never empty.
    Cores(AppId, CoreSet),
    /// The scheduling class of an app's threads.
    Scheduling(AppId, Scheduling),
    /// Whether the kernel throttles real-time threads (95 % of each second by default).
    RealTimeThrottle(bool),
    /// The last-level cache ways an app may fill.
    CacheWays(AppId, WayMask),
    /// An app's share of memory bandwidth, in percent of the peak.
    MemoryBandwidth(AppId, u8),
    /// The frequency of a domain.
    Frequency(DomainId, Hertz),
    /// When a network interface interrupts.
    Coalescing(NicId, Coalescing),
    /// C: workers of an app that may be at work at once.
    GateCap(AppId, u32),
    /// N: transactions that a worker may run a turn.
    GateBatch(AppId, u32),
    /// D: the pause between two rounds of turns; none hands them on at once.
    GateDelay(AppId, Nanos),
}

impl Setting {
    /// The knob that this is a state of.
    pub fn knob(&self) -> Knob {
        match self {
            Self::Cores(app, _) => Knob::Cores(*app),
            Self::Scheduling(app, _) => Knob::Scheduling(*app),
            Self::RealTimeThrottle(_) => Knob::RealTimeThrottle,
            Self::CacheWays(app, _) => Knob::CacheWays(*app),
            Self::MemoryBandwidth(app, _) => Knob::MemoryBandwidth(*app),
            Self::Frequency(domain, _) => Knob::Frequency(*domain),
            Self::Coalescing(nic, _) => Knob::Coalescing(*nic),
            Self::GateCap(app, _) => Knob::GateCap(*app),
            Self::GateBatch(app, _) => Knob::GateBatch(*app),
            Self::GateDelay(app, _) => Knob::GateDelay(*app),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cores(_, cores) => write!(f, "cores {cores}"),
            Self::Scheduling(_, class) => write!(f, "{class}"),
            Self::RealTimeThrottle(true) => write!(f, "real-time throttle on"),
            Self::RealTimeThrottle(false) => write!(f, "real-time throttle off"),
            Self::CacheWays(_, ways) => write!(f, "cache ways {ways}"),
            Self::MemoryBandwidth(_, percent) => write!(f, "memory bandwidth {percent} %"),
            Self::Frequency(domain, hertz) => write!(f, "domain {} at {hertz}", domain.0),
            Self::Coalescing(nic, how) => write!(f, "nic {}: {how}", nic.0),
            Self::GateCap(_, cap) => write!(f, "gate cap {cap}"),
            Self::GateBatch(_, batch) => write!(f, "gate batch {batch}"),
            Self::GateDelay(_, delay) => write!(f, "gate delay {delay}"),
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

/// Why a policy wants a setting. A few forms serve all policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The policy's starting state.
    Start,
    /// The policy always wants this.
    Fixed,
    /// A metric crossed a threshold.
    Threshold {
        /// Which metric.
        metric: &'static Metric,
        /// Of which app; `None` for the machine.
        app: Option<AppId>,
        /// Its value.
        value: f64,
        /// The threshold.
        threshold: f64,
    },
    /// The last move made a metric worse and is taken back.
    Undo {
        /// Which metric.
        metric: &'static Metric,
        /// Its value before the move.
        before: f64,
        /// Its value after it.
        after: f64,
    },
    /// A setting is tried to learn from it.
    Trial {
        /// Which trial of its search, from 1.
        number: u32,
        /// By how much a model expects it to beat the best so far, if a model chose it.
        expected_gain: Option<f64>,
    },
    /// The best that a search has found.
    Found {
        /// After how many trials.
        trials: u32,
        /// The value it had.
        score: f64,
    },
    /// An app has exited; what it held is free.
    Exited {
        /// Which app.
        app: AppId,
    },
    /// The SLO-safe state, because the policy cannot be followed now.
    Safe {
        /// What is wrong.
        cause: String,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Fixed => f.write_str("fixed by the policy"),
            Self::Threshold { metric, value, threshold, .. } => {
                let sign = if value < threshold { '<' } else { '>' };
                write!(f, "{} {value:.3} {sign} {threshold}", metric.name)
            }
            Self::Undo { metric, before, after } => {
                write!(f, "undo: {} went from {before:.3} to {after:.3}", metric.name)
            }
            Self::Trial { number, expected_gain: None } => write!(f, "trial {number}"),
            Self::Trial { number, expected_gain: Some(gain) } => {
                write!(f, "trial {number}, expected to gain {gain:.3}")
            }
            Self::Found { trials, score } => {
                write!(f, "the best of {trials} trials, with a score of {score:.3}")
            }
            Self::Exited { .. } => f.write_str("an app has exited"),
            Self::Safe { cause } => write!(f, "SLO-safe state: {cause}"),
        }
    }
}

/// What a policy expects of its plan; the journal compares it with what came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// Which metric.
    pub metric: &'static Metric,
    /// Of which app; `None` for the machine.
    pub app: Option<AppId>,
    /// Which way it should go.
    pub direction: Direction,
    /// By how much, where the policy has a model; in the metric's unit.
    pub by: Option<f64>,
}

/// Which way a metric should go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Down.
    Lower,
    /// Up.
    Higher,
}

/// The whole wanted state of the knobs a policy owns.
///
/// A knob the plan does not name is left as it is. The loop applies only
/// what differs from the plant's state, so a policy repeats its plan freely.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    steps: BTreeMap<Knob, Step>,
    /// What the policy expects of a change, if it makes one.
    pub expected: Option<Expectation>,
}

/// One wanted setting and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The wanted state.
    pub setting: Setting,
    /// Why.
    pub reason: Reason,
}

impl Plan {
    /// Leaves every knob as it is.
    pub fn keep() -> Self {
        Self::default()
    }

    /// Wants a setting; a second one for the same knob replaces the first.
    pub fn set(&mut self, setting: Setting, reason: Reason) {
        self.steps.insert(setting.knob(), Step { setting, reason });
    }

    /// The wanted settings in the order of their knobs.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.values()
    }

    /// The wanted setting of one knob.
    pub fn setting(&self, knob: Knob) -> Option<&Setting> {
        self.steps.get(&knob).map(|step| &step.setting)
    }

    /// Whether no knob is named.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn way_masks_are_runs_of_bits() {
        assert_eq!(WayMask::run(2, 3), WayMask(0b11100));
        assert_eq!(WayMask::run(0, 64).count(), 64);
        assert_eq!(WayMask::run(5, 0).count(), 0);
        assert!(WayMask(0b1110).is_contiguous());
        assert!(WayMask(1 << 63).is_contiguous());
        assert!(!WayMask(0b1010).is_contiguous());
    }

    #[test]
    fn one_knob_has_one_setting() {
        let mut plan = Plan::keep();
        assert!(plan.is_empty());
        for cores in [1, 2] {
            plan.set(Setting::Cores(AppId(0), CoreSet::first(cores)), Reason::Start);
        }
        assert_eq!(plan.steps().count(), 1);
        let kept = plan.setting(Knob::Cores(AppId(0)));
        assert_eq!(kept, Some(&Setting::Cores(AppId(0), CoreSet::first(2))));
    }
}
