//! A plant on this machine with one app or more.

use crate::child::App;
use lull_control::{AppId, AppSpec, CoreId, CoreSet, Outcome, Plant, Setting};
use lull_host::apps::{AppHandle, Target};
use lull_host::gauges::energy::PowerModel;
use lull_host::gauges::push::PushGauge;
use lull_host::guard::{self, GuardCommand, GuardHandle, Ledger, StateDir};
use lull_host::oncall::{Rules, Watch};
use lull_host::sys::sched::affinity_of;
use lull_host::{HostApp, HostConfig, HostPlant, LatencyFrom, ProgressFrom, Roots, Stop};
use lull_measure::{Nanos, Percentile};
use lull_oncall::Settings;
use lull_testing::skip;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) const EPOCH: Nanos = Nanos::from_millis(40);
pub(crate) const APP: AppId = AppId(0);

/// A plant that attaches to `app`, and where its files are.
pub(crate) struct Scene {
    pub(crate) plant: HostPlant,
    pub(crate) stop: Stop,
    dir: TempDir,
}

impl Scene {
    pub(crate) fn new(app: &App) -> Self {
        Self::from_spec(app, latency_critical(), ProgressFrom::CpuTime, true)
    }

    /// With a gate before the app's workers that does this.
    pub(crate) fn gated(app: &App, settings: &Settings) -> Self {
        let watch = Watch::start(settings, &Rules::default(), &Roots::default()).unwrap();
        let latency = LatencyFrom::OnCall(watch);
        let target = Target::Pid(app.pid());
        Self::with_latency(&target, latency_critical(), (ProgressFrom::CpuTime, latency), true)
    }

    /// Creates an app whose latency is the wait of its threads in run queues.
    pub(crate) fn waiting(app: &App) -> Self {
        let from = (ProgressFrom::CpuTime, LatencyFrom::RunQueue);
        Self::with_latency(&Target::Pid(app.pid()), latency_critical(), from, true)
    }

    /// Creates an app whose latency is the time for which tasks of its cgroup wait for memory.
    pub(crate) fn under_memory_pressure(app: &App) -> Self {
        let from = (ProgressFrom::CpuTime, LatencyFrom::MemoryPressure);
        Self::with_latency(&Target::Pid(app.pid()), latency_critical(), from, true)
    }

    /// With an app whose processes are listed in the `cgroup.procs` of this directory.
    pub(crate) fn of_cgroup(directory: &Path) -> Self {
        let from = (ProgressFrom::CpuTime, LatencyFrom::Push);
        let target = Target::Cgroup(directory.to_owned());
        Self::with_latency(&target, latency_critical(), from, true)
    }

    /// With a best-effort app beside it, whose processes are listed in the second directory.
    pub(crate) fn of_cgroups(first: &Path, second: &Path) -> Self {
        let app = |spec: AppSpec, directory: &Path| {
            let from = (ProgressFrom::CpuTime, LatencyFrom::Push);
            host_app(&Target::Cgroup(directory.to_owned()), spec, from)
        };
        let apps = [app(latency_critical(), first), app(AppSpec::best_effort("batch"), second)];
        Self::of_apps(apps.into(), true)
    }

    pub(crate) fn from_spec(
        app: &App,
        spec: AppSpec,
        progress: ProgressFrom,
        foreign_wins: bool,
    ) -> Self {
        let target = Target::Pid(app.pid());
        Self::with_latency(&target, spec, (progress, LatencyFrom::Push), foreign_wins)
    }

    fn with_latency(
        target: &Target,
        spec: AppSpec,
        from: (ProgressFrom, LatencyFrom),
        foreign_wins: bool,
    ) -> Self {
        Self::of_apps(vec![host_app(target, spec, from)], foreign_wins)
    }

    fn of_apps(apps: Vec<HostApp>, foreign_wins: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::default();
        let state = state_in(&dir);
        let stop = Stop::new().unwrap();
        let specs: Vec<AppSpec> = apps.iter().map(|app| app.spec.clone()).collect();
        let config = HostConfig {
            apps,
            push: Some(PushGauge::listen(&dir.path().join("push"), &specs).unwrap()),
            power: PowerModel::default(),
            ledger: Ledger::open(state, &roots).unwrap().ledger,
            foreign_wins,
            stop: stop.clone(),
            roots,
        };
        Self { plant: HostPlant::new(config).unwrap(), stop, dir }
    }

    pub(crate) fn state(&self) -> StateDir {
        state_in(&self.dir)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("push")
    }

    /// Starts a guard that is this script for the shell.
    pub(crate) fn guard(&mut self, script: &str) -> GuardHandle {
        let args = vec!["-c".into(), script.into()];
        let command = GuardCommand { program: "/bin/sh".into(), args };
        guard::spawn(command, self.plant.ledger_mut()).unwrap()
    }

    /// Starts a guard that appends its beats to a file and does nothing else.
    pub(crate) fn noting_guard(&mut self, beats: &Path) -> GuardHandle {
        self.guard(&format!("echo armed; exec cat >> '{}'", beats.display()))
    }

    pub(crate) fn set(&mut self, setting: Setting) -> Outcome {
        self.plant.apply(&[setting]).outcomes.remove(0)
    }

    /// The app's cores as the plant reads them.
    pub(crate) fn cores(&self) -> CoreSet {
        let cores = |setting: &Setting| match setting {
            Setting::Cores(_, cores) => Some(cores.clone()),
            _ => None,
        };
        self.plant.settings().iter().find_map(cores).unwrap()
    }
}

fn host_app(
    target: &Target,
    spec: AppSpec,
    (progress, latency): (ProgressFrom, LatencyFrom),
) -> HostApp {
    let handle = AppHandle::attach(&spec.name, target, &Roots::default()).unwrap();
    HostApp { spec, handle, latency, progress }
}

fn state_in(dir: &TempDir) -> StateDir {
    StateDir::locate(Some(&dir.path().join("state"))).unwrap()
}

pub(crate) fn latency_critical() -> AppSpec {
    AppSpec::latency_critical("served", Percentile::P95, Nanos::from_millis(4))
}

/// The machine's cores that this process may use.
pub(crate) fn allowed() -> CoreSet {
    affinity_of(std::process::id().cast_signed()).unwrap()
}

/// The first of them, alone.
pub(crate) fn one_core() -> CoreSet {
    allowed().iter().take(1).collect()
}

/// A second core to move to; a test is skipped on a machine with one core.
pub(crate) fn second_core() -> Option<CoreId> {
    let second = allowed().iter().nth(1);
    if second.is_none() {
        skip("one core cannot be divided");
    }
    second
}
