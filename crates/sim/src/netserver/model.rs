//! A network server as plain data.

use crate::governor::Governor;
use crate::idle::{IdleRule, IdleState};
use crate::machine::LoadStep;
use crate::model::Shape;
use crate::moderation::Moderation;
use lull_measure::{Hertz, Nanos, Watts};
use serde::{Deserialize, Serialize};

/// One server: packages of cores behind one network card, and the app on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetServerModel {
    /// A name for people.
    pub name: String,
    /// Cores of all packages, at most 64.
    pub cores: u16,
    /// Packages that share the cores evenly; each is one frequency domain.
    pub packages: u16,
    /// The frequencies that can be set, ascending.
    pub frequencies: Vec<Hertz>,
    /// The kernel's governor of the frequencies that no policy sets.
    #[serde(default)]
    pub governor: Governor,
    /// Idle states of the cores, shallowest first.
    pub idle: Vec<IdleState>,
    /// How a core chooses its idle state.
    #[serde(default)]
    pub idle_rule: IdleRule,
    /// Power of cores and packages.
    pub power: PowerModel,
    /// The network card.
    pub nic: NicModel,
    /// The software between card and app.
    pub stack: Stack,
    /// What the app does for a request.
    pub app: AppModel,
    /// The requests that arrive.
    pub traffic: Traffic,
}

/// Power of cores and packages.
///
/// With `v(f)` linear between `volts` and `r = v(f)/v(max)`, a running core
/// takes `active (f/max) r² + leakage r²`, a package on top of its cores
/// `uncore ((1 - scales) + scales (f/max) r²)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PowerModel {
    /// Voltage at the lowest and at the highest frequency.
    pub volts: [f64; 2],
    /// Switching power of a running core at the highest frequency.
    pub active: Watts,
    /// Leakage of a running core at the highest frequency.
    pub leakage: Watts,
    /// Power of a package besides its cores, at the highest frequency.
    pub uncore: Watts,
    /// Share of it that follows the frequency.
    pub uncore_scales: f64,
}

/// The network card: one vector a core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NicModel {
    /// How its driver moderates interrupts while no policy sets a delay.
    pub moderation: Moderation,
    /// Largest ITR delay.
    pub delay_max: Nanos,
    /// Granularity of the ITR delay.
    pub delay_step: Nanos,
    /// Buckets of the table by which connections are spread over cores.
    pub buckets: u32,
    /// Packets that one round of polling takes at most.
    pub budget: u32,
    /// Whether a packet that has been sent raises an interrupt.
    pub tx_interrupts: bool,
    /// Time of a full frame on the wire.
    pub frame: Nanos,
}

/// What software costs, in cycles and in time that does not follow the clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stack {
    /// Whether requests are served where packets are received, without
    /// threads (a specialised OS), instead of by a thread that polling wakes
    /// and interrupts pre-empt (Linux).
    pub run_to_completion: bool,
    /// An interrupt and the start of polling.
    pub interrupt_cycles: f64,
    /// Receiving a packet.
    pub rx_cycles: f64,
    /// Cleaning up a sent packet.
    pub tx_clean_cycles: f64,
    /// Waking the thread.
    pub wake_cycles: f64,
    /// One call that returns which connections are ready (`epoll_wait`).
    pub poll_cycles: f64,
    /// Requests that one such call returns at most.
    pub events: u32,
    /// Going to sleep.
    pub sleep_cycles: f64,
    /// Memory time of a request, whatever the frequency.
    pub memory: Nanos,
}

/// What the app does for a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AppModel {
    /// Its name.
    pub name: String,
    /// Mean cycles of a request, reply included.
    pub cycles: f64,
    /// How they vary.
    #[serde(default = "constant")]
    pub shape: Shape,
    /// Bytes of a request on the wire.
    pub rx_bytes: u32,
    /// Bytes of a reply on the wire.
    pub tx_bytes: u32,
}

/// The clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Traffic {
    /// Clients that do not wait for replies: Poisson arrivals on connections
    /// that are hashed to cores.
    Open {
        /// Requests per second of all connections.
        load: Vec<LoadStep>,
        /// Number of connections.
        connections: u32,
        /// Time in the network and in the client, added to every latency.
        network: Nanos,
    },
    /// One client that sends a message, waits for one of the same size, and
    /// begins again (NetPIPE).
    PingPong(PingPong),
}

/// A client that exchanges messages of one size over one connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PingPong {
    /// Bytes of a message.
    pub bytes: u64,
    /// Bytes of payload in a full frame.
    pub segment: u32,
    /// Frames that may be on the way without acknowledgement.
    pub window: u32,
    /// Time in the network, one way.
    pub network: Nanos,
    /// Time of the client between the last frame of a reply and the first of
    /// the next message.
    pub turnaround: Nanos,
    /// Cycles of the server for each byte that it reads or writes.
    pub cycles_per_byte: f64,
}

impl NetServerModel {
    /// Cores of one package.
    pub fn cores_a_package(&self) -> u16 {
        self.cores / self.packages.max(1)
    }

    /// The highest frequency.
    pub fn highest(&self) -> Hertz {
        self.frequencies.last().copied().unwrap_or_default()
    }

    /// The lowest frequency.
    pub fn lowest(&self) -> Hertz {
        self.frequencies.first().copied().unwrap_or_default()
    }

    /// The frequency at the start.
    pub(super) fn first_frequency(&self) -> Hertz {
        let highest = self.highest();
        self.governor.unsampled(highest, self.lowest(), highest)
    }

    /// The same server at a constant rate of requests; a ping-pong stays one.
    #[must_use]
    pub fn at_rate(&self, rate_per_s: f64) -> Self {
        let mut model = self.clone();
        if let Traffic::Open { load, .. } = &mut model.traffic {
            *load = vec![LoadStep { from: Nanos::ZERO, rate_per_s }];
        }
        model
    }
}

impl PowerModel {
    /// Voltage at a frequency, relative to that at the highest.
    fn relative_volts(&self, share: f64, lowest_share: f64) -> f64 {
        let [low, high] = self.volts;
        let span = (1.0 - lowest_share).max(f64::MIN_POSITIVE);
        (high - (high - low) * (1.0 - share) / span) / high
    }

    /// Power of a running core.
    pub fn core(&self, at: Hertz, frequencies: &[Hertz]) -> Watts {
        let (share, r) = self.shares(at, frequencies);
        Watts(self.active.0 * share * r * r + self.leakage.0 * r * r)
    }

    /// Power of a package besides its cores.
    pub fn package(&self, at: Hertz, frequencies: &[Hertz]) -> Watts {
        let (share, r) = self.shares(at, frequencies);
        Watts(self.uncore.0 * ((1.0 - self.uncore_scales) + self.uncore_scales * share * r * r))
    }

    fn shares(&self, at: Hertz, frequencies: &[Hertz]) -> (f64, f64) {
        let highest = frequencies.last().map_or(1.0, |hertz| hertz.0 as f64);
        let lowest = frequencies.first().map_or(highest, |hertz| hertz.0 as f64);
        let share = at.0 as f64 / highest;
        (share, self.relative_volts(share, lowest / highest))
    }
}

const fn constant() -> Shape {
    Shape::Constant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_falls_with_frequency_and_voltage_as_the_formula_says() {
        let frequencies = [Hertz(1_000_000_000), Hertz(2_000_000_000)];
        let power = PowerModel {
            volts: [0.8, 1.0],
            active: Watts(10.0),
            leakage: Watts(2.0),
            uncore: Watts(20.0),
            uncore_scales: 0.5,
        };
        assert_eq!(power.core(frequencies[1], &frequencies), Watts(12.0));
        let low = power.core(frequencies[0], &frequencies).0;
        assert!((low - (10.0 * 0.5 * 0.64 + 2.0 * 0.64)).abs() < 1e-9, "{low}");
        let uncore = power.package(frequencies[0], &frequencies).0;
        assert!((uncore - 20.0 * (0.5 + 0.5 * 0.5 * 0.64)).abs() < 1e-9, "{uncore}");
    }
}
