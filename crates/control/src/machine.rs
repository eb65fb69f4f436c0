//! The description of a plant: cores, core types, frequency domains, cache ways.

use crate::{
    AppId, Capabilities, Capability, CoreId, CoreSet, DialId, DomainId, EnergyPreference, Knob,
    KnobRow, KnobScope, NicId, Setting, Value, ValueKind, WayMask,
};
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};

/// A machine as policies see it; fixed for a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// A name for people: CPU model or scenario.
    pub name: String,
    /// All cores, ascending; `cores[i].id == i` on a machine that is not restricted.
    pub cores: Vec<Core>,
    /// Core types, slowest first; one entry on symmetric machines.
    pub core_types: Vec<CoreType>,
    /// Sets of cores that share one frequency; empty where it cannot be read.
    pub domains: Vec<FrequencyDomain>,
    /// Last-level cache that can be divided by ways.
    pub cache: Option<CacheControl>,
    /// Memory bandwidth that can be divided.
    pub bandwidth: Option<BandwidthControl>,
    /// Network interfaces whose interrupts can be coalesced.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// Other controls of the machine that have a range of numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dials: Vec<Dial>,
    /// Exit latencies to which the idle states of all cores can be limited, ascending; the states
    /// themselves differ by core type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_latencies: Vec<Nanos>,
    /// Energy-performance preferences that every frequency domain can be set to, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub energy_preferences: Vec<EnergyPreference>,
    /// On-call gates whose numbers can be set; one an app at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateControl>,
    /// The readable gauges and settable knobs, and the reason for each missing one.
    pub capabilities: Capabilities,
}

impl Machine {
    /// All cores as a set.
    pub fn all_cores(&self) -> CoreSet {
        self.cores.iter().map(|core| core.id).collect()
    }

    /// The machine as a policy sees it that may use only these cores: others
    /// are not listed, and domains without a core left are gone.
    #[must_use]
    pub fn restricted_to(mut self, allowed: &CoreSet) -> Self {
        self.cores.retain(|core| allowed.contains(core.id));
        for domain in &mut self.domains {
            domain.cores = domain.cores.intersection(allowed);
        }
        self.domains.retain(|domain| !domain.cores.is_empty());
        self
    }

    /// The machine as a policy sees it whose frequencies are limited: steps beyond the limits are
    /// not listed. A domain without a step between them keeps its steps, of which the limits then
    /// replace each.
    #[must_use]
    pub fn within_frequencies(mut self, min: Option<Hertz>, max: Option<Hertz>) -> Self {
        for domain in &mut self.domains {
            domain.limit_steps(min.unwrap_or(Hertz(0)), max.unwrap_or(Hertz(u64::MAX)));
        }
        self
    }

    /// The network interface with this number, if there is one.
    pub fn nic(&self, id: NicId) -> Option<&Nic> {
        self.nics.iter().find(|nic| nic.id == id)
    }

    /// The gate of this app, if it has one that can be set.
    pub fn gate(&self, app: AppId) -> Option<&GateControl> {
        self.gates.iter().find(|gate| gate.app == app)
    }

    /// The machine with these gates, set by `means`; with none of them it is as
    /// it was. Apps have gates, so a plant adds them later than the rest.
    #[must_use]
    pub fn with_gates(mut self, gates: Vec<GateControl>, means: &str) -> Self {
        if !gates.is_empty() {
            let all = std::mem::take(&mut self.capabilities);
            self.capabilities = Capability::OF_GATES
                .into_iter()
                .fold(all, |all, capability| all.with_capability(capability, means));
        }
        self.gates = gates;
        self
    }

    /// The dial with this number, if there is one.
    pub fn dial(&self, id: DialId) -> Option<&Dial> {
        self.dials.iter().find(|dial| dial.id == id)
    }

    /// The limit of the idle states' exit latency that can be set and is nearest to `at_most` from
    /// below; the lowest one if all are higher, and `None` on a machine without the knob.
    pub fn idle_limit(&self, at_most: Nanos) -> Option<Nanos> {
        let within = self.idle_latencies.iter().rfind(|latency| **latency <= at_most);
        within.or(self.idle_latencies.first()).copied()
    }

    /// The knobs of a row that this machine has with this many apps, whether or not the plant can
    /// set them.
    pub fn knobs(&self, row: &KnobRow, apps: usize) -> Vec<Knob> {
        let numbers: Vec<u16> = match row.scope {
            KnobScope::App => (0..apps as u16).collect(),
            KnobScope::Gate => self.gates.iter().map(|gate| gate.app.0).collect(),
            KnobScope::Domain => self.domains.iter().map(|domain| domain.id.0).collect(),
            KnobScope::Interface => self.nics.iter().map(|nic| nic.id.0).collect(),
            KnobScope::Dial => {
                let dials = self.dials.iter().filter(|dial| dial.knob == row.capability);
                dials.map(|dial| dial.id.0).collect()
            }
            KnobScope::Machine => vec![0],
        };
        numbers.into_iter().map(row.knob).collect()
    }

    /// The largest value of a knob; `None` for values without order, and where the machine does
    /// not have the knob.
    pub fn most(&self, knob: Knob) -> Option<Value> {
        let row = knob.row();
        Some(match row.values {
            ValueKind::Cores => Value::Cores(self.all_cores()),
            ValueKind::Ways => Value::Ways(WayMask::run(0, self.cache.as_ref()?.ways)),
            ValueKind::Percent => Value::Percent(100),
            ValueKind::Frequency if row.scope == KnobScope::Dial => {
                Value::Frequency(self.dial(DialId(knob.number()))?.highest)
            }
            ValueKind::Frequency => {
                Value::Frequency(*self.domain(DomainId(knob.number()))?.steps.last()?)
            }
            ValueKind::Time if row.capability == Capability::IdleLatency => {
                Value::Time(*self.idle_latencies.last()?)
            }
            ValueKind::Scheduling
            | ValueKind::Switch
            | ValueKind::Coalescing
            | ValueKind::Count
            | ValueKind::Time
            | ValueKind::EnergyPreference => return None,
        })
    }

    /// The domain with this number, if there is one.
    pub fn domain(&self, id: DomainId) -> Option<&FrequencyDomain> {
        self.domains.iter().find(|domain| domain.id == id)
    }
}

/// One core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Its number, as the kernel counts.
    pub id: CoreId,
    /// Index into [`Machine::core_types`].
    pub core_type: usize,
    /// Its socket.
    pub package: u16,
    /// The lowest core that shares its physical core (itself without SMT).
    pub smt_leader: CoreId,
}

/// A kind of core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoreType {
    /// A name for people: `big`, `little`.
    pub name: String,
    /// Speed at full frequency relative to the slowest type, which is 1.
    pub speed: f64,
}

/// Cores that share one frequency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrequencyDomain {
    /// Its number.
    pub id: DomainId,
    /// Its cores.
    pub cores: CoreSet,
    /// Frequencies that can be set, ascending; lowest and highest where any value is legal.
    pub steps: Vec<Hertz>,
    /// Whether every value between the lowest and the highest step can be set.
    pub continuous: bool,
}

impl FrequencyDomain {
    /// The settable frequency nearest to `wanted`, `None` without steps.
    pub fn nearest(&self, wanted: Hertz) -> Option<Hertz> {
        let (lowest, highest) = (*self.steps.first()?, *self.steps.last()?);
        if self.continuous {
            return Some(wanted.clamp(lowest, highest));
        }
        self.steps.iter().copied().min_by_key(|step| step.0.abs_diff(wanted.0))
    }

    fn limit_steps(&mut self, min: Hertz, max: Hertz) {
        let steps = self.steps.iter().copied();
        let limited: Vec<_> = match self.continuous {
            true => steps.map(|step| step.max(min).min(max)).collect(),
            false => steps.filter(|step| (min..=max).contains(step)).collect(),
        };
        if !limited.is_empty() {
            self.steps = limited;
        }
    }
}

/// A last-level cache that can be divided by ways (Intel CAT, AMD QoS).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheControl {
    /// Number of ways.
    pub ways: u32,
    /// Whether a mask must be one run of ways (true on most Intel parts).
    pub contiguous: bool,
    /// Size of all ways together.
    pub size_bytes: u64,
}

/// Memory bandwidth throttling (Intel MBA, AMD QoS), in percent of the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthControl {
    /// Smallest share that can be set.
    pub min_percent: u8,
    /// Granularity.
    pub step_percent: u8,
}

/// A network interface whose interrupts can be coalesced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its number.
    pub id: NicId,
    /// Its name in the kernel.
    pub name: String,
    /// Largest ITR delay that can be set.
    pub delay_max: Nanos,
    /// Granularity of the ITR delay; never zero.
    pub delay_step: Nanos,
}

impl Nic {
    /// The ITR delay nearest to `wanted` that can be set.
    pub fn nearest(&self, wanted: Nanos) -> Nanos {
        let step = self.delay_step.0.max(1);
        let steps = (wanted.min(self.delay_max).0 + step / 2) / step;
        Nanos((steps * step).min(self.delay_max.0 / step * step))
    }
}

/// A control of the machine that has a name and a range of frequencies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dial {
    /// Its number, unique among all dials of the machine.
    pub id: DialId,
    /// The capability whose knob it is.
    pub knob: Capability,
    /// Its name in the kernel.
    pub name: String,
    /// Lowest frequency that can be set.
    pub lowest: Hertz,
    /// Highest frequency that can be set.
    pub highest: Hertz,
    /// Granularity; never zero.
    pub step: Hertz,
}

impl Dial {
    /// The frequency nearest to `wanted` that can be set.
    pub fn nearest(&self, wanted: Hertz) -> Hertz {
        let step = self.step.0.max(1);
        let steps = (wanted.clamp(self.lowest, self.highest).0 + step / 2) / step;
        Hertz(steps * step).clamp(self.lowest, self.highest)
    }
}

/// The on-call gate before an app's workers, as far as it can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateControl {
    /// The app whose workers wait at it.
    pub app: AppId,
    /// Workers behind it, where that is known: a cap of this many is none.
    pub workers: Option<u32>,
    /// Largest C that can be set.
    pub cap_max: u32,
    /// Largest N that can be set.
    pub batch_max: u32,
    /// Longest D that can be set.
    pub delay_max: Nanos,
}

impl GateControl {
    /// Refuses values that the gate cannot have: C and N are at least 1, and each number has its
    /// largest value. Settings of other knobs pass.
    ///
    /// # Errors
    /// The fault as text.
    pub fn check(&self, wanted: &Setting) -> Result<(), String> {
        let count = |what: &str, value: u32, most: u32| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("a gate's {what} is 1 to {most}, not {value}")),
        };
        match wanted {
            Setting::GateCap(_, cap) => count("cap", *cap, self.cap_max),
            Setting::GateBatch(_, batch) => count("batch", *batch, self.batch_max),
            Setting::GateDelay(_, delay) if *delay > self.delay_max => {
                Err(format!("a gate's delay is {} at most, not {delay}", self.delay_max))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare() -> Machine {
        Machine {
            name: "test".to_owned(),
            idle_latencies: [2, 10, 133].map(Nanos::from_micros).to_vec(),
            ..Machine::default()
        }
    }

    #[test]
    fn limits_leave_the_steps_between_them() {
        let ghz = |tenths: &[u64]| tenths.iter().map(|it| Hertz(it * 100_000_000)).collect();
        let limited = |continuous: bool, steps: &[u64], min: u64, max: u64| {
            let (id, cores, steps) = (DomainId(0), CoreSet::first(1), ghz(steps));
            let domains = vec![FrequencyDomain { id, cores, steps, continuous }];
            let [min, max] = [min, max].map(|tenths| Some(Hertz(tenths * 100_000_000)));
            Machine { domains, ..bare() }.within_frequencies(min, max).domains.remove(0).steps
        };
        let all = [8, 16, 24, 32];
        assert_eq!(limited(false, &all, 12, 24), ghz(&[16, 24]));
        assert_eq!(limited(true, &[8, 32], 12, 24), ghz(&[12, 24]));
        assert_eq!(limited(true, &[8, 32], 4, 40), ghz(&[8, 32]));
        assert_eq!(limited(false, &all, 25, 30), ghz(&all), "no step lies between them");
        let (unlimited, any) = (bare(), bare().within_frequencies(None, None));
        assert_eq!(any, unlimited);
    }

    #[test]
    fn idle_states_are_limited_to_the_nearest_exit_latency_below() {
        let machine = bare();
        for (wanted_us, limit_us) in [(0, 2), (2, 2), (100, 10), (133, 133), (9000, 133)] {
            let limit = machine.idle_limit(Nanos::from_micros(wanted_us));
            assert_eq!(limit, Some(Nanos::from_micros(limit_us)), "{wanted_us}");
        }
        let none = Machine { idle_latencies: Vec::new(), ..machine.clone() };
        assert_eq!((none.idle_limit(Nanos::ZERO), none.most(Knob::IdleLatency)), (None, None));
        let deepest = Value::Time(Nanos::from_micros(133));
        assert_eq!(machine.most(Knob::IdleLatency), Some(deepest));
    }

    #[test]
    fn a_gate_has_bounds_and_a_machine_with_one_offers_its_numbers() {
        let gate = GateControl {
            app: AppId(1),
            workers: None,
            cap_max: 256,
            batch_max: 1024,
            delay_max: Nanos::from_millis(100),
        };
        let app = AppId(1);
        for legal in [Setting::GateCap(app, 1), Setting::GateCap(app, 256)] {
            assert_eq!(gate.check(&legal), Ok(()));
        }
        for (wrong, word) in [
            (Setting::GateCap(app, 0), "cap"),
            (Setting::GateCap(app, 257), "256"),
            (Setting::GateBatch(app, 0), "batch"),
            (Setting::GateDelay(app, Nanos::from_millis(101)), "delay"),
        ] {
            let why = gate.check(&wrong).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        let bare = bare();
        assert_eq!(bare.clone().with_gates(Vec::new(), "test"), bare);
        let machine = bare.with_gates(vec![gate], "test");
        assert!(Capability::OF_GATES.into_iter().all(|it| machine.capabilities.has(it)));
        assert_eq!((machine.gate(app), machine.gate(AppId(0))), (Some(&gate), None));
    }

    fn domain(continuous: bool) -> FrequencyDomain {
        let steps = [1_197_000, 1_729_000, 2_260_000].map(Hertz::from_khz).to_vec();
        FrequencyDomain { id: DomainId(0), cores: CoreSet::default(), steps, continuous }
    }

    #[test]
    fn a_delay_is_rounded_to_the_cards_steps() {
        let name = "eth0".to_owned();
        let (delay_max, delay_step) = (Nanos::from_micros(1023), Nanos::from_micros(2));
        let nic = Nic { id: NicId(0), name, delay_max, delay_step };
        let rounded = |us| nic.nearest(Nanos::from_micros(us)).as_micros_f64();
        assert_eq!([0, 3, 400, 5000].map(rounded), [0.0, 4.0, 400.0, 1022.0]);
    }

    #[test]
    fn a_table_rounds_and_a_range_clamps() {
        let between = Hertz::from_khz(1_500_000);
        assert_eq!(domain(false).nearest(between), Some(Hertz::from_khz(1_729_000)));
        assert_eq!(domain(true).nearest(between), Some(between));
        assert_eq!(domain(true).nearest(Hertz(1)), Some(Hertz::from_khz(1_197_000)));
    }
}
