//! Describes this machine: cores, core types, frequencies, and the gauges and knobs that it offers.

mod capabilities;
mod cpus;
mod facts;
mod frequencies;
mod shares;

pub(crate) use crate::drivers::cpufreq::policies;
pub use capabilities::{Rights, capabilities};
pub use facts::{MachineFacts, Stated};

use crate::Roots;
use crate::knobs;
use lull_control::Machine;
use std::path::Path;

/// Why a machine could not be made out.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read: {source}; is sysfs mounted there?")]
pub struct ProbeError {
    path: String,
    source: std::io::Error,
}

impl ProbeError {
    fn new(path: &Path, source: std::io::Error) -> Self {
        Self { path: path.display().to_string(), source }
    }
}

/// The machine under these roots.
///
/// Cores are listed by number up to the highest that is online. One that is
/// offline in between is listed too, so that an index stays a number: its
/// utilisation is missing, and a knob that names it sets the other cores or
/// is refused. Its socket and type are those of core 0, since the kernel hides
/// the topology of offline cores.
///
/// # Errors
/// If the list of online cores cannot be read; everything else may be missing.
pub fn machine(roots: &Roots) -> Result<Machine, ProbeError> {
    let capabilities = capabilities(roots, &Rights::of_this_process());
    Ok(Machine { capabilities, ..read_machine(roots)? })
}

/// The machine as its files describe it, before it is tried what can be set.
///
/// # Errors
/// Like [`machine`].
#[doc(hidden)]
pub fn read_machine(roots: &Roots) -> Result<Machine, ProbeError> {
    let online = cpus::online(roots)?;
    let (cores, core_types) = cpus::cores(roots, &online);
    let domains = frequencies::domains(roots, &online);
    let shares = shares::shares(roots);
    Ok(Machine {
        name: cpus::model_name(roots),
        cores,
        core_types,
        domains,
        cache: shares.cache,
        bandwidth: shares.bandwidth,
        nics: knobs::nics(roots),
        dials: knobs::dials(roots),
        idle_latencies: knobs::idle_latencies(roots),
        energy_preferences: knobs::energy_preferences(roots),
        ..Machine::default()
    })
}
