//! One model under some policies, in independent replications: the building block of
//! scenarios and experiments.

use crate::policy_source::PolicySource;
use crate::progress::{Progress, parts};
use lull_control::{AppSpec, EpochRule, PolicyError, Rules};
use lull_measure::Nanos;
use lull_sim::plant::{ControllerTurn, PlantSpec, System};
use lull_sim::stats::{Estimate, Experiment, Failure, Runs, Warmup};
use lull_sim::{Model, Totals};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A policy over the servers of some tiers, a controller of its own on each.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    /// The policy.
    pub policy: PolicySource,
    /// Its config keys.
    pub config: toml::Table,
    /// Tiers whose servers it steers.
    pub tiers: Vec<String>,
    /// How often it looks and decides.
    pub epoch: EpochRule,
}

/// A model, the policies on it, and how long it runs.
#[derive(Debug, Clone)]
pub struct Trial<'m> {
    /// The system.
    pub model: &'m Model,
    /// The policies.
    pub controls: Vec<Control>,
    /// Apps as policies see them; one left out is not watched.
    pub apps: Vec<AppSpec>,
    /// Seed; replications count from 0 below it.
    pub seed: u64,
    /// Warm-up of each replication, which is not counted.
    pub warmup: Nanos,
    /// Counted time of each replication.
    pub length: Nanos,
}

/// A plant of a trial: where it is and how fast it could run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlantAt {
    /// Index of its server in the engine.
    pub server: usize,
    /// Index of its tier in the model.
    pub tier: usize,
}

impl Trial<'_> {
    /// Sets one replication up.
    ///
    /// # Errors
    /// If the model or a policy cannot be used.
    pub fn system(&self, replication: u64) -> Result<System, Failure> {
        let mut system = System::new(self.model, self.seed, replication)?;
        for control in &self.controls {
            let build = |error: PolicyError| Failure::Setup(error.to_string());
            for tier in &control.tiers {
                let servers = system.engine().servers_of(tier).map_or(0, |range| range.len());
                for server in 0..servers {
                    self.manage(&mut system, control, tier, server)?.map_err(build)?;
                }
            }
        }
        Ok(system)
    }

    /// Puts one server under a control. The outer error is the model's, the inner the policy's.
    fn manage(
        &self,
        system: &mut System,
        control: &Control,
        tier: &str,
        server: usize,
    ) -> Result<Result<(), PolicyError>, Failure> {
        let spec = PlantSpec { tier: tier.to_owned(), server, apps: self.apps.clone() };
        let plant = system.plant(self.model, &spec).map_err(|e| Failure::Setup(e.to_string()))?;
        let built = control.policy.build(&control.config, plant.machine(), plant.apps());
        match built {
            Ok(policy) => {
                system.manage(plant, policy, rules(), control.epoch.clone())?;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Checks that each control can be built on each of its tiers.
    ///
    /// # Errors
    /// The number of the control, and its fault.
    pub fn check(&self) -> Result<(), CheckError> {
        let mut system = System::new(self.model, self.seed, 0).map_err(Failure::from)?;
        for (number, control) in self.controls.iter().enumerate() {
            for tier in &control.tiers {
                let managed = self.manage(&mut system, control, tier, 0)?;
                managed.map_err(|error| CheckError::Policy(number, error))?;
            }
        }
        Ok(())
    }

    /// Where the plants are, by their numbers.
    pub fn plants(&self) -> Vec<PlantAt> {
        let mut first = vec![0];
        for tier in &self.model.tier {
            first.push(first[first.len() - 1] + tier.servers as usize);
        }
        let tiers = self.controls.iter().flat_map(|control| &control.tiers);
        let found = tiers.filter_map(|name| self.model.tier.iter().position(|t| t.name == *name));
        found
            .flat_map(|tier| {
                (first[tier]..first[tier + 1]).map(move |server| PlantAt { server, tier })
            })
            .collect()
    }

    /// Runs one replication and shows every turn after the warm-up to `look`.
    ///
    /// # Errors
    /// If it cannot be set up, a bound of the model is reached, or the caller stops it.
    pub fn follow(
        &self,
        replication: u64,
        progress: &Progress<'_>,
        mut look: impl FnMut(&ControllerTurn<'_>),
    ) -> Result<Totals, Failure> {
        let mut system = self.system(replication)?;
        // The run is split into parts, between which it can be stopped; their number changes no
        // result.
        let mut run = |system: &mut System, from: Nanos, span: Nanos, shown: bool| {
            for until in parts(from, span) {
                progress.check()?;
                let ran = match shown {
                    true => system.run_with(until, &mut look),
                    false => system.run_until(until),
                };
                ran.map_err(|stop| Failure::Stopped { replication, stop })?;
            }
            Ok::<(), Failure>(())
        };
        run(&mut system, Nanos::ZERO, self.warmup, false)?;
        system.engine_mut().forget();
        run(&mut system, self.warmup, self.length, true)?;
        Ok(system.engine().totals())
    }

    /// Runs these replications, each with a state of its own that sees every turn.
    ///
    /// The result is the same on any number of threads: replications share
    /// nothing and come back in order.
    ///
    /// # Errors
    /// The first failure, in the order of the replications.
    pub fn replicate<S: Send>(
        &self,
        numbers: Range<u64>,
        progress: &Progress<'_>,
        start: impl Fn() -> S + Sync,
        look: impl Fn(&mut S, &ControllerTurn<'_>) + Sync,
    ) -> Result<Vec<(Totals, S)>, Failure> {
        in_order(numbers, progress, |replication| {
            let mut state = start();
            let totals = self.follow(replication, progress, |turned| look(&mut state, turned))?;
            Ok((totals, state))
        })
    }

    /// Runs these replications and keeps the totals.
    ///
    /// # Errors
    /// As [`Trial::replicate`].
    pub fn run(&self, numbers: Range<u64>, progress: &Progress<'_>) -> Result<Runs, Failure> {
        let totals = self.measure(numbers, progress, |totals| totals)?;
        Ok(Runs { warmup: self.warmup, totals })
    }

    /// Runs these replications and keeps the values read from the totals, which of thousands of
    /// servers are large.
    ///
    /// # Errors
    /// As [`Trial::replicate`].
    pub fn measure<T: Send>(
        &self,
        numbers: Range<u64>,
        progress: &Progress<'_>,
        read: impl Fn(Totals) -> T + Sync,
    ) -> Result<Vec<T>, Failure> {
        in_order(numbers, progress, |replication| {
            Ok(read(self.follow(replication, progress, |_| {})?))
        })
    }

    /// The end of the warm-up by MSER-5 on a pilot run of this length.
    ///
    /// # Errors
    /// If the pilot fails or finds no steady state.
    pub fn find_warmup(&self) -> Result<Nanos, Failure> {
        let length = self.length;
        let pilot = Experiment { warmup: Warmup::Mser, length, first: 0, replications: 0 };
        Ok(pilot.run(|replication| self.system(replication))?.warmup)
    }
}

/// Why a trial cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// The model or a bound.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// A policy, with the number of its control.
    #[error("{1}")]
    Policy(usize, PolicyError),
}

/// Runs replications in parallel and puts them in order; after a failure only those before it are
/// still run, so that the first failure is the same on any number of threads and no later
/// replication is wasted.
fn in_order<T: Send>(
    numbers: Range<u64>,
    progress: &Progress<'_>,
    run: impl Fn(u64) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let first_failed = AtomicU64::new(u64::MAX);
    let all: Vec<Option<Result<T, Failure>>> = numbers
        .into_par_iter()
        .map(|replication| {
            if replication > first_failed.load(Ordering::Relaxed) {
                return None;
            }
            let done = run(replication);
            match done {
                Ok(_) => progress.step(),
                Err(_) => {
                    first_failed.fetch_min(replication, Ordering::Relaxed);
                }
            }
            Some(done)
        })
        .collect();
    all.into_iter().flatten().collect()
}

/// Returns rules without limits: a simulated plant needs no protection from fast changes, and
/// without limits the policy itself is measured.
pub(crate) fn rules() -> Rules {
    let mut rules = Rules::default();
    rules.limits.dwell = Nanos::ZERO;
    rules.limits.hysteresis = 0.0;
    rules
}

/// Requests of app `app` answered per second.
pub fn throughput(app: usize) -> impl Fn(&Totals) -> f64 {
    move |totals| totals.apps[app].answered as f64 / totals.span.as_secs_f64()
}

/// Mean response time of app `app`, in milliseconds.
pub fn response_ms(app: usize) -> impl Fn(&Totals) -> f64 {
    move |totals| {
        let app = &totals.apps[app];
        app.response_ns as f64 / 1e6 / app.answered as f64
    }
}

/// Mean power of the servers of these tiers, in watts; NaN where none is modelled.
pub fn power_w(tiers: &[usize]) -> impl Fn(&Totals) -> f64 + use<> {
    let tiers = tiers.to_vec();
    move |totals| {
        let servers = totals.servers.iter().filter(|server| tiers.contains(&server.tier));
        let joules = servers.map(|server| server.energy().map_or(f64::NAN, |energy| energy.0));
        joules.sum::<f64>() / totals.span.as_secs_f64()
    }
}

/// Changes of frequency per second and server of these tiers.
pub fn switches_per_s(tiers: &[usize]) -> impl Fn(&Totals) -> f64 + use<> {
    let tiers = tiers.to_vec();
    move |totals| {
        let servers: Vec<_> =
            totals.servers.iter().filter(|server| tiers.contains(&server.tier)).collect();
        let domains = servers.iter().flat_map(|server| &server.domains);
        let switches: u64 = domains.map(|domain| domain.switches).sum();
        switches as f64 / servers.len() as f64 / totals.span.as_secs_f64()
    }
}

/// The estimate of a value over replications.
pub fn estimate(runs: &Runs, value: impl Fn(&Totals) -> f64) -> Estimate {
    estimate_of(&runs.values(value))
}

/// Computes a statistic of values of runs with common random numbers, replication by replication.
pub(crate) fn paired<const N: usize>(
    runs: [&Runs; N],
    value: impl Fn(&Totals) -> f64,
    compute: impl Fn([f64; N]) -> f64,
) -> Estimate {
    let all = runs.map(|runs| runs.values(&value));
    let count = all.iter().map(Vec::len).min().unwrap_or(0);
    let each = (0..count).map(|at| compute(std::array::from_fn(|run| all[run][at])));
    estimate_of(&each.collect::<Vec<_>>())
}

/// The ratio of a value of two sets of runs that met the same random numbers, run by run.
pub(crate) fn paired_ratio<T>(ours: &[T], theirs: &[T], value: impl Fn(&T) -> f64) -> Estimate {
    let pairs = ours.iter().zip(theirs);
    estimate_of(&pairs.map(|(ours, theirs)| value(ours) / value(theirs)).collect::<Vec<_>>())
}

/// A ratio as a change in percent.
pub(crate) fn change_percent(ratio: &Estimate) -> Estimate {
    let mean = 100.0 * (ratio.mean - 1.0);
    Estimate { mean, half_width: 100.0 * ratio.half_width, ..*ratio }
}

/// The estimate of independent values; NaN without any.
pub fn estimate_of(values: &[f64]) -> Estimate {
    let none = Estimate { mean: f64::NAN, half_width: f64::INFINITY, values: 0 };
    Estimate::from_values(values).unwrap_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_reported_and_later_trials_do_not_run() {
        let ran = AtomicU64::new(0);
        let run = |number: u64| {
            ran.fetch_add(1, Ordering::Relaxed);
            if number % 7 == 3 { Err(Failure::Setup(number.to_string())) } else { Ok(number) }
        };
        let failed = in_order(0..1_000_000, &Progress::silent(), run);
        assert_eq!(failed, Err(Failure::Setup("3".to_owned())));
        // Each part of the range that a thread had begun ran into a failure of its own.
        assert!(ran.load(Ordering::Relaxed) < 10_000, "{ran:?}");
        assert_eq!(in_order(0..3, &Progress::silent(), run), Ok(vec![0, 1, 2]));
    }
}
