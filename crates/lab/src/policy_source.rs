//! Where a simulation takes a policy from: the registry, or the caller.

use lull_control::{AppSpec, Machine, Policy, PolicyError};
use lull_measure::Nanos;
use lull_policies::POLICIES;
use std::fmt;
use std::sync::Arc;

/// Builds a policy for a machine and its apps.
type Build =
    dyn Fn(&Machine, &[AppSpec]) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static;

/// A policy that is not in the registry.
///
/// It is built once for each server that it steers in each replication, and once more when the
/// scenario is checked. Two of them are equal only if one is a clone of the other.
#[derive(Clone)]
pub struct CustomPolicy {
    name: String,
    build: Arc<Build>,
}

/// A policy by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// A policy of the registry.
    Registered(String),
    /// A policy of the caller.
    Custom(CustomPolicy),
}

impl CustomPolicy {
    /// Names a policy and how it is built.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(&Machine, &[AppSpec]) -> Result<Box<dyn Policy>, PolicyError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { name: name.into(), build: Arc::new(build) }
    }

    /// Its name, which is also its label in results.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds the policy for a machine and its apps.
    ///
    /// # Errors
    /// The error of the caller's function.
    pub fn build(
        &self,
        machine: &Machine,
        apps: &[AppSpec],
    ) -> Result<Box<dyn Policy>, PolicyError> {
        (self.build)(machine, apps)
    }
}

impl PolicySource {
    /// The policy of the registry with this name.
    ///
    /// # Errors
    /// If there is none, with the nearest name and all names.
    pub fn registered(name: &str) -> Result<Self, PolicyError> {
        POLICIES.find(name).map(|entry| Self::Registered(entry.name.to_owned()))
    }

    /// The name of the policy.
    pub fn name(&self) -> &str {
        match self {
            Self::Registered(name) => name,
            Self::Custom(custom) => &custom.name,
        }
    }

    /// How often it decides under this config unless the user chooses it; a policy of the
    /// caller has no epoch of its own.
    pub fn natural_epoch(&self, config: &toml::Table) -> Option<Nanos> {
        match self {
            Self::Registered(name) => {
                POLICIES.find(name).ok().map(|entry| entry.natural_epoch(config))
            }
            Self::Custom(_) => None,
        }
    }

    /// Builds the policy; one of the caller has no config.
    ///
    /// # Errors
    /// A missing capability, a config key at fault, or apps that do not suit the policy.
    pub fn build(
        &self,
        config: &toml::Table,
        machine: &Machine,
        apps: &[AppSpec],
    ) -> Result<Box<dyn Policy>, PolicyError> {
        match self {
            Self::Registered(name) => POLICIES.build(name, config, machine, apps),
            Self::Custom(custom) => custom.build(machine, apps),
        }
    }
}

impl PartialEq for CustomPolicy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.build, &other.build)
    }
}

impl Eq for CustomPolicy {}

impl fmt::Debug for CustomPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomPolicy").field(&self.name).finish()
    }
}
