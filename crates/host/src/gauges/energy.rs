//! Energy of the machine: from RAPL where it can be read, by powercap or by
//! perf, else from a power meter, else from a stated model.

mod hwmon;
mod model;
mod pmu;
mod rapl;

pub use hwmon::Hwmon;
pub use model::{ByFrequency, PowerModel};
pub use pmu::PowerPmu;
pub use rapl::Rapl;

use crate::Roots;
use crate::gauges::first_reading;
use lull_control::{CoreObservation, EnergyObservation, EnergySource};
use lull_measure::{Gauge, Missing, Nanos};
use std::ops::AddAssign;

/// Energy over epochs, from one source for the whole run.
#[derive(Debug)]
pub enum Energy {
    /// Measured by RAPL, which powercap shows.
    Rapl(Rapl),
    /// Measured by RAPL, which perf counts.
    Pmu(PowerPmu),
    /// Measured by another meter.
    Hwmon(Hwmon),
    /// Computed from what the cores did.
    Model(PowerModel),
}

impl Energy {
    /// RAPL if it can be read, else a power meter, else the model.
    pub fn new(roots: &Roots, model: PowerModel) -> Self {
        Self::measured(roots).unwrap_or(Self::Model(model))
    }

    /// A meter that can be read.
    ///
    /// # Errors
    /// If there is none, why each is missing.
    pub fn measured(roots: &Roots) -> Result<Self, Missing> {
        let by_powercap = match Rapl::open(roots) {
            Ok(meter) => return Ok(Self::Rapl(meter)),
            Err(why) => why,
        };
        let by_perf = match PowerPmu::open(roots) {
            Ok(meter) => return Ok(Self::Pmu(meter)),
            Err(why) => why,
        };
        Hwmon::open(roots)
            .map(Self::Hwmon)
            .map_err(|why| Missing::because(format!("{by_powercap}; {by_perf}; {why}")))
    }

    /// Returns the means by which energy is measured.
    ///
    /// # Errors
    /// If there is no meter that can be read.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        Self::measured(roots).map(|meter| meter.source().to_string())
    }

    /// Returns the source of its figures.
    pub fn source(&self) -> EnergySource {
        match self {
            Self::Rapl(meter) => meter.source().clone(),
            Self::Pmu(meter) => meter.source().clone(),
            Self::Hwmon(meter) => meter.source().clone(),
            Self::Model(model) => model.source(),
        }
    }

    /// Energy of `span`, the time since the last call, in which the cores were
    /// seen like this.
    pub fn read(&mut self, span: Nanos, cores: &[CoreObservation]) -> Gauge<EnergyObservation> {
        match self {
            Self::Rapl(meter) => meter.read(),
            Self::Pmu(meter) => meter.read(),
            Self::Hwmon(meter) => meter.read(span),
            Self::Model(model) => model.energy(span, cores),
        }
    }
}

/// The sum of what counters have changed by since their last reading. Every one is
/// read even after a failure, so that the next epoch is right.
///
/// # Errors
/// The last failure; or that one was read for the first time.
fn total<T: Default + AddAssign>(
    changes: impl Iterator<Item = Result<Option<T>, Missing>>,
) -> Result<T, Missing> {
    let mut sum = T::default();
    let mut missing = None;
    for change in changes {
        match change {
            Ok(Some(change)) => sum += change,
            Ok(None) => missing = Some(first_reading()),
            Err(why) => missing = Some(why),
        }
    }
    missing.map_or(Ok(sum), Err)
}
