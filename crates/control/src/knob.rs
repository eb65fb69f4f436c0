//! The table of knobs: the name, owner, type of value and form of each.
//!
//! A knob is one row of [`KNOBS`], one variant each of [`Capability`], [`Knob`] and [`Setting`],
//! and its arms in the four matches below, all in this file. The names in configs and output, the
//! JSON of settings, bounds, dwell, the safe state, the metric of its state, the in-memory plant
//! and the conformance suite follow from the row. What sets it on a host is a file in
//! `host/src/knobs/`.

mod kinds;

pub use kinds::{DialId, DomainId, Dwell, KnobScope, NicId, Standard};

use crate::{AppId, Coalescing, CoreSet, EnergyPreference, Scheduling, Value, ValueKind, WayMask};
use lull_measure::catalogue::{self as metrics, Metric};
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One kind of knob.
#[derive(Debug)]
pub struct KnobRow {
    /// The capability that the knob requires; rows are in the order of capabilities.
    pub capability: Capability,
    /// Its name in configs, output and documents.
    pub name: &'static str,
    /// The owner of the knob.
    pub scope: KnobScope,
    /// The kind of its values.
    pub values: ValueKind,
    /// Its value while no policy can be followed.
    pub safe: Standard,
    /// How its changes are counted.
    pub dwell: Dwell,
    /// The form in which a setting is shown: `{number}` is the number of its owner.
    pub shown: &'static str,
    /// The metric of its state, where there is one.
    pub metric: Option<&'static Metric>,
    /// The knob of the app, domain or interface with this number.
    pub knob: fn(u16) -> Knob,
}

/// Every knob, in the order of [`Capability`].
pub const KNOBS: &[KnobRow] = &[
    KnobRow {
        capability: Capability::Cores,
        name: "cores",
        scope: KnobScope::App,
        values: ValueKind::Cores,
        safe: Standard::Most,
        dwell: Dwell::Together,
        shown: "cores {value}",
        metric: Some(metrics::APP_CORES),
        knob: |number| Knob::Cores(AppId(number)),
    },
    KnobRow {
        capability: Capability::Scheduling,
        name: "scheduling",
        scope: KnobScope::App,
        values: ValueKind::Scheduling,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "{value}",
        metric: None,
        knob: |number| Knob::Scheduling(AppId(number)),
    },
    KnobRow {
        capability: Capability::RealTimeThrottle,
        name: "real-time-throttle",
        scope: KnobScope::Machine,
        values: ValueKind::Switch,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "real-time throttle {value}",
        metric: None,
        knob: |_| Knob::RealTimeThrottle,
    },
    KnobRow {
        capability: Capability::CacheWays,
        name: "cache-ways",
        scope: KnobScope::App,
        values: ValueKind::Ways,
        safe: Standard::Most,
        dwell: Dwell::Together,
        shown: "cache ways {value}",
        metric: Some(metrics::APP_WAYS),
        knob: |number| Knob::CacheWays(AppId(number)),
    },
    KnobRow {
        capability: Capability::MemoryBandwidth,
        name: "memory-bandwidth",
        scope: KnobScope::App,
        values: ValueKind::Percent,
        safe: Standard::Most,
        dwell: Dwell::Together,
        shown: "memory bandwidth {value}",
        metric: Some(metrics::APP_BANDWIDTH),
        knob: |number| Knob::MemoryBandwidth(AppId(number)),
    },
    KnobRow {
        capability: Capability::Frequency,
        name: "frequency",
        scope: KnobScope::Domain,
        values: ValueKind::Frequency,
        safe: Standard::Most,
        dwell: Dwell::Each,
        shown: "domain {number} at {value}",
        metric: None,
        knob: |number| Knob::Frequency(DomainId(number)),
    },
    KnobRow {
        capability: Capability::Coalescing,
        name: "coalescing",
        scope: KnobScope::Interface,
        values: ValueKind::Coalescing,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "nic {number}: {value}",
        metric: None,
        knob: |number| Knob::Coalescing(NicId(number)),
    },
    KnobRow {
        capability: Capability::GateCap,
        name: "gate-cap",
        scope: KnobScope::Gate,
        values: ValueKind::Count,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "gate cap {value}",
        metric: None,
        knob: |number| Knob::GateCap(AppId(number)),
    },
    KnobRow {
        capability: Capability::GateBatch,
        name: "gate-batch",
        scope: KnobScope::Gate,
        values: ValueKind::Count,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "gate batch {value}",
        metric: None,
        knob: |number| Knob::GateBatch(AppId(number)),
    },
    KnobRow {
        capability: Capability::GateDelay,
        name: "gate-delay",
        scope: KnobScope::Gate,
        values: ValueKind::Time,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "gate delay {value}",
        metric: None,
        knob: |number| Knob::GateDelay(AppId(number)),
    },
    KnobRow {
        capability: Capability::UncoreFrequency,
        name: "uncore-frequency",
        scope: KnobScope::Dial,
        values: ValueKind::Frequency,
        safe: Standard::Most,
        dwell: Dwell::Each,
        shown: "uncore {number} at {value} at most",
        metric: None,
        knob: |number| Knob::UncoreFrequency(DialId(number)),
    },
    KnobRow {
        capability: Capability::IdleLatency,
        name: "idle-latency",
        scope: KnobScope::Machine,
        values: ValueKind::Time,
        safe: Standard::Original,
        dwell: Dwell::Together,
        shown: "idle states up to {value}",
        metric: None,
        knob: |_| Knob::IdleLatency,
    },
    KnobRow {
        capability: Capability::EnergyPreference,
        name: "energy-preference",
        scope: KnobScope::Domain,
        values: ValueKind::EnergyPreference,
        safe: Standard::Original,
        dwell: Dwell::Each,
        shown: "domain {number} prefers {value}",
        metric: None,
        knob: |number| Knob::EnergyPreference(DomainId(number)),
    },
];

/// One thing that a plant may be able to read or set.
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
    /// Knob: highest frequency of a processor's uncore (cache, mesh, memory controllers).
    UncoreFrequency,
    /// Knob: longest exit latency of the idle states that cores may enter.
    IdleLatency,
    /// Knob: energy-performance preference of a domain whose processor chooses its frequency.
    EnergyPreference,
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

/// The gauges among the capabilities, with their names; they follow the knobs.
const GAUGES: [(Capability, &str); 8] = [
    (Capability::TailLatency, "tail-latency"),
    (Capability::Progress, "progress"),
    (Capability::CpuTime, "cpu-time"),
    (Capability::Utilisation, "utilisation"),
    (Capability::IdleResidency, "idle-residency"),
    (Capability::SchedulerEvents, "scheduler-events"),
    (Capability::Instructions, "instructions"),
    (Capability::Energy, "energy"),
];

/// Checked when the crate is compiled: a capability's number is its place in both tables.
const ALL: [Capability; KNOBS.len() + GAUGES.len()] = {
    let mut all = [Capability::Cores; KNOBS.len() + GAUGES.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = match at < KNOBS.len() {
            true => KNOBS[at].capability,
            false => GAUGES[at - KNOBS.len()].0,
        };
        assert!(all[at] as usize == at, "rows are in the order of capabilities");
        at += 1;
    }
    all
};

impl Capability {
    /// All of them, knobs first.
    pub const ALL: [Self; ALL.len()] = ALL;

    /// The numbers of on-call gates: a plant that has one has all.
    pub const OF_GATES: [Self; 3] = [Self::GateCap, Self::GateBatch, Self::GateDelay];

    /// Its name in config, output and docs.
    pub const fn name(self) -> &'static str {
        match self.row() {
            Some(row) => row.name,
            None => GAUGES[self as usize - KNOBS.len()].1,
        }
    }

    /// Its row if it is a knob (written) rather than a gauge (read).
    pub const fn row(self) -> Option<&'static KnobRow> {
        match self.is_knob() {
            true => Some(&KNOBS[self as usize]),
            false => None,
        }
    }

    /// Whether it is a knob (written) rather than a gauge (read).
    pub const fn is_knob(self) -> bool {
        (self as usize) < KNOBS.len()
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

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
    /// Highest frequency of an uncore domain.
    UncoreFrequency(DialId),
    /// Longest exit latency of the idle states of all cores.
    IdleLatency,
    /// Energy-performance preference of a domain.
    EnergyPreference(DomainId),
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
    /// D: the pause between two rounds of turns; none hands them on immediately.
    GateDelay(AppId, Nanos),
    /// The highest frequency of an uncore domain; the hardware chooses below it.
    UncoreFrequency(DialId, Hertz),
    /// The longest exit latency of the idle states that cores may enter; those that take longer to
    /// leave are disabled.
    IdleLatency(Nanos),
    /// How the processor weighs energy against performance where it chooses the frequency of a
    /// domain.
    EnergyPreference(DomainId, EnergyPreference),
}

impl Knob {
    /// Returns the capability that a plant needs to have the knob, and the number of its owner.
    const fn parts(self) -> (Capability, u16) {
        match self {
            Self::Cores(app) => (Capability::Cores, app.0),
            Self::Scheduling(app) => (Capability::Scheduling, app.0),
            Self::RealTimeThrottle => (Capability::RealTimeThrottle, 0),
            Self::CacheWays(app) => (Capability::CacheWays, app.0),
            Self::MemoryBandwidth(app) => (Capability::MemoryBandwidth, app.0),
            Self::Frequency(domain) => (Capability::Frequency, domain.0),
            Self::Coalescing(nic) => (Capability::Coalescing, nic.0),
            Self::GateCap(app) => (Capability::GateCap, app.0),
            Self::GateBatch(app) => (Capability::GateBatch, app.0),
            Self::GateDelay(app) => (Capability::GateDelay, app.0),
            Self::UncoreFrequency(dial) => (Capability::UncoreFrequency, dial.0),
            Self::IdleLatency => (Capability::IdleLatency, 0),
            Self::EnergyPreference(domain) => (Capability::EnergyPreference, domain.0),
        }
    }

    /// The state of this knob with a value; `None` for a value of another kind.
    pub fn set_to(self, value: Value) -> Option<Setting> {
        Some(match (self, value) {
            (Self::Cores(app), Value::Cores(cores)) => Setting::Cores(app, cores),
            (Self::Scheduling(app), Value::Scheduling(class)) => Setting::Scheduling(app, class),
            (Self::RealTimeThrottle, Value::Switch(is_on)) => Setting::RealTimeThrottle(is_on),
            (Self::CacheWays(app), Value::Ways(ways)) => Setting::CacheWays(app, ways),
            (Self::MemoryBandwidth(app), Value::Percent(percent)) => {
                Setting::MemoryBandwidth(app, percent)
            }
            (Self::Frequency(domain), Value::Frequency(hertz)) => Setting::Frequency(domain, hertz),
            (Self::Coalescing(nic), Value::Coalescing(how)) => Setting::Coalescing(nic, how),
            (Self::GateCap(app), Value::Count(cap)) => Setting::GateCap(app, cap),
            (Self::GateBatch(app), Value::Count(batch)) => Setting::GateBatch(app, batch),
            (Self::GateDelay(app), Value::Time(delay)) => Setting::GateDelay(app, delay),
            (Self::UncoreFrequency(dial), Value::Frequency(most)) => {
                Setting::UncoreFrequency(dial, most)
            }
            (Self::IdleLatency, Value::Time(at_most)) => Setting::IdleLatency(at_most),
            (Self::EnergyPreference(domain), Value::EnergyPreference(preference)) => {
                Setting::EnergyPreference(domain, preference)
            }
            _ => return None,
        })
    }

    /// The capability that a plant needs to have the knob.
    pub const fn capability(self) -> Capability {
        self.parts().0
    }

    /// The number of the app, domain or interface that it belongs to; 0 for the machine.
    pub const fn number(self) -> u16 {
        self.parts().1
    }

    /// Its row.
    pub const fn row(self) -> &'static KnobRow {
        &KNOBS[self.capability() as usize]
    }

    /// The app that it belongs to; `None` for knobs of the machine.
    pub const fn app(self) -> Option<AppId> {
        match self.row().scope {
            KnobScope::App | KnobScope::Gate => Some(AppId(self.number())),
            KnobScope::Domain | KnobScope::Interface | KnobScope::Dial | KnobScope::Machine => None,
        }
    }
}

impl Setting {
    /// The knob that this is a state of.
    pub const fn knob(&self) -> Knob {
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
            Self::UncoreFrequency(dial, _) => Knob::UncoreFrequency(*dial),
            Self::IdleLatency(_) => Knob::IdleLatency,
            Self::EnergyPreference(domain, _) => Knob::EnergyPreference(*domain),
        }
    }

    /// The value of the knob.
    pub fn value(&self) -> Value {
        match self {
            Self::Cores(_, cores) => Value::Cores(cores.clone()),
            Self::Scheduling(_, class) => Value::Scheduling(*class),
            Self::RealTimeThrottle(is_on) => Value::Switch(*is_on),
            Self::CacheWays(_, ways) => Value::Ways(*ways),
            Self::MemoryBandwidth(_, percent) => Value::Percent(*percent),
            Self::Frequency(_, hertz) | Self::UncoreFrequency(_, hertz) => Value::Frequency(*hertz),
            Self::Coalescing(_, how) => Value::Coalescing(*how),
            Self::GateCap(_, count) | Self::GateBatch(_, count) => Value::Count(*count),
            Self::GateDelay(_, time) | Self::IdleLatency(time) => Value::Time(*time),
            Self::EnergyPreference(_, preference) => Value::EnergyPreference(*preference),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (knob, value) = (self.knob(), self.value());
        let shown = knob.row().shown.replace("{number}", &knob.number().to_string());
        f.write_str(&shown.replace("{value}", &value.to_string()))
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
    fn a_row_describes_its_own_knob_and_settings() {
        for row in KNOBS {
            let knob = (row.knob)(3);
            assert_eq!((knob.capability(), knob.row().name), (row.capability, row.name));
            let setting = knob.set_to(row.values.example()).unwrap();
            assert_eq!((setting.knob(), setting.value()), (knob, row.values.example()));
            assert_eq!(setting.value().kind(), row.values);
            // The JSON key of a setting is its name.
            let json = serde_json::to_string(&setting).unwrap();
            assert!(json.contains(&format!("\"{}\"", row.name.replace('-', "_"))), "{json}");
        }
    }

    #[test]
    fn settings_are_shown_as_their_rows_say() {
        let shown = [
            (Setting::Cores(AppId(0), CoreSet::first(4)), "cores 0-3"),
            (Setting::RealTimeThrottle(false), "real-time throttle off"),
            (Setting::MemoryBandwidth(AppId(0), 50), "memory bandwidth 50 %"),
            (Setting::Frequency(DomainId(2), Hertz(2_000_000_000)), "domain 2 at 2GHz"),
            (Setting::Coalescing(NicId(1), Coalescing::Adaptive), "nic 1: adaptive ITR delay"),
            (Setting::GateDelay(AppId(0), Nanos(1_000_000)), "gate delay 1ms"),
            (Setting::IdleLatency(Nanos(10_000)), "idle states up to 10us"),
            (
                Setting::EnergyPreference(DomainId(2), EnergyPreference(192)),
                "domain 2 prefers balance_power",
            ),
        ];
        for (setting, text) in shown {
            assert_eq!(setting.to_string(), text);
        }
    }

    #[test]
    fn every_knob_is_documented() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/knobs.md");
        let page = std::fs::read_to_string(page).unwrap();
        for row in KNOBS {
            assert!(page.contains(&format!("`{}`", row.name)), "{} is not in docs", row.name);
        }
    }
}
