//! A network server as plain data.

use crate::governor::Governor;
use crate::idle::{IdleRule, IdleState};
use crate::machine::{
    Activity, Card, EventLoops, LoadStep, MachineApp, MachineModel, MachinePlant,
    MachinePlantError, MachineSimulation, Power, Scaling, Stack, Traffic,
};
use crate::model::{ModelError, Shape};
use crate::moderation::Moderation;
use lull_control::AppSpec;
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
    pub power: PackagePower,
    /// The network card.
    pub nic: NicModel,
    /// The software between card and app.
    pub stack: Stack,
    /// The app's work for a request.
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
pub struct PackagePower {
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

/// The app's work for a request.
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

impl NetServerModel {
    /// The highest frequency.
    pub fn highest(&self) -> Hertz {
        self.frequencies.last().copied().unwrap_or_default()
    }

    /// The lowest frequency.
    pub fn lowest(&self) -> Hertz {
        self.frequencies.first().copied().unwrap_or_default()
    }

    /// The machine that it describes, whose one app has its name.
    pub fn machine(&self) -> MachineModel {
        let Self { nic, app, power, .. } = self;
        let [low, high] = power.volts;
        let card = Card {
            moderation: nic.moderation,
            delay_max: nic.delay_max,
            delay_step: nic.delay_step,
            buckets: nic.buckets,
            connections: self.traffic.connections(),
            budget: nic.budget,
            tx_interrupts: nic.tx_interrupts,
            interrupt: Nanos::ZERO,
            receive: Nanos::ZERO,
            clean: Nanos::ZERO,
            request_bytes: app.rx_bytes,
            reply_bytes: app.tx_bytes,
        };
        let loops = EventLoops {
            cycles: app.cycles,
            shape: app.shape,
            stack: self.stack.clone(),
            frame: nic.frame,
            traffic: self.traffic.clone(),
        };
        let activity = Activity::EventLoops(Box::new(loops));
        MachineModel {
            scaling: Some(Scaling {
                lowest: self.lowest(),
                step: Hertz(0),
                steps: self.frequencies.clone(),
                governor: self.governor,
                domain: self.cores / self.packages.max(1),
                latency: Nanos::ZERO,
            }),
            idle: self.idle.clone(),
            idle_rule: self.idle_rule,
            power: Some(Power {
                active_dynamic: power.active,
                leakage: power.leakage,
                voltage_ratio: low / high,
                uncore: power.uncore,
                uncore_scales: power.uncore_scales,
                ..Power::default()
            }),
            card: Some(card),
            app: vec![MachineApp::new(&app.name, u32::from(self.cores), activity)],
            ..MachineModel::plain(&self.name, self.cores, self.highest())
        }
    }

    /// A fresh replication.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn simulation(&self, seed: u64, replication: u64) -> Result<MachineSimulation, ModelError> {
        self.check()?;
        MachineSimulation::new(&self.machine(), seed, replication)
    }

    /// A fresh replication under a policy, which knows its app as `app`.
    ///
    /// # Errors
    /// If the model cannot be simulated, or the app is not its own.
    pub fn plant(
        &self,
        app: &AppSpec,
        seed: u64,
        replication: u64,
    ) -> Result<MachinePlant, MachinePlantError> {
        self.check()?;
        MachinePlant::new(&self.machine(), std::slice::from_ref(app), seed, replication)
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

const fn constant() -> Shape {
    Shape::Constant
}
