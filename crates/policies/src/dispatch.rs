//! Dispatchers: they decide on which core type each request of a server runs.
//!
//! A dispatcher works at the requests as a policy works at the machine (see
//! [`lull_control::dispatcher`]). This module holds what all of them share; each has a file.

pub(crate) mod clairvoyant;
pub(crate) mod ee;
pub(crate) mod eetl;
pub(crate) mod just_in_time;
pub(crate) mod level;
pub(crate) mod octopus_man;
pub(crate) mod pegasus;
pub(crate) mod rubik;
pub(crate) mod s2f;
pub(crate) mod tl;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::config;
use crate::entry::{Entry, Kind, Registry};
use lull_control::PolicyError;
use lull_control::dispatcher::{Dispatcher, DispatcherError, Ladder};
use lull_measure::{Nanos, Percentile};
use serde::Serialize;

/// The cores, objective and demand that a dispatcher is built for.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The cores.
    pub ladder: &'a Ladder,
    /// The percentile whose tail must stay below the target.
    pub percentile: Percentile,
    /// The bound on that tail.
    pub target: Nanos,
    /// The work of sampled requests, as time on a core of speed 1. Dispatchers that need a
    /// profile refuse an empty one.
    pub profile: &'a [Nanos],
}

/// The properties that only dispatchers have.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DispatcherKind {
    /// The requirements of the dispatcher; empty if it has none.
    pub needs: &'static str,
}

/// Builds a dispatcher from its config for a site.
pub type MakeDispatcher =
    fn(&toml::Table, &Site<'_>) -> Result<Box<dyn Dispatcher>, DispatcherError>;

impl Kind for DispatcherKind {
    type Make = MakeDispatcher;

    const NOUN: &'static str = "dispatcher";

    fn family(&self) -> &'static str {
        "placement"
    }

    fn needs(&self) -> String {
        self.needs.to_owned()
    }
}

impl Entry<DispatcherKind> {
    /// Builds the dispatcher for a site.
    ///
    /// # Errors
    /// A config key at fault, cores or a profile that do not suit the dispatcher, or a target
    /// that even the fastest core misses.
    pub fn build(
        &self,
        config: &toml::Table,
        site: &Site<'_>,
    ) -> Result<Box<dyn Dispatcher>, DispatcherError> {
        (self.make)(config, site)
    }
}

impl Registry<DispatcherKind> {
    /// Builds a dispatcher by name; see [`Entry::build`].
    ///
    /// # Errors
    /// An unknown name, or those of [`Entry::build`].
    pub fn build(
        &self,
        name: &str,
        config: &toml::Table,
        site: &Site<'_>,
    ) -> Result<Box<dyn Dispatcher>, DispatcherError> {
        self.find(name)?.build(config, site)
    }
}

/// Refuses cores of fixed types.
fn must_scale(dispatcher: &'static str, site: &Site<'_>) -> Result<(), DispatcherError> {
    if site.ladder.scales() {
        return Ok(());
    }
    let wanted = "cores that each take every speed (per-core DVFS)";
    Err(DispatcherError::Cores { dispatcher, wanted, advice: "use eetl or tl on asymmetric cores" })
}

/// Refuses an index that is not a core type.
fn must_be_a_type(key: &str, kind: usize, ladder: &Ladder) -> Result<(), DispatcherError> {
    let types = ladder.types().len();
    if kind < types {
        return Ok(());
    }
    let message =
        format!("`{key}` is {kind}: types are numbered from 0, the slowest, to {}", types - 1);
    Err(config::wrong(key, message).into())
}

/// Refuses thresholds that do not rise.
fn ascending(key: &str, ages: &[Nanos]) -> Result<(), PolicyError> {
    if ages.is_sorted() {
        return Ok(());
    }
    Err(config::wrong(key, format!("`{key}` must rise from type to type")))
}

/// Refuses a number of thresholds that does not match the core types.
fn one_a_type(key: &str, ages: &[Nanos], ladder: &Ladder) -> Result<(), DispatcherError> {
    let steps = ladder.types().len() - 1;
    if ages.len() == steps {
        return Ok(());
    }
    let message = format!(
        "`{key}` has {} ages for {} core types: give {steps} threshold{}, from the second type on",
        ages.len(),
        steps + 1,
        if steps == 1 { "" } else { "s" }
    );
    Err(config::wrong(key, message).into())
}
