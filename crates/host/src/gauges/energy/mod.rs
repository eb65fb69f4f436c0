//! Energy of the machine: from RAPL where it can be read, else from a stated model.

mod model;
mod rapl;

pub use model::PowerModel;
pub use rapl::Rapl;

use crate::Roots;
use lull_control::EnergySeen;
use lull_measure::{Gauge, Nanos};

/// Energy over epochs, from one source for the whole run.
#[derive(Debug)]
pub enum Energy {
    /// Measured.
    Rapl(Rapl),
    /// Computed from utilisation.
    Model(PowerModel),
}

impl Energy {
    /// RAPL if it can be read, else the model.
    pub fn new(roots: &Roots, model: PowerModel) -> Self {
        Rapl::open(roots).map_or(Self::Model(model), Self::Rapl)
    }

    /// Energy of `span`, the time since the last call; `utilisation` is that
    /// of each core in the span.
    pub fn read(&mut self, span: Nanos, utilisation: &[Gauge<f64>]) -> Gauge<EnergySeen> {
        match self {
            Self::Rapl(meter) => meter.read(),
            Self::Model(model) => model.energy(span, utilisation),
        }
    }
}
