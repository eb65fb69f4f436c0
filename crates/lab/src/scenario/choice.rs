//! Which policies, replications and seed the caller selects.

use super::InvalidKey;
use crate::policy_source::{CustomPolicy, PolicySource};
use lull_control::{EpochRule, PolicyError};

/// Parts of a scenario that the command line or a program replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Labels of policies to compare, in order, or names in the registry; all
    /// of the file if empty.
    pub policies: Vec<String>,
    /// The number of replications.
    pub replications: Option<u64>,
    /// The seed.
    pub seed: Option<u64>,
    /// Policies of the caller, which [`Choice::policies`] may name; each comes before a label
    /// or a policy of the registry that has the same name.
    pub custom: Vec<CustomPolicy>,
}

/// What tables and errors say of one of the policies that a scenario compares.
pub(super) struct Described<'a> {
    /// Its label in tables.
    pub(super) label: &'a str,
    /// Its name in the registry.
    pub(super) name: &'a str,
    /// Its key in the file; `--policy` if it is only on the command line.
    pub(super) key: &'a str,
    /// How often it decides; `None` of what decides for each request.
    pub(super) epoch: Option<EpochRule>,
}

/// One of the policies that a scenario compares.
pub(super) trait Labelled: Clone {
    /// Describes it.
    fn described(&self) -> Described<'_>;

    /// Its label in tables.
    fn label(&self) -> &str {
        self.described().label
    }

    /// The path of one of its keys in the file, or the flag that names it.
    fn key_of(&self, key: &str) -> String {
        let own = self.described().key;
        if own.starts_with("--") || key.is_empty() {
            return own.to_owned();
        }
        format!("{own}.{key}")
    }

    /// The error of its config with the path of the key in the file.
    fn policy_error(&self, error: PolicyError) -> InvalidKey {
        match error {
            PolicyError::Config { key, message } => InvalidKey::at(self.key_of(&key), message),
            other => InvalidKey::at(self.key_of("name"), other.to_string()),
        }
    }
}

impl Choice {
    /// The policy with this name: one of the caller, or one of the registry.
    pub(super) fn source(&self, name: &str) -> Result<PolicySource, String> {
        match self.custom.iter().find(|custom| custom.name() == name) {
            Some(custom) => Ok(PolicySource::Custom(custom.clone())),
            None => PolicySource::registered(name).map_err(|error| error.to_string()),
        }
    }

    /// The policies to compare: those of the file, or those that the command line names;
    /// `make` builds the ones that the file does not have.
    pub(super) fn choose<V: Labelled>(
        &self,
        written: Vec<V>,
        make: impl Fn(&str) -> Result<V, String>,
    ) -> Result<Vec<V>, InvalidKey> {
        for (at, one) in written.iter().enumerate() {
            if written[..at].iter().any(|known| known.label() == one.label()) {
                let label = one.label();
                let message =
                    format!("two policies are called `{label}`: give each a label of its own");
                return Err(InvalidKey::at(format!("{}.label", one.described().key), message));
            }
        }
        if self.policies.is_empty() {
            return if written.is_empty() { Err(no_policy()) } else { Ok(written) };
        }
        let mut chosen: Vec<V> = Vec::new();
        for wanted in &self.policies {
            if chosen.iter().any(|known| known.label() == wanted) {
                return Err(InvalidKey::at("--policy", format!("`{wanted}` is given twice")));
            }
            let is_custom = self.custom.iter().any(|custom| custom.name() == wanted);
            let found = written.iter().find(|known| known.label() == wanted && !is_custom);
            let one = found.cloned().map_or_else(|| make(wanted), Ok);
            chosen.push(one.map_err(|message| unknown(message, &written))?);
        }
        Ok(chosen)
    }
}

fn no_policy() -> InvalidKey {
    let message = "there is none: write [[policy]] with name = \"unmanaged\" to watch the system \
                   as it is, or give --policy";
    InvalidKey::at("policy", message)
}

fn unknown<V: Labelled>(message: String, written: &[V]) -> InvalidKey {
    let labels: Vec<_> = written.iter().map(Labelled::label).collect();
    let of_file = format!("; of the file: {}", labels.join(", "));
    let of_file = if labels.is_empty() { String::new() } else { of_file };
    InvalidKey::at("--policy", message + &of_file)
}
