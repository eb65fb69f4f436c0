//! A server behind a network card: how long interrupts may be delayed and how
//! fast cores run, against tail latency and energy.
//!
//! Every core has a vector of the card. A packet that reaches it interrupts
//! as soon as the *ITR delay* since the last interrupt is over; the vector
//! stays masked while the core polls, and polling preempts the app. Transmitted
//! packets raise interrupts too. Polling then wakes the app's thread, which fetches
//! the ready requests (`epoll_wait`), serves them and goes back to sleep; the core
//! chooses an idle state by a governor like Linux's menu ([`crate::idle`]). Every
//! step costs cycles: a longer delay saves cycles by batching, and a lower frequency
//! makes each step longer. A second stack serves requests where packets are
//! received, without threads, as a specialised OS does.
//!
//! ```
//! use lull_measure::Nanos;
//! use lull_sim::netserver::{NetServer, NetServerModel};
//!
//! let model: NetServerModel = toml::from_str(include_str!("netserver/example.toml"))?;
//! let mut server = NetServer::new(&model, 1, 0)?;
//! server.run_until(Nanos::from_millis(200));
//! let totals = server.totals();
//! assert!(totals.answered > 3_000 && totals.energy.0 > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is left out
//!
//! Acknowledgements and retransmissions of open-loop traffic; the hand-over of
//! endless polling to a kernel thread (only a core whose polling alone exceeds
//! its time would need it); cache effects of batches; frequency transitions,
//! which take 10 us where a governor acts every 10 ms. Instructions are not
//! modelled, cycles are. Where requests are served in the round that receives them, the round
//! is simulated at its end, so that what a client sends after a reply arrives no earlier: a
//! ping-pong whose network is faster than a round is too slow on such a stack.

mod check;
mod client;
mod core;
mod log;
mod model;
mod parts;
mod plant;
mod totals;

pub use crate::governor::Governor;
pub use crate::moderation::Moderation;
pub use log::InterruptRecord;
pub use model::{AppModel, NetServerModel, NicModel, PingPong, PowerModel, Stack, Traffic};
pub use plant::NetServerPlant;
pub use totals::NetServerTotals;

use crate::model::ModelError;
use crate::replication::Replication;
use client::CoreTraffic;
use core::Core;
use log::InterruptLog;
use lull_measure::{Hertz, Joules, Nanos};
use parts::CoreConfig;

/// One replication of a server.
#[derive(Debug, Clone)]
pub struct NetServer {
    model: NetServerModel,
    config: CoreConfig,
    now_ns: u64,
    cores: Vec<Core>,
    packages: Vec<Package>,
    /// The delay that a policy has set; `None` while the driver chooses it.
    delay: Option<Nanos>,
    /// Time of the governor's next sample.
    tick_ns: u64,
    baseline: totals::NetServerBaseline,
}

/// Cores that share one frequency.
#[derive(Debug, Clone)]
struct Package {
    frequency: Hertz,
    /// Whether a policy has set the frequency, which then overrides the governor.
    held: bool,
    /// Energy of uncore and running cores, up to `at_ns`.
    energy: Joules,
    at_ns: u64,
    /// Busy time of its cores at `at_ns`, and at the last tick each.
    busy_ns: u64,
    ticked_ns: Vec<u64>,
}

impl NetServer {
    /// A fresh replication.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn new(model: &NetServerModel, seed: u64, replication: u64) -> Result<Self, ModelError> {
        model.check()?;
        let streams = Replication { seed, number: replication };
        let clients = CoreTraffic::all_cores(model, streams);
        let core = |(index, client)| Core::new(model, client, streams, index);
        let package = |_| Package {
            frequency: model.first_frequency(),
            held: false,
            energy: Joules(0.0),
            at_ns: 0,
            busy_ns: 0,
            ticked_ns: vec![0; usize::from(model.cores_a_package())],
        };
        let config = CoreConfig {
            stack: model.stack.clone(),
            nic: model.nic.clone(),
            app: model.app.clone(),
            idle: model.idle.clone(),
        };
        let mut server = Self {
            config,
            now_ns: 0,
            cores: clients.into_iter().enumerate().map(core).collect(),
            packages: (0..model.packages).map(package).collect(),
            delay: None,
            tick_ns: 0,
            baseline: totals::NetServerBaseline::default(),
            model: model.clone(),
        };
        server.tick_ns = server.period_ns();
        server.forget();
        Ok(server)
    }

    /// Time since the start.
    pub fn now(&self) -> Nanos {
        Nanos(self.now_ns)
    }

    /// The model that it runs.
    pub fn model(&self) -> &NetServerModel {
        &self.model
    }

    /// Runs all events up to `end`.
    pub fn run_until(&mut self, end: Nanos) {
        while self.now_ns < end.0 {
            let next_ns = end.0.min(self.tick_ns);
            for core in &mut self.cores {
                core.run_until(next_ns, &self.config);
            }
            self.now_ns = next_ns;
            if next_ns == self.tick_ns {
                self.tick();
            }
        }
    }

    /// The frequency of a package.
    pub fn frequency(&self, package: usize) -> Hertz {
        self.packages[package].frequency
    }

    /// Sets the frequency of a package, or returns it to the governor.
    pub fn set_frequency(&mut self, package: usize, wanted: Option<Hertz>) {
        let model = &self.model;
        let now = self.packages[package].frequency;
        let to = wanted
            .unwrap_or_else(|| model.governor.unsampled(now, model.lowest(), model.highest()));
        self.packages[package].held = wanted.is_some();
        self.change_frequency(package, to);
    }

    /// Sets the ITR delay of all vectors, or gives it back to the driver.
    pub fn set_delay(&mut self, wanted: Option<Nanos>) {
        self.delay = wanted;
        let kind = wanted.map_or(self.model.nic.moderation, Moderation::Fixed);
        for core in &mut self.cores {
            core.set_moderation(kind);
        }
    }

    /// The ITR delay that was set; `None` while the driver has it.
    pub fn delay(&self) -> Option<Nanos> {
        self.delay
    }

    /// Keeps a log of the first `most` interrupts of every core.
    pub fn keep_log(&mut self, most: usize) {
        for core in &mut self.cores {
            core.log = Some(InterruptLog::new(most));
        }
    }

    /// The log of a core; empty if none is kept.
    pub fn log(&self, core: usize) -> &[InterruptRecord] {
        self.cores[core].log.as_ref().map_or(&[], InterruptLog::entries)
    }

    /// Returns the governor's sampling period; `u64::MAX` if it has nothing to decide.
    fn period_ns(&self) -> u64 {
        self.model.governor.period().map_or(u64::MAX, |period| period.0)
    }

    /// The governor samples the load of each package since its last sample.
    fn tick(&mut self) {
        let period_ns = self.period_ns();
        self.tick_ns = self.tick_ns.saturating_add(period_ns);
        for package in 0..self.packages.len() {
            let busy: Vec<u64> =
                self.cores_of(package).map(|core| self.cores[core].busy_ns()).collect();
            let before = std::mem::replace(&mut self.packages[package].ticked_ns, busy);
            if self.packages[package].held {
                continue;
            }
            let now = self.packages[package].ticked_ns.iter().zip(&before);
            let most_ns = now.map(|(now, then)| now - then).max().unwrap_or(0);
            let to = self.sampled(most_ns as f64 / period_ns as f64);
            self.change_frequency(package, to);
        }
    }

    /// Returns the frequency that the governor wants at this load: the closest of the table.
    fn sampled(&self, load: f64) -> Hertz {
        let all = &self.model.frequencies;
        let (lowest, highest) = (self.model.lowest().0 as f64, self.model.highest().0 as f64);
        let Some(share) = self.model.governor.share_of_range(load) else {
            return self.model.highest();
        };
        let wanted = (lowest + share * (highest - lowest)) as u64;
        all.iter().copied().min_by_key(|hertz| hertz.0.abs_diff(wanted)).unwrap_or_default()
    }

    fn change_frequency(&mut self, package: usize, to: Hertz) {
        if self.packages[package].frequency == to {
            return;
        }
        self.meter(package);
        self.packages[package].frequency = to;
        for core in self.cores_of(package) {
            self.cores[core].set_frequency(to);
        }
    }

    /// Adds up a package's energy up to now. Must be called before its frequency
    /// changes, because the energy of the past is that of the old frequency.
    fn meter(&mut self, package: usize) {
        let energy = self.energy_of(package);
        let busy_ns = self.cores_of(package).map(|core| self.cores[core].busy_ns()).sum();
        let now_ns = self.now_ns;
        let state = &mut self.packages[package];
        (state.energy, state.busy_ns, state.at_ns) = (energy, busy_ns, now_ns);
    }

    /// Energy of a package up to now, without that of idle cores.
    fn energy_of(&self, package: usize) -> Joules {
        let state = &self.packages[package];
        let busy_ns: u64 = self.cores_of(package).map(|core| self.cores[core].busy_ns()).sum();
        let (power, frequencies) = (&self.model.power, &self.model.frequencies);
        let cores = power.core(state.frequency, frequencies).during(Nanos(busy_ns - state.busy_ns));
        let around = power.package(state.frequency, frequencies);
        state.energy + cores + around.during(Nanos(self.now_ns - state.at_ns))
    }

    fn cores_of(&self, package: usize) -> std::ops::Range<usize> {
        let each = usize::from(self.model.cores_a_package());
        package * each..(package + 1) * each
    }
}
