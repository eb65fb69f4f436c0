//! The observation of a machine at the end of an epoch.

use super::{MachinePlant, absent};
use crate::machine::totals::AppCounters;
use crate::machine::{MachineSimulation, Work};
use crate::plant::toolkit;
use crate::vector::VectorTotals;
use lull_control::{
    AppId, AppObservation, CoreObservation, EnergyObservation, EnergySource, LatencyObservation,
    Observation, Progress, ProgressSource, Quantiles, Readings,
};
use lull_measure::catalogue::{
    CACHE_OCCUPANCY, CONTEXT_SWITCHES, CPU, CYCLES, INSTRUCTIONS, LLC_MISSES, MEMORY_BANDWIDTH,
    RUN_QUEUE_WAIT,
};
use lull_measure::ideal_batch::{self, C6_BREAK_EVEN};
use lull_measure::{Gauge, Joules, Missing, Nanos};

/// Counters at the last observation.
#[derive(Debug, Clone)]
pub(super) struct MachineSnapshot {
    time: Nanos,
    apps: Vec<AppCounters>,
    cores: Vec<CoreCounters>,
    pressure_ns: u128,
    card: VectorTotals,
    energy: Joules,
}

/// Counters of one core.
#[derive(Debug, Clone, Copy)]
struct CoreCounters {
    busy_ns: u128,
    idle: Nanos,
    deepest: Nanos,
    /// Sleeps that have ended.
    sleeps: usize,
}

impl MachineSnapshot {
    pub(super) fn take(machine: &mut MachineSimulation) -> Self {
        machine.account_all();
        let now_ns = machine.now_ns;
        let sleeps = machine.hardware.sleeps();
        let cores = machine.cores.iter().map(|core| CoreCounters {
            busy_ns: match sleeps {
                true => u128::from(core.supply.counts.busy.0),
                false => core.busy.integral_at(now_ns),
            },
            idle: core.supply.counts.idle.idle(),
            deepest: core.supply.counts.idle.deepest(),
            sleeps: core.supply.counts.intervals.len(),
        });
        Self {
            time: machine.now(),
            apps: (0..machine.apps.len()).map(|app| machine.counters(app)).collect(),
            cores: cores.collect(),
            pressure_ns: machine.pressure.integral_at(now_ns),
            card: machine.card_totals(),
            energy: machine.energy(),
        }
    }
}

impl MachineSimulation {
    /// Takes the latencies of an app since the last observation.
    fn take_latency(
        &mut self,
        app: usize,
        counted: &AppCounters,
        epoch: Nanos,
    ) -> LatencyObservation {
        let per_s = |count: u64| count as f64 / epoch.as_secs_f64();
        let oldest = self.oldest_ns(app);
        LatencyObservation {
            window: std::mem::take(&mut self.apps[app].window),
            offered_per_s: per_s(counted.arrived),
            completed_per_s: per_s(counted.answered),
            errors_per_s: 0.0,
            outstanding: u64::from(self.apps[app].outstanding.value()),
            oldest: oldest.map(|arrived_ns| Nanos(self.now_ns - arrived_ns)),
            ..LatencyObservation::default()
        }
    }
}

impl MachinePlant {
    pub(super) fn observation(&mut self) -> Observation {
        let now = MachineSnapshot::take(&mut self.simulation);
        let before = std::mem::replace(&mut self.snapshot, now);
        let epoch = self.snapshot.time - before.time;
        let apps = (0..self.apps.len()).map(|app| self.app_observation(app, &before)).collect();
        let (energy, pressure) = (self.energy_since(&before), self.pressure_since(&before));
        let cores = (0..self.machine.cores.len()).map(|core| self.core_observation(core, &before));
        let sleeps = self.sleeps_since(&before);
        let busy = self.snapshot.cores.iter().zip(&before.cores);
        let busy_ns: u128 = busy.map(|(now, then)| now.busy_ns - then.busy_ns).sum();
        let untold = Missing::because("the simulated machine does not record single waits");
        Observation {
            apps,
            cores: cores.collect(),
            energy,
            cpu_pressure: pressure,
            interrupts_per_s: self.card_rate(&before, |card| card.interrupts),
            packets_per_s: self.card_rate(&before, VectorTotals::packets),
            c6_opportunity: self.opportunity(&sleeps, busy_ns),
            idle_gaps: self.keeps_intervals().and_then(|()| quantiles(sleeps)),
            restarted: self.restarted(&before),
            ..Observation::unknown(self.snapshot.time, epoch, &untold)
        }
    }

    fn card_rate(&self, before: &MachineSnapshot, count: fn(&VectorTotals) -> u64) -> Gauge<f64> {
        if self.simulation.card.is_none() {
            return Err(Missing::because("the model gives no network card"));
        }
        let counted = count(&self.snapshot.card) - count(&before.card);
        let epoch = self.snapshot.time - before.time;
        if epoch == Nanos::ZERO {
            return Err(toolkit::no_length());
        }
        Ok(counted as f64 / epoch.as_secs_f64())
    }

    fn energy_since(&self, before: &MachineSnapshot) -> Gauge<EnergyObservation> {
        if self.simulation.hardware.power.is_none() {
            return Err(Missing::because("the model gives no power"));
        }
        Ok(EnergyObservation {
            energy: self.snapshot.energy - before.energy,
            source: EnergySource::Measured("the simulated machine's meter".to_owned()),
        })
    }

    /// Whether single idle intervals are known.
    fn keeps_intervals(&self) -> Gauge<()> {
        let hardware = &self.simulation.hardware;
        if !hardware.sleeps() {
            return Err(Missing::because("the model gives the cores no idle states"));
        }
        match hardware.keeps_intervals {
            true => Ok(()),
            false => Err(Missing::because("cores of event loops sum up their sleeps")),
        }
    }

    fn pressure_since(&self, before: &MachineSnapshot) -> Gauge<f64> {
        if self.simulation.loops.is_some() {
            return Err(Missing::because("threads of event loops wait for no core"));
        }
        if self.simulation.per_thread.is_some() {
            return Err(Missing::because("run queues under `run-queues` are not observed"));
        }
        self.share(before, self.snapshot.pressure_ns - before.pressure_ns)
    }

    /// A part of the epoch, in [0, 1].
    fn share(&self, before: &MachineSnapshot, part_ns: u128) -> Gauge<f64> {
        toolkit::share(part_ns, self.snapshot.time - before.time)
    }

    fn core_observation(&self, core: usize, before: &MachineSnapshot) -> CoreObservation {
        let (now, then) = (self.snapshot.cores[core], before.cores[core]);
        let supply = &self.simulation.cores[core].supply;
        let utilisation = self.share(before, now.busy_ns - then.busy_ns);
        let frequency = Ok(supply.frequency);
        if !self.simulation.hardware.sleeps() {
            let no_states = Missing::because("the model gives the cores no idle states");
            return CoreObservation {
                utilisation,
                frequency,
                ..CoreObservation::unknown(&no_states)
            };
        }
        let sleeps = supply.counts.intervals.get(then.sleeps..).unwrap_or_default();
        let part = |now: Nanos, then: Nanos| self.share(before, u128::from((now - then).0));
        CoreObservation {
            utilisation,
            idle_residency: part(now.idle, then.idle),
            deep_idle_residency: part(now.deepest, then.deepest),
            c6_opportunity: self.opportunity(sleeps, now.busy_ns - then.busy_ns),
            frequency,
        }
    }

    /// Sleeps of all cores that ended in the epoch.
    fn sleeps_since(&self, before: &MachineSnapshot) -> Vec<Nanos> {
        let each = self.simulation.cores.iter().zip(&before.cores);
        let ended = each.flat_map(|(core, then)| {
            core.supply.counts.intervals.get(then.sleeps..).unwrap_or_default()
        });
        ended.copied().collect()
    }

    /// The share of time in long sleeps, of the sleeps that ended in an epoch and the busy
    /// time in it.
    fn opportunity(&self, sleeps: &[Nanos], busy_ns: u128) -> Gauge<f64> {
        self.keeps_intervals()?;
        let sleeps = sleeps.iter().copied();
        let share = ideal_batch::c6_opportunity(sleeps, Nanos(busy_ns as u64), C6_BREAK_EVEN);
        share.ok_or_else(|| Missing::because("no sleep ended in the epoch, and no core was busy"))
    }

    /// The apps that are present and were at the last observation, but departed in between.
    fn restarted(&self, before: &MachineSnapshot) -> Vec<AppId> {
        let ids = (0u16..).map(AppId).zip(&self.numbers);
        let is_restarted = |(app, number): (AppId, &usize)| {
            let (now, then) = (&self.snapshot.apps[*number], &before.apps[*number]);
            let is_new = now.is_present && then.is_present && now.life != then.life;
            is_new.then_some(app)
        };
        ids.filter_map(is_restarted).collect()
    }

    fn app_observation(&mut self, app: usize, before: &MachineSnapshot) -> AppObservation {
        let number = self.numbers[app];
        let counted = self.snapshot.apps[number].since(&before.apps[number]);
        self.presence[app] = Nanos(counted.present_ns as u64);
        if !self.simulation.is_present(number) {
            return AppObservation::unknown(&absent());
        }
        // The rates of an app that arrived within the epoch refer to its own time.
        let epoch = self.presence[app];
        if epoch == Nanos::ZERO {
            return AppObservation {
                alive: true,
                ..AppObservation::unknown(&toolkit::no_length())
            };
        }
        let readings = self.readings(number, &counted, epoch);
        let critical = self.apps[app].is_latency_critical();
        let connects = matches!(self.simulation.apps[number].work, Work::Connections { .. });
        let seen = connects || critical;
        let latency = seen.then(|| self.simulation.take_latency(number, &counted, epoch));
        let done_per_s = match &latency {
            Some(latency) if connects => latency.completed_per_s,
            _ => counted.work_ns / 1e9 / epoch.as_secs_f64(),
        };
        let of_app = |thread: &&super::super::queue::Thread| thread.app == number;
        AppObservation {
            alive: true,
            readings,
            threads: Ok(self.simulation.threads.iter().filter(of_app).count() as u32),
            progress: progress(critical, done_per_s),
            latency: latency
                .filter(|_| critical)
                .ok_or_else(|| Missing::because("a best-effort app has no requests")),
            client_classes: Vec::new(),
            client_accounts: Vec::new(),
        }
    }

    /// Gauges of an app's threads. Work is instructions at `ipc` a cycle of the highest
    /// frequency.
    fn readings(&self, number: usize, counted: &AppCounters, epoch: Nanos) -> Readings {
        let seconds = epoch.as_secs_f64();
        let hertz = self.frequency.0 as f64;
        let ipc = self.simulation.apps[number].ipc;
        let busy_s = Nanos(counted.busy_ns as u64).as_secs_f64();
        let mut readings =
            Readings::unknown(&Missing::because("the simulated machine has no such gauge"));
        readings.set(CPU, Ok(busy_s / seconds));
        if self.simulation.loops.is_some() {
            readings.set(CYCLES, Ok(counted.work_ns / 1e9 * hertz / seconds));
            return readings;
        }
        let waited_s = Nanos(counted.queued_ns as u64).as_secs_f64();
        readings.set(RUN_QUEUE_WAIT, Ok(waited_s / seconds));
        if self.simulation.per_thread.is_none() {
            readings.set(CONTEXT_SWITCHES, Ok(counted.switches as f64 / seconds));
        }
        readings.set(INSTRUCTIONS, Ok(counted.work_ns / 1e9 * hertz * ipc / seconds));
        match &self.simulation.hardware.scaling {
            None => readings.set(CYCLES, Ok(busy_s * hertz / seconds)),
            Some(_) => readings.set(CYCLES, Err(unread("cycles at changing frequencies"))),
        }
        readings.set(LLC_MISSES, Err(unread("cache misses")));
        readings.set(CACHE_OCCUPANCY, Err(unread("cache occupancy")));
        readings.set(MEMORY_BANDWIDTH, Err(unread("memory bandwidth")));
        readings
    }
}

/// A machine has the gauges of a host without resctrl monitors, so that no policy depends on more.
fn unread(what: &str) -> Missing {
    Missing::because(format!("the simulated machine has no gauge of {what}"))
}

fn progress(latency_critical: bool, per_s: f64) -> Gauge<Progress> {
    if latency_critical {
        return Err(Missing::because("a latency-critical app is measured by its latency"));
    }
    Ok(Progress { per_s, source: ProgressSource::Simulated })
}

fn quantiles(mut sleeps: Vec<Nanos>) -> Gauge<Quantiles> {
    sleeps.sort_unstable();
    let Some(last) = sleeps.len().checked_sub(1) else {
        return Err(Missing::because("no sleep ended in the epoch"));
    };
    let at = |share: f64| sleeps[((sleeps.len() as f64 * share).ceil() as usize - 1).min(last)];
    Ok(Quantiles { p50: at(0.5), p95: at(0.95), p99: at(0.99) })
}
