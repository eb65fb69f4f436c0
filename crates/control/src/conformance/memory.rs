//! A plant in memory: a few formulas instead of a machine.
//!
//! For tests of policies and of the loop that need a plant which answers to
//! its knobs but no simulator. Latency-critical apps answer in the
//! exponential response time of M/M/1 on the cores they get (sojourn
//! `s/(1 - demand/cores)`), best-effort apps progress by their core share.
//! Exact, without noise: a worse setting is always seen to be worse.

use crate::{
    AppId, AppObservation, AppSpec, Applied, ApplyOutcome, BandwidthControl, CacheControl,
    Capabilities, Capability, ClientClassObservation, Coalescing, Core, CoreId, CoreObservation,
    CoreSet, CoreType, Dial, DialId, DomainId, EnergyObservation, EnergyPreference, EnergySource,
    ForeignChange, FrequencyDomain, GateControl, KNOBS, Knob, KnobRow, KnobScope,
    LatencyObservation, Machine, Nic, NicId, Observation, Outcome, Plant, PlantError, Progress,
    ProgressSource, Scheduling, Setting, Value, ValueKind, numbered,
};
use lull_measure::{Hertz, Joules, Latency, Missing, Nanos};
use std::collections::BTreeMap;

const SPEED_MAX: Hertz = Hertz(2_000_000_000);
const SPEED_MIN: Hertz = Hertz(1_000_000_000);
const WAYS: u32 = 20;
/// Quantiles recorded an epoch, so that the window has a tail to p99.9.
const REQUESTS: u32 = 1_000;

/// One app in memory.
#[derive(Debug, Clone)]
pub struct MemoryApp {
    /// The description that policies receive.
    pub spec: AppSpec,
    /// Work offered, in cores kept busy at full speed (latency-critical apps).
    pub demand_cores: f64,
    /// Mean service time at full speed (latency-critical apps).
    pub service: Nanos,
    /// Cores it can use at once.
    pub threads: u32,
}

/// The plant.
pub struct MemoryPlant {
    machine: Machine,
    apps: Vec<MemoryApp>,
    specs: Vec<AppSpec>,
    state: BTreeMap<Knob, Setting>,
    original: BTreeMap<Knob, Setting>,
    time: Nanos,
    silent: Vec<bool>,
    gone: Vec<bool>,
    foreign: Vec<ForeignChange>,
    restarted: Vec<AppId>,
}

impl MemoryPlant {
    /// This many equal cores with these apps, every knob there is, and all shared.
    pub fn new(cores: u16, apps: Vec<MemoryApp>) -> Self {
        let specs: Vec<_> = apps.iter().map(|app| app.spec.clone()).collect();
        let machine = machine(cores).with_gates(gates(&specs), "memory");
        let knobs = KNOBS.iter().flat_map(|row| machine.knobs(row, specs.len()));
        let state: BTreeMap<Knob, Setting> = knobs
            .filter_map(|knob| {
                let value = machine.most(knob).unwrap_or_else(|| unordered(knob));
                Some((knob, knob.set_to(value)?))
            })
            .collect();
        let flags = vec![false; apps.len()];
        Self {
            machine,
            apps,
            specs,
            original: state.clone(),
            state,
            time: Nanos::ZERO,
            silent: flags.clone(),
            gone: flags,
            foreign: Vec::new(),
            restarted: Vec::new(),
        }
    }

    /// Takes a capability away, as a machine without the knob or gauge would.
    #[must_use]
    pub fn without(mut self, capability: Capability, why: &'static str) -> Self {
        self.machine.capabilities =
            self.machine.capabilities.without(capability, Missing::because(why));
        let kept = |knob: &Knob| knob.capability() != capability;
        self.state.retain(|knob, _| kept(knob));
        self.original.retain(|knob, _| kept(knob));
        self
    }

    /// Makes an app's latency source silent, or speak again.
    pub fn set_silent(&mut self, app: AppId, silent: bool) {
        self.silent[app.index()] = silent;
    }

    /// Ends an app.
    pub fn end(&mut self, app: AppId) {
        self.gone[app.index()] = true;
        self.reset(app);
    }

    /// Starts an ended app again, with new threads that no knob was set for; of one that runs,
    /// replaces all processes.
    pub fn begin(&mut self, app: AppId) {
        if !std::mem::take(&mut self.gone[app.index()]) {
            self.restarted.push(app);
        }
        self.reset(app);
    }

    /// Removes an app from the run, its knobs as they were.
    pub fn remove(&mut self, app: AppId) {
        self.end(app);
        self.specs[app.index()] = AppSpec::removed();
    }

    /// Adds an app to the run, which runs from now on, and returns its id.
    pub fn add(&mut self, app: MemoryApp) -> AppId {
        let id = AppId(self.specs.len() as u16);
        self.specs.push(app.spec.clone());
        self.apps.push(app);
        self.silent.push(false);
        self.gone.push(false);
        for row in KNOBS.iter().filter(|row| row.scope == KnobScope::App) {
            let knob = (row.knob)(id.0);
            let value = self.machine.most(knob).unwrap_or_else(|| unordered(knob));
            let has_it = self.machine.capabilities.has(row.capability);
            if let Some(setting) = knob.set_to(value).filter(|_| has_it) {
                self.original.insert(knob, setting.clone());
                self.state.insert(knob, setting);
            }
        }
        id
    }

    fn reset(&mut self, app: AppId) {
        let own = self.original.iter().filter(|(knob, _)| knob.app() == Some(app));
        self.state.extend(own.map(|(knob, setting)| (*knob, setting.clone())));
    }

    /// Changes the load of an app.
    pub fn set_demand(&mut self, app: AppId, cores: f64) {
        self.apps[app.index()].demand_cores = cores;
    }

    /// Changes a knob behind the agent's back.
    pub fn interfere(&mut self, found: Setting) {
        let ours = self.state.insert(found.knob(), found.clone()).unwrap_or_else(|| found.clone());
        let whom = "another writer in a test".to_owned();
        self.foreign.push(ForeignChange { knob: found.knob(), ours, found, whom });
    }

    fn cores_of(&self, app: AppId) -> CoreSet {
        match self.state.get(&Knob::Cores(app)) {
            Some(Setting::Cores(_, cores)) => cores.clone(),
            _ => self.machine.all_cores(),
        }
    }

    /// Returns an app's rank; apps with higher ranks run first on a core.
    fn rank(&self, app: AppId) -> u8 {
        match self.state.get(&Knob::Scheduling(app)) {
            Some(Setting::Scheduling(_, Scheduling::Idle)) => 0,
            Some(Setting::Scheduling(_, Scheduling::RoundRobin { priority })) => 1 + priority,
            _ => 1,
        }
    }

    /// Cores' worth of time that an app can get: each core is split evenly
    /// between the apps of one rank on it, and what higher ranks need goes first.
    fn share(&self, app: AppId) -> f64 {
        let rivals = |core: CoreId| {
            numbered(&self.specs).filter(move |(other, _)| {
                !self.gone[other.index()] && self.cores_of(*other).contains(core)
            })
        };
        let cores = self.cores_of(app);
        let own = self.rank(app);
        let on_core = |core| {
            let higher = rivals(core).filter(|(other, _)| self.rank(*other) > own);
            let taken: f64 = higher.map(|(other, _)| self.load_a_core(other)).sum();
            let equals = rivals(core).filter(|(other, _)| self.rank(*other) == own);
            (1.0 - taken).max(0.0) / equals.count() as f64
        };
        let total: f64 = cores.iter().map(on_core).sum();
        total.min(f64::from(self.apps[app.index()].threads)) * self.speed()
    }

    /// Returns the share of each of its cores that an app keeps busy; a best-effort app uses as
    /// much as its threads can.
    fn load_a_core(&self, app: AppId) -> f64 {
        let MemoryApp { spec, demand_cores, threads, .. } = &self.apps[app.index()];
        let wanted = if spec.is_latency_critical() { *demand_cores } else { f64::from(*threads) };
        wanted / self.cores_of(app).len() as f64
    }

    fn speed(&self) -> f64 {
        match self.state.get(&Knob::Frequency(DomainId(0))) {
            Some(Setting::Frequency(_, hertz)) => hertz.0 as f64 / SPEED_MAX.0 as f64,
            _ => 1.0,
        }
    }

    fn see(&self, app: AppId, spec: &AppSpec, epoch: Nanos) -> AppObservation {
        let nothing = Missing::because("the in-memory plant has no such gauge");
        let unknown = AppObservation::unknown(&nothing);
        if self.gone[app.index()] {
            return unknown;
        }
        let threads = Ok(self.apps[app.index()].threads);
        let alive =
            AppObservation { alive: true, threads, client_classes: others(spec), ..unknown };
        if !spec.is_latency_critical() {
            let progress = Progress { per_s: self.share(app), source: ProgressSource::Simulated };
            return AppObservation { progress: Ok(progress), ..alive };
        }
        if self.silent[app.index()] {
            return AppObservation {
                latency: Err(Missing::because("silenced by a test")),
                ..alive
            };
        }
        AppObservation { latency: Ok(self.latency(app, epoch)), ..alive }
    }

    fn latency(&self, app: AppId, epoch: Nanos) -> LatencyObservation {
        let memory = &self.apps[app.index()];
        let busy = (memory.demand_cores / self.share(app).max(1e-9)).min(0.999);
        let sojourn_s = memory.service.as_secs_f64() / self.speed() / (1.0 - busy);
        let mut window = Latency::default();
        for rank in 0..REQUESTS {
            let quantile = (f64::from(rank) + 0.5) / f64::from(REQUESTS);
            window.record(Nanos::from_secs_f64(-sojourn_s * (1.0 - quantile).ln()));
        }
        let per_s = f64::from(REQUESTS) / epoch.as_secs_f64();
        LatencyObservation {
            window,
            offered_per_s: per_s,
            completed_per_s: per_s,
            ..LatencyObservation::default()
        }
    }

    fn set(&mut self, wanted: &Setting) -> ApplyOutcome {
        if let Err(why) = self.legal(wanted) {
            return ApplyOutcome::Refused { why };
        }
        let (to, note) = self.rounded(wanted);
        if self.state.get(&to.knob()) == Some(&to) && note.is_none() {
            return ApplyOutcome::Already;
        }
        self.state.insert(to.knob(), to.clone());
        note.map_or(ApplyOutcome::Done, |why| ApplyOutcome::Clamped { to, why })
    }

    fn legal(&self, wanted: &Setting) -> Result<(), String> {
        let knob = wanted.knob();
        let missing = self.machine.capabilities.get(knob.capability()).map(|_| ());
        missing.map_err(|why| why.to_string())?;
        if !self.original.contains_key(&knob) {
            return Err(format!("there is no {knob:?}"));
        }
        if knob.app().is_some_and(|app| self.gone[app.index()]) {
            return Err("the app has no live process".to_owned());
        }
        match wanted {
            Setting::Cores(_, cores) if cores.is_empty() => Err("no core at all".to_owned()),
            Setting::Cores(_, cores) if !cores.is_subset(&self.machine.all_cores()) => {
                Err(format!("the machine has no cores {cores}"))
            }
            _ => match knob.app().and_then(|app| self.machine.gate(app)) {
                Some(gate) => gate.check(wanted),
                None => Ok(()),
            },
        }
    }

    fn rounded(&self, wanted: &Setting) -> (Setting, Option<String>) {
        if let Setting::IdleLatency(at_most) = *wanted {
            let to = self.machine.idle_limit(at_most).unwrap_or(at_most);
            let note = (to != at_most).then(|| format!("no idle state takes {at_most} to leave"));
            return (Setting::IdleLatency(to), note);
        }
        let Value::Frequency(hertz) = wanted.value() else { return (wanted.clone(), None) };
        let knob = wanted.knob();
        let nearest = match self.machine.dial(DialId(knob.number())) {
            Some(dial) if dial.knob == knob.capability() => dial.nearest(hertz),
            _ => self.machine.domains[0].nearest(hertz).unwrap_or(hertz),
        };
        let note = (nearest != hertz).then(|| format!("{hertz} is not in the table"));
        (knob.set_to(Value::Frequency(nearest)).unwrap_or_else(|| wanted.clone()), note)
    }
}

impl Plant for MemoryPlant {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.specs
    }

    fn is_present(&self, app: AppId) -> bool {
        !self.gone[app.index()]
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        self.time += epoch;
        let apps = numbered(&self.specs).map(|(app, spec)| self.see(app, spec, epoch)).collect();
        let none = Missing::because("the in-memory plant has no such gauge");
        let frequency = Ok(Hertz((SPEED_MAX.0 as f64 * self.speed()) as u64));
        let core = CoreObservation { frequency, ..CoreObservation::unknown(&none) };
        let energy = Joules(epoch.as_secs_f64() * self.machine.cores.len() as f64 * self.speed());
        let source = EnergySource::Modelled("1 W a core at full speed".to_owned());
        Ok(Observation {
            apps,
            cores: vec![core; self.machine.cores.len()],
            energy: Ok(EnergyObservation { energy, source }),
            foreign: std::mem::take(&mut self.foreign),
            restarted: std::mem::take(&mut self.restarted),
            ..Observation::unknown(self.time, epoch, &none)
        })
    }

    fn settings(&self) -> Vec<Setting> {
        let present = |app: AppId| !self.gone[app.index()];
        let known = self.state.values().filter(|now| now.knob().app().is_none_or(present));
        known.cloned().collect()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        let answer =
            |setting: &Setting| Outcome { wanted: setting.clone(), got: self.set(setting) };
        Applied { outcomes: wanted.iter().map(answer).collect() }
    }

    fn restore(&mut self) -> Applied {
        let is_there = |now: &&Setting| now.knob().app().is_none_or(|app| self.is_present(app));
        let original: Vec<_> = self.original.values().filter(is_there).cloned().collect();
        self.apply(&original)
    }
}

/// The first value of a knob whose values have no largest one.
fn unordered(knob: Knob) -> Value {
    match knob.row().values {
        ValueKind::Scheduling => Value::Scheduling(Scheduling::Normal { nice: 0 }),
        ValueKind::Switch => Value::Switch(true),
        ValueKind::Coalescing => Value::Coalescing(Coalescing::Adaptive),
        ValueKind::Count if knob.capability() == Capability::GateCap => Value::Count(16),
        ValueKind::Count => Value::Count(1),
        ValueKind::Time => Value::Time(Nanos::ZERO),
        other => other.example(),
    }
}

/// One dial for every row that belongs to dials.
fn dials() -> Vec<Dial> {
    let rows = KNOBS.iter().filter(|row| row.scope == KnobScope::Dial);
    let dial = |(number, row): (u16, &KnobRow)| Dial {
        id: DialId(number),
        knob: row.capability,
        name: format!("memory-{}", row.name),
        lowest: SPEED_MIN,
        highest: SPEED_MAX,
        step: Hertz(100_000_000),
    };
    (0..).zip(rows).map(dial).collect()
}

/// A gate before every latency-critical app.
fn gates(specs: &[AppSpec]) -> Vec<GateControl> {
    let critical = numbered(specs).filter(|(_, spec)| spec.is_latency_critical());
    let gate = |(app, spec): (AppId, &AppSpec)| GateControl {
        app,
        workers: spec.threads,
        cap_max: 256,
        batch_max: 1024,
        delay_max: Nanos::from_millis(100),
    };
    critical.map(gate).collect()
}

fn machine(cores: u16) -> Machine {
    let claimed = Capability::ALL.into_iter().filter(|capability| {
        let of_apps = Capability::OF_GATES.contains(capability);
        let is_knob = capability.is_knob() && !of_apps;
        is_knob || matches!(capability, Capability::TailLatency | Capability::Progress)
    });
    let capabilities =
        claimed.fold(Capabilities::default(), |all, one| all.with_capability(one, "memory"));
    let core = |id| Core { id: CoreId(id), core_type: 0, package: 0, smt_leader: CoreId(id) };
    Machine {
        name: "in-memory plant".to_owned(),
        cores: (0..cores).map(core).collect(),
        core_types: vec![CoreType { name: "only".to_owned(), speed: 1.0 }],
        domains: vec![FrequencyDomain {
            id: DomainId(0),
            cores: CoreSet::first(cores),
            steps: vec![SPEED_MIN, SPEED_MAX],
            continuous: false,
        }],
        cache: Some(CacheControl { ways: WAYS, contiguous: true, size_bytes: 25 << 20 }),
        bandwidth: Some(BandwidthControl { min_percent: 10, step_percent: 10 }),
        nics: vec![Nic {
            id: NicId(0),
            name: "memory0".to_owned(),
            delay_max: Nanos::from_micros(1000),
            delay_step: Nanos::from_micros(2),
        }],
        dials: dials(),
        idle_latencies: [2, 10, 50].map(Nanos::from_micros).to_vec(),
        energy_preferences: EnergyPreference::NAMED.map(|(preference, _)| preference).to_vec(),
        gates: Vec::new(),
        capabilities,
    }
}

/// The one class of clients of a latency-critical app.
fn others(spec: &AppSpec) -> Vec<ClientClassObservation> {
    let wait_quantiles = Some((Nanos::from_millis(1), Nanos::from_millis(4)));
    let others = ClientClassObservation {
        name: "others".to_owned(),
        connections: 8,
        under_way: 2,
        waiting: 1,
        turns: 100,
        waits: 50,
        wait_quantiles,
    };
    spec.is_latency_critical().then_some(others).into_iter().collect()
}
