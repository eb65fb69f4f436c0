//! A plant in the guest with one app, and the guest's files.

use crate::roles;
use lull_control::{AppId, AppSpec, ApplyOutcome, DomainId, Outcome, Plant, Setting};
use lull_host::apps::{AppHandle, Target};
use lull_host::drivers::cpufreq::PolicyState;
use lull_host::gauges::energy::PowerModel;
use lull_host::guard::{Ledger, StateDir};
use lull_host::{HostApp, HostConfig, HostPlant, LatencyFrom, ProgressFrom, Roots, Stop};
use lull_measure::{Hertz, Nanos, Percentile};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const EPOCH: Nanos = Nanos::from_millis(100);
pub(crate) const APP: AppId = AppId(0);
/// How long to wait for an expected event: on a busy machine an emulator pauses
/// for a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// A plant, its app, and where its ledger is.
pub(crate) struct Scene {
    pub(crate) plant: HostPlant,
    pub(crate) app: Child,
    _dir: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::start("app")
    }

    /// Starts this binary in a role as the app.
    pub(crate) fn start(role: &str) -> Self {
        let app = roles::start(role, &[]);
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::default();
        let pid = app.id().cast_signed();
        let spec = AppSpec::latency_critical("served", Percentile::P95, Nanos::from_millis(4));
        let handle = AppHandle::attach("served", &Target::Pid(pid), &roots).unwrap();
        let config = HostConfig {
            apps: vec![HostApp {
                spec,
                handle,
                latency: LatencyFrom::Push,
                progress: ProgressFrom::CpuTime,
            }],
            push: None,
            power: PowerModel::default(),
            ledger: ledger(dir.path()),
            foreign_wins: true,
            stop: Stop::new().unwrap(),
            roots,
        };
        Self { plant: HostPlant::new(config).unwrap(), app, _dir: dir }
    }

    pub(crate) fn set(&mut self, setting: Setting) -> Outcome {
        self.plant.apply(&[setting]).outcomes.remove(0)
    }

    pub(crate) fn why_not(&mut self, setting: Setting) -> String {
        match self.set(setting).got {
            ApplyOutcome::Refused { why } => why,
            other => panic!("not refused: {other:?}"),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.plant.restore();
        let _ = self.app.kill();
        let _ = self.app.wait();
    }
}

pub(crate) fn ledger(dir: &Path) -> Ledger {
    let state = StateDir::locate(Some(&dir.join("state"))).unwrap();
    Ledger::open(state, &Roots::default()).unwrap().ledger
}

pub(crate) fn at(domain: u16, mhz: u64) -> Setting {
    Setting::Frequency(DomainId(domain), Hertz::from_khz(mhz * 1000))
}

pub(crate) fn policy_dir(number: u16) -> PathBuf {
    PathBuf::from(format!("/sys/devices/system/cpu/cpufreq/policy{number}"))
}

pub(crate) fn policy(number: u16) -> PolicyState {
    PolicyState::read(&policy_dir(number)).unwrap()
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path);
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

pub(crate) fn write(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Waits for something that must come.
pub(crate) fn wait_for(what: &str, mut has_come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !has_come() {
        assert!(begun.elapsed() < PATIENCE, "did not come: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A plant without apps, for an agent that only turns frequencies.
pub(crate) struct Steered(HostPlant);

pub(crate) fn steered(ledger: Ledger) -> Steered {
    Steered(bare_plant(ledger))
}

/// A plant without apps.
pub(crate) fn bare_plant(ledger: Ledger) -> HostPlant {
    let config = HostConfig {
        apps: Vec::new(),
        push: None,
        power: PowerModel::default(),
        ledger,
        foreign_wins: true,
        stop: Stop::new().unwrap(),
        roots: Roots::default(),
    };
    HostPlant::new(config).unwrap()
}

impl Steered {
    pub(crate) fn machine_domains(&self) -> Vec<u16> {
        self.0.machine().domains.iter().map(|domain| domain.id.0).collect()
    }

    pub(crate) fn turn(&mut self, domain: DomainId, mhz: u64) {
        let setting = Setting::Frequency(domain, Hertz::from_khz(mhz * 1000));
        let outcome = self.0.apply(&[setting]).outcomes.remove(0);
        assert!(outcome.in_force().is_some(), "{outcome:?}");
    }
}
