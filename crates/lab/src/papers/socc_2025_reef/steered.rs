//! The paper's server under an admission controller and a policy over the cores, observed
//! every second.

use super::system::GateCell;
use crate::prelude::*;
use lull_control::admission::Admission;
use lull_control::{CoreSet, Objective, Plant, Policy, PolicyError, Rng, Setting};
use lull_measure::Nanos;
use lull_policies::admission::Site;
use lull_policies::{ADMISSION_CONTROLLERS, POLICIES};
use lull_sim::oversubscribed::{GatedTotals, MachinePlant, OversubscribedModel};
use rand::SeedableRng;
use rayon::prelude::*;

/// The loop's epoch: the paper looks every 100 ms.
const EPOCH: Nanos = Nanos::from_millis(100);
/// Epochs between two looks that are kept.
const LOOK: u64 = 10;

/// An admission controller and a policy, each with its config; no policy is the machine as it is.
#[derive(Debug, Clone)]
pub(super) struct Scheme {
    pub(super) name: &'static str,
    pub(super) gate: (&'static str, String),
    pub(super) policy: Option<(&'static str, String)>,
}

/// The times of changes, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The warm-up ends here.
    pub(super) settled: u64,
    /// Objectives change, and counters are reset.
    pub(super) change: u64,
    pub(super) end: u64,
}

/// Cores and promises in one second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedSecond {
    pub(crate) second: f64,
    /// Cores that the first class may use, cores that only the last class may use, and cores
    /// that no class may use.
    pub(crate) hot: f64,
    pub(crate) warm: f64,
    pub(crate) cold: f64,
    /// Answers per second of the last class.
    pub(crate) best_effort: f64,
    /// Late answers as a multiple of those allowed, of the worst class, in this second.
    pub(crate) worst: f64,
}

/// One replication.
pub(super) struct Course {
    /// Totals between the end of the warm-up and the change of promises.
    pub(super) before: GatedTotals,
    /// Totals after the change.
    pub(super) after: GatedTotals,
    pub(super) looks: Vec<ObservedSecond>,
}

/// Returns the counts before the change, as a cell that can be compared with another one's.
pub(super) fn before_change(courses: &[Course]) -> GateCell {
    GateCell { runs: courses.iter().map(|course| course.before.clone()).collect() }
}

/// Runs a scheme in parallel replications; `later` are the objectives of each class after the
/// change.
pub(super) fn courses(
    setup: &Setup<'_>,
    model: &OversubscribedModel,
    later: &[Option<Objective>],
    scheme: &Scheme,
    times: Times,
) -> Result<Vec<Course>, LabError> {
    let replications = setup.either(2, 1);
    setup.progress.expect(replications);
    let run = |replication| {
        let course = SteeredRun::new(model, scheme, setup.seed, replication)?.course(later, times);
        setup.progress.step();
        course
    };
    let courses: Vec<_> = (0..replications).into_par_iter().map(run).collect();
    courses.into_iter().collect()
}

/// A replication under way.
struct SteeredRun<'a> {
    scheme: &'a Scheme,
    plant: MachinePlant,
    model: OversubscribedModel,
    policy: Option<Box<dyn Policy>>,
    rng: Rng,
}

impl<'a> SteeredRun<'a> {
    fn new(
        model: &OversubscribedModel,
        scheme: &'a Scheme,
        seed: u64,
        replication: u64,
    ) -> Result<Self, LabError> {
        let (name, config) = &scheme.gate;
        let gate = admission(name, config, &model.objectives(), model.cores)?;
        let plant = model.plant(gate, seed, replication)?;
        let policy = policy(scheme, &plant)?;
        let rng = Rng::seed_from_u64(seed ^ replication.rotate_left(32));
        Ok(Self { scheme, plant, model: model.clone(), policy, rng })
    }

    fn course(mut self, later: &[Option<Objective>], times: Times) -> Result<Course, LabError> {
        let mut looks = Vec::new();
        self.pass(times.settled, &mut looks);
        self.plant.forget();
        self.pass(times.change - times.settled, &mut looks);
        let before = self.plant.gated_totals();
        self.change(later)?;
        self.plant.forget();
        self.pass(times.end - times.change, &mut looks);
        let after = self.plant.gated_totals();
        Ok(Course { before, after, looks })
    }

    /// Simulates the given number of seconds.
    fn pass(&mut self, seconds: u64, looks: &mut Vec<ObservedSecond>) {
        for _ in 0..seconds {
            let mut second = Vec::new();
            for _ in 0..LOOK {
                // A simulated plant can always be observed.
                let Ok(seen) = self.plant.observe(EPOCH) else { return };
                if let Some(policy) = &mut self.policy {
                    let plan = policy.decide(&seen, &mut self.rng);
                    let wanted: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
                    let _ = self.plant.apply(&wanted);
                }
                second.push(seen);
            }
            looks.push(self.observe_second(&second));
        }
    }

    fn observe_second(&self, second: &[lull_control::Observation]) -> ObservedSecond {
        let (apps, settings) = (self.plant.apps(), self.plant.settings());
        let cores = |app: usize| -> CoreSet {
            let of = |setting: &Setting| match setting {
                Setting::Cores(id, cores) if id.index() == app => Some(cores.clone()),
                _ => None,
            };
            settings.iter().find_map(of).unwrap_or_default()
        };
        let used = (0..apps.len()).fold(CoreSet::default(), |all, app| all.union(&cores(app)));
        let (hot, last) = (cores(0), cores(apps.len() - 1));
        let rates = second.iter().filter_map(|seen| {
            seen.apps.last()?.progress.as_ref().ok().map(|progress| progress.per_s)
        });
        let worst = (0..apps.len()).filter_map(|app| {
            let mut window = lull_measure::Latency::default();
            let seen = second.iter().filter_map(|seen| seen.apps[app].latency.as_ref().ok());
            seen.for_each(|seen| window.merge(&seen.window));
            let (at, bound) = apps[app].tail()?;
            let late = lull_measure::compliance::late_share(&window, bound)?;
            Some(lull_measure::compliance::compliance(late, at))
        });
        let end = second.last().map_or(0.0, |seen| seen.time.as_secs_f64());
        ObservedSecond {
            second: end,
            hot: hot.len() as f64,
            warm: last.difference(&hot).len() as f64,
            cold: f64::from(self.model.cores) - used.len() as f64,
            best_effort: rates.sum::<f64>() / second.len().max(1) as f64,
            worst: worst.fold(0.0, f64::max),
        }
    }

    /// Sets other objectives from now on; admission controller and policy keep their learned state
    /// if they can.
    fn change(&mut self, later: &[Option<Objective>]) -> Result<(), LabError> {
        let (name, config) = &self.scheme.gate;
        for (class, objective) in self.model.class.iter_mut().zip(later) {
            class.objective = *objective;
        }
        let (objectives, cores) = (self.model.objectives(), self.model.cores);
        let rebuild = || admission(name, config, &objectives, cores);
        self.plant.retarget(self.model.specs(), &objectives, rebuild)?;
        let Some(held) = &mut self.policy else { return Ok(()) };
        if !held.retarget(self.plant.apps()) {
            self.policy = policy(self.scheme, &self.plant)?;
        }
        Ok(())
    }
}

fn admission(
    name: &str,
    config: &str,
    objectives: &[Option<Objective>],
    cores: u32,
) -> Result<Box<dyn Admission>, PolicyError> {
    // One core is left to the system (section 3.3: C below the number of cores).
    let site = Site::new(objectives, cores.max(2) - 1);
    let config: toml::Table = config.parse().expect("configs of experiments are TOML");
    ADMISSION_CONTROLLERS.build(name, &config, &site)
}

fn policy(scheme: &Scheme, plant: &MachinePlant) -> Result<Option<Box<dyn Policy>>, PolicyError> {
    let Some((name, config)) = &scheme.policy else { return Ok(None) };
    let config: toml::Table = config.parse().expect("configs of experiments are TOML");
    POLICIES.build(name, &config, plant.machine(), plant.apps()).map(Some)
}
