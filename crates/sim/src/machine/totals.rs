//! Totals of a machine.

use super::dispatching::DispatchCounts;
use super::gated::{GatedServer, GatedSums, GroupLog};
use super::gated_totals::{CoreTime, GatedTotals, MeanThreads};
use super::queue::CoreState;
use super::windows::{DueWindows, Windows};
use super::{MachineSimulation, Work};
use crate::idle::IdleTotals;
use lull_measure::{Joules, Latency, Nanos, Percentile};
use std::ops::Range;

/// Counters when counting began.
#[derive(Debug, Clone, Default)]
pub(super) struct MachineBaseline {
    time_ns: u64,
    apps: Vec<AppCounters>,
    busy_ns: Vec<u128>,
    pressure_ns: u128,
    wasted_ns: u128,
}

/// An app's running totals.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AppCounters {
    pub(super) arrived: u64,
    pub(super) answered: u64,
    pub(super) lost: u64,
    pub(super) present_ns: u128,
    pub(super) is_present: bool,
    pub(super) life: u32,
    pub(super) switches: u64,
    pub(super) transfers: u64,
    pub(super) transferred_ns: u128,
    pub(super) work_ns: f64,
    pub(super) busy_ns: u128,
    pub(super) queued_ns: u128,
    pub(super) outstanding_ns: u128,
}

/// Totals of a node over the counted time.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineTotals {
    /// The counted time.
    pub span: Nanos,
    /// Indexed by number in the model.
    pub apps: Vec<MachineAppTotals>,
    /// Share of the time that each core was not idle, in [0, 1].
    pub utilisation: Vec<f64>,
    /// Share of the time in which some thread waited for a core.
    pub pressure: f64,
    /// Cores that were idle while as many threads waited that might not run there, on average.
    /// Counted under Linux's rules of run queues only, as transfers are; 0 under others.
    pub wasted_cores: f64,
    /// Events of the whole run.
    pub events: u64,
}

/// Totals of one app over the counted time.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineAppTotals {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were unanswered when the app departed, or that were abandoned.
    pub lost: u64,
    /// How long the app was on the node.
    pub present: Nanos,
    /// Their latencies.
    pub latency: Latency,
    /// Mean number of requests unanswered.
    pub outstanding: f64,
    /// Work done per second: seconds alone with all resources.
    pub work_per_s: f64,
    /// Cores used, switches included.
    pub busy_cores: f64,
    /// Cores used that its threads had taken over from another app.
    pub transferred_cores: f64,
    /// Threads that waited for a core, on average.
    pub queued: f64,
    /// Switches to one of its threads.
    pub switches: u64,
    /// Switches by which a core was taken over from another app.
    pub transfers: u64,
    /// Instructions per cycle of the cores used; 0 if it used none.
    pub ipc: f64,
}

impl MachineSimulation {
    /// Restarts all counts.
    pub fn forget(&mut self) {
        let now_ns = self.now_ns;
        self.account_all();
        for core in &mut self.cores {
            core.supply.counts = self.hardware.counts();
            core.spent.fill(CoreTime::default());
        }
        self.gated.iter_mut().for_each(|gated| gated.forget(now_ns));
        if let Some(dispatching) = &mut self.dispatching {
            dispatching.counts = DispatchCounts::default();
        }
        if let Some(loops) = &mut self.loops {
            loops.forget();
        }
        self.baseline = MachineBaseline {
            time_ns: now_ns,
            apps: (0..self.apps.len()).map(|app| self.counters(app)).collect(),
            busy_ns: self.cores.iter().map(|core| core.busy.integral_at(now_ns)).collect(),
            pressure_ns: self.pressure.integral_at(now_ns),
            wasted_ns: self.wasted.integral_at(now_ns),
        };
        for app in &mut self.apps {
            app.latency.clear();
            app.log.iter_mut().for_each(Vec::clear);
        }
    }

    /// Records every single latency of an app from now on.
    pub fn keep_log(&mut self, app: usize) {
        self.apps[app].log = Some(Vec::new());
    }

    /// Counts in which spans of the windows the requests of an app miss an objective.
    pub fn keep_windows(&mut self, app: usize, objective: (Percentile, Nanos), windows: Windows) {
        self.apps[app].windows = Some(DueWindows::new(windows, objective));
    }

    /// Records the latencies of groups of connections, of answers since `since`. Connections are
    /// numbered gate by gate.
    pub fn keep_groups(&mut self, groups: &[Range<usize>], since: Nanos) {
        self.groups = GroupLog::new(groups, since);
    }

    /// Returns the recorded latencies of each group of connections.
    pub fn of_groups(&self) -> &[Latency] {
        self.groups.latencies()
    }

    /// Requests of an app that are due and unanswered.
    pub fn outstanding(&self, app: usize) -> u32 {
        self.apps[app].outstanding.value()
    }

    /// The app whose thread has a core now; `None` if no thread has it.
    pub fn running_on(&self, core: usize) -> Option<usize> {
        self.cores[core].current.map(|thread| self.threads[thread].app)
    }

    /// Threads that wait for a core now; counted under Linux's rules of run queues only.
    pub fn waiting_threads(&self) -> usize {
        self.queued.iter().sum()
    }

    /// Returns for each complete span whether an app missed its objective in it, as far as that
    /// is known now: spans that end less than the bound ago are left out.
    pub fn missed_windows(&self, app: usize) -> impl Iterator<Item = bool> + '_ {
        let windows = self.apps[app].windows.iter();
        windows.flat_map(|windows| windows.missed(self.now()))
    }

    /// Returns the recorded latencies of an app, in order of completion.
    pub fn log(&self, app: usize) -> &[Nanos] {
        self.apps[app].log.as_deref().unwrap_or_default()
    }

    /// Returns the totals.
    pub fn totals(&self) -> MachineTotals {
        let now_ns = self.now_ns;
        let span_ns = (now_ns - self.baseline.time_ns) as f64;
        let cores = self.cores.iter().zip(&self.baseline.busy_ns);
        let busy = cores.map(|(core, before)| core.busy.integral_at(now_ns) - before);
        let pressure_ns = self.pressure.integral_at(now_ns) - self.baseline.pressure_ns;
        let wasted_ns = self.wasted.integral_at(now_ns) - self.baseline.wasted_ns;
        MachineTotals {
            span: Nanos(now_ns - self.baseline.time_ns),
            apps: (0..self.apps.len()).map(|app| self.app_totals(app, span_ns)).collect(),
            utilisation: busy.map(|busy_ns| busy_ns as f64 / span_ns).collect(),
            pressure: pressure_ns as f64 / span_ns,
            wasted_cores: wasted_ns as f64 / span_ns,
            events: self.events,
        }
    }

    fn app_totals(&self, app: usize, span_ns: f64) -> MachineAppTotals {
        let state = &self.apps[app];
        let counted = self.counters(app).since(&self.baseline.apps[app]);
        let busy_ns = counted.busy_ns as f64;
        MachineAppTotals {
            arrived: counted.arrived,
            answered: counted.answered,
            lost: counted.lost,
            present: Nanos(counted.present_ns as u64),
            latency: state.latency.clone(),
            outstanding: counted.outstanding_ns as f64 / span_ns,
            work_per_s: counted.work_ns / span_ns,
            busy_cores: busy_ns / span_ns,
            transferred_cores: counted.transferred_ns as f64 / span_ns,
            queued: counted.queued_ns as f64 / span_ns,
            switches: counted.switches,
            transfers: counted.transfers,
            ipc: if busy_ns > 0.0 { state.ipc * counted.work_ns / busy_ns } else { 0.0 },
        }
    }

    /// Returns an app's counters now. Changes no state, so that an observation does not
    /// change the simulation.
    pub(super) fn counters(&self, app: usize) -> AppCounters {
        let (state, now_ns) = (&self.apps[app], self.now_ns);
        let present = AppCounters {
            arrived: state.arrived,
            answered: state.answered,
            lost: state.lost,
            present_ns: state.present.integral_at(now_ns),
            is_present: state.present.value() > 0,
            life: state.life,
            ..AppCounters::default()
        };
        if let Some(loops) = &self.loops {
            return AppCounters {
                switches: loops.wakes(),
                work_ns: 1e9 * loops.cycles() / self.hardware.highest.0 as f64,
                busy_ns: self.cores.iter().map(|core| core.busy.integral_at(now_ns)).sum(),
                outstanding_ns: loops.outstanding_ns(),
                ..present
            };
        }
        let outstanding_ns = state.outstanding.integral_at(now_ns);
        if self.per_thread.is_some() {
            let add = |sum: AppCounters, core: &CoreState| {
                let CoreTime { cpu, work_ns, starts, waited } = core.spent[app];
                AppCounters {
                    switches: sum.switches + starts,
                    work_ns: sum.work_ns + work_ns,
                    busy_ns: sum.busy_ns + u128::from(cpu.0),
                    queued_ns: sum.queued_ns + u128::from(waited.0),
                    ..sum
                }
            };
            return self.cores.iter().fold(AppCounters { outstanding_ns, ..present }, add);
        }
        let running =
            self.cores.iter().enumerate().filter(|(_, core)| {
                core.current.is_some_and(|thread| self.threads[thread].app == app)
            });
        let done = |(number, core): (usize, &CoreState)| {
            let span_ns = match &self.shared {
                Some(shared) if now_ns > core.since_ns => shared.done_ns(number, now_ns),
                _ => now_ns.saturating_sub(core.since_ns) as f64,
            };
            span_ns * core.supply.speed
        };
        AppCounters {
            switches: state.switches,
            transfers: state.transfers,
            transferred_ns: state.transferred.integral_at(now_ns),
            work_ns: state.work_ns + running.map(done).sum::<f64>() * state.pace,
            busy_ns: state.running.integral_at(now_ns),
            queued_ns: state.queued.integral_at(now_ns),
            outstanding_ns,
            ..present
        }
    }
}

/// Energy, idle states and the gated servers.
impl MachineSimulation {
    /// Brings the counts of all cores up to date.
    pub(super) fn account_all(&mut self) {
        (0..self.cores.len()).for_each(|core| self.account(core));
        self.gated.iter_mut().for_each(|gated| gated.pass(self.now_ns));
    }

    /// Energy since the counts were restarted; zero without a power model.
    pub(super) fn energy(&self) -> Joules {
        let since = Nanos(self.now_ns - self.counted_from_ns());
        let fixed = self.hardware.power.as_ref().map(|power| power.fixed.during(since));
        self.cores.iter().fold(fixed.unwrap_or_default(), |sum, core| {
            let counts = &core.supply.counts;
            sum + counts.active + counts.idle.energy + counts.uncore
        })
    }

    /// When counting began.
    pub(super) fn counted_from_ns(&self) -> u64 {
        self.baseline.time_ns
    }

    /// Returns the totals of a machine with idle states, by app in the order of the model with
    /// those first whose threads serve connections. Several gates are added up, but for the share
    /// of the device, which is their mean, and the most turns, which are those of one gate.
    pub fn gated_totals(&mut self) -> GatedTotals {
        self.account_all();
        let gates = || self.gated.iter();
        let sum = |of: fn(&GatedSums) -> f64| gates().fold(0.0, |sum, gated| sum + of(&gated.sums));
        let span = Nanos(self.now_ns - self.baseline.time_ns);
        let mean = |total_ns: f64| total_ns / (span.0 as f64).max(1.0);
        let (running, disk) = (mean(sum(|of| of.running_ns)), mean(sum(|of| of.disk_ns)));
        let connections: usize = gates().map(GatedServer::connections).sum();
        let (work, instructions) = (sum(|of| of.work), sum(|of| of.instructions));
        let device = gates().map(|gated| {
            let starts = gated.storage.started() - gated.sums.started;
            gated.storage.share(starts, span.as_secs_f64())
        });
        let is_class = |app: &usize| matches!(self.apps[*app].work, Work::Connections { .. });
        let (classes, rest): (Vec<_>, Vec<_>) = (0..self.apps.len()).partition(is_class);
        let mut totals = GatedTotals {
            span,
            classes: classes.iter().map(|app| self.apps[*app].latency.clone()).collect(),
            answers: gates().flat_map(|gated| &gated.sums.answers).copied().collect(),
            arrivals: gates().flat_map(|gated| &gated.sums.arrivals).copied().collect(),
            busy_as: vec![Nanos::ZERO; self.hardware.counts().busy_as.len()],
            instructions: if work > 0.0 { instructions / work } else { 1.0 },
            device: device.fold(0.0, |sum, share| sum + share) / self.gated.len().max(1) as f64,
            threads: MeanThreads {
                running,
                disk,
                sleeping: connections as f64 - running - disk,
                queries: mean(sum(|of| of.query_ns)),
            },
            most_turns: gates().map(|gated| gated.gate.most_running).max().unwrap_or(0),
            gate: gates().map(|gated| gated.sums.gate).sum(),
            spent: classes.iter().chain(&rest).map(|app| self.spent(*app)).collect(),
            events: self.events,
            ..GatedTotals::default()
        };
        if let Some(power) = &self.hardware.power {
            totals.energy.fixed = power.fixed.during(span);
        }
        self.add_cores(&mut totals);
        totals
    }

    /// The time of an app's threads on the cores since the counts were restarted.
    fn spent(&self, app: usize) -> CoreTime {
        let counted = self.counters(app).since(&self.baseline.apps[app]);
        CoreTime {
            cpu: Nanos(counted.busy_ns as u64),
            work_ns: counted.work_ns,
            starts: counted.switches,
            waited: Nanos(counted.queued_ns as u64),
        }
    }

    fn add_cores(&self, totals: &mut GatedTotals) {
        let (mut hertz_ns, mut busy_hertz_ns) = (0.0, 0.0);
        let mut idle = IdleTotals::new(self.hardware.idle.len());
        for core in &self.cores {
            let counts = &core.supply.counts;
            totals.energy.active += counts.active;
            idle.add(&counts.idle);
            totals.energy.fixed += counts.uncore;
            totals.busy += counts.busy;
            for (all, busy) in totals.busy_as.iter_mut().zip(&counts.busy_as) {
                *all += *busy;
            }
            totals.intervals.extend(&counts.intervals);
            hertz_ns += counts.hertz_ns;
            busy_hertz_ns += counts.busy_hertz_ns;
        }
        totals.energy.idle = idle.energy;
        (totals.residency, totals.entries) = (idle.residency, idle.entries);
        let core_ns = totals.span.0 as f64 * self.cores.len() as f64;
        totals.mean_hertz = hertz_ns / core_ns.max(1.0);
        totals.busy_hertz = busy_hertz_ns / (totals.busy.0 as f64).max(1.0);
    }
}

impl AppCounters {
    /// Returns the differences to earlier counters.
    pub(super) fn since(&self, then: &Self) -> Self {
        Self {
            arrived: self.arrived - then.arrived,
            answered: self.answered - then.answered,
            lost: self.lost - then.lost,
            present_ns: self.present_ns - then.present_ns,
            is_present: self.is_present,
            life: self.life,
            switches: self.switches - then.switches,
            transfers: self.transfers - then.transfers,
            transferred_ns: self.transferred_ns - then.transferred_ns,
            work_ns: self.work_ns - then.work_ns,
            busy_ns: self.busy_ns - then.busy_ns,
            queued_ns: self.queued_ns - then.queued_ns,
            // A stack that runs to completion counts the answers of a round at its end, with
            // times within the round, which can precede the earlier counters.
            outstanding_ns: self.outstanding_ns.saturating_sub(then.outstanding_ns),
        }
    }
}
