//! One scene under one strategy: the runs that the experiments are made of.

use super::platform::Scene;
use crate::experiment::LabError;
use crate::progress::Progress;
use lull_control::{ControlLoop, Controller, Epoch, Plant, PlantError, Rng, Rules};
use lull_measure::entropy::{
    BeReading, LcReading, RelativeImportance, SystemEntropy, system_entropy,
};
use lull_measure::{Latency, Nanos};
use lull_policies::registry;
use lull_sim::node::NodePlant;
use lull_sim::stats::Failure;
use rand::SeedableRng;
use rayon::prelude::*;

/// The monitoring interval of section VI-B.
pub(super) const EPOCH: Nanos = Nanos::from_millis(500);

/// A policy with its name in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strategy {
    pub(super) name: &'static str,
    /// Its name in the registry.
    pub(super) policy: &'static str,
    /// Its config, where it differs from the defaults.
    pub(super) config: &'static str,
}

/// The strategies of section VII, the two readings of ARQ's shared region, and ours.
pub(super) const UNMANAGED: Strategy = plain("Unmanaged", "unmanaged");
pub(super) const LC_FIRST: Strategy = plain("LC-first", "lc-first");
pub(super) const PARTIES: Strategy = plain("PARTIES", "parties");
pub(super) const CLITE: Strategy = plain("CLITE", "clite");
pub(super) const HERACLES: Strategy = plain("Heracles", "heracles");
pub(super) const TIDE: Strategy = plain("tide", "tide");
pub(super) const ARQ: Strategy = plain("ARQ", "arq");
pub(super) const ARQ_PRIORITY: Strategy =
    Strategy { name: "ARQ, LC first", policy: "arq", config: "priority = \"latency-critical\"" };

const fn plain(name: &'static str, policy: &'static str) -> Strategy {
    Strategy { name, policy, config: "" }
}

/// How long, and which random numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) warmup: Nanos,
    pub(super) length: Nanos,
    pub(super) seed: u64,
}

/// What came of a run.
#[derive(Debug, Clone)]
pub(super) struct Played {
    /// Tail of each latency-critical app over the whole run, in ms.
    pub(super) tails_ms: Vec<f64>,
    /// Median over the epochs of the epoch's tail of each, in ms.
    pub(super) typical_ms: Vec<f64>,
    /// Work per second of each best-effort app over that alone.
    pub(super) progress: Vec<f64>,
    /// Of those tails and that progress, over the whole run.
    pub(super) entropy: SystemEntropy,
    /// One an epoch.
    pub(super) epochs: Vec<EpochSeen>,
    /// Mean over cores of the time that they were busy.
    pub(super) utilisation: f64,
}

/// One epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EpochSeen {
    pub(super) time_s: f64,
    pub(super) entropy: SystemEntropy,
    /// Largest of the apps' tails over their bounds; 0 without a tail.
    pub(super) worst: f64,
}

impl Played {
    /// Epochs in which some objective was missed.
    pub(super) fn violations(&self) -> f64 {
        self.beyond(1.0)
    }

    /// Epochs in which some tail was above so many times its bound.
    pub(super) fn beyond(&self, factor: f64) -> f64 {
        self.epochs.iter().filter(|epoch| epoch.worst > factor).count() as f64
    }

    /// Mean E_S of the epochs.
    pub(super) fn mean_system(&self) -> f64 {
        self.mean_of(|entropy| Some(entropy.system))
    }

    /// Mean of a part of entropy over the epochs that have it.
    pub(super) fn mean_of(&self, part: impl Fn(&SystemEntropy) -> Option<f64>) -> f64 {
        let values: Vec<f64> =
            self.epochs.iter().filter_map(|epoch| part(&epoch.entropy)).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// Whether this build has the strategy's policy.
pub(super) fn is_here(strategy: &Strategy) -> bool {
    registry::find(strategy.policy).is_ok()
}

/// Runs a scene under a strategy.
///
/// # Errors
/// If the scene cannot be simulated or the policy refuses it.
pub(super) fn play(
    scene: &Scene,
    strategy: &Strategy,
    span: Span,
    replication: u64,
) -> Result<Played, LabError> {
    let mut control = start(scene, strategy, (span.seed, replication), false)?;
    let lost = |error: PlantError| Failure::Setup(error.to_string());
    let epochs = |span: Nanos| span.0 / EPOCH.0;
    for _ in 0..epochs(span.warmup) {
        control.turn().map_err(lost)?;
    }
    let mut recorder = Recorder::new(scene);
    for _ in 0..epochs(span.length) {
        recorder.note(scene, &control.turn().map_err(lost)?);
    }
    Ok(recorder.finish(scene))
}

/// Adds up epochs.
struct Recorder {
    windows: Vec<Latency>,
    /// By app, then epoch.
    tails: Vec<Vec<Nanos>>,
    work: Vec<f64>,
    busy: f64,
    epochs: Vec<EpochSeen>,
}

impl Recorder {
    fn new(scene: &Scene) -> Self {
        let apps = scene.apps.len();
        let windows = vec![Latency::default(); apps];
        let tails = vec![Vec::new(); apps];
        Self { windows, tails, work: vec![0.0; apps], busy: 0.0, epochs: Vec::new() }
    }

    fn note(&mut self, scene: &Scene, epoch: &Epoch) {
        let Epoch { seen, standing, .. } = epoch;
        let mut worst: f64 = 0.0;
        for (number, app) in seen.apps.iter().enumerate() {
            if let Ok(latency) = &app.latency {
                self.windows[number].merge(&latency.window);
            }
            if let Ok(progress) = &app.progress {
                self.work[number] += progress.per_s;
            }
            let tail = standing.apps[number].tail.map(|tail| tail.latency);
            let bound = scene.apps[number].tail().map(|(_, bound)| bound);
            let ratio = |(tail, bound): (Nanos, Nanos)| tail.0 as f64 / bound.0 as f64;
            worst = worst.max(tail.zip(bound).map_or(0.0, ratio));
            self.tails[number].extend(tail);
        }
        let used: f64 = seen.cores.iter().filter_map(|core| core.utilisation.as_ref().ok()).sum();
        self.busy += used / seen.cores.len() as f64;
        let (time_s, entropy) = (seen.time.as_secs_f64(), standing.entropy);
        self.epochs.push(EpochSeen { time_s, entropy, worst });
    }

    fn finish(mut self, scene: &Scene) -> Played {
        let typical = self.tails.iter_mut().filter_map(|tails| {
            tails.sort_unstable();
            tails.get(tails.len() / 2).map(|tail| tail.as_secs_f64() * 1e3)
        });
        let typical_ms = typical.collect();
        let count = self.epochs.len() as f64;
        let (mut lc, mut be) = (Vec::new(), Vec::new());
        for ((spec, window), work) in scene.apps.iter().zip(&self.windows).zip(&self.work) {
            match spec.tail() {
                Some((percentile, bound)) => {
                    // An app that answered nothing at all has the worst tail there is.
                    let tail = window.quantile(percentile).unwrap_or(Nanos::MAX);
                    let ideal = spec.ideal.unwrap_or(bound).min(bound);
                    lc.extend(LcReading::new(ideal, tail, bound).ok().map(|it| (tail, it)));
                }
                None => {
                    let (solo, real) = (spec.solo_per_s.unwrap_or(1.0), work / count);
                    be.push(BeReading { solo, real });
                }
            }
        }
        let readings: Vec<_> = lc.iter().map(|(_, reading)| *reading).collect();
        Played {
            tails_ms: lc.iter().map(|(tail, _)| tail.as_secs_f64() * 1e3).collect(),
            typical_ms,
            progress: be.iter().map(|it| it.real / it.solo).collect(),
            entropy: system_entropy(&readings, &be, RelativeImportance::default()),
            epochs: self.epochs,
            utilisation: self.busy / count,
        }
    }
}

/// Runs all of these, in parallel, and gives what came of each in order.
///
/// # Errors
/// The first failure, in order.
pub(super) fn play_all<R: Sync>(
    wanted: &[R],
    progress: &Progress<'_>,
    one: impl Fn(&R) -> Result<Played, LabError> + Sync,
) -> Result<Vec<Played>, LabError> {
    progress.expect(wanted.len() as u64);
    let all: Vec<Result<Played, LabError>> = wanted
        .par_iter()
        .map(|run| {
            let played = one(run);
            progress.step();
            played
        })
        .collect();
    all.into_iter().collect()
}

/// A controller on a fresh replication of the scene, which may keep every latency.
pub(super) fn start(
    scene: &Scene,
    strategy: &Strategy,
    (seed, replication): (u64, u64),
    keeps_log: bool,
) -> Result<ControlLoop<NodePlant>, LabError> {
    let failed = |why: String| Failure::Setup(why);
    let mut plant = NodePlant::new(&scene.model, &scene.apps, seed, replication)
        .map_err(|error| failed(error.to_string()))?;
    if keeps_log {
        (0..scene.apps.len()).for_each(|app| plant.node_mut().keep_log(app));
    }
    let config =
        strategy.config.parse().map_err(|error: toml::de::Error| failed(error.to_string()))?;
    let policy = registry::build(strategy.policy, &config, plant.machine(), plant.apps())?;
    // A simulated plant needs no protection from haste.
    let mut rules = Rules::default();
    rules.limits.dwell = Nanos::ZERO;
    rules.limits.hysteresis = 0.0;
    let controller = Controller::new(policy, rules, &plant).map_err(Failure::from)?;
    let rng = Rng::seed_from_u64(seed.wrapping_mul(1 << 32).wrapping_add(replication));
    Ok(ControlLoop::new(plant, controller, EPOCH, rng))
}
