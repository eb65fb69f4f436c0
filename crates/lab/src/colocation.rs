//! Apps that share one simulated machine under a policy, and the measurements of a run.

mod dispatcher;
mod gate;
mod space_time;

pub(crate) use dispatcher::RequestDispatcher;
pub use gate::{ConnectionGroup, GateKeeper, GateKeepers, LiveServer, Promised};
pub(crate) use space_time::SpaceTime;

use crate::bounds::BACKLOG_MAX;
use crate::policy_source::PolicySource;
use crate::progress::Progress;
use lull_control::{
    AppId, AppSpec, ControlLoop, Controller, Epoch, EpochRule, Plant, PlantError, PolicyError, Rng,
    Rules,
};
use lull_measure::entropy::{BeReading, LcReading, SystemEntropy, system_entropy};
use lull_measure::{Joules, Latency, Nanos, Percentile, Watts};
use lull_sim::Replication;
use lull_sim::machine::{Controllers, MachineModel, MachinePlant, Windows};
use lull_sim::stats::Failure;
use rand::SeedableRng;
use std::borrow::Cow;

/// The spans in each of which an objective is met or missed, whatever the epochs of a policy are.
const WINDOW: Nanos = Nanos::from_millis(500);

/// One machine, the apps on it with their load, and their objectives.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) model: MachineModel,
    pub(crate) apps: Vec<AppSpec>,
    /// The rules that apply under every policy.
    pub(crate) rules: Rules,
    /// Connections that have figures of their own.
    pub(crate) groups: Vec<ConnectionGroup>,
}

/// A policy with its config and the epochs at whose ends it decides.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Steering {
    pub(crate) policy: PolicySource,
    pub(crate) config: toml::Table,
    pub(crate) epoch: EpochRule,
    /// The admission controllers at the machine's gates.
    pub(crate) admission: GateKeepers,
    /// The dispatcher of the app that the machine has for one; without it, threads of that app
    /// are scheduled as all others.
    pub(crate) dispatcher: Option<RequestDispatcher>,
}

/// Why a scene cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum PlayError {
    /// The scene cannot be simulated.
    #[error(transparent)]
    Scene(#[from] Failure),
    /// The policy refuses it.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Length and seed of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) warmup: Nanos,
    pub(crate) length: Nanos,
    pub(crate) seed: u64,
}

/// The measurements of one replication.
#[derive(Debug, Clone)]
pub(crate) struct Played {
    /// Tail of each latency-critical app over the whole run, in ms.
    pub(crate) tails_ms: Vec<f64>,
    /// Median over the epochs of the epoch's tail of each, in ms.
    pub(crate) typical_ms: Vec<f64>,
    /// Work per second of each best-effort app over that alone.
    pub(crate) progress: Vec<f64>,
    /// Entropy of `tails_ms` and `progress`, over the whole run.
    pub(crate) entropy: SystemEntropy,
    /// The epochs in order.
    pub(crate) epochs: Vec<EpochMeasures>,
    /// Share of the half-seconds in which some app missed its objective; NaN in a run of none.
    pub(crate) missed: f64,
    /// Mean share of time that a core was busy.
    pub(crate) utilisation: f64,
    /// Mean power, where the machine has a power model.
    pub(crate) power: Option<Watts>,
    /// How much of the counted time each app was on the machine and observed.
    pub(crate) present: Vec<Nanos>,
    /// Share of each app's requests that were unanswered when it left or was restarted, or that
    /// were abandoned.
    pub(crate) lost: Vec<f64>,
    /// Latencies of all answers of each app; empty for best-effort apps.
    pub(crate) answers: Vec<Latency>,
    /// Latencies of each group of connections.
    pub(crate) groups: Vec<Latency>,
    /// Work of each app per second of its presence; NaN without any.
    pub(crate) work_per_s: Vec<f64>,
    /// How many more requests of each app waited at the end than at the start.
    pub(crate) left: Vec<i64>,
    /// The use of the cores' time.
    pub(crate) space_time: SpaceTime,
}

/// The measurements of one epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EpochMeasures {
    pub(crate) time_s: f64,
    pub(crate) entropy: SystemEntropy,
    /// Largest of the apps' tails over their bounds; 0 without a tail.
    pub(crate) worst: f64,
}

impl Played {
    /// Epochs in which some objective was missed.
    pub(crate) fn violations(&self) -> f64 {
        self.beyond(1.0)
    }

    /// Epochs in which some tail was above this many times its bound.
    pub(crate) fn beyond(&self, factor: f64) -> f64 {
        self.epochs.iter().filter(|epoch| epoch.worst > factor).count() as f64
    }

    /// Mean E_S of the epochs.
    pub(crate) fn mean_system(&self) -> f64 {
        self.mean_of(|entropy| Some(entropy.system))
    }

    /// Mean of a part of entropy over the epochs that have it.
    pub(crate) fn mean_of(&self, part: impl Fn(&SystemEntropy) -> Option<f64>) -> f64 {
        let values: Vec<f64> =
            self.epochs.iter().filter_map(|epoch| part(&epoch.entropy)).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }
}

impl Scene {
    /// Starts a controller on one replication.
    ///
    /// # Errors
    /// If the scene cannot be simulated or the policy refuses it.
    pub(crate) fn start(
        &self,
        steering: &Steering,
        seed: u64,
        replication: u64,
    ) -> Result<ControlLoop<MachinePlant>, PlayError> {
        self.start_logged(steering, seed, replication, false)
    }

    /// Starts a controller on one replication; keeps every single latency if `keeps_log`.
    ///
    /// # Errors
    /// As [`Scene::start`].
    pub(crate) fn start_logged(
        &self,
        steering: &Steering,
        seed: u64,
        replication: u64,
        keeps_log: bool,
    ) -> Result<ControlLoop<MachinePlant>, PlayError> {
        let admission = steering.admission.build(&self.model, &self.apps, seed)?;
        let dispatcher = steering.dispatcher.as_ref();
        let dispatcher =
            dispatcher.map(|it| it.build(&self.model, &self.apps, seed)).transpose()?;
        let mut model = Cow::Borrowed(&self.model);
        if dispatcher.is_none() && model.dispatch.is_some() {
            model.to_mut().dispatch = None;
        }
        let streams = Replication { seed, number: replication };
        let controllers = Controllers { admission, dispatcher };
        let mut plant = MachinePlant::behind(&model, &self.apps, controllers, streams)
            .map_err(|error| Failure::Setup(error.to_string()))?;
        if keeps_log {
            (0..self.apps.len()).for_each(|app| plant.simulation_mut().keep_log(app));
        }
        // A policy that is built for cores that do not exist would hide this error.
        let limits = &self.rules.limits;
        limits.check(plant.machine()).map_err(Failure::from)?;
        let (mut machine, steered) = (plant.machine().clone(), steering.clone());
        if let Some(allowed) = &limits.cores {
            machine = machine.restricted_to(allowed);
        }
        let machine = machine.within_frequencies(limits.frequency_min, limits.frequency_max);
        let build = move |apps: &[AppSpec]| steered.policy.build(&steered.config, &machine, apps);
        let policy = build(plant.apps())?;
        let mut controller =
            Controller::new(policy, self.rules.clone(), &plant).map_err(Failure::from)?;
        controller
            .set_rebuild(Box::new(move |apps| build(apps).map_err(|error| error.to_string())));
        let rng = Rng::seed_from_u64(seed.wrapping_mul(1 << 32).wrapping_add(replication));
        Ok(ControlLoop::new(plant, controller, steering.epoch.clone(), rng))
    }

    /// Ends a replication whose unanswered requests would fill the memory.
    fn check_backlog(&self, epoch: &Epoch) -> Result<(), Failure> {
        for (app, seen) in self.apps.iter().zip(&epoch.seen.apps) {
            let waiting = seen.latency.as_ref().map_or(0, |latency| latency.outstanding);
            if waiting as f64 > BACKLOG_MAX {
                return Err(Failure::Setup(format!(
                    "{waiting} requests of app `{}` were unanswered at {}, more than the \
                     {BACKLOG_MAX:.0e} that are kept: the machine does not keep up; send less, or \
                     run shorter",
                    app.name, epoch.seen.time
                )));
            }
        }
        Ok(())
    }

    /// Runs one replication; epochs that begin within the warm-up do not count.
    ///
    /// # Errors
    /// As [`Scene::start`], or if the caller stops it.
    pub(crate) fn play(
        &self,
        steering: &Steering,
        span: Span,
        replication: u64,
        progress: &Progress<'_>,
    ) -> Result<Played, PlayError> {
        let mut control = self.start(steering, span.seed, replication)?;
        self.keep_windows(control.plant_mut(), span);
        let groups: Vec<_> = self.groups.iter().map(|group| group.connections.clone()).collect();
        control.plant_mut().simulation_mut().keep_groups(&groups, span.warmup);
        let lost = |error: PlantError| Failure::Setup(error.to_string());
        let mut now = Nanos::ZERO;
        while now < span.warmup {
            progress.check()?;
            let epoch = control.turn().map_err(lost)?;
            self.check_backlog(&epoch)?;
            now = epoch.seen.time;
        }
        let mut recorder = Recorder::new(self);
        let begun = control.plant().simulation().totals();
        let end = span.warmup.saturating_add(span.length);
        while now < end {
            progress.check()?;
            let epoch = control.turn().map_err(lost)?;
            now = epoch.seen.time;
            recorder.note(self, &epoch, control.plant());
            self.check_backlog(&epoch)?;
        }
        let ended = control.plant().simulation().totals();
        let numbers = self.apps.iter().map(|app| self.model.app_named(&app.name));
        let lost = numbers.flatten().map(|app| {
            let (now, then) = (&ended.apps[app], &begun.apps[app]);
            (now.lost - then.lost) as f64 / (now.arrived - then.arrived) as f64
        });
        let lost = lost.collect();
        let space_time = SpaceTime::between(self, &begun, &ended);
        let missed = self.missed(control.plant(), span);
        let groups = control.plant().simulation().of_groups().to_vec();
        Ok(Played { lost, missed, space_time, groups, ..recorder.finish(self) })
    }

    /// The number in the model of each app with an objective, and the objective.
    fn objectives(&self) -> impl Iterator<Item = (usize, (Percentile, Nanos))> + '_ {
        let critical = self.apps.iter().filter(|app| app.is_latency_critical());
        critical.filter_map(|app| self.model.app_named(&app.name).zip(app.tail()))
    }

    fn keep_windows(&self, plant: &mut MachinePlant, span: Span) {
        for (app, objective) in self.objectives() {
            let windows = Windows { start: span.warmup, length: WINDOW };
            plant.simulation_mut().keep_windows(app, objective, windows);
        }
    }

    /// The share of the windows in which some app missed its objective.
    fn missed(&self, plant: &MachinePlant, span: Span) -> f64 {
        let count = (span.length.0 / WINDOW.0) as usize;
        let mut missed = vec![false; count];
        let mut known = count;
        for (app, _) in self.objectives() {
            let of_app: Vec<bool> = plant.simulation().missed_windows(app).take(count).collect();
            known = known.min(of_app.len());
            missed.iter_mut().zip(of_app).for_each(|(any, this)| *any |= this);
        }
        missed[..known].iter().filter(|missed| **missed).count() as f64 / known as f64
    }
}

/// Adds up epochs.
struct Recorder {
    windows: Vec<Latency>,
    /// Indexed by app, then epoch.
    tails: Vec<Vec<Nanos>>,
    work: Vec<f64>,
    /// Indexed by app: requests unanswered after the first counted epoch and after the last.
    waiting: Vec<Option<[u64; 2]>>,
    busy: f64,
    energy: Option<Joules>,
    span: Nanos,
    /// Indexed by app: the time for which it was on the machine.
    present: Vec<Nanos>,
    epochs: Vec<EpochMeasures>,
}

impl Recorder {
    fn new(scene: &Scene) -> Self {
        let apps = scene.apps.len();
        Self {
            windows: vec![Latency::default(); apps],
            tails: vec![Vec::new(); apps],
            work: vec![0.0; apps],
            waiting: vec![None; apps],
            busy: 0.0,
            energy: scene.model.power.map(|_| Joules(0.0)),
            span: Nanos::ZERO,
            present: vec![Nanos::ZERO; apps],
            epochs: Vec::new(),
        }
    }

    fn note(&mut self, scene: &Scene, epoch: &Epoch, plant: &MachinePlant) {
        let Epoch { seen, assessment, .. } = epoch;
        let mut worst: f64 = 0.0;
        for (number, app) in seen.apps.iter().enumerate() {
            if let Ok(latency) = &app.latency {
                self.windows[number].merge(&latency.window);
                let now = latency.outstanding;
                let first = self.waiting[number].map_or(now, |[first, _]| first);
                self.waiting[number] = Some([first, now]);
            }
            let present = plant.was_present(AppId(number as u16));
            // An app that has left in the epoch is not observed for it.
            if app.alive {
                self.present[number] = self.present[number].saturating_add(present);
            }
            if let Ok(progress) = &app.progress {
                self.work[number] += progress.per_s * share_of(present, seen.epoch);
            }
            let tail = assessment.apps[number].tail.map(|tail| tail.latency);
            let bound = scene.apps[number].tail().map(|(_, bound)| bound);
            let ratio = |(tail, bound): (Nanos, Nanos)| tail.0 as f64 / bound.0 as f64;
            worst = worst.max(tail.zip(bound).map_or(0.0, ratio));
            self.tails[number].extend(tail);
        }
        let used: f64 = seen.cores.iter().filter_map(|core| core.utilisation.as_ref().ok()).sum();
        self.busy += used / seen.cores.len() as f64;
        if let (Some(sum), Ok(seen)) = (&mut self.energy, &seen.energy) {
            *sum += seen.energy;
        }
        self.span = self.span.saturating_add(seen.epoch);
        let (time_s, entropy) = (seen.time.as_secs_f64(), assessment.entropy);
        self.epochs.push(EpochMeasures { time_s, entropy, worst });
    }

    fn finish(mut self, scene: &Scene) -> Played {
        let typical = self.tails.iter_mut().filter_map(|tails| {
            tails.sort_unstable();
            tails.get(tails.len() / 2).map(|tail| tail.as_secs_f64() * 1e3)
        });
        let typical_ms = typical.collect();
        let count = self.epochs.len() as f64;
        // Epochs that an app was present in, parts of epochs included.
        let epochs_of = |app: usize| count * share_of(self.present[app], self.span);
        let work_per_s = (0..scene.apps.len()).map(|app| self.work[app] / epochs_of(app));
        let work_per_s: Vec<f64> = work_per_s.collect();
        let (mut lc, mut be) = (Vec::new(), Vec::new());
        let was_present = |(app, _): &(usize, _)| self.present[*app] > Nanos::ZERO;
        for (app, spec) in scene.apps.iter().enumerate().filter(was_present) {
            let window = &self.windows[app];
            match spec.tail() {
                Some((percentile, bound)) => {
                    // An app without an answer counts as having the longest possible tail.
                    let tail = window.quantile(percentile).unwrap_or(Nanos::MAX);
                    let ideal = spec.ideal.unwrap_or(bound).min(bound);
                    lc.extend(LcReading::new(ideal, tail, bound).ok().map(|it| (tail, it)));
                }
                None => {
                    let (solo, real) = (spec.solo_per_s.unwrap_or(1.0), work_per_s[app]);
                    be.push(BeReading { solo, real });
                }
            }
        }
        let left = self.waiting.iter().map(|waiting| {
            waiting.map_or(0, |[first, last]| last.cast_signed() - first.cast_signed())
        });
        let readings: Vec<_> = lc.iter().map(|(_, reading)| *reading).collect();
        Played {
            tails_ms: lc.iter().map(|(tail, _)| tail.as_secs_f64() * 1e3).collect(),
            typical_ms,
            progress: be.iter().map(|it| it.real / it.solo).collect(),
            entropy: system_entropy(&readings, &be, scene.rules.importance),
            epochs: self.epochs,
            utilisation: self.busy / count,
            power: self.energy.and_then(|energy| energy.over(self.span)),
            left: left.collect(),
            work_per_s,
            present: self.present,
            lost: Vec::new(),
            missed: f64::NAN,
            answers: self.windows,
            groups: Vec::new(),
            space_time: SpaceTime::default(),
        }
    }
}

/// A part of a span; 1 for all of it, to the last bit.
fn share_of(part: Nanos, whole: Nanos) -> f64 {
    part.0 as f64 / whole.0 as f64
}
