//! All dispatchers: who decides on which core speed a request runs.
//!
//! A dispatcher stands beside the requests as a policy stands beside the machine
//! (see [`lull_control::dispatcher`]); one file each, registered here. `lull
//! policies` lists both.

mod clairvoyant;
mod ee;
mod eetl;
mod just_in_time;
mod level;
mod octopus_man;
mod pegasus;
mod rubik;
mod s2f;
mod tl;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::beside::Kind;
use crate::config;
use lull_control::PolicyError;
use lull_control::dispatcher::{Dispatcher, DispatcherError, Ladder};
use lull_measure::{Nanos, Percentile};

/// Every dispatcher, one line each.
pub static ALL: &[&Entry] = &[
    &eetl::ENTRY,
    &just_in_time::ENTRY,
    &s2f::ENTRY,
    &tl::ENTRY,
    &ee::ENTRY,
    &level::ENTRY,
    &pegasus::ENTRY,
    &rubik::ENTRY,
    &octopus_man::ENTRY,
    &clairvoyant::ENTRY,
];

/// Where a dispatcher is to work.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The cores.
    pub ladder: &'a Ladder,
    /// Which tail is to be kept.
    pub percentile: Percentile,
    /// Under which bound.
    pub target: Nanos,
    /// Work of many requests as time on a core of speed 1; may be empty, which
    /// dispatchers that need it refuse.
    pub profile: &'a [Nanos],
}

/// What the registry knows of a dispatcher.
pub type Entry = crate::beside::Entry<Make>;

/// Makes a dispatcher from its config for a site.
pub type Make = fn(&toml::Table, &Site<'_>) -> Result<Box<dyn Dispatcher>, DispatcherError>;

impl Kind for Make {
    const FAMILY: &'static str = "placement";
    const WHAT: &'static str = "dispatcher";
}

impl Entry {
    /// Builds the dispatcher for a site.
    ///
    /// # Errors
    /// A config key at fault, cores or a profile that do not suit, or a target
    /// that the fastest core misses.
    pub fn build(
        &self,
        config: &toml::Table,
        site: &Site<'_>,
    ) -> Result<Box<dyn Dispatcher>, DispatcherError> {
        (self.make)(config, site)
    }
}

/// The dispatcher of this name.
///
/// # Errors
/// [`DispatcherError::Config`] at `name`, with the nearest name and all of them.
pub fn find(name: &str) -> Result<&'static Entry, DispatcherError> {
    Ok(crate::beside::find(ALL, name)?)
}

/// Builds a dispatcher by name; see [`Entry::build`].
///
/// # Errors
/// An unknown name, or what [`Entry::build`] answers.
pub fn build(
    name: &str,
    config: &toml::Table,
    site: &Site<'_>,
) -> Result<Box<dyn Dispatcher>, DispatcherError> {
    find(name)?.build(config, site)
}

/// Refuses cores of fixed types.
fn must_scale(dispatcher: &'static str, site: &Site<'_>) -> Result<(), DispatcherError> {
    if site.ladder.scales() {
        return Ok(());
    }
    let wanted = "cores that each take every speed (per-core DVFS)";
    Err(DispatcherError::Cores { dispatcher, wanted, advice: "use eetl or tl on asymmetric cores" })
}

/// Refuses types that are no index.
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

/// Refuses thresholds that do not go with the types.
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

/// The part of docs/policies.md about dispatchers.
pub(crate) fn markdown() -> String {
    let about = "Dispatchers decide for single requests, beside the policy of the machine; their keys \
                 stand under `[dispatcher]`.";
    crate::beside::markdown("Where each request runs", about, ALL)
}
