//! The host as a plant: gauges and knobs of one machine and its apps.

mod app;
mod apply;
mod exchange;
mod gate;
mod matches;
mod observe;
mod owners;
mod presence;
mod present;
mod registered;
mod stop;

pub use app::{HostApp, LatencyFrom, ProgressFrom};
pub use stop::Stop;

use crate::Roots;
use crate::apps::{self, Ended, PauseError, ProcessTable, SearchError};
use crate::clock::read as now;
use crate::gauges::counters;
use crate::gauges::energy::{Energy, PowerModel};
use crate::gauges::events::Events;
use crate::gauges::frequency::Frequency;
use crate::gauges::idle::IdleResidency;
use crate::gauges::pressure::Pressure;
use crate::gauges::push::PushGauge;
use crate::gauges::run_queue::RunQueue;
use crate::gauges::traffic::Traffic;
use crate::gauges::utilisation::Utilisation;
use crate::guard::{GuardError, GuardHandle, Ledger, LedgerError, Patience};
use crate::knobs::{MachineKnobs, Partitions};
use crate::probe::{self, ProbeError, Rights};
use crate::register::Registrar;
use app::RunningApp;
use lull_control::{
    AppId, AppSpec, Applied, ApplyOutcome, ForeignChange, Knob, Machine, Observation, Outcome,
    Plant, PlantError, Setting,
};
use lull_measure::{Missing, Nanos};
use matches::Matches;
use owners::Owners;
use rustix::event::epoll;
use rustix::time::ClockId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

/// How a host is watched and steered.
#[derive(Debug)]
pub struct HostConfig {
    /// Where the kernel's files are.
    pub roots: Roots,
    /// The apps, in the order of their ids.
    pub apps: Vec<HostApp>,
    /// Where apps and clients push; without it latency is missing.
    pub push: Option<PushGauge>,
    /// Used instead of a power meter.
    pub power: PowerModel,
    /// Where old values are saved before a knob is written.
    pub ledger: Ledger,
    /// Whether settings of other programs stay when Lull restores.
    pub foreign_wins: bool,
    /// Ends a wait.
    pub stop: Stop,
}

/// Why a host cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The machine cannot be made out.
    #[error(transparent)]
    Machine(#[from] ProbeError),
    /// Processes cannot be listed.
    #[error("cannot list processes: {0}; is proc mounted?")]
    Processes(#[from] io::Error),
    /// The processes of an app cannot be found.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// Two apps have a process in common.
    #[error("process {pid} belongs to both `{first}` and `{second}`: narrow one of them")]
    Shared {
        /// The process.
        pid: i32,
        /// An app.
        first: String,
        /// The other one.
        second: String,
    },
}

/// A machine, its apps, and everything that reads or sets them.
#[derive(Debug)]
pub struct HostPlant {
    roots: Roots,
    machine: Machine,
    specs: Vec<AppSpec>,
    apps: Vec<RunningApp>,
    table: ProcessTable,
    /// When all processes were listed last, since boot.
    listed: Nanos,
    gauges: Gauges,
    /// Knobs of the machine.
    knobs: MachineKnobs,
    partitions: Partitions,
    ledger: Ledger,
    /// The process that restores the knobs if this one dies, if the plant started it.
    guard: Option<GuardHandle>,
    foreign_wins: bool,
    is_privileged: bool,
    /// The setting of each knob before its first write.
    originals: BTreeMap<Knob, Setting>,
    /// Knobs written since the last restore.
    touched: BTreeSet<Knob>,
    stop: Stop,
    /// Where processes register, if they may.
    registrar: Option<Registrar>,
    /// Readable while a discovery has news.
    discovery: Option<OwnedFd>,
    /// Readable while the oldest process of an app has ended, of those whose end is awaited: with
    /// hundreds of apps, one descriptor is waited for and not hundreds. `None` if it cannot be had,
    /// so that ends are seen when the epoch ends.
    leaders: Option<OwnedFd>,
    pace: Pace,
    owners: Owners,
    /// The times at which apps of templates are searched.
    matches: Matches,
    /// Whether an arrival ended the last epoch early.
    was_cut: bool,
    /// The wait for the end of the present epoch, once it has begun.
    epoch_wait: Option<EpochWait>,
    /// Foreign changes found before the end of the epoch.
    early_foreign: Vec<ForeignChange>,
    notices: RefCell<Vec<String>>,
    /// Values that the last restoration could not restore and no knob's outcome reports.
    unrestored: Vec<String>,
    /// Processes that the restorations may have missed.
    missed: BTreeSet<String>,
}

/// Gauges of the machine as a whole.
#[derive(Debug)]
struct Gauges {
    utilisation: Utilisation,
    idle: IdleResidency,
    frequency: Frequency,
    pressure: Pressure,
    traffic: Traffic,
    energy: Energy,
    events: Events,
    waits: RunQueue,
    push: Option<PushGauge>,
}

/// The wait for the end of an epoch, which news of a discovery interrupt. Times are of
/// `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
struct EpochWait {
    /// Whether an arrival may end the epoch early.
    may_cut: bool,
    /// The time of the last search for absent apps.
    looked: Nanos,
    /// When the push socket was drained last.
    drained: Nanos,
    /// The time from which events end the wait for an epoch.
    news_from: Nanos,
}

/// When epochs begin and end, `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
struct Pace {
    begin: Nanos,
    /// When the gauges were read last.
    last: Nanos,
    /// When the current epoch should end.
    deadline: Nanos,
}

impl HostPlant {
    /// The machine under the config's roots. Values count from here.
    ///
    /// # Errors
    /// If the machine's cores or processes cannot be listed.
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        let HostConfig { roots, apps, push, power, ledger, foreign_wins, stop } = config;
        // Subscribe before processes are listed, so that none is missed in between.
        ledger.forks().subscribe();
        let machine = probe::machine(&roots)?;
        let cores = machine.cores.len();
        let modes = counters::modes(&roots);
        let specs: Vec<AppSpec> = apps.iter().map(|app| app.spec.clone()).collect();
        let apps: Vec<_> =
            apps.into_iter().map(|app| RunningApp::new(app, &roots, &modes)).collect();
        let machine = gate::with_gates(machine, &specs, &apps);
        let now = now(ClockId::Monotonic);
        let mut plant = Self {
            gauges: Gauges {
                utilisation: Utilisation::new(&roots, cores),
                idle: IdleResidency::new(&roots, cores),
                frequency: Frequency::new(&roots, cores),
                pressure: Pressure::new(&roots),
                traffic: Traffic::new(&roots),
                energy: Energy::new(&roots, power),
                events: Events::none(Missing::because("events were not requested")),
                waits: waits_of(&apps, &roots),
                push,
            },
            specs,
            matches: Matches::new(&apps, ledger.forks()),
            apps,
            listed: self::now(ClockId::Boottime),
            table: ProcessTable::new(&roots)?.following(ledger.forks().clone()),
            knobs: MachineKnobs::new(&roots, &machine),
            partitions: Partitions::new(&roots.sys),
            roots,
            machine,
            ledger,
            guard: None,
            foreign_wins,
            is_privileged: Rights::of_this_process().any_thread,
            originals: BTreeMap::new(),
            touched: BTreeSet::new(),
            stop,
            registrar: None,
            discovery: None,
            leaders: epoll::create(epoll::CreateFlags::CLOEXEC).ok(),
            pace: Pace { begin: now, last: now, deadline: now },
            owners: Owners::default(),
            was_cut: false,
            epoch_wait: None,
            early_foreign: Vec::new(),
            notices: RefCell::default(),
            unrestored: Vec::new(),
            missed: BTreeSet::new(),
        };
        plant.refuse_overlap()?;
        // The first reading of every gauge: a change needs two.
        plant.read(Nanos(1));
        Ok(plant)
    }

    /// Refuses apps that share a process when the run begins.
    fn refuse_overlap(&mut self) -> Result<(), HostError> {
        self.table.describe_for(self.apps.iter().filter_map(|app| app.handle.needed_description()));
        for app in &mut self.apps {
            app.handle.refresh(&self.table)?;
        }
        let Some(overlap) = self.owners.settle(&mut self.apps).first().copied() else {
            return Ok(());
        };
        let (first, second) = overlap.apps;
        let name = |index: usize| self.apps[index].handle.name().to_owned();
        let pid = overlap.process.pid;
        Err(HostError::Shared { pid, first: name(first), second: name(second) })
    }

    /// The apps that wait for their processes, each with where it looks for them.
    pub fn waiting(&self) -> Vec<String> {
        let is_waiting = |app: &&RunningApp| !app.presence.is_present && !app.handle.is_spare();
        let absent = self.apps.iter().filter(is_waiting);
        let text = |app: &RunningApp| {
            format!("`{}` waits: {} has no process now", app.handle.name(), app.handle.place())
        };
        absent.map(text).collect()
    }

    /// Whether an app has a process now, or may have one later.
    pub fn may_run(&self, app: AppId) -> bool {
        let app = &self.apps[app.index()];
        app.presence.is_present || app.handle.can_return()
    }

    /// Counts sleeps of cores and waits of threads from here on, by programs in
    /// the kernel, with this break-even of the deepest idle state; where the
    /// kernel refuses, observations say why.
    pub fn watch_events(&mut self, break_even: Nanos) {
        let cores = self.machine.cores.len();
        self.gauges.events = Events::new(cores, break_even);
        self.gauges.events.read(cores);
    }

    /// Beats for the guard while the plant waits, and replaces a guard that has ended. Knobs
    /// are written only while there is a guard. From the first wait on, the guard kills this
    /// process if it stops beating.
    pub fn set_guard(&mut self, guard: GuardHandle) {
        self.guard = Some(guard);
    }

    /// Beats for the guard, if it was given.
    ///
    /// # Errors
    /// If the guard has ended and cannot be started again.
    pub fn beat(&self, patience: Patience) -> Result<(), String> {
        self.beat_by(|guard| guard.beat(patience))
    }

    /// Beats for the guard while an epoch passes.
    fn beat_in_wait(&self) -> Result<(), String> {
        self.beat_by(GuardHandle::beat_in_wait)
    }

    fn beat_by(&self, beat: impl Fn(&GuardHandle) -> Result<(), GuardError>) -> Result<(), String> {
        self.guard.as_ref().map_or(Ok(()), beat).map_err(|error| {
            format!("the guard, which restores knobs, has ended and cannot be started: {error}")
        })
    }

    /// Sets the descriptor that is readable while a discovery has news, for
    /// [`HostPlant::wait_for_news`].
    pub fn set_discovery(&mut self, wakes: Option<OwnedFd>) {
        self.discovery = wakes;
    }

    /// Returns the ledger for programs that are started during a run.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Changes the specification of an app, once its references are measured.
    pub fn update_spec(&mut self, app: AppId, change: impl FnOnce(&mut AppSpec)) {
        change(&mut self.specs[app.index()]);
    }

    /// Returns the errors since the last call that stopped nothing, for the journal.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }

    /// Returns what the last restoration, with this outcome, could not restore: knobs, and values
    /// that belong to none.
    pub fn unrestored(&self, restored: &Applied) -> Vec<String> {
        let refusal = |outcome: &Outcome| match &outcome.got {
            ApplyOutcome::Refused { why } => Some(format!("{}: {why}", outcome.wanted)),
            _ => None,
        };
        let refused = restored.outcomes.iter().filter_map(refusal);
        refused.chain(self.unrestored.iter().cloned()).collect()
    }

    /// Processes that may still have Lull's settings: the kernel did not report every fork.
    pub fn possibly_missed(&self) -> impl Iterator<Item = &str> {
        self.missed.iter().map(String::as_str)
    }

    /// Stops a started app until [`HostPlant::resume`], to see others without it.
    ///
    /// # Errors
    /// As [`AppHandle::pause`](crate::apps::AppHandle::pause).
    pub fn pause(&mut self, app: AppId) -> Result<(), PauseError> {
        self.apps[app.index()].handle.pause(&mut self.table, &mut self.ledger)
    }

    /// Lets a paused app continue.
    ///
    /// # Errors
    /// As [`AppHandle::resume`](crate::apps::AppHandle::resume).
    pub fn resume(&mut self, app: AppId) -> Result<(), PauseError> {
        self.apps[app.index()].handle.resume(&self.roots, &mut self.ledger)
    }

    /// How the first process of a started app has ended, if it has.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn exit_status(&mut self, app: AppId) -> io::Result<Option<ExitStatus>> {
        self.apps[app.index()].handle.exit_status()
    }

    /// Ends the run after a [`Plant::restore`]: stops the apps that Lull started and, if all was
    /// put back, closes the ledger, so that its guard has nothing to do. Otherwise the guard tries
    /// again when this process ends, and `lull restore` can afterwards.
    ///
    /// # Errors
    /// If the ledger cannot be closed; the guard then restores once more.
    pub fn close(self, grace: Duration) -> Result<Ended, LedgerError> {
        let mut handles: Vec<_> = self.apps.into_iter().map(|app| app.handle).collect();
        let ended = apps::stop(&mut handles, &self.roots, grace);
        if self.touched.is_empty() {
            self.ledger.close()?;
        }
        Ok(ended)
    }

    fn notice(&self, text: String) {
        self.notices.borrow_mut().push(text);
    }
}

/// Counts waits of all apps if one has an objective on them, for every wake-up costs something.
fn waits_of(apps: &[RunningApp], roots: &Roots) -> RunQueue {
    if apps.iter().any(RunningApp::is_judged_by_waits) {
        return RunQueue::new(roots, apps.len());
    }
    RunQueue::none(Missing::because("no app has an objective of run-queue latency"))
}

impl Plant for HostPlant {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.specs
    }

    fn is_present(&self, app: AppId) -> bool {
        self.apps.get(app.index()).is_some_and(|app| app.presence.is_present)
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        self.wait(epoch)?;
        let now = now(ClockId::Monotonic);
        let span = now.saturating_sub(self.pace.last).max(Nanos(1));
        self.pace.last = now;
        Ok(self.read(span))
    }

    fn settings(&self) -> Vec<Setting> {
        self.all_settings()
    }

    fn owners(&self, app: AppId) -> Vec<Setting> {
        self.owners_settings(app)
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        self.apply_all(wanted)
    }

    fn restore(&mut self) -> Applied {
        self.put_back()
    }
}
