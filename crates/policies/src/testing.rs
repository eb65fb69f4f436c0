//! What tests of policies show them: observations made by hand, and plants
//! that answer.

use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{
    AppObservation, AppSpec, Capability, LatencyObservation, Machine, Observation, Plan, Plant,
    Policy, Progress, ProgressSource, Rng,
};
use lull_measure::{Latency, Missing, Nanos, Percentile};
use rand::SeedableRng;

/// The bound of every latency-critical app in these tests.
pub(crate) const BOUND: Nanos = Nanos::from_millis(10);

/// A latency-critical app with [`BOUND`] on its p95.
pub(crate) fn lc_spec(name: &str) -> AppSpec {
    AppSpec::latency_critical(name, Percentile::P95, BOUND)
}

/// A best-effort app that does 100 a second alone.
pub(crate) fn be_spec(name: &str) -> AppSpec {
    AppSpec { solo_per_s: Some(100.0), ..AppSpec::best_effort(name) }
}

/// A machine with every knob there is.
pub(crate) fn machine(cores: u16) -> Machine {
    MemoryPlant::new(cores, Vec::new()).machine().clone()
}

/// A machine whose cores alone can be divided.
pub(crate) fn cores_only(cores: u16) -> Machine {
    let plant = MemoryPlant::new(cores, Vec::new())
        .without(Capability::CacheWays, "test")
        .without(Capability::MemoryBandwidth, "test");
    plant.machine().clone()
}

/// An app that lives and of which nothing else is known.
pub(crate) fn alive() -> AppObservation {
    AppObservation { alive: true, ..AppObservation::unknown(&Missing::because("test")) }
}

/// An app that has exited.
pub(crate) fn gone() -> AppObservation {
    AppObservation::unknown(&Missing::because("gone"))
}

/// A latency-critical app whose every request took this long.
pub(crate) fn lc(tail_ms: f64) -> AppObservation {
    let mut window = Latency::default();
    window.record_many(Nanos::from_secs_f64(tail_ms / 1e3), 1_000);
    let per_s = 2_000.0;
    let seen = LatencyObservation {
        window,
        offered_per_s: per_s,
        completed_per_s: per_s,
        ..LatencyObservation::default()
    };
    AppObservation { latency: Ok(seen), ..alive() }
}

/// A latency-critical app that answered nothing; this many requests wait, the oldest a second.
pub(crate) fn silent(outstanding: u64) -> AppObservation {
    let oldest = (outstanding > 0).then_some(Nanos::from_secs(1));
    let seen = LatencyObservation { outstanding, oldest, ..LatencyObservation::default() };
    AppObservation { latency: Ok(seen), ..alive() }
}

/// Returns a best-effort app with this progress a second.
pub(crate) fn be(per_s: f64) -> AppObservation {
    AppObservation {
        progress: Ok(Progress { per_s, source: ProgressSource::Simulated }),
        ..alive()
    }
}

/// Returns an epoch with these observations.
pub(crate) fn observation(time: Nanos, epoch: Nanos, apps: Vec<AppObservation>) -> Observation {
    Observation { apps, ..Observation::unknown(time, epoch, &Missing::because("test")) }
}

/// A policy that is shown what a test makes up.
pub(crate) struct Bench<P> {
    pub(crate) policy: P,
    pub(crate) time: Nanos,
    epoch: Nanos,
    rng: Rng,
}

impl<P: Policy> Bench<P> {
    /// Creates a bench with epochs of this length.
    pub(crate) fn new(policy: P, epoch: Nanos) -> Self {
        Self { policy, time: Nanos::ZERO, epoch, rng: Rng::seed_from_u64(1) }
    }

    /// Runs one epoch.
    pub(crate) fn see(&mut self, apps: Vec<AppObservation>) -> Plan {
        self.time += self.epoch;
        self.policy.decide(&observation(self.time, self.epoch, apps), &mut self.rng)
    }
}

/// Latency-critical apps with these loads in cores and one best-effort app, on
/// a plant that answers: service 1 ms, eight threads each.
pub(crate) fn plant(cores: u16, demands: &[f64]) -> MemoryPlant {
    let app = |spec, demand_cores| MemoryApp {
        spec,
        demand_cores,
        service: Nanos::from_millis(1),
        threads: 8,
    };
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut apps: Vec<_> =
        demands.iter().zip(names).map(|(demand, name)| app(lc_spec(name), *demand)).collect();
    let mut be = AppSpec::best_effort("be");
    be.solo_per_s = Some(f64::from(cores.min(8)));
    apps.push(app(be, 0.0));
    MemoryPlant::new(cores, apps)
}

/// Lets a policy steer a plant; returns the observation of each epoch.
pub(crate) fn steer(
    plant: &mut MemoryPlant,
    policy: &mut dyn Policy,
    epoch: Nanos,
    epochs: usize,
) -> Vec<Observation> {
    let mut rng = Rng::seed_from_u64(1);
    let one = |_| {
        let seen = plant.observe(epoch).unwrap();
        let plan = policy.decide(&seen, &mut rng);
        let settings: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        let applied = plant.apply(&settings);
        assert!(applied.outcomes.iter().all(|one| one.in_force().is_some()), "{applied:?}");
        seen
    };
    (0..epochs).map(one).collect()
}

/// The p95 of an app in milliseconds.
pub(crate) fn p95_ms(seen: &Observation, app: usize) -> f64 {
    let latency = seen.apps[app].latency.as_ref().unwrap();
    latency.tail(Percentile::P95).unwrap().as_millis_f64()
}
