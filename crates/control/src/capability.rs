//! What a plant offers: which gauges can be read and which knobs set, or why not.

use lull_measure::Missing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One thing a plant may be able to read or set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// Knob: which cores an app's threads may run on.
    Cores,
    /// Knob: scheduling class and priority of an app's threads.
    Scheduling,
    /// Knob: the kernel's throttle on real-time threads.
    RealTimeThrottle,
    /// Knob: last-level cache ways of an app.
    CacheWays,
    /// Knob: memory bandwidth share of an app.
    MemoryBandwidth,
    /// Knob: frequency of a domain.
    Frequency,
    /// Knob: interrupt coalescing of a network interface.
    Coalescing,
    /// Knob: C of an app's on-call gate, how many workers may be at work at once.
    GateCap,
    /// Knob: N of an app's on-call gate, transactions a turn.
    GateBatch,
    /// Knob: D of an app's on-call gate, the pause between rounds.
    GateDelay,
    /// Gauge: tail latency of latency-critical apps.
    TailLatency,
    /// Gauge: progress of best-effort apps.
    Progress,
    /// Gauge: CPU time and run-queue wait of apps.
    CpuTime,
    /// Gauge: utilisation of cores.
    Utilisation,
    /// Gauge: idle residency of cores.
    IdleResidency,
    /// Gauge: sleeps of cores and waits of threads, one by one.
    SchedulerEvents,
    /// Gauge: instructions, cycles and, if the processor counts them, last-level misses of apps.
    Instructions,
    /// Gauge: energy from a meter. Without it energy is modelled, and labelled so.
    Energy,
}

impl Capability {
    /// All of them, knobs first.
    pub const ALL: [Self; 18] = [
        Self::Cores,
        Self::Scheduling,
        Self::RealTimeThrottle,
        Self::CacheWays,
        Self::MemoryBandwidth,
        Self::Frequency,
        Self::Coalescing,
        Self::GateCap,
        Self::GateBatch,
        Self::GateDelay,
        Self::TailLatency,
        Self::Progress,
        Self::CpuTime,
        Self::Utilisation,
        Self::IdleResidency,
        Self::SchedulerEvents,
        Self::Instructions,
        Self::Energy,
    ];

    /// The numbers of on-call gates: who has one has all.
    pub const OF_GATES: [Self; 3] = [Self::GateCap, Self::GateBatch, Self::GateDelay];

    /// Its name in config, output and docs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Scheduling => "scheduling",
            Self::RealTimeThrottle => "real-time-throttle",
            Self::CacheWays => "cache-ways",
            Self::MemoryBandwidth => "memory-bandwidth",
            Self::Frequency => "frequency",
            Self::Coalescing => "coalescing",
            Self::GateCap => "gate-cap",
            Self::GateBatch => "gate-batch",
            Self::GateDelay => "gate-delay",
            Self::TailLatency => "tail-latency",
            Self::Progress => "progress",
            Self::CpuTime => "cpu-time",
            Self::Utilisation => "utilisation",
            Self::IdleResidency => "idle-residency",
            Self::SchedulerEvents => "scheduler-events",
            Self::Instructions => "instructions",
            Self::Energy => "energy",
        }
    }

    /// Whether it is a knob (written) rather than a gauge (read).
    pub const fn is_knob(self) -> bool {
        matches!(
            self,
            Self::Cores
                | Self::Scheduling
                | Self::RealTimeThrottle
                | Self::CacheWays
                | Self::MemoryBandwidth
                | Self::Frequency
                | Self::Coalescing
                | Self::GateCap
                | Self::GateBatch
                | Self::GateDelay
        )
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Every capability of a plant: there, or missing with a reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capabilities {
    found: BTreeMap<Capability, Finding>,
}

/// What was found out about one capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// It is there; how it is done (`sched_setaffinity`, `resctrl`).
    By(String),
    /// It is not, and why.
    Missing(Missing),
}

impl Capabilities {
    /// States that a capability is there, and by which means.
    #[must_use]
    pub fn with(mut self, capability: Capability, means: impl Into<String>) -> Self {
        self.found.insert(capability, Finding::By(means.into()));
        self
    }

    /// States that a capability is missing, and why.
    #[must_use]
    pub fn without(mut self, capability: Capability, why: Missing) -> Self {
        self.found.insert(capability, Finding::Missing(why));
        self
    }

    /// As if nothing had been stated of a capability.
    #[must_use]
    pub fn unstated(mut self, capability: Capability) -> Self {
        self.found.remove(&capability);
        self
    }

    /// The means, or the reason why it is missing.
    ///
    /// # Errors
    /// If the capability is missing; the error says why.
    pub fn get(&self, capability: Capability) -> Result<&str, Missing> {
        match self.found.get(&capability) {
            Some(Finding::By(means)) => Ok(means),
            Some(Finding::Missing(why)) => Err(why.clone()),
            None => Err(Missing::because("this plant does not offer it")),
        }
    }

    /// Whether the capability is there.
    pub fn has(&self, capability: Capability) -> bool {
        self.get(capability).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_serde() {
        for capability in Capability::ALL {
            let json = serde_json::to_string(&capability).unwrap();
            assert_eq!(json, format!("\"{}\"", capability.name()));
        }
    }

    #[test]
    fn what_was_never_stated_is_missing_with_a_reason() {
        let some = Capabilities::default()
            .with(Capability::Cores, "sched_setaffinity")
            .without(Capability::Energy, Missing::because("no RAPL"));
        assert_eq!(some.get(Capability::Cores), Ok("sched_setaffinity"));
        assert_eq!(some.get(Capability::Energy).unwrap_err().to_string(), "no RAPL");
        assert!(some.get(Capability::Frequency).is_err());
    }
}
