//! This machine, held in the state of a step, and what its own meter measures meanwhile.

use super::idle::Point;
use super::load::BusyThreads;
use super::power::{CoreSample, PowerSample, Step};
use crate::gauges::idle::{IdleCount, IdleState};
use crate::guard::Patience;
use crate::knobs::KnobError;
use crate::knobs::hold::{Held, HoldRequest, hold};
use crate::{HostPlant, Roots};
use lull_control::{
    ApplyOutcome, CoreId, CoreObservation, EnergySource, FrequencyDomain, Observation, Plant,
    PlantError, Setting,
};
use lull_measure::{Gauge, Hertz, Joules, Missing, Nanos, Watts};
use std::io;

/// Readings of each measurement: frequency is read at an instant, so its mean
/// needs several.
const READINGS: u64 = 8;

/// A machine to be measured. Its plant restores its settings.
#[derive(Debug)]
pub struct Bench {
    plant: HostPlant,
    roots: Roots,
    /// Left out after every change.
    settle: Nanos,
    /// Length of a measurement.
    dwell: Nanos,
    held: Vec<Held>,
}

/// Why something cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The plant was stopped or lost.
    #[error(transparent)]
    Plant(#[from] PlantError),
    /// A knob cannot be held.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// A frequency cannot be set.
    #[error("{domain} cannot be set: {why}")]
    Frequency {
        /// The domain.
        domain: String,
        /// The plant's error.
        why: String,
    },
    /// Cores cannot be kept busy or asleep.
    #[error("cores cannot be loaded: {0}")]
    Load(#[from] io::Error),
    /// A gauge is not there, or failed on the way.
    #[error("{what}: {why}")]
    Gauge {
        /// The missing part.
        what: &'static str,
        /// Why.
        why: Missing,
    },
    /// No core entered the state.
    #[error(
        "no core entered {state} in {dwell:.0}: it may be disabled by firmware or by a bound on \
         wake-up latency (/dev/cpu_dma_latency)"
    )]
    NotEntered {
        /// The idle state.
        state: String,
        /// The length of the observation.
        dwell: Nanos,
    },
}

/// Readings of the meter and the cores over one measurement.
struct BenchReadings {
    power: Watts,
    span: Nanos,
    cores: Vec<CoreSample>,
}

impl Bench {
    /// A machine whose energy is measured.
    ///
    /// # Errors
    /// [`BenchError::Gauge`] if nothing measures energy here.
    pub fn new(
        mut plant: HostPlant,
        roots: Roots,
        settle: Nanos,
        dwell: Nanos,
    ) -> Result<Self, BenchError> {
        let first = plant.observe(Nanos::from_millis(20))?;
        if let Err(why) = joules(&first) {
            return Err(BenchError::Gauge { what: "energy is not measured here", why });
        }
        Ok(Self { plant, roots, settle, dwell, held: Vec::new() })
    }

    /// Returns the plant, with the held settings still in its ledger.
    pub fn into_plant(self) -> HostPlant {
        self.plant
    }

    /// Holds something until the plant restores.
    ///
    /// # Errors
    /// If it cannot be held, or the guard is lost.
    pub fn hold(&mut self, request: HoldRequest) -> Result<(), BenchError> {
        self.plant.beat(Patience::Long).map_err(PlantError::Lost)?;
        self.held.push(hold(&[request], &self.roots, self.plant.ledger_mut())?);
        Ok(())
    }

    /// Carries out one step of a power model.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn step(&mut self, step: &Step) -> Result<PowerSample, BenchError> {
        if let Some(share) = step.frequency {
            self.set_frequency(share)?;
        }
        if step.shallow && self.held.is_empty() {
            let at_most =
                shallowest(&IdleState::read_all(&self.roots, CoreId(0)).unwrap_or_default());
            self.hold(HoldRequest::IdleLatency(at_most))?;
        }
        let crew = BusyThreads::busy(&step.busy)?;
        let seen = self.measure()?;
        drop(crew);
        Ok(PowerSample { power: seen.power, cores: seen.cores })
    }

    /// Power while these cores are kept awake.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn awake(&mut self, cores: &[CoreId]) -> Result<Watts, BenchError> {
        let crew = BusyThreads::busy(cores)?;
        let seen = self.measure();
        drop(crew);
        Ok(seen?.power)
    }

    /// Measures cores that sleep for this length repeatedly, beyond `awake`.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn asleep(
        &mut self,
        cores: &[CoreId],
        state: &str,
        sleep: Nanos,
        awake: Watts,
    ) -> Result<Point, BenchError> {
        let crew = BusyThreads::asleep(cores, sleep)?;
        self.plant.observe(self.settle)?;
        let before = counted(&self.roots, cores, state)?;
        let seen = self.readings()?;
        let after = counted(&self.roots, cores, state)?;
        drop(crew);
        let entries = after.entries.saturating_sub(before.entries);
        if entries == 0 {
            let state = state.to_owned();
            return Err(BenchError::NotEntered { state, dwell: self.dwell });
        }
        let time = after.time.saturating_sub(before.time);
        let count = cores.len() as f64;
        Ok(Point {
            sleep,
            stay: time / entries,
            entries_per_s: entries as f64 / count / seen.span.as_secs_f64(),
            extra: Watts((seen.power.0 - awake.0) / count),
        })
    }

    fn set_frequency(&mut self, share: f64) -> Result<(), BenchError> {
        let settings: Vec<Setting> =
            self.plant.machine().domains.iter().filter_map(|domain| at(domain, share)).collect();
        for outcome in self.plant.apply(&settings).outcomes {
            if let ApplyOutcome::Refused { why } = outcome.got {
                let domain = outcome.wanted.to_string();
                return Err(BenchError::Frequency { domain, why });
            }
        }
        Ok(())
    }

    /// Lets things settle, then measures.
    fn measure(&mut self) -> Result<BenchReadings, BenchError> {
        self.plant.observe(self.settle)?;
        self.readings()
    }

    fn readings(&mut self) -> Result<BenchReadings, BenchError> {
        let mut readings = Vec::new();
        for _ in 0..READINGS {
            readings.push(self.plant.observe(self.dwell / READINGS)?);
        }
        // The caller may wait for a terminal before it goes on.
        self.plant.beat(Patience::Long).map_err(PlantError::Lost)?;
        let mut energy = Joules(0.0);
        for reading in &readings {
            let read = joules(reading);
            energy += read.map_err(|why| BenchError::Gauge { what: "energy", why })?;
        }
        let span: Nanos = readings.iter().map(|reading| reading.epoch).sum();
        let power = energy.over(span).unwrap_or_default();
        Ok(BenchReadings { power, span, cores: cores_of(&readings) })
    }
}

/// Energy of an epoch, if a meter has it.
fn joules(seen: &Observation) -> Gauge<Joules> {
    let energy = seen.energy.clone()?;
    match energy.source {
        EnergySource::Measured(_) => Ok(energy.energy),
        EnergySource::Modelled(model) => {
            Err(Missing::because(format!("there is a model only ({model})")))
        }
    }
}

/// The means of each core that was online all the time.
fn cores_of(readings: &[Observation]) -> Vec<CoreSample> {
    let count = readings.iter().map(|reading| reading.cores.len()).min().unwrap_or_default();
    let of = |core: usize| readings.iter().map(move |reading| &reading.cores[core]);
    let sample = |core: usize| {
        let busy = mean(of(core).map(|seen| seen.utilisation.clone().ok()))?;
        let hertz = |seen: &CoreObservation| Some(seen.frequency.as_ref().ok()?.0 as f64);
        let frequency = mean(of(core).map(hertz)).map(|hertz| Hertz(hertz as u64));
        let deep = mean(of(core).map(|seen| seen.deep_idle_residency.clone().ok()));
        Some(CoreSample { busy, frequency, deep })
    };
    (0..count).filter_map(sample).collect()
}

/// `None` if a value is missing, or all are.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Option<Vec<f64>> = values.collect();
    let values = values?;
    let count = values.len();
    (count > 0).then(|| values.into_iter().sum::<f64>() / count as f64)
}

/// The setting that is this share of the way from a domain's lowest to its highest.
fn at(domain: &FrequencyDomain, share: f64) -> Option<Setting> {
    let (lowest, highest) = (domain.steps.first()?, domain.steps.last()?);
    let wanted = lowest.0 as f64 + share * highest.0.saturating_sub(lowest.0) as f64;
    Some(Setting::Frequency(domain.id, domain.nearest(Hertz(wanted as u64))?))
}

/// The exit latency of the shallowest state that is more than polling.
fn shallowest(states: &[IdleState]) -> Nanos {
    let latencies = states.iter().map(|state| state.exit_latency);
    latencies.filter(|latency| *latency > Nanos::ZERO).min().unwrap_or_default()
}

/// Returns the time and entries that all cores together have spent in a state.
fn counted(roots: &Roots, cores: &[CoreId], state: &str) -> Result<IdleCount, BenchError> {
    let missing = |why| BenchError::Gauge { what: "idle residency", why };
    let mut sum = IdleCount::default();
    for core in cores {
        let states = IdleState::read_all(roots, *core).map_err(missing)?;
        let found = states.iter().find(|found| found.name == state);
        let found = found
            .ok_or_else(|| missing(Missing::because(format!("core {core} has no {state}"))))?;
        let count = found.count().map_err(|error| missing(Missing::because(error.to_string())))?;
        sum.entries += count.entries;
        sum.time += count.time;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::Facts;
    use crate::gauges::energy::PowerModel;
    use crate::guard::{GuardCommand, Ledger, StateDir, spawn};
    use crate::{HostConfig, Stop};

    /// A plant whose guard has ended and cannot be started again.
    fn unguarded(place: &tempfile::TempDir, roots: &Roots) -> HostPlant {
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let ledger = Ledger::open(dir, roots).unwrap().ledger;
        let once = place.path().join("once");
        let script = format!("mkdir '{}' 2>/dev/null && echo armed", once.display());
        let args = vec!["-c".into(), script.into()];
        let command = GuardCommand { program: "/bin/sh".into(), args };
        let guard = spawn(command, &ledger).unwrap();
        let pid = guard.pid().cast_signed();
        while !Facts::of_process(roots, pid).unwrap().is_ended() {
            std::thread::yield_now();
        }
        let mut plant = HostPlant::new(HostConfig {
            apps: Vec::new(),
            push: None,
            power: PowerModel::default(),
            ledger,
            foreign_wins: true,
            stop: Stop::new().unwrap(),
            roots: roots.clone(),
        })
        .unwrap();
        plant.set_guard(guard);
        plant
    }

    #[test]
    fn nothing_is_held_without_a_guard() {
        let (place, roots) = (tempfile::tempdir().unwrap(), Roots::default());
        let (settle, dwell) = (Nanos::from_millis(1), Nanos::from_millis(8));
        let plant = unguarded(&place, &roots);
        let mut bench = Bench { plant, roots, settle, dwell, held: Vec::new() };
        // No machine has this state, so that nothing is changed in any case.
        let refused = bench.hold(HoldRequest::IdleState("none-such".to_owned()));
        let is_lost = matches!(refused, Err(BenchError::Plant(PlantError::Lost(_))));
        assert!(is_lost && bench.held.is_empty(), "{refused:?}");
    }
}
