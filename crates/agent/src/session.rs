//! A run on this machine: apps, plant, policy, record and guard, together.
//!
//! `run` and `demo` open a session, run its epochs and close it. Closing restores the knobs. If
//! the session ends in any other way, its guard restores them.

mod areas;
mod corrected;
mod discovered;
mod gates;
mod keeper;
mod open;
mod pod_apps;
mod policy;
mod reference;
mod reload;
mod shadow;
mod steered;

pub use open::Agent;
pub use policy::{policy_of, search_of, tuning_of};
pub use reference::bound_by_ideal;

use crate::admission::{Changed, Order, Threads};
use crate::config::{AppOrigin, AppSection, Config};
use crate::frontend::Live;
use crate::library::Library;
use crate::live;
use crate::otlp::{self, Exporter};
use crate::record::{EpochRecord, RecordError, Recorder};
use crate::status;
use areas::AppAreas;
use discovered::Discovered;
use gates::Gates;
use keeper::FindingsWriter;
use lull_control::journal::{Entry, Event};
use lull_control::{
    AppSpec, ControlLoop, Epoch, Knob, Plant, PlantError, Policy, ReferenceCheck, Setting, Totals,
    samples,
};
use lull_host::apps::{AppHandle, GRACE};
use lull_host::guard::{GuardError, GuardHandle, GuardState, Patience};
use lull_host::plant::HostPlant;
use lull_host::{Roots, apps};
use lull_measure::Nanos;
use lull_measure::catalogue::Sample;
use lull_measure::escape::visible_line;
use open::launch::Launcher;
use pod_apps::PodApps;
use policy::rebuild_of;
use shadow::Shadow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use steered::Steered;

/// An open run.
pub struct Session {
    config: Config,
    roots: Roots,
    control: ControlLoop<HostPlant>,
    recorder: Recorder,
    guard: GuardHandle,
    loads: Vec<AppHandle>,
    live: Option<Live>,
    steered: Steered,
    dry_run: bool,
    /// Stores the policy's findings.
    keeper: FindingsWriter,
    shadow: Option<Shadow>,
    /// The discovery that finds apps while the session runs.
    discovered: Option<Discovered>,
    /// The pods that are apps, and the parts that must know them.
    pod_apps: PodApps,
    /// The shadow policy's decisions after the last epoch.
    shadowed: Vec<Entry>,
    /// Compares the apps' references with what the apps reach.
    references: ReferenceCheck,
    /// The counters since the run began.
    totals: Totals,
    /// The exporter that sends metrics to a collector.
    exporter: Option<RefCell<Exporter>>,
    /// The admission controllers of the apps' gates.
    admission_controllers: Threads,
    /// The gates of the apps' servers.
    gates: Gates,
    /// The areas of cores of the apps' servers.
    areas: AppAreas,
    /// The environment of programs that a reload starts.
    launcher: Launcher,
    /// The library's file must exist during the run, because apps preload it into the programs
    /// that they start.
    _library: Option<Library>,
}

/// Why a session ended before it was over.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// The plant stopped or was lost.
    #[error(transparent)]
    Plant(#[from] PlantError),
    /// The record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The guard has ended, so that the knobs would not be restored after a crash.
    #[error("the guard has ended and cannot be started again: {0}")]
    Guard(#[from] GuardError),
}

impl TurnError {
    /// Converts to the error of a command that needs the whole run: a stop is a failure there.
    pub fn cut_short(self) -> anyhow::Error {
        match self {
            Self::Plant(PlantError::Stopped) => {
                anyhow::anyhow!("stopped before the end; what was measured is in the record")
            }
            other => other.into(),
        }
    }
}

/// The result of closing a session.
pub struct Closed {
    /// Descriptions of the knobs that could not be restored.
    left: Vec<String>,
    /// Processes that may still have Lull's settings.
    missed: Vec<String>,
    /// Notices for the user.
    notices: Vec<String>,
}

impl Session {
    /// Runs one epoch and records it under a phase.
    ///
    /// Call it again immediately, or [`Session::hold`]: a process that holds knobs and does not run
    /// epochs for a minute is regarded as stuck, and its guard kills it and restores the knobs.
    pub fn turn(&mut self, phase: &str) -> Result<Epoch, TurnError> {
        self.discover()?;
        let length = self.control.epoch();
        while self.control.plant_mut().wait_for_news(length)? {
            self.discover_arrivals()?;
        }
        self.control.set_surveyed(self.admission_controllers.is_surveyed());
        let mut epoch = self.control.turn()?;
        if epoch.entries.iter().any(|entry| entry.event.changes_machine()) {
            self.admission_controllers.order(Order::MachineChanged);
        }
        // The record may wait for its disk, and the caller for its terminal.
        self.guard.beat(Patience::Long)?;
        epoch.entries.extend(self.note_gate_changes(epoch.seen.time));
        epoch.entries.extend(self.areas.take_changes(epoch.seen.time));
        self.note_discovered(&mut epoch);
        let found = self.control.discoveries();
        self.keeper.take(found, &epoch, self.control.controller().yielded());
        let state = self.control.controller().state();
        let mut samples = samples(self.apps(), state, &epoch.seen, &epoch.assessment);
        samples.extend(self.discovery_sample());
        self.correct_references(&mut epoch)?;
        let phase = self.steered.phase(phase);
        let shadow = self.shadow.as_mut().map(|shadow| shadow.turn(&epoch.seen));
        self.shadowed = shadow.unwrap_or_default();
        self.recorder.write(&EpochRecord {
            apps: self.control.plant().apps(),
            epoch: &epoch,
            samples: &samples,
            phase: &phase,
            shadow: &self.shadowed,
            pods: self.pod_apps.pods(),
        })?;
        self.totals.add(self.control.plant().apps(), &epoch);
        self.show(&epoch, samples);
        self.carry_out_orders();
        if let GuardState::Respawned(status) = self.guard.poll()? {
            self.recorder.note("guard_respawned", &status.to_string())?;
        }
        Ok(epoch)
    }

    /// Leaves the knobs as they are until the next [`Session::turn`], for as long as the caller
    /// needs, for example to measure: the guard does not regard the process as stuck meanwhile.
    pub fn hold(&self) -> Result<(), TurnError> {
        Ok(self.guard.beat(Patience::Unlimited)?)
    }

    /// Runs epochs until a stop is requested or an epoch fails.
    pub fn epochs(&mut self) -> impl Iterator<Item = Result<Epoch, TurnError>> + '_ {
        let mut is_over = false;
        std::iter::from_fn(move || {
            if is_over {
                return None;
            }
            let turned = self.turn("on");
            is_over = turned.is_err();
            let is_stopped = matches!(turned, Err(TurnError::Plant(PlantError::Stopped)));
            (!is_stopped).then_some(turned)
        })
    }

    /// Lets admission controllers and areas of cores act, or suspends them: their gates open, and
    /// threads have their own cores.
    pub fn set_admission(&self, on: bool) {
        self.order(if on { Order::Resume } else { Order::Open });
    }

    /// Sends an order to all parts that act beside the control loop.
    fn order(&self, order: Order) {
        self.admission_controllers.order(order);
        self.areas.order(order);
    }

    /// Notes the changes of gates by admission controllers since the last epoch, and returns them.
    fn note_gate_changes(&mut self, time: Nanos) -> impl Iterator<Item = Entry> + use<> {
        let changes = self.admission_controllers.take_changes();
        self.gates.note(&changes);
        changes.into_iter().map(move |Changed { app, admission, gate, .. }| Entry {
            time,
            event: Event::GateChanged { app, admission, gate },
        })
    }

    /// Restores every knob and continues with another policy.
    pub fn switch(&mut self, name: &str, policy: Box<dyn Policy>) -> Vec<String> {
        self.steered.follow(name);
        let rebuild = rebuild_of(&self.config.under(name), self.plant().machine());
        self.control.set_rebuild(rebuild);
        let restored = self.control.switch(policy);
        self.plant().unrestored(&restored)
    }

    /// Continues with the epochs that the config has under this policy.
    pub fn pace_by(&mut self, policy: &str) {
        self.control.set_epoch(self.config.under(policy).epoch_rule());
    }

    /// Returns the notices since the last call, each in one line: clients and processes choose
    /// names that notices quote.
    pub fn take_notices(&self) -> Vec<String> {
        let mut all = self.plant().take_notices();
        all.extend(self.keeper.take_notices());
        all.extend(self.exporter.as_ref().and_then(|exporter| exporter.borrow_mut().take_notice()));
        all.iter().map(|text| visible_line(text).into_owned()).collect()
    }

    /// The policy that is followed now.
    pub fn policy(&self) -> &str {
        self.steered.policy()
    }

    /// Describes the shadow policy's decisions after the last epoch.
    pub fn shadow_lines(&self) -> Vec<String> {
        let Some(shadow) = &self.shadow else { return Vec::new() };
        let line = |entry: &Entry| {
            let time_s = entry.time.as_secs_f64();
            let event = status::describe_event(self.apps(), &entry.event);
            format!("{time_s:8.2} s  {} would: {event}", shadow.name())
        };
        self.shadowed.iter().map(line).collect()
    }

    /// Describes for users where the page is, if there is one.
    pub fn page(&self) -> Option<&str> {
        self.live.as_ref().map(Live::description)
    }

    fn show(&self, epoch: &Epoch, samples: Vec<Sample>) {
        if self.live.is_none() && self.exporter.is_none() {
            return;
        }
        let plant = self.control.plant();
        let scene = live::Scene {
            policy: self.steered.policy(),
            machine: plant.machine(),
            apps: plant.apps(),
            controller: self.control.controller(),
            epoch,
            next_epoch: self.control.epoch(),
            shadow: self.shadow.as_ref().map(|shadow| (shadow.name(), self.shadowed.as_slice())),
            totals: &self.totals,
            pods: self.pod_apps.pods(),
            gates: &self.gates.read(&|app| self.areas.describe(app)),
        };
        let snapshot = live::EpochSnapshot::new(&scene, samples);
        if let Some(exporter) = &self.exporter {
            exporter.borrow_mut().export(|| self.encoded(&snapshot));
        }
        if let Some(live) = &self.live {
            live.show(snapshot);
        }
    }

    /// Encodes gauges and counters for an OpenTelemetry collector.
    fn encoded(&self, snapshot: &live::EpochSnapshot) -> Vec<u8> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let times = otlp::Times { start: self.recorder.started_unix_ns(), now };
        let run = self.record().file_stem().unwrap_or_default().to_string_lossy();
        let families = live::families(snapshot, Duration::ZERO);
        otlp::encode(&families, times, &self.plant().machine().name, &run)
    }

    /// Returns the config with its open values filled in.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The apps as policies know them, references measured.
    pub fn apps(&self) -> &[AppSpec] {
        self.control.plant().apps()
    }

    /// Whether every app was started by Lull and has ended, so that nothing is left to manage and
    /// no app can return.
    pub fn is_over(&self, epoch: &Epoch) -> bool {
        let is_started = |app: &AppSection| matches!(app.origin(), Ok(AppOrigin::Start(_)));
        let all = self.config.apps.iter().zip(self.apps());
        all.filter(|(_, spec)| !spec.is_removed()).all(|(app, _)| is_started(app))
            && epoch.seen.apps.iter().all(|app| !app.alive)
    }

    /// The machine.
    pub fn plant(&self) -> &HostPlant {
        self.control.plant()
    }

    /// The knobs as last known.
    pub fn state(&self) -> &BTreeMap<Knob, Setting> {
        self.control.controller().state()
    }

    /// Returns why the policy leaves a knob alone: another program has changed it, or areas of
    /// cores decide on it. `None` if it does not.
    pub fn why_yielded(&self, knob: Knob) -> Option<&'static str> {
        self.control.controller().why_yielded(knob)
    }

    /// Where the output of started apps goes.
    pub fn logs(&self) -> PathBuf {
        logs_of(&self.config)
    }

    /// Where the record is.
    pub fn record(&self) -> &Path {
        self.recorder.file()
    }

    /// Restores every knob, stops the started programs, and closes record and ledger.
    pub fn close(self) -> anyhow::Result<Closed> {
        self.close_with(|| Ok(None))
    }

    /// The same with a last fact for the record. It is computed after the knobs are restored and
    /// the apps have ended, because a long computation must not delay the restoration or compete
    /// with the apps for cores.
    pub fn close_with(
        self,
        last: impl FnOnce() -> anyhow::Result<Option<(&'static str, String)>>,
    ) -> anyhow::Result<Closed> {
        let Self {
            roots,
            control,
            recorder,
            guard,
            mut loads,
            live,
            keeper,
            admission_controllers,
            areas,
            ..
        } = self;
        guard.report("STOPPING=1");
        // Closing takes seconds. If the guard has ended, closing restores the knobs all the same.
        let _ = guard.beat(Patience::Long);
        // Admission controllers end first, because measurements are meaningless while apps end.
        drop(admission_controllers);
        // Threads get the cores that they had before their areas, and then those before knobs.
        let areas = areas.finish();
        // Viewers see the end of the run as the end of the stream.
        drop(live);
        let stopped_loads = apps::stop(&mut loads, &roots, GRACE);
        let (plant, restored) = control.finish();
        let left = plant.unrestored(&restored);
        let missed: Vec<String> = plant.possibly_missed().map(str::to_owned).collect();
        let mut notices = plant.take_notices();
        notices.extend(keeper.close());
        for (app, summary) in &areas {
            notices.extend(summary.refusals().map(|text| format!("{app}: {text}")));
        }
        if !areas.is_empty() {
            let noted = serde_json::to_string(&areas).map(|text| recorder.note("areas", &text));
            notices.extend(noted.ok().and_then(Result::err).map(|error| error.to_string()));
        }
        // A full disk must not prevent the restoration of the knobs.
        if let Err(error) = recorder.note("ended", "orderly") {
            notices.push(error.to_string());
        }
        let ended = plant.close(GRACE)?;
        for process in stopped_loads.left.iter().chain(&ended.left) {
            notices.push(format!("process {} does not end; kill it by hand", process.pid));
        }
        if left.is_empty() {
            let ended = guard.finish().err();
            notices.extend(ended.map(|error| format!("the guard: {error}")));
        } else {
            // The guard restores after the end of this process, and expects no more beats.
            drop(guard);
        }
        let noted = last().and_then(|fact| match fact {
            Some((key, text)) => Ok(recorder.note(key, &text)?),
            None => Ok(()),
        });
        if let Err(error) = noted {
            notices.push(error.to_string());
        }
        Ok(Closed { left, missed, notices })
    }
}

impl Closed {
    /// Descriptions of the knobs that could not be restored.
    pub fn left(&self) -> &[String] {
        &self.left
    }

    /// Describes the end of a run: whether the knobs are as they were.
    pub fn outcome(&self) -> String {
        if self.missed.is_empty() {
            return "knobs are as they were".to_owned();
        }
        format!(
            "knobs are as they were, except for processes that were possibly missed: {}",
            self.missed.join(", ")
        )
    }

    /// Reports the notices, except the cause of the end, which the caller reports.
    ///
    /// # Errors
    /// If knobs could not be restored.
    pub fn report_notices(
        &self,
        ended: &anyhow::Result<()>,
        say: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        let cause = ended.as_ref().err().map(ToString::to_string);
        for notice in self.notices.iter().filter(|notice| cause.as_ref() != Some(notice)) {
            say(&visible_line(notice));
        }
        anyhow::ensure!(
            self.left.is_empty(),
            "not restored: {}; the guard tries again when this process ends, and `lull restore` \
             can afterwards",
            self.left.join("; ")
        );
        Ok(())
    }
}

fn logs_of(config: &Config) -> PathBuf {
    config.agent.record.join("logs")
}
