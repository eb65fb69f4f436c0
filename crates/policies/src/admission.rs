//! Admission controllers: they set how many queries each connection of a server may run.
//!
//! An admission controller works at the gate before a server's workers as a policy works at
//! the machine (see [`lull_control::admission`]). This module holds what all of them share;
//! each has a file.

pub(crate) mod apples;
pub(crate) mod auto;
mod cap_search;
pub(crate) mod cinnamon;
pub(crate) mod envoy_gradient;
pub(crate) mod gate_fifo;
pub(crate) mod gradient2;
pub(crate) mod manual;
pub(crate) mod open;
pub(crate) mod pslo;
pub(crate) mod reef;
pub(crate) mod throughput_probing;
pub(crate) mod utslo;
pub(crate) mod vegas;
mod windowed;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::entry::{Kind, Registry};
use lull_control::admission::Admission;
use lull_control::{Objective, PolicyError};
use serde::Serialize;

/// The connections and cores that an admission controller is built for.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The objective of each connection; `None` for best effort.
    pub objectives: &'a [Option<Objective>],
    /// C_avail: cores that workers may use, without those of the system and of other apps; at
    /// least 1.
    pub cores: u32,
    /// The objectives of the server as a whole.
    pub server_objectives: &'a [Objective],
    /// How the gate can delay workers.
    pub workers: Workers,
    /// Seed of what a controller draws, such as the order in which it compares settings.
    pub seed: u64,
    /// Whether the server is a live one, whose throughput no search may cost.
    pub is_live: bool,
}

/// How a gate can delay workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Workers {
    /// A worker with a query waits for its turn.
    #[default]
    Wait,
    /// A worker without a query rests until it is woken.
    Rest,
    /// Workers may wait or rest; the admission controller chooses.
    WaitOrRest,
}

impl Workers {
    /// Returns whether a worker with a query can be made to wait.
    pub const fn may_wait(self) -> bool {
        matches!(self, Self::Wait | Self::WaitOrRest)
    }

    /// Returns whether a worker without a query can rest.
    pub const fn may_rest(self) -> bool {
        matches!(self, Self::Rest | Self::WaitOrRest)
    }
}

impl<'a> Site<'a> {
    /// Creates a site with these objectives of connections and this number of cores. The server
    /// as a whole has no objective and is not live, its workers wait, and the seed is 0.
    pub const fn new(objectives: &'a [Option<Objective>], cores: u32) -> Self {
        Self {
            objectives,
            cores,
            server_objectives: &[],
            workers: Workers::Wait,
            seed: 0,
            is_live: false,
        }
    }
}

/// The properties that only admission controllers have.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AdmissionKind {
    /// The requirements of the admission controller; empty if it has none.
    pub needs: &'static str,
}

/// Builds an admission controller from its config for a site. The registry is for an admission
/// controller that shares out its turns by another one.
pub type MakeAdmission = fn(
    &toml::Table,
    &Site<'_>,
    &Registry<AdmissionKind>,
) -> Result<Box<dyn Admission>, PolicyError>;

impl Kind for AdmissionKind {
    type Make = MakeAdmission;

    const NOUN: &'static str = "admission controller";

    fn family(&self) -> &'static str {
        "admission"
    }

    fn needs(&self) -> String {
        self.needs.to_owned()
    }
}

impl Registry<AdmissionKind> {
    /// Builds an admission controller by name for a site.
    ///
    /// # Errors
    /// An unknown name, a config key at fault, or connections that do not suit the admission
    /// controller.
    pub fn build(
        &self,
        name: &str,
        config: &toml::Table,
        site: &Site<'_>,
    ) -> Result<Box<dyn Admission>, PolicyError> {
        (self.find(name)?.make)(config, site, self)
    }
}
