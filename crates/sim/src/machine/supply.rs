//! A core besides its run queue: its frequency, its idle states and its energy.
//!
//! Counts are brought up to date by [`Supply::account`] before anything changes that they
//! depend on. A core that is woken counts as idle until its exit latency is over.

use super::model::MachineModel;
use super::parts::{Power, Scaling};
use crate::idle::{IdleGovernor, IdleRule, IdleState, IdleTotals};
use crate::order::NEVER_NS;
use lull_control::dispatcher::CoreSpeed;
use lull_measure::{Hertz, Joules, Nanos, Watts};

/// The parts of a machine that its cores share.
#[derive(Debug, Clone)]
pub(super) struct Hardware {
    pub(super) highest: Hertz,
    pub(super) scaling: Option<Scaling>,
    pub(super) idle: Vec<IdleState>,
    /// Index of the deepest idle state that cores may enter. A core that sleeps in a deeper one
    /// stays there until it is woken.
    pub(super) deepest: usize,
    pub(super) power: Option<Power>,
    /// Core types; none if all cores are alike.
    types: Vec<CoreSpeed>,
    rule: IdleRule,
    /// Cores of one frequency domain; all without lower frequencies.
    pub(super) domain: usize,
    /// Whether every idle interval is kept. Cores of event loops have too many.
    pub(super) keeps_intervals: bool,
}

/// The phase of a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CorePhase {
    /// The core is awake.
    Busy,
    /// Idle in a state since a time, until its exit latency is over if it is on its way out.
    Idle { state: usize, since_ns: u64, wakes_ns: u64 },
}

/// Frequency, idle state and counts of a core.
#[derive(Debug, Clone)]
pub(super) struct Supply {
    pub(super) phase: CorePhase,
    pub(super) frequency: Hertz,
    /// The number of its type.
    pub(super) kind: usize,
    /// Work per time, relative to a core of speed 1 at the highest frequency.
    pub(super) speed: f64,
    /// Power while it runs, as this type at this frequency.
    active: Watts,
    /// Whether it is the first core of its frequency domain, which counts the domain's own power.
    is_first: bool,
    uncore: Watts,
    /// The frequency that a policy has set, which overrides the governor.
    pub(super) held: Option<Hertz>,
    governor: IdleGovernor,
    keeps_intervals: bool,
    /// Threads that ran here last and wait for I/O.
    io_waiters: u32,
    /// Everything below is up to date as of this time.
    accounted_ns: u64,
    pub(super) counts: SupplyCounts,
    /// Load since the governor last looked.
    load_ns: u64,
}

/// The counts of a core.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SupplyCounts {
    pub(super) busy: Nanos,
    /// Busy time as each type.
    pub(super) busy_as: Vec<Nanos>,
    pub(super) active: Joules,
    /// Energy of its frequency domain besides its cores, if it is the first of them.
    pub(super) uncore: Joules,
    pub(super) idle: IdleTotals,
    /// Hertz times nanoseconds.
    pub(super) hertz_ns: f64,
    pub(super) busy_hertz_ns: f64,
    /// Idle intervals that have ended; none on a machine that does not keep them.
    pub(super) intervals: Vec<Nanos>,
}

impl Hardware {
    pub(super) fn new(model: &MachineModel) -> Self {
        Self {
            highest: model.frequency,
            scaling: model.scaling.clone(),
            idle: model.idle.clone(),
            deepest: model.idle.len().saturating_sub(1),
            power: model.power,
            types: model.core_types.as_ref().map_or(Vec::new(), |all| all.types.clone()),
            rule: model.idle_rule,
            domain: model.scaling.as_ref().map_or(model.cores, |scaling| scaling.domain).into(),
            keeps_intervals: model.event_loops().is_none(),
        }
    }

    /// Whether its cores have idle states; without them nothing of a core is counted.
    pub(super) fn sleeps(&self) -> bool {
        !self.idle.is_empty()
    }

    /// The frequency of a core that neither a policy nor a sampling governor steers.
    fn free(&self, now: Hertz) -> Hertz {
        let Some(Scaling { governor, lowest, .. }) = &self.scaling else { return self.highest };
        governor.unsampled(now, *lowest, self.highest)
    }

    /// How often the frequency governor samples the load, if it does.
    pub(super) fn period(&self) -> Option<Nanos> {
        self.scaling.as_ref()?.governor.period()
    }

    /// The frequency at the start of a core that a governor steers.
    fn first(&self) -> Hertz {
        let even = self.scaling.as_ref().filter(|scaling| scaling.steps.is_empty());
        self.free(even.map_or(self.highest, |scaling| scaling.lowest))
    }

    /// Returns the frequency that the governor chooses at this load, rounded up to an even step or
    /// to the nearest listed one.
    fn sampled(&self, load: f64) -> Hertz {
        let Some(Scaling { lowest, step, steps, governor, .. }) = &self.scaling else {
            return self.highest;
        };
        let Some(share) = governor.share_of_range(load) else { return self.highest };
        let range = (self.highest.0 - lowest.0) as f64;
        let wanted = (lowest.0 as f64 + share * range) as u64;
        if let Some(nearest) = steps.iter().min_by_key(|hertz| hertz.0.abs_diff(wanted)) {
            return *nearest;
        }
        let steps = (share * range / step.0 as f64).ceil() as u64;
        self.highest.min(Hertz(lowest.0 + steps * step.0))
    }

    fn io_is_busy(&self) -> bool {
        self.scaling.as_ref().is_some_and(|scaling| scaling.governor.is_io_busy())
    }

    /// Power of a running core of a type. A core type states base and dynamic power in one.
    fn active_power(&self, kind: usize, at: Hertz) -> Watts {
        let Some(power) = &self.power else { return Watts(0.0) };
        let volts = self.relative_volts(power, at);
        let of_type = self.types.get(kind).map(|one| one.watts.0);
        let dynamic = of_type.unwrap_or(power.active_dynamic.0) * at.0 as f64
            / self.highest.0 as f64
            * volts
            * volts;
        Watts(power.active_base.0 + dynamic + power.leakage.0 * volts * volts)
    }

    /// Power of a frequency domain besides its cores.
    fn uncore_power(&self, at: Hertz) -> Watts {
        let Some(power) = &self.power else { return Watts(0.0) };
        let (share, volts) = (at.0 as f64 / self.highest.0 as f64, self.relative_volts(power, at));
        let scales = power.uncore_scales;
        Watts(power.uncore.0 * ((1.0 - scales) + scales * share * volts * volts))
    }

    /// The voltage at a frequency over that at the highest.
    fn relative_volts(&self, power: &Power, at: Hertz) -> f64 {
        let lowest = self.scaling.as_ref().map_or(self.highest, |scaling| scaling.lowest);
        let (low, high) = (lowest.0 as f64, self.highest.0 as f64);
        let above = if high > low { (at.0 as f64 - low) / (high - low) } else { 1.0 };
        power.voltage_ratio + (1.0 - power.voltage_ratio) * above
    }

    /// Speed of a core of a type at its highest frequency.
    fn speed(&self, kind: usize) -> f64 {
        self.types.get(kind).map_or(1.0, |one| one.speed)
    }

    /// Returns the counts, all zero.
    pub(super) fn counts(&self) -> SupplyCounts {
        SupplyCounts {
            busy_as: vec![Nanos::ZERO; self.types.len()],
            idle: IdleTotals::new(self.idle.len()),
            ..SupplyCounts::default()
        }
    }
}

impl Supply {
    /// A core of a type that is idle at time 0, of this number.
    pub(super) fn new(hardware: &Hardware, kind: usize, number: usize) -> Self {
        let frequency = hardware.first();
        let mut new = Self {
            kind,
            phase: CorePhase::Idle { state: 0, since_ns: 0, wakes_ns: NEVER_NS },
            frequency,
            speed: 1.0,
            active: Watts(0.0),
            is_first: number.is_multiple_of(hardware.domain),
            uncore: Watts(0.0),
            held: None,
            governor: IdleGovernor::new(hardware.rule),
            keeps_intervals: hardware.keeps_intervals,
            io_waiters: 0,
            accounted_ns: 0,
            counts: hardware.counts(),
            load_ns: 0,
        };
        new.set_pace(hardware, kind, frequency);
        new
    }

    /// The frequency that it has unless the governor samples the load.
    pub(super) fn wanted(&self, hardware: &Hardware) -> Hertz {
        self.held.unwrap_or_else(|| hardware.free(self.frequency))
    }

    /// Changes type and frequency, after what depends on them has been brought up to date.
    pub(super) fn set_pace(&mut self, hardware: &Hardware, kind: usize, to: Hertz) {
        (self.kind, self.frequency) = (kind, to);
        self.speed = hardware.speed(kind) * (to.0 as f64 / hardware.highest.0 as f64);
        self.active = hardware.active_power(kind, to);
        if self.is_first {
            self.uncore = hardware.uncore_power(to);
        }
    }

    /// Takes the load of the span since the governor last looked, as a share.
    pub(super) fn take_load(&mut self, period: Nanos) -> f64 {
        std::mem::take(&mut self.load_ns) as f64 / period.0 as f64
    }

    /// Returns the frequency that the sampling governor chooses for cores with this load.
    pub(super) fn sampled(&self, hardware: &Hardware, load: f64) -> Hertz {
        self.held.unwrap_or_else(|| hardware.sampled(load))
    }

    /// A thread that ran here last begins or ends to wait for I/O.
    pub(super) fn io(&mut self, begins: bool) {
        if begins {
            self.io_waiters += 1;
        } else {
            debug_assert!(self.io_waiters > 0, "a thread of this core waited for I/O");
            self.io_waiters -= 1;
        }
    }

    /// Wakes an idle core. Returns when its exit latency is over.
    pub(super) fn rouse(&mut self, hardware: &Hardware, now_ns: u64) -> u64 {
        self.account(hardware, now_ns);
        match &mut self.phase {
            CorePhase::Busy => now_ns,
            CorePhase::Idle { state, wakes_ns, .. } => {
                if *wakes_ns == NEVER_NS {
                    *wakes_ns = now_ns + hardware.idle[*state].wake_up().0;
                }
                *wakes_ns
            }
        }
    }

    /// The core is awake at `at_ns`.
    pub(super) fn wake_up(&mut self, at_ns: u64) {
        if let CorePhase::Idle { since_ns, .. } = self.phase {
            let stay = Nanos(at_ns - since_ns);
            self.governor.note_stay(stay);
            if self.keeps_intervals {
                self.counts.intervals.push(stay);
            }
            self.phase = CorePhase::Busy;
        }
    }

    /// The core goes idle, unless it is and sleeps on.
    pub(super) fn rest(&mut self, hardware: &Hardware, now_ns: u64) {
        if let CorePhase::Idle { wakes_ns: NEVER_NS, .. } = self.phase {
            return;
        }
        self.account(hardware, now_ns);
        // The thread that it was waking up for is gone.
        self.wake_up(now_ns);
        let chosen = self.governor.choose(&hardware.idle, None, self.io_waiters);
        let state = chosen.min(hardware.deepest);
        self.phase = CorePhase::Idle { state, since_ns: now_ns, wakes_ns: NEVER_NS };
    }

    /// Brings the counts up to date. Returns the busy time that was added.
    pub(super) fn account(&mut self, hardware: &Hardware, now_ns: u64) -> Nanos {
        if let CorePhase::Idle { wakes_ns, .. } = self.phase
            && wakes_ns < now_ns
        {
            // The core has woken up since, which is not an event where threads begin with their
            // core.
            self.account_to(hardware, wakes_ns);
            self.wake_up(wakes_ns);
        }
        self.account_to(hardware, now_ns)
    }

    fn account_to(&mut self, hardware: &Hardware, now_ns: u64) -> Nanos {
        debug_assert!(now_ns >= self.accounted_ns, "time never goes back");
        let span = Nanos(now_ns - self.accounted_ns);
        if span == Nanos::ZERO {
            return span;
        }
        let hertz_ns = self.frequency.0 as f64 * span.0 as f64;
        self.counts.hertz_ns += hertz_ns;
        if self.is_first {
            self.counts.uncore += self.uncore.during(span);
        }
        let before_ns = std::mem::replace(&mut self.accounted_ns, now_ns);
        match self.phase {
            CorePhase::Busy => {
                self.counts.busy += span;
                if let Some(busy) = self.counts.busy_as.get_mut(self.kind) {
                    *busy += span;
                }
                self.counts.active += self.active.during(span);
                self.counts.busy_hertz_ns += hertz_ns;
                self.load_ns += span.0;
                span
            }
            CorePhase::Idle { state, since_ns, .. } => {
                let part = (Nanos(before_ns - since_ns), Nanos(now_ns - since_ns));
                self.counts.idle.spend_part(&hardware.idle, state, part, self.frequency);
                if self.io_waiters > 0 && hardware.io_is_busy() {
                    self.load_ns += span.0;
                }
                Nanos::ZERO
            }
        }
    }
}
