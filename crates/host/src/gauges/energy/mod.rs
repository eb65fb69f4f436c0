//! Energy of the machine: from RAPL where it can be read, else from a power
//! meter, else from a stated model.

mod hwmon;
mod model;
mod rapl;

pub use hwmon::Hwmon;
pub use model::PowerModel;
pub use rapl::Rapl;

use crate::Roots;
use lull_control::EnergySeen;
use lull_measure::{Gauge, Missing, Nanos};

/// Energy over epochs, from one source for the whole run.
#[derive(Debug)]
pub enum Energy {
    /// Measured.
    Rapl(Rapl),
    /// Measured by another meter.
    Hwmon(Hwmon),
    /// Computed from utilisation.
    Model(PowerModel),
}

impl Energy {
    /// RAPL if it can be read, else a power meter, else the model.
    pub fn new(roots: &Roots, model: PowerModel) -> Self {
        let measured = Rapl::open(roots).map(Self::Rapl);
        let measured = measured.or_else(|_| Hwmon::open(roots).map(Self::Hwmon));
        measured.unwrap_or(Self::Model(model))
    }

    /// By which means energy is measured, or why it cannot be.
    ///
    /// # Errors
    /// If there is no meter that can be read.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let rapl = Rapl::open(roots).map(|meter| meter.source().to_string());
        rapl.or_else(|no_rapl| match Hwmon::open(roots) {
            Ok(meter) => Ok(meter.source().to_string()),
            Err(why) => Err(Missing::because(format!("{no_rapl}; {why}"))),
        })
    }

    /// Energy of `span`, the time since the last call; `utilisation` is that
    /// of each core in the span.
    pub fn read(&mut self, span: Nanos, utilisation: &[Gauge<f64>]) -> Gauge<EnergySeen> {
        match self {
            Self::Rapl(meter) => meter.read(),
            Self::Hwmon(meter) => meter.read(span),
            Self::Model(model) => model.energy(span, utilisation),
        }
    }
}
