//! All admission controllers: how many queries each connection of a server may run.
//!
//! An admission controller stands at the gate before a server's workers as a policy stands
//! beside the machine (see [`lull_control::admission`]); one file each,
//! registered here. `lull policies` lists them all.

mod apples;
mod auto;
mod gate_fifo;
mod manual;
mod open;
mod pslo;
mod reef;
mod utslo;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::beside::Kind;
use lull_control::admission::Admission;
use lull_control::{Objective, PolicyError};

/// Every admission controller, one line each.
pub static ALL: &[&Entry] = &[
    &open::ENTRY,
    &manual::ENTRY,
    &gate_fifo::ENTRY,
    &apples::ENTRY,
    &pslo::ENTRY,
    &utslo::ENTRY,
    &reef::ENTRY,
    &auto::ENTRY,
];

/// Where an admission controller is to work.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// What is asked of each connection; `None`: best effort.
    pub objectives: &'a [Option<Objective>],
    /// C_avail: cores that workers may use, the system's own and those of
    /// other apps left out; at least 1.
    pub cores: u32,
    /// What is asked of the server as a whole.
    pub asked: &'a [Objective],
    /// What its workers may be made to do.
    pub workers: Workers,
}

/// What a gate can do with workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Workers {
    /// One that has a query waits for its turn.
    #[default]
    Wait,
    /// One that has none rests until it is called.
    Rest,
    /// Either, as the admission controller likes.
    WaitOrRest,
}

impl Workers {
    /// Whether one that has a query may be made to wait for others.
    pub const fn may_wait(self) -> bool {
        matches!(self, Self::Wait | Self::WaitOrRest)
    }

    /// Whether one that has none may rest.
    pub const fn may_rest(self) -> bool {
        matches!(self, Self::Rest | Self::WaitOrRest)
    }
}

impl<'a> Site<'a> {
    /// Connections of which these things are asked, on so many cores; of the server as
    /// a whole nothing is, and its workers wait.
    pub const fn of(objectives: &'a [Option<Objective>], cores: u32) -> Self {
        Self { objectives, cores, asked: &[], workers: Workers::Wait }
    }
}

/// What the registry knows of an admission controller.
pub type Entry = crate::beside::Entry<Make>;

/// Makes an admission controller from its config for a site.
pub type Make = fn(&toml::Table, &Site<'_>) -> Result<Box<dyn Admission>, PolicyError>;

impl Kind for Make {
    const FAMILY: &'static str = "admission";
    const WHAT: &'static str = "admission";
}

impl Entry {
    /// Builds the admission controller for a site.
    ///
    /// # Errors
    /// A config key at fault, or connections that do not suit.
    pub fn build(
        &self,
        config: &toml::Table,
        site: &Site<'_>,
    ) -> Result<Box<dyn Admission>, PolicyError> {
        (self.make)(config, site)
    }
}

/// The admission controller of this name.
///
/// # Errors
/// [`PolicyError::Config`] at `name`, with the nearest name and all of them.
pub fn find(name: &str) -> Result<&'static Entry, PolicyError> {
    crate::beside::find(ALL, name)
}

/// Builds an admission controller by name; see [`Entry::build`].
///
/// # Errors
/// An unknown name, or what [`Entry::build`] answers.
pub fn build(
    name: &str,
    config: &toml::Table,
    site: &Site<'_>,
) -> Result<Box<dyn Admission>, PolicyError> {
    find(name)?.build(config, site)
}

/// The part of docs/policies.md about admission controllers.
pub(crate) fn markdown() -> String {
    let about = "AdmissionControllers tell the gate before a server's workers whom to admit; their keys \
                 stand under `[admission]`.";
    crate::beside::markdown("How many queries each connection runs", about, ALL)
}
