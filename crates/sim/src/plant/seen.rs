//! Observations of a plant.

use super::{ServerPart, toolkit};
use crate::engine::{CallCounts, Engine};
use lull_control::{
    AppObservation, AppSpec, CoreObservation, EnergyObservation, EnergySource, LatencyObservation,
    Observation, Progress, ProgressSource,
};
use lull_measure::{Gauge, Joules, Missing, Nanos};

/// The formula behind modelled energy, as shown to people.
const FORMULA: &str = "C*V^2*f per busy core + static";

/// Counters at the end of the last epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct EpochBaseline {
    time: Nanos,
    busy: Vec<Nanos>,
    energy: Option<Joules>,
}

impl EpochBaseline {
    /// Counters as they are now.
    pub(super) fn start(engine: &Engine, server: usize) -> Self {
        Self {
            time: engine.now(),
            busy: (0..engine.domain_count(server)).map(|d| engine.busy(server, d)).collect(),
            energy: engine.energy(server).ok(),
        }
    }
}

impl ServerPart {
    /// Returns the observation since the last one.
    pub(super) fn observe(&mut self, engine: &mut Engine) -> Observation {
        let epoch = engine.now() - self.window.time;
        let cores = self.observe_cores(engine, epoch);
        let energy = self.observe_energy(engine);
        let apps = self.observe_apps(engine, epoch);
        self.window.time = engine.now();
        let unknown =
            Missing::because("a tier's server has no run-queue pressure in the simulator");
        Observation { apps, cores, energy, ..Observation::unknown(engine.now(), epoch, &unknown) }
    }

    /// The engine counts domains, not cores: each core reports its domain's mean.
    fn observe_cores(&mut self, engine: &Engine, epoch: Nanos) -> Vec<CoreObservation> {
        let mut all = Vec::with_capacity(self.machine.cores.len());
        for (number, domain) in self.machine.domains.iter().enumerate() {
            let busy = engine.busy(self.server, number);
            let before = std::mem::replace(&mut self.window.busy[number], busy);
            let count = domain.cores.len();
            let part_ns = u128::from((busy - before).0);
            let utilisation = toolkit::share(part_ns, epoch * count as u64);
            let fixed = || Missing::because("the model gives the cores no P-states");
            let no_states = Missing::because("the simulator's tiers have no idle states");
            let seen = CoreObservation {
                utilisation,
                frequency: engine.frequency(self.server, number).ok_or_else(fixed),
                ..CoreObservation::unknown(&no_states)
            };
            all.resize(all.len() + count, seen);
        }
        all
    }

    fn observe_energy(&mut self, engine: &Engine) -> Gauge<EnergyObservation> {
        let now = engine.energy(self.server)?;
        let before = self.window.energy.replace(now).unwrap_or_default();
        let energy = Joules((now.0 - before.0).max(0.0));
        Ok(EnergyObservation { energy, source: EnergySource::Modelled(FORMULA.to_owned()) })
    }

    fn observe_apps(&self, engine: &mut Engine, epoch: Nanos) -> Vec<AppObservation> {
        let specs = self.apps.iter().zip(&self.app_ids);
        specs
            .map(|(spec, id)| {
                let calls = engine.look(self.server, *id);
                observe_app(spec, calls.expect("a plant watches its apps"), epoch)
            })
            .collect()
    }
}

fn observe_app(spec: &AppSpec, calls: CallCounts, epoch: Nanos) -> AppObservation {
    let other = Missing::because("the simulator does not model it for a tier's server");
    let mut seen = AppObservation { alive: true, ..AppObservation::unknown(&other) };
    let per_s = |count: u64| count as f64 / epoch.as_secs_f64();
    if spec.is_latency_critical() {
        seen.latency = Ok(LatencyObservation {
            offered_per_s: per_s(calls.arrived),
            completed_per_s: per_s(calls.latency.count()),
            errors_per_s: per_s(calls.failed),
            outstanding: calls.outstanding,
            oldest: calls.oldest,
            window: calls.latency,
            ..LatencyObservation::default()
        });
    } else {
        let per_s = per_s(calls.latency.count());
        seen.progress = Ok(Progress { per_s, source: ProgressSource::Simulated });
    }
    seen
}
