//! The plant of a node.

use super::totals::AppCounters;
use super::{NodeModel, NodeSimulation, Throttle};
use crate::model::ModelError;
use lull_control::{
    AppId, AppSeen, AppSpec, Applied, BandwidthControl, CacheControl, Capabilities, Capability,
    Core, CoreId, CoreSeen, CoreSet, CoreType, DomainId, FrequencyDomain, Got, LatencySeen,
    Machine, Observation, Outcome, Plant, PlantError, Progress, ProgressSource, Readings,
    RosterEvent, Scheduling, Setting,
};
use lull_measure::catalogue::{
    CACHE_OCCUPANCY, CONTEXT_SWITCHES, CPU, CYCLES, INSTRUCTIONS, LLC_MISSES, MEMORY_BANDWIDTH,
    RUN_QUEUE_WAIT,
};
use lull_measure::{Gauge, Hertz, Missing, Nanos};

/// A simulated node under a policy.
#[derive(Debug, Clone)]
pub struct NodePlant {
    node: NodeSimulation,
    machine: Machine,
    apps: Vec<AppSpec>,
    /// Number in the model of each app.
    numbers: Vec<usize>,
    classes: Vec<Scheduling>,
    /// How often each app had departed when `classes` was last brought up to it.
    lives: Vec<u32>,
    frequency: Hertz,
    snapshot: NodeSnapshot,
    /// How long each app was present in the last epoch.
    presence: Vec<Nanos>,
}

/// Why a node cannot be watched.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NodePlantError {
    /// The model cannot be simulated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no such app.
    #[error("the node has no app `{app}`; it has: {known}")]
    NoApp {
        /// The name.
        app: String,
        /// The names that exist.
        known: String,
    },
    /// Requests of an app without any.
    #[error("`{app}` is latency-critical, but its threads serve no requests")]
    NoRequests {
        /// The name.
        app: String,
    },
}

/// Counters at the last observation.
#[derive(Debug, Clone)]
struct NodeSnapshot {
    time: Nanos,
    apps: Vec<AppCounters>,
    busy_ns: Vec<u128>,
    pressure_ns: u128,
}

const NORMAL: Scheduling = Scheduling::Normal { nice: 0 };

impl NodePlant {
    /// A fresh replication, watched and steered for these apps. An app of the
    /// model that is left out runs unseen.
    ///
    /// # Errors
    /// If the model cannot be simulated or an app is not in it.
    pub fn new(
        model: &NodeModel,
        apps: &[AppSpec],
        seed: u64,
        replication: u64,
    ) -> Result<Self, NodePlantError> {
        let node = NodeSimulation::new(model, seed, replication)?;
        let number = |spec: &AppSpec| {
            let app = spec.name.clone();
            let known = || model.app.iter().map(|app| app.name.clone()).collect::<Vec<_>>();
            let Some(number) = model.app_named(&app) else {
                return Err(NodePlantError::NoApp { app, known: known().join(", ") });
            };
            if spec.is_latency_critical() && !model.app[number].serves() {
                return Err(NodePlantError::NoRequests { app });
            }
            Ok(number)
        };
        let numbers = apps.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        let snapshot = NodeSnapshot::take(&node);
        Ok(Self {
            machine: machine_of(model, apps),
            apps: apps.to_vec(),
            classes: vec![NORMAL; apps.len()],
            lives: vec![0; apps.len()],
            frequency: model.frequency,
            presence: vec![Nanos::ZERO; apps.len()],
            numbers,
            node,
            snapshot,
        })
    }

    /// The simulation, to look at.
    pub fn node(&self) -> &NodeSimulation {
        &self.node
    }

    /// The simulation, to forget a warm-up or to keep a log.
    pub fn node_mut(&mut self) -> &mut NodeSimulation {
        &mut self.node
    }

    /// Lets an app arrive, leave or be restarted now.
    pub fn change(&mut self, app: AppId, event: RosterEvent) {
        self.node.change(self.numbers[app.index()], event);
        self.note_lives();
    }

    /// How long an app was on the node in the last epoch.
    pub fn was_present(&self, app: AppId) -> Nanos {
        self.presence[app.index()]
    }

    /// Forgets the classes of processes that are gone.
    fn note_lives(&mut self) {
        for (app, number) in self.numbers.iter().enumerate() {
            let life = self.node.apps[*number].life;
            if std::mem::replace(&mut self.lives[app], life) != life {
                self.classes[app] = NORMAL;
            }
        }
    }

    /// The apps that are present and were at the last observation, but departed in between.
    fn restarted(&self, before: &NodeSnapshot) -> Vec<AppId> {
        let ids = (0u16..).map(AppId).zip(&self.numbers);
        let is_restarted = |(app, number): (AppId, &usize)| {
            let (now, then) = (&self.snapshot.apps[*number], &before.apps[*number]);
            let is_new = now.is_present && then.is_present && now.life != then.life;
            is_new.then_some(app)
        };
        ids.filter_map(is_restarted).collect()
    }

    fn observation(&mut self) -> Observation {
        let now = NodeSnapshot::take(&self.node);
        let before = std::mem::replace(&mut self.snapshot, now);
        let epoch = self.snapshot.time - before.time;
        let epoch_ns = epoch.0 as f64;
        let apps = (0..self.apps.len()).map(|app| self.app_observation(app, &before)).collect();
        let share = |part_ns: u128| match epoch {
            Nanos::ZERO => Err(Missing::because("an epoch of no length")),
            _ => Ok((part_ns as f64 / epoch_ns).min(1.0)),
        };
        let busy = self.snapshot.busy_ns.iter().zip(&before.busy_ns);
        let no_states = Missing::because("the simulated node has no idle states");
        let core = |utilisation| CoreSeen {
            utilisation,
            frequency: Ok(self.frequency),
            ..CoreSeen::unknown(&no_states)
        };
        let untold = Missing::because("the simulated node does not record single waits and gaps");
        Observation {
            time: self.snapshot.time,
            epoch,
            apps,
            cores: busy.map(|(now, then)| core(share(now - then))).collect(),
            energy: Err(Missing::because("the simulated node has no power model")),
            cpu_pressure: share(self.snapshot.pressure_ns - before.pressure_ns),
            interrupts_per_s: Err(Missing::because("the simulated node has no interrupts")),
            packets_per_s: Err(Missing::because("the simulated node has no network")),
            restarted: self.restarted(&before),
            ..Observation::unknown(self.snapshot.time, epoch, &untold)
        }
    }

    fn app_observation(&mut self, app: usize, before: &NodeSnapshot) -> AppSeen {
        let number = self.numbers[app];
        let counted = self.snapshot.apps[number].since(&before.apps[number]);
        let latency = self.apps[app].is_latency_critical();
        self.presence[app] = Nanos(counted.present_ns as u64);
        if !self.node.is_present(number) {
            return AppSeen::unknown(&absent());
        }
        // The rates of an app that arrived within the epoch are of its own time.
        let epoch = self.presence[app];
        let none = Missing::because("an epoch of no length");
        let seconds = epoch.as_secs_f64();
        if epoch == Nanos::ZERO {
            return AppSeen { alive: true, ..AppSeen::unknown(&none) };
        }
        let state = &self.node.apps[number];
        let (busy_s, work_s) = (counted.busy_ns as f64 / 1e9, counted.work_ns / 1e9);
        let hertz = self.node.frequency_hz;
        let mut readings =
            Readings::unknown(&Missing::because("the simulated node has no such gauge"));
        readings.set(CPU, Ok(busy_s / seconds));
        readings.set(RUN_QUEUE_WAIT, Ok(counted.queued_ns as f64 / 1e9 / seconds));
        readings.set(CONTEXT_SWITCHES, Ok(counted.switches as f64 / seconds));
        readings.set(INSTRUCTIONS, Ok(work_s * hertz * state.ipc / seconds));
        readings.set(CYCLES, Ok(busy_s * hertz / seconds));
        readings.set(LLC_MISSES, Err(unread("cache misses")));
        readings.set(CACHE_OCCUPANCY, Err(unread("cache occupancy")));
        readings.set(MEMORY_BANDWIDTH, Err(unread("memory bandwidth")));
        AppSeen {
            alive: true,
            readings,
            threads: Ok(self.node.threads.iter().filter(|it| it.app == number).count() as u32),
            progress: progress(latency, work_s / seconds),
            latency: match latency {
                true => Ok(self.node.take_latency(number, &counted, epoch)),
                false => Err(Missing::because("a best-effort app has no requests")),
            },
        }
    }
}

/// A node has the gauges of a host without resctrl monitors, so that no policy comes
/// to depend on more.
fn unread(what: &str) -> Missing {
    Missing::because(format!("the simulated node has no gauge of {what}"))
}

fn absent() -> Missing {
    Missing::because("the app is not on the node now")
}

fn progress(latency_critical: bool, per_s: f64) -> Gauge<Progress> {
    if latency_critical {
        return Err(Missing::because("a latency-critical app is measured by its latency"));
    }
    Ok(Progress { per_s, source: ProgressSource::Simulated })
}

impl NodeSimulation {
    /// Takes the latencies of an app since the last observation.
    fn take_latency(&mut self, app: usize, counted: &AppCounters, epoch: Nanos) -> LatencySeen {
        let per_s = |count: u64| count as f64 / epoch.as_secs_f64();
        let oldest = self.oldest_ns(app);
        LatencySeen {
            window: std::mem::take(&mut self.apps[app].window),
            offered_per_s: per_s(counted.arrived),
            completed_per_s: per_s(counted.answered),
            errors_per_s: 0.0,
            outstanding: u64::from(self.apps[app].outstanding.value()),
            oldest: oldest.map(|arrived_ns| Nanos(self.now_ns - arrived_ns)),
            ..LatencySeen::default()
        }
    }
}

impl NodeSnapshot {
    fn take(node: &NodeSimulation) -> Self {
        let now_ns = node.now_ns;
        Self {
            time: node.now(),
            apps: (0..node.apps.len()).map(|app| node.counters(app)).collect(),
            busy_ns: node.cores.iter().map(|core| core.busy.integral_at(now_ns)).collect(),
            pressure_ns: node.pressure.integral_at(now_ns),
        }
    }
}

impl Plant for NodePlant {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.apps
    }

    fn is_present(&self, app: AppId) -> bool {
        self.numbers.get(app.index()).is_some_and(|number| self.node.is_present(*number))
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        self.node.run_until(self.node.now().saturating_add(epoch));
        self.note_lives();
        Ok(self.observation())
    }

    fn settings(&self) -> Vec<Setting> {
        let each = (0u16..).map(AppId).zip(&self.numbers).zip(&self.classes);
        let each = each.filter(|((id, _), _)| self.is_present(*id));
        each.flat_map(|((id, number), class)| {
            self.node.settings_of(*number, id, *class, &self.machine)
        })
        .collect()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        let outcomes = wanted.iter().map(|setting| {
            let app = setting.knob().app().map(AppId::index).filter(|app| *app < self.apps.len());
            let number = app.map(|app| self.numbers[app]);
            let got = match number.filter(|number| !self.node.is_present(*number)) {
                Some(_) => Got::Refused { why: absent().to_string() },
                None => self.node.set(number, setting, &self.settings(), &self.machine),
            };
            let outcome = Outcome { wanted: setting.clone(), got };
            if let (Some(app), Some(Setting::Scheduling(_, class))) = (app, outcome.in_force()) {
                self.classes[app] = *class;
            }
            outcome
        });
        Applied { outcomes: outcomes.collect() }
    }

    fn restore(&mut self) -> Applied {
        let machine = &self.machine;
        let present = (0u16..).map(AppId).take(self.apps.len()).filter(|app| self.is_present(*app));
        let original = present.flat_map(|app| {
            let ways = machine
                .cache
                .as_ref()
                .map(|cache| Setting::CacheWays(app, lull_control::WayMask::run(0, cache.ways)));
            let bandwidth = machine.bandwidth.as_ref().map(|_| Setting::MemoryBandwidth(app, 100));
            [Setting::Cores(app, machine.all_cores()), Setting::Scheduling(app, NORMAL)]
                .into_iter()
                .chain(ways)
                .chain(bandwidth)
        });
        let original: Vec<_> = original.collect();
        self.apply(&original)
    }
}

fn machine_of(model: &NodeModel, apps: &[AppSpec]) -> Machine {
    let core = |id| Core { id: CoreId(id), core_type: 0, package: 0, smt_leader: CoreId(id) };
    let cache = model.cache.map(|cache| CacheControl {
        ways: cache.ways,
        contiguous: true,
        size_bytes: u64::from(cache.ways) * cache.way_bytes,
    });
    let bandwidth = throttle_of(model).map(|throttle| BandwidthControl {
        min_percent: throttle.min_percent,
        step_percent: throttle.step_percent,
    });
    let domain = FrequencyDomain {
        id: DomainId(0),
        cores: CoreSet::first(model.cores),
        steps: Vec::new(),
        continuous: false,
    };
    Machine {
        name: format!("simulated {}", model.name),
        cores: (0..model.cores).map(core).collect(),
        core_types: vec![CoreType { name: "core".to_owned(), speed: 1.0 }],
        domains: vec![domain],
        capabilities: capabilities(model, apps),
        cache,
        bandwidth,
        nics: Vec::new(),
        dials: Vec::new(),
        gates: Vec::new(),
    }
}

fn throttle_of(model: &NodeModel) -> Option<Throttle> {
    model.memory.and_then(|memory| memory.throttle)
}

/// Why no gate's numbers can be set.
const NO_GATE: &str = "the simulated node's apps have no gate";

fn capabilities(model: &NodeModel, apps: &[AppSpec]) -> Capabilities {
    let critical = |wanted: bool| apps.iter().any(|app| app.is_latency_critical() == wanted);
    let found = [
        (Capability::Cores, true, ""),
        (Capability::Scheduling, true, ""),
        (Capability::CpuTime, true, ""),
        (Capability::Utilisation, true, ""),
        (Capability::Instructions, true, ""),
        (Capability::CacheWays, model.cache.is_some(), "the model gives the node no cache"),
        (
            Capability::MemoryBandwidth,
            throttle_of(model).is_some(),
            "the model gives memory no throttle",
        ),
        (Capability::TailLatency, critical(true), "no latency-critical app is watched"),
        (Capability::Progress, critical(false), "no best-effort app is watched"),
        (Capability::RealTimeThrottle, false, "the simulated scheduler never throttles"),
        (Capability::Frequency, false, "the simulated node has one frequency"),
        (Capability::Coalescing, false, "the simulated node has no network"),
        (Capability::GateCap, false, NO_GATE),
        (Capability::GateBatch, false, NO_GATE),
        (Capability::GateDelay, false, NO_GATE),
        (Capability::IdleResidency, false, "the simulated node has no idle states"),
        (Capability::SchedulerEvents, false, "the simulated node has no idle states"),
        (Capability::Energy, false, "the simulated node has no power model"),
    ];
    found.into_iter().fold(Capabilities::default(), |all, (what, there, why)| match there {
        true => all.with_capability(what, "simulated"),
        false => all.without(what, Missing::because(why)),
    })
}
