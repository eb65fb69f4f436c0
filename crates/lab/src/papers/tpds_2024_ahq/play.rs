//! Runs of one scene under one strategy, which all experiments of this paper use.

use crate::colocation::{GateKeepers, PlayError, Steering};
pub(super) use crate::colocation::{Played, Scene, Span};
use crate::policy_source::PolicySource;
use crate::prelude::*;
use crate::progress::Progress;
use lull_control::ControlLoop;
use lull_measure::Nanos;
use lull_policies::POLICIES;

use lull_sim::machine::MachinePlant;
use lull_sim::stats::Failure;
use rayon::prelude::*;
use std::ops::Range;

/// The monitoring interval of section VI-B.
pub(super) const EPOCH: Nanos = Nanos::from_millis(500);

/// First of the replications that experiments with `tide` are made of. It was developed with those
/// below; a policy of ours is judged by seeds that it has not met.
pub(super) const FRESH: u64 = 1_000;

/// A remark on these replications.
pub(super) fn freshness(seeds: u64) -> String {
    let last = FRESH + seeds - 1;
    format!(
        "`tide` was developed with the replications 0 to 29 of seed 1; all strategies are compared \
         on the replications {FRESH} to {last}, which were not used in its development"
    )
}

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
pub(super) const EVEN: Strategy = Strategy { name: "Even", policy: "even", config: "ways = false" };
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

/// Whether this build has the strategy's policy.
pub(super) fn is_here(strategy: &Strategy) -> bool {
    POLICIES.find(strategy.policy).is_ok()
}

impl Strategy {
    /// The policy with its config, every [`EPOCH`].
    fn steering(&self) -> Result<Steering, LabError> {
        let unread = |error: toml::de::Error| Failure::Setup(error.to_string());
        let config = self.config.parse().map_err(unread)?;
        let policy = PolicySource::Registered(self.policy.to_owned());
        let admission = GateKeepers::default();
        Ok(Steering { policy, config, epoch: EPOCH.into(), admission, dispatcher: None })
    }
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
    Ok(scene.play(&strategy.steering()?, span, replication, &Progress::silent())?)
}

/// Runs all of these in parallel and returns their results in order.
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

/// Runs of several strategies on the same scenes.
pub(super) struct Runs<R> {
    pub(super) strategies: Vec<Strategy>,
    /// Indexed by strategy, then scene, then replication.
    pub(super) runs: Vec<Vec<Vec<R>>>,
}

impl<R> Runs<R> {
    /// Runs those of the strategies whose policies this build has, and keeps what `keep` makes of
    /// each run.
    ///
    /// # Errors
    /// As [`play_all`].
    pub(super) fn play(
        strategies: &[Strategy],
        scenes: &[Scene],
        replications: Range<u64>,
        span: Span,
        progress: &Progress<'_>,
        keep: fn(Played) -> R,
    ) -> Result<Self, LabError> {
        let strategies: Vec<_> = strategies.iter().copied().filter(is_here).collect();
        let mut wanted = Vec::new();
        for strategy in &strategies {
            for scene in scenes {
                wanted.extend(replications.clone().map(|number| (strategy, scene, number)));
            }
        }
        let played = play_all(&wanted, progress, |(strategy, scene, number)| {
            play(scene, strategy, span, *number)
        })?;
        let mut each = played.into_iter().map(keep);
        let count = replications.count();
        let mut of_scene = || each.by_ref().take(count).collect::<Vec<_>>();
        let runs = strategies.iter().map(|_| scenes.iter().map(|_| of_scene()).collect());
        Ok(Self { runs: runs.collect(), strategies })
    }

    /// The runs of a strategy by scene and replication; `None` if this build lacks its policy.
    pub(super) fn under(&self, strategy: Strategy) -> Option<&[Vec<R>]> {
        let number = self.strategies.iter().position(|it| *it == strategy)?;
        Some(&self.runs[number])
    }
}

/// A controller on a fresh replication of the scene, which may keep every latency.
pub(super) fn start(
    scene: &Scene,
    strategy: &Strategy,
    seed: u64,
    replication: u64,
    keeps_log: bool,
) -> Result<ControlLoop<MachinePlant>, LabError> {
    Ok(scene.start_logged(&strategy.steering()?, seed, replication, keeps_log)?)
}

impl From<PlayError> for LabError {
    fn from(error: PlayError) -> Self {
        match error {
            PlayError::Scene(failure) => failure.into(),
            PlayError::Policy(policy) => policy.into(),
        }
    }
}
