//! The knobs of a machine.

use super::MachinePlant;
use crate::idle::IdleState;
use crate::machine::MachineSimulation;
use crate::machine::app::Work;
use crate::machine::queue::{
    IDLE, IDLE_WEIGHT, NICE_0_WEIGHT, NORMAL, ThreadScheduling, cores_of, weight_of_nice,
};
use crate::plant::toolkit;
use lull_control::admission::GateLimits;
use lull_control::{
    AppId, ApplyOutcome, Capability, Coalescing, CoreId, CoreSet, DomainId, GateControl, Machine,
    NicId, Scheduling, Setting, WayMask,
};
use lull_measure::{Hertz, Nanos};

/// Lowest and highest nice value.
const NICE: std::ops::RangeInclusive<i8> = -20..=19;
/// Lowest and highest SCHED_RR priority.
const PRIORITY: std::ops::RangeInclusive<u8> = 1..=99;

/// The effective setting, with the reason if it differs from the requested one, or the reason for a
/// refusal.
type SettingCheck = Result<(Setting, Option<String>), String>;

/// The setting of a card's delay; `None` where its driver chooses it.
fn coalescing(delay: Option<Nanos>) -> Coalescing {
    delay.map_or(Coalescing::Adaptive, Coalescing::Delay)
}

impl MachineSimulation {
    /// Cores that threads may run on: not the scheduler's own.
    pub(super) fn usable_cores(&self) -> CoreSet {
        let agent = self.agent();
        (0..self.cores.len())
            .filter(|core| Some(*core) != agent)
            .map(|core| CoreId(core as u16))
            .collect()
    }

    /// Returns the frequency that a policy has set for a core.
    pub(super) fn held(&self, core: usize) -> Option<Hertz> {
        self.cores[core].supply.held
    }

    /// The frequency of a core.
    pub fn frequency(&self, core: usize) -> Hertz {
        self.cores[core].supply.frequency
    }

    /// Sets a core's frequency, or returns it to the governor.
    pub fn hold(&mut self, core: usize, held: Option<Hertz>) {
        self.cores[core].supply.held = held;
        let to = self.cores[core].supply.wanted(&self.hardware);
        self.change_frequency(core, to);
    }

    /// The exit latency of the deepest idle state that cores may enter, if they have any.
    fn idle_latency(&self) -> Option<Nanos> {
        self.hardware.idle.get(self.hardware.deepest).map(|state| state.exit)
    }

    /// Lets cores enter the idle states of this exit latency at most, or else the shallowest.
    fn limit_idle(&mut self, at_most: Nanos) {
        let is_within = |state: &IdleState| state.exit <= at_most;
        self.hardware.deepest = self.hardware.idle.iter().rposition(is_within).unwrap_or(0);
    }

    /// Applies a legal setting of an app.
    fn put(&mut self, app: usize, setting: &Setting) {
        let treatment = self.apps[app].treatment;
        match setting {
            Setting::Cores(_, cores) => {
                let mask = cores.iter().fold(0, |mask, core| mask | 1 << core.0);
                self.treat(app, ThreadScheduling { mask, ..treatment });
            }
            Setting::Scheduling(_, class) => {
                let (rank, weight) = match class {
                    Scheduling::Idle => (IDLE, IDLE_WEIGHT),
                    Scheduling::Normal { nice } => (NORMAL, weight_of_nice(*nice)),
                    Scheduling::RoundRobin { priority } => (NORMAL + priority, NICE_0_WEIGHT),
                };
                self.treat(app, ThreadScheduling { rank, weight, ..treatment });
            }
            Setting::CacheWays(_, ways) => self.contention.set_mask(app, ways.0),
            Setting::MemoryBandwidth(_, percent) => self.contention.set_percent(app, *percent),
            // Apps have no other knob, and `check_setting` refuses what the machine lacks.
            _ => {}
        }
    }
}

impl MachinePlant {
    /// Returns the current settings of the knobs of an app.
    pub(super) fn settings_of(&self, id: AppId) -> Vec<Setting> {
        let number = self.numbers[id.index()];
        let mask = self.simulation.apps[number].treatment.mask;
        let cores: CoreSet = cores_of(mask).map(|core| CoreId(core as u16)).collect();
        let mut all = Vec::new();
        if self.machine.capabilities.has(Capability::Cores) {
            all.push(Setting::Cores(id, cores));
        }
        if self.machine.capabilities.has(Capability::Scheduling) {
            all.push(Setting::Scheduling(id, self.classes[id.index()]));
        }
        if self.machine.cache.is_some() {
            all.push(Setting::CacheWays(id, WayMask(self.simulation.contention.mask(number))));
        }
        if self.machine.bandwidth.is_some() {
            all.push(Setting::MemoryBandwidth(id, self.simulation.contention.percent(number)));
        }
        all
    }

    /// Sets a knob of an app, if that is legal.
    pub(super) fn set_app(&mut self, wanted: &Setting) -> ApplyOutcome {
        let app = wanted.knob().app().filter(|app| app.index() < self.apps.len());
        let Some(app) = app else {
            return ApplyOutcome::Refused { why: "the machine has no such app".to_owned() };
        };
        let number = self.numbers[app.index()];
        if !self.simulation.is_present(number) {
            return ApplyOutcome::Refused { why: super::absent().to_string() };
        }
        let usable = self.simulation.usable_cores();
        let (to, clamped) = match check_setting(wanted, &self.machine, &usable) {
            Ok(checked) => checked,
            Err(why) => return ApplyOutcome::Refused { why },
        };
        let already = self.settings_of(app).contains(&to);
        if !already {
            self.simulation.put(number, &to);
        }
        toolkit::result_of(to, clamped, already)
    }

    pub(super) fn set_frequency(&mut self, id: DomainId, wanted: Hertz) -> ApplyOutcome {
        let simulation = &mut self.simulation;
        toolkit::set_frequency(&self.machine, id, wanted, |domain, to| {
            let cores = || domain.cores.iter().map(|core| usize::from(core.0));
            let already = cores().all(|core| simulation.held(core) == Some(to));
            cores().for_each(|core| simulation.hold(core, Some(to)));
            already
        })
    }

    pub(super) fn set_coalescing(&mut self, id: NicId, wanted: Coalescing) -> ApplyOutcome {
        let Some(nic) = self.machine.nic(id) else {
            return ApplyOutcome::Refused {
                why: format!("there is no network interface {}", id.0),
            };
        };
        let to = match wanted {
            Coalescing::Adaptive => None,
            Coalescing::Delay(delay) => Some(nic.nearest(delay)),
        };
        let became = coalescing(to);
        let why = || format!("delays are steps of {} up to {}", nic.delay_step, nic.delay_max);
        let clamped = (became != wanted).then(why);
        let already = self.simulation.set_delay(to);
        toolkit::result_of(Setting::Coalescing(id, became), clamped, already)
    }

    /// How the card's interrupts are delayed, if there is one.
    pub(super) fn coalescing(&self) -> Option<Setting> {
        let card = self.simulation.card.as_ref()?;
        Some(Setting::Coalescing(NicId(0), coalescing(card.delay)))
    }

    pub(super) fn set_idle_latency(&mut self, wanted: Nanos) -> ApplyOutcome {
        let Some(to) = self.machine.idle_limit(wanted) else {
            return ApplyOutcome::Refused { why: "the model gives the cores no choice".to_owned() };
        };
        let already = self.simulation.idle_latency() == Some(to);
        self.simulation.limit_idle(to);
        let clamped = (to != wanted).then(|| format!("no idle state takes {wanted} to leave"));
        toolkit::result_of(Setting::IdleLatency(to), clamped, already)
    }

    /// The idle states that cores may enter, if they have a choice.
    pub(super) fn idle_setting(&self) -> Option<Setting> {
        self.machine.idle_latencies.first()?;
        self.simulation.idle_latency().map(Setting::IdleLatency)
    }

    pub(super) fn set_gate(&mut self, app: AppId, wanted: &Setting) -> ApplyOutcome {
        let number = self.gate_number(app);
        let before = number.and_then(|number| self.gates[number]);
        let (Some(gate), Some(number), Some(before)) = (self.machine.gate(app), number, before)
        else {
            return ApplyOutcome::Refused { why: format!("app {} has no gate of its own", app.0) };
        };
        let now = match *wanted {
            Setting::GateCap(_, cap) => GateLimits { cap, ..before },
            Setting::GateBatch(_, batch) => GateLimits { batch, ..before },
            Setting::GateDelay(_, delay) => GateLimits { delay, ..before },
            _ => before,
        };
        if now == before {
            return ApplyOutcome::Already;
        }
        if let Err(why) = gate.check(wanted) {
            return ApplyOutcome::Refused { why };
        }
        self.simulation.set_numbers(number, now);
        self.gates[number] = Some(now);
        ApplyOutcome::Done
    }

    /// The number of the gate that an app is behind.
    fn gate_number(&self, app: AppId) -> Option<usize> {
        match self.simulation.apps[*self.numbers.get(app.index())?].work {
            Work::Connections { gate } => Some(gate),
            _ => None,
        }
    }

    /// Settings of these numbers of the gates.
    pub(super) fn gate_settings(&self, numbers: &[Option<GateLimits>]) -> Vec<Setting> {
        let of = |gate: &GateControl| {
            let app = gate.app;
            let GateLimits { cap, batch, delay } = numbers[self.gate_number(app)?]?;
            Some([
                Setting::GateCap(app, cap),
                Setting::GateBatch(app, batch),
                Setting::GateDelay(app, delay),
            ])
        };
        self.machine.gates.iter().filter_map(of).flatten().collect()
    }
}

fn check_setting(wanted: &Setting, machine: &Machine, usable: &CoreSet) -> SettingCheck {
    let legal = || Ok((wanted.clone(), None));
    match wanted {
        Setting::Cores(_, cores) if !cores.is_subset(&machine.all_cores()) => {
            Err(format!("the machine has cores {} only", machine.all_cores()))
        }
        Setting::Cores(app, cores) => check_cores(*app, cores, usable),
        Setting::Scheduling(_, Scheduling::Normal { nice }) if !NICE.contains(nice) => {
            Err(format!("nice {nice} is outside -20 to 19"))
        }
        Setting::Scheduling(_, Scheduling::RoundRobin { priority })
            if !PRIORITY.contains(priority) =>
        {
            Err(format!("priority {priority} is outside 1 to 99"))
        }
        Setting::CacheWays(_, ways) => check_ways(*ways, wanted, machine),
        Setting::MemoryBandwidth(app, percent) => check_percent(*app, *percent, machine),
        _ => legal(),
    }
}

fn check_cores(app: AppId, cores: &CoreSet, usable: &CoreSet) -> SettingCheck {
    let to: CoreSet = cores.iter().filter(|core| usable.contains(*core)).collect();
    if to.is_empty() {
        let why = format!("there is no core of {cores} to run on: apps may use {usable}");
        return Err(why);
    }
    let why = "some of them are the scheduler's own".to_owned();
    let clamped = (to != *cores).then_some(why);
    Ok((Setting::Cores(app, to), clamped))
}

fn check_ways(mask: WayMask, wanted: &Setting, machine: &Machine) -> SettingCheck {
    let ways = machine.cache.as_ref().map_or(0, |cache| cache.ways);
    if mask.0 == 0 || mask.0 & !WayMask::run(0, ways).0 != 0 {
        return Err(format!("{mask} is no part of the cache's {ways} ways"));
    }
    if !mask.is_contiguous() {
        return Err(format!("{mask} is not one run of ways"));
    }
    Ok((wanted.clone(), None))
}

fn check_percent(app: AppId, percent: u8, machine: &Machine) -> SettingCheck {
    let Some(control) = &machine.bandwidth else {
        return Err("the machine's bandwidth cannot be divided".to_owned());
    };
    let step = u32::from(control.step_percent);
    let stepped = (u32::from(percent).div_ceil(step) * step).min(100) as u8;
    let to = stepped.max(control.min_percent);
    let why = format!("shares are steps of {step} % from {} % on", control.min_percent);
    Ok((Setting::MemoryBandwidth(app, to), (to != percent).then_some(why)))
}
