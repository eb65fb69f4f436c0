//! Machines: core groups, frequency domains, P-states, power.

use lull_measure::{Hertz, Watts};
use serde::{Deserialize, Serialize};

/// A kind of machine: its cores, and the power it draws whatever they do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareModel {
    /// Groups of equal cores, such as big and small ones.
    pub cores: Vec<Cores>,
    /// Power of everything but the cores.
    #[serde(default)]
    pub static_watts: Watts,
    /// How long a core computes nothing after its frequency was changed.
    #[serde(default)]
    pub transition: lull_measure::Nanos,
}

/// A group of equal cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cores {
    /// Type name, such as `big`.
    pub name: String,
    /// Number of cores.
    pub count: u32,
    /// Work done per time at the highest frequency, relative to the reference core.
    pub speed: f64,
    /// Cores per frequency domain; 0 means that all of the group share one.
    pub domain: u32,
    /// P-states, fastest first. Without any the core has one fixed speed and
    /// no modelled power.
    pub pstates: Vec<PState>,
    /// P-state at the start, an index into `pstates`.
    pub start: usize,
    /// Factor `C` of the dynamic power `C * V² * f` of a busy core, in watts per V² GHz.
    pub activity: f64,
    /// Power of a core that is on, busy or not.
    pub static_watts: Watts,
}

impl Default for Cores {
    fn default() -> Self {
        Self {
            name: "core".to_owned(),
            count: 1,
            speed: 1.0,
            domain: 0,
            pstates: Vec::new(),
            start: 0,
            activity: 1.0,
            static_watts: Watts(0.0),
        }
    }
}

/// One performance state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PState {
    /// Clock frequency.
    pub frequency: Hertz,
    /// Supply voltage.
    pub volts: f64,
}

impl PState {
    /// Dynamic power of a busy core with this activity factor.
    pub fn dynamic_power(self, activity: f64) -> Watts {
        Watts(activity * self.volts * self.volts * self.frequency.as_ghz())
    }
}

impl HardwareModel {
    /// A machine of `count` equal cores of speed 1, without power model.
    pub fn plain(count: u32) -> Self {
        let cores = Cores { count, ..Cores::default() };
        Self { cores: vec![cores], ..Self::default() }
    }

    /// All cores.
    pub fn core_count(&self) -> u32 {
        self.cores.iter().map(|group| group.count).sum()
    }

    /// Work per time of all cores at their highest frequency.
    pub fn capacity(&self) -> f64 {
        self.cores.iter().map(|group| f64::from(group.count) * group.speed).sum()
    }
}

impl Cores {
    /// Number of frequency domains.
    pub fn domains(&self) -> u32 {
        if self.domain == 0 { 1 } else { self.count.div_ceil(self.domain) }
    }
}
