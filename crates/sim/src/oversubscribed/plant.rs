//! An oversubscribed server as policies see it: each class of connections an
//! app with its cores, each core a frequency domain. The admission controller at the gate
//! works on meanwhile, and neither knows of the other; where it only keeps its
//! numbers (`manual`), they are knobs of the policy as those of a live gate are.

use super::counts::CoreTime;
use super::model::{ConnectionClass, OversubscribedModel, OversubscribedModelError};
use super::server::{OversubscribedServer, ServerSnapshot};
use lull_control::admission::{Admission, Numbers};
use lull_control::{
    AppId, AppSeen, AppSpec, Applied, Capabilities, Capability, Class, Core, CoreId, CoreSeen,
    CoreSet, CoreType, DomainId, EnergySeen, EnergySource, FrequencyDomain, GateControl, Got,
    LatencySeen, Machine, Objective, Observation, Outcome, Plant, PlantError, Progress,
    ProgressSource, Quantiles, Setting,
};
use lull_measure::catalogue::{CPU, INSTRUCTIONS, RUN_QUEUE_WAIT};
use lull_measure::ideal_batch::{self, C6_BREAK_EVEN};
use lull_measure::{Gauge, Hertz, Latency, Missing, Nanos};
use lull_oncall::{BATCH_MAX, CAP_MAX, ISR_DELAY_MAX_NS};

/// Frequencies that a policy is offered at most.
const STEPS_MAX: usize = 1000;
/// Why no number of the gate can be set.
const GATE_NOT_MANUAL: &str = "the admission controller at the gate chooses its numbers itself: \
                               write admission = { name = \"manual\" } to leave them to a policy";

/// A simulated server under a policy and an admission controller.
pub struct OversubscribedPlant {
    server: OversubscribedServer,
    model: OversubscribedModel,
    machine: Machine,
    apps: Vec<AppSpec>,
    snapshot: ServerSnapshot,
    /// The gate's numbers now and at the start; `None` if they cannot be set.
    numbers: Option<Numbers>,
    original: Option<Numbers>,
}

impl OversubscribedPlant {
    /// A fresh replication.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn new(
        model: &OversubscribedModel,
        admission: Box<dyn Admission>,
        seed: u64,
        replication: u64,
    ) -> Result<Self, OversubscribedModelError> {
        let mut server = OversubscribedServer::new(model, admission, seed, replication)?;
        server.take_windows();
        let apps = Self::specs(model);
        let numbers = server.numbers();
        let gates = numbers.map(|_| gate_of(model, &apps)).into_iter().collect();
        let machine = machine_of(model, &apps).with_gates(gates, "simulated");
        let snapshot = server.snapshot();
        let original = numbers;
        Ok(Self { snapshot, server, model: model.clone(), machine, apps, numbers, original })
    }

    /// The apps of a model as policies know them: classes, then co-runners.
    pub fn specs(model: &OversubscribedModel) -> Vec<AppSpec> {
        let class = |class: &ConnectionClass| AppSpec {
            class: match class.objective {
                Some(objective) if objective.minds_latency() => Class::LatencyCritical,
                _ => Class::BestEffort,
            },
            objectives: class.objective.map(|one| of_all(one, class)).into_iter().collect(),
            threads: Some(class.connections),
            ..AppSpec::best_effort(&class.name)
        };
        let co_runner = model.co_runner.iter().map(|app| AppSpec {
            threads: Some(app.threads),
            solo_per_s: Some(f64::from(app.threads.min(model.cores))),
            ..AppSpec::best_effort(&app.name)
        });
        model.class.iter().map(class).chain(co_runner).collect()
    }

    /// The simulation, to look at.
    pub fn server(&mut self) -> &mut OversubscribedServer {
        &mut self.server
    }

    /// Forgets what was counted, as after a warm-up.
    pub fn forget(&mut self) {
        self.server.forget();
        self.server.take_windows();
        self.snapshot = self.server.snapshot();
    }

    /// Changes the objectives of the classes, in order. `rebuild` creates an admission
    /// controller for them if the present one cannot continue.
    ///
    /// # Errors
    /// The error of `rebuild`.
    pub fn retarget<E>(
        &mut self,
        objectives: &[Option<Objective>],
        rebuild: impl FnOnce() -> Result<Box<dyn Admission>, E>,
    ) -> Result<(), E> {
        for (class, objective) in self.model.class.iter_mut().zip(objectives) {
            class.objective = *objective;
        }
        self.apps = Self::specs(&self.model);
        self.server.retarget(&self.model.objectives(), rebuild)?;
        // A rebuilt admission controller has numbers of its own.
        self.numbers = self.server.numbers();
        Ok(())
    }

    fn observation(&mut self) -> Observation {
        let now = self.server.snapshot();
        let before = std::mem::replace(&mut self.snapshot, now);
        let epoch = self.snapshot.time - before.time;
        let windows = self.server.take_windows();
        let mut apps: Vec<AppSeen> = windows
            .into_iter()
            .enumerate()
            .map(|(class, window)| self.class_observation(class, window, &before, epoch))
            .collect();
        apps.extend(
            (apps.len()..self.apps.len())
                .map(|app| self.co_runner_observation(app, &before, epoch)),
        );
        let energy = EnergySeen {
            energy: self.snapshot.energy - before.energy,
            source: EnergySource::Measured("the simulated server's meter".to_owned()),
        };
        let cores =
            (0..self.machine.cores.len()).map(|core| self.core_observation(core, &before, epoch));
        let unread = no_gauge();
        let sleeps = self.sleeps_since(&before);
        let busy = self.busy_since(&before);
        Observation {
            time: self.snapshot.time,
            epoch,
            c6_opportunity: opportunity(&sleeps, busy),
            idle_gaps: quantiles(sleeps),
            cores: cores.collect(),
            apps,
            energy: Ok(energy),
            ..Observation::unknown(self.snapshot.time, epoch, &unread)
        }
    }

    fn core_observation(&self, core: usize, before: &ServerSnapshot, epoch: Nanos) -> CoreSeen {
        let (now, then) = (self.snapshot.cores[core], before.cores[core]);
        let share = |part: Nanos| per(epoch, part.0 as f64 / 1e9).map(|share| share.min(1.0));
        let sleeps = self.server.sleeps(core, before.sleeps[core]);
        let together = Missing::because("the simulated server reports all idle states together");
        CoreSeen {
            utilisation: share(now.0 - then.0),
            idle_residency: share(now.1 - then.1),
            deep_idle_residency: Err(together),
            c6_opportunity: opportunity(sleeps, now.0 - then.0),
            frequency: Ok(self.server.frequency(core)),
        }
    }

    /// Sleeps of all cores that ended in the epoch.
    fn sleeps_since(&self, before: &ServerSnapshot) -> Vec<Nanos> {
        let each = before.sleeps.iter().enumerate();
        each.flat_map(|(core, count)| self.server.sleeps(core, *count)).copied().collect()
    }

    fn busy_since(&self, before: &ServerSnapshot) -> Nanos {
        let pairs = self.snapshot.cores.iter().zip(&before.cores);
        pairs.map(|(now, then)| now.0 - then.0).sum()
    }

    fn class_observation(
        &self,
        class: usize,
        window: Latency,
        before: &ServerSnapshot,
        epoch: Nanos,
    ) -> AppSeen {
        let seen = self.thread_observation(class, before, epoch);
        let (now, then) = (self.snapshot.queries[class], before.queries[class]);
        let rate = |count: u64| per(epoch, count as f64);
        let (Ok(offered_per_s), Ok(completed_per_s)) = (rate(now.0 - then.0), rate(now.1 - then.1))
        else {
            return seen;
        };
        if !self.apps[class].is_latency_critical() {
            let progress = Progress { per_s: completed_per_s, source: ProgressSource::Simulated };
            return AppSeen { progress: Ok(progress), ..seen };
        }
        let (outstanding, oldest) = self.server.outstanding(class);
        let latency = LatencySeen {
            window,
            offered_per_s,
            completed_per_s,
            outstanding,
            oldest,
            ..LatencySeen::default()
        };
        AppSeen { latency: Ok(latency), ..seen }
    }

    fn co_runner_observation(&self, app: usize, before: &ServerSnapshot, epoch: Nanos) -> AppSeen {
        let work_ns = self.spent(app, before).work_ns;
        let progress = per(epoch, work_ns / 1e9)
            .map(|per_s| Progress { per_s, source: ProgressSource::Simulated });
        AppSeen { progress, ..self.thread_observation(app, before, epoch) }
    }

    /// What is seen of any app's threads: at one instruction a cycle, work is
    /// instructions.
    fn thread_observation(&self, app: usize, before: &ServerSnapshot, epoch: Nanos) -> AppSeen {
        let spent = self.spent(app, before);
        let instructions = spent.work_ns * self.model.frequency.highest.as_ghz();
        AppSeen {
            alive: true,
            threads: Ok(self.apps[app].threads.unwrap_or_default()),
            ..AppSeen::unknown(&no_gauge())
        }
        .with_reading(CPU, per(epoch, spent.cpu.as_secs_f64()))
        .with_reading(RUN_QUEUE_WAIT, per(epoch, spent.waited.as_secs_f64()))
        .with_reading(INSTRUCTIONS, per(epoch, instructions))
    }

    fn spent(&self, app: usize, before: &ServerSnapshot) -> CoreTime {
        let (now, then) = (self.snapshot.spent[app], before.spent[app]);
        CoreTime {
            cpu: now.cpu - then.cpu,
            work_ns: now.work_ns - then.work_ns,
            starts: now.starts - then.starts,
            waited: now.waited - then.waited,
        }
    }

    fn set(&mut self, wanted: &Setting) -> Got {
        if let Err(why) = self.machine.capabilities.get(wanted.knob().capability()) {
            return Got::Refused { why: why.to_string() };
        }
        match wanted {
            Setting::Cores(app, cores) => self.set_cores(*app, cores),
            Setting::Frequency(domain, hertz) => self.set_frequency(*domain, *hertz),
            Setting::GateCap(app, _) | Setting::GateBatch(app, _) | Setting::GateDelay(app, _) => {
                self.set_gate(*app, wanted)
            }
            _ => Got::Refused { why: "the simulated server has no such knob".to_owned() },
        }
    }

    fn set_cores(&mut self, app: AppId, wanted: &CoreSet) -> Got {
        if app.index() >= self.apps.len() {
            return Got::Refused { why: format!("there is no app {}", app.0) };
        }
        let has = |core: usize| wanted.contains(CoreId(core as u16)) && self.server.serves(core);
        let cores: Vec<bool> = (0..self.machine.cores.len()).map(has).collect();
        let got = set_of(&cores);
        if got.is_empty() {
            return Got::Refused { why: format!("there is no core of {wanted} to run on") };
        }
        let same = self.server.cores_of(app.index()) == cores;
        if !same {
            self.server.confine(app.index(), cores);
        }
        let why = "some of them are not there, or the scheduler's own".to_owned();
        match (got == *wanted, same) {
            (false, _) => Got::Clamped { to: Setting::Cores(app, got), why },
            (true, true) => Got::Already,
            (true, false) => Got::Done,
        }
    }

    fn set_frequency(&mut self, id: DomainId, wanted: Hertz) -> Got {
        let Some(to) = self.machine.domain(id).and_then(|domain| domain.nearest(wanted)) else {
            return Got::Refused { why: format!("there is no frequency domain {}", id.0) };
        };
        let core = usize::from(id.0);
        let same = self.server.held(core) == Some(to);
        self.server.hold(core, Some(to));
        match (to == wanted, same) {
            (false, _) => {
                let why = format!("{wanted} is no step");
                Got::Clamped { to: Setting::Frequency(id, to), why }
            }
            (true, true) => Got::Already,
            (true, false) => Got::Done,
        }
    }
}

/// The gate as a knob.
impl OversubscribedPlant {
    fn set_gate(&mut self, app: AppId, wanted: &Setting) -> Got {
        let (Some(gate), Some(before)) = (self.machine.gate(app), self.numbers) else {
            return Got::Refused { why: format!("app {} has no gate of its own", app.0) };
        };
        let now = match *wanted {
            Setting::GateCap(_, cap) => Numbers { cap, ..before },
            Setting::GateBatch(_, batch) => Numbers { batch, ..before },
            Setting::GateDelay(_, delay) => Numbers { delay, ..before },
            _ => before,
        };
        if now == before {
            return Got::Already;
        }
        if let Err(why) = gate.check(wanted) {
            return Got::Refused { why };
        }
        self.server.set_numbers(now);
        self.numbers = Some(now);
        Got::Done
    }

    /// Settings of these numbers.
    fn gate_settings(&self, numbers: Option<Numbers>) -> Vec<Setting> {
        let Some(numbers) = numbers else { return Vec::new() };
        let Numbers { cap, batch, delay } = numbers;
        let of = |gate: &GateControl| {
            let app = gate.app;
            [
                Setting::GateCap(app, cap),
                Setting::GateBatch(app, batch),
                Setting::GateDelay(app, delay),
            ]
        };
        self.machine.gates.iter().flat_map(of).collect()
    }
}

impl Plant for OversubscribedPlant {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.apps
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        self.server.run_until(self.server.now().saturating_add(epoch));
        Ok(self.observation())
    }

    /// A core that the governor steers has no frequency setting, as on a host.
    fn settings(&self) -> Vec<Setting> {
        let cores = (0..self.apps.len())
            .map(|app| Setting::Cores(AppId(app as u16), set_of(&self.server.cores_of(app))));
        let held = self.machine.domains.iter().filter_map(|domain| {
            let hertz = self.server.held(usize::from(domain.id.0))?;
            Some(Setting::Frequency(domain.id, hertz))
        });
        cores.chain(held).chain(self.gate_settings(self.numbers)).collect()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        let outcomes = wanted.iter().map(|setting| {
            let got = self.set(setting);
            Outcome { wanted: setting.clone(), got }
        });
        Applied { outcomes: outcomes.collect() }
    }

    fn restore(&mut self) -> Applied {
        let count = self.machine.cores.len();
        (0..count).for_each(|core| self.server.hold(core, None));
        let serves: Vec<bool> = (0..count).map(|core| self.server.serves(core)).collect();
        let all = set_of(&serves);
        let wanted: Vec<_> = (0..self.apps.len())
            .map(|app| Setting::Cores(AppId(app as u16), all.clone()))
            .chain(self.gate_settings(self.original))
            .collect();
        self.apply(&wanted)
    }
}

/// Converts the objective of one connection to that of its class: floors add up.
fn of_all(objective: Objective, class: &ConnectionClass) -> Objective {
    match objective {
        Objective::Throughput { floor_per_s } => {
            Objective::Throughput { floor_per_s: floor_per_s * f64::from(class.connections) }
        }
        Objective::Tail { .. } | Objective::Disengagement { .. } => objective,
    }
}

fn no_gauge() -> Missing {
    Missing::because("the simulated server has no such gauge")
}

/// Of the sleeps that ended in an epoch, and the busy time in it.
fn opportunity(sleeps: &[Nanos], busy: Nanos) -> Gauge<f64> {
    let share = ideal_batch::c6_opportunity(sleeps.iter().copied(), busy, C6_BREAK_EVEN);
    share.ok_or_else(|| Missing::because("no sleep ended in the epoch, and no core was busy"))
}

fn quantiles(mut sleeps: Vec<Nanos>) -> Gauge<Quantiles> {
    sleeps.sort_unstable();
    let Some(last) = sleeps.len().checked_sub(1) else {
        return Err(Missing::because("no sleep ended in the epoch"));
    };
    let at = |share: f64| sleeps[((sleeps.len() as f64 * share).ceil() as usize - 1).min(last)];
    Ok(Quantiles { p50: at(0.5), p95: at(0.95), p99: at(0.99) })
}

fn per(epoch: Nanos, amount: f64) -> Gauge<f64> {
    match epoch {
        Nanos::ZERO => Err(Missing::because("an epoch of no length")),
        _ => Ok(amount / epoch.as_secs_f64()),
    }
}

fn set_of(cores: &[bool]) -> CoreSet {
    let numbered = cores.iter().enumerate().filter(|(_, is_in)| **is_in);
    numbered.map(|(core, _)| CoreId(core as u16)).collect()
}

/// Returns the one gate of all classes. It is listed under the first class with a latency
/// objective, because a search uses that objective.
fn gate_of(model: &OversubscribedModel, apps: &[AppSpec]) -> GateControl {
    let first = apps.iter().position(AppSpec::is_latency_critical).unwrap_or(0);
    GateControl {
        app: AppId(first as u16),
        workers: Some(model.connections()),
        cap_max: model.connections().max(CAP_MAX),
        batch_max: BATCH_MAX,
        delay_max: Nanos(ISR_DELAY_MAX_NS),
    }
}

fn machine_of(model: &OversubscribedModel, apps: &[AppSpec]) -> Machine {
    let count = model.cores as u16;
    let core = |id| Core { id: CoreId(id), core_type: 0, package: 0, smt_leader: CoreId(id) };
    let frequency = &model.frequency;
    let mut steps: Vec<_> = (frequency.lowest.0..frequency.highest.0)
        .step_by(frequency.step.0 as usize)
        .take(STEPS_MAX)
        .map(Hertz)
        .collect();
    steps.push(frequency.highest);
    let domain = |id: u16| FrequencyDomain {
        id: DomainId(id),
        cores: [CoreId(id)].into_iter().collect(),
        steps: steps.clone(),
        continuous: false,
    };
    Machine {
        name: "simulated oversubscribed server".to_owned(),
        cores: (0..count).map(core).collect(),
        core_types: vec![CoreType { name: "core".to_owned(), speed: 1.0 }],
        domains: (0..count).map(domain).collect(),
        cache: None,
        bandwidth: None,
        nics: Vec::new(),
        dials: Vec::new(),
        gates: Vec::new(),
        capabilities: capabilities(apps),
    }
}

fn capabilities(apps: &[AppSpec]) -> Capabilities {
    let critical = apps.iter().any(AppSpec::is_latency_critical);
    let best_effort = apps.iter().any(|app| !app.is_latency_critical());
    let found = [
        (Capability::Cores, true, ""),
        (Capability::Frequency, true, ""),
        (Capability::TailLatency, critical, "no class is promised a latency"),
        (Capability::Progress, best_effort, "every class is promised a latency"),
        (Capability::CpuTime, true, ""),
        (Capability::Utilisation, true, ""),
        (Capability::IdleResidency, true, ""),
        (Capability::Instructions, true, ""),
        (Capability::Energy, true, ""),
        (Capability::Scheduling, false, "the simulated server's threads are all alike"),
        (Capability::RealTimeThrottle, false, "the simulated server's threads are all alike"),
        (Capability::CacheWays, false, "the simulated server has no cache model"),
        (Capability::MemoryBandwidth, false, "the simulated server has no memory model"),
        (Capability::Coalescing, false, "the simulated server has no network card"),
        (Capability::GateCap, false, GATE_NOT_MANUAL),
        (Capability::GateBatch, false, GATE_NOT_MANUAL),
        (Capability::GateDelay, false, GATE_NOT_MANUAL),
        (Capability::SchedulerEvents, false, "the simulated server has sums of waits only"),
    ];
    found.into_iter().fold(Capabilities::default(), |all, (what, there, why)| match there {
        true => all.with_capability(what, "simulated"),
        false => all.without(what, Missing::because(why)),
    })
}
