//! All policies: what they are, what they need, how to build one by name.
//!
//! `lull policies`, its JSON and docs/policies.md derive from this.

use crate::config::{self, Config, Key};
use crate::{
    Dip, adaptive_dvfs, arq, bayop, clite, co_pi, conservative, demeter, even, full_speed,
    heracles, lc_first, linux_default, ondemand, parties, performance, powersave, qos_wc, rr,
    satori, schedutil, static_setting, step_dvfs, tide, unmanaged,
};
use lull_control::{AppSpec, Capability, Machine, Policy, PolicyError, require};
use serde::Serialize;
use std::fmt::Write;

/// Every policy, one line each.
pub static ALL: &[&Entry] = &[
    &unmanaged::ENTRY,
    &even::ENTRY,
    &lc_first::ENTRY,
    &rr::ENTRY,
    &heracles::ENTRY,
    &parties::ENTRY,
    &clite::ENTRY,
    &satori::ENTRY,
    &arq::ENTRY,
    &tide::ENTRY,
    &qos_wc::ENTRY,
    &full_speed::ENTRY,
    &step_dvfs::ENTRY,
    &adaptive_dvfs::ENTRY,
    &performance::ENTRY,
    &powersave::ENTRY,
    &ondemand::ENTRY,
    &conservative::ENTRY,
    &schedutil::ENTRY,
    &demeter::ENTRY,
    &linux_default::ENTRY,
    &static_setting::ENTRY,
    &bayop::ENTRY,
    &co_pi::ENTRY,
];

/// What a policy steers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Cores, ways, bandwidth and priority of apps that share a machine.
    Colocation,
    /// Frequencies of domains.
    Frequency,
    /// Interrupt delay, frequency and other numbers, found by search.
    Tuning,
}

impl Family {
    /// All families, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Colocation, Self::Frequency, Self::Tuning];

    /// A heading for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Colocation => "Apps that share a machine",
            Self::Frequency => "Frequencies",
            Self::Tuning => "Interrupt delay, frequency and other numbers",
        }
    }
}

/// What the registry knows of a policy.
#[derive(Debug)]
pub struct Entry {
    /// Its name in config: lower case, words joined by `-`.
    pub name: &'static str,
    /// What it steers.
    pub family: Family,
    /// Where it comes from, with the section.
    pub paper: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// What it is nothing without.
    pub needs: &'static [Capability],
    /// What it uses as well where the machine has it, or if its config says so.
    pub uses: &'static [Capability],
    /// Its DIP class; `None` where the theory says nothing (frequency).
    pub dip: Option<Dip>,
    /// Its config.
    pub(crate) config: ConfigOf,
    /// Builds it once its needs are known to be met.
    pub(crate) make: Make,
}

/// Makes a policy from its config table, for this machine and these apps.
pub(crate) type Make =
    fn(&toml::Table, &Machine, &[AppSpec]) -> Result<Box<dyn Policy>, PolicyError>;

/// A config type without its type.
#[derive(Debug)]
pub(crate) struct ConfigOf {
    pub(crate) keys: &'static [Key],
    pub(crate) defaults: fn() -> toml::Table,
}

impl ConfigOf {
    /// That of this type.
    pub(crate) const fn of<C: Config>() -> Self {
        Self { keys: C::KEYS, defaults: config::defaults::<C> }
    }
}

/// An entry as data, for JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Description {
    /// [`Entry::name`].
    pub name: &'static str,
    /// [`Entry::family`].
    pub family: Family,
    /// [`Entry::paper`].
    pub paper: &'static str,
    /// [`Entry::summary`].
    pub summary: &'static str,
    /// [`Entry::needs`].
    pub needs: &'static [Capability],
    /// [`Entry::uses`].
    pub uses: &'static [Capability],
    /// [`Entry::dip`].
    pub dip: Option<Dip>,
    /// [`Entry::keys`].
    pub keys: &'static [Key],
    /// [`Entry::defaults`].
    pub defaults: toml::Table,
}

impl Entry {
    /// The keys of its config, with help.
    pub fn keys(&self) -> &'static [Key] {
        self.config.keys
    }

    /// Its config's defaults, as a user would write them.
    pub fn defaults(&self) -> toml::Table {
        (self.config.defaults)()
    }

    /// Builds the policy for a machine and its apps.
    ///
    /// `config` holds the keys of `[policy]` without `name`.
    ///
    /// # Errors
    /// A capability that is missing, a config key at fault, or apps that do
    /// not suit the policy.
    pub fn build(
        &self,
        config: &toml::Table,
        machine: &Machine,
        apps: &[AppSpec],
    ) -> Result<Box<dyn Policy>, PolicyError> {
        require(self.name, self.needs, machine)?;
        (self.make)(config, machine, apps)
    }

    /// All that is known of it, as data.
    pub fn describe(&self) -> Description {
        Description {
            name: self.name,
            family: self.family,
            paper: self.paper,
            summary: self.summary,
            needs: self.needs,
            uses: self.uses,
            dip: self.dip,
            keys: self.keys(),
            defaults: self.defaults(),
        }
    }
}

/// The policy of this name.
///
/// # Errors
/// [`PolicyError::Config`] at `name`, with the nearest name and all of them.
pub fn find(name: &str) -> Result<&'static Entry, PolicyError> {
    let names = || ALL.iter().map(|entry| entry.name).collect::<Vec<_>>();
    let found = ALL.iter().copied().find(|entry| entry.name == name);
    found.ok_or_else(|| unknown("policy", name, &names()))
}

/// Builds a policy by name; see [`Entry::build`].
///
/// # Errors
/// An unknown name, or what [`Entry::build`] answers.
pub fn build(
    name: &str,
    config: &toml::Table,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<Box<dyn Policy>, PolicyError> {
    find(name)?.build(config, machine, apps)
}

/// No `what` has this name: the nearest one, and all of them.
pub(crate) fn unknown(what: &str, name: &str, names: &[&str]) -> PolicyError {
    let likeness = |known: &str| strsim::jaro_winkler(known, &name.to_lowercase());
    let nearest = names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let hint = nearest.filter(|nearest| likeness(nearest) > 0.7);
    let hint = hint.map(|nearest| format!(" Did you mean `{nearest}`?")).unwrap_or_default();
    let message = format!("no {what} is called `{name}`.{hint} There are: {}", names.join(", "));
    config::wrong("name", message)
}

/// docs/policies.md: every policy with its paper, needs and config.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Policies\n\n\
         Generated from the registry by `cargo run -p lull-policies --example markdown`; \
         do not edit.\n\
         A policy is chosen by `[policy] name = \"...\"`; its keys stand beside the name.\n\n\
         Pictures are of the simulator, one scene for all of a kind \
         (`crates/lab/src/portrait`); `lull policies --figures docs/policies` draws them anew, \
         to the same bytes.\n",
    );
    for family in Family::ALL {
        let _ = write!(page, "\n## {}\n", family.title());
        for entry in ALL.iter().filter(|entry| entry.family == family) {
            page.push_str(&section(entry));
        }
    }
    page + &crate::dispatchers::markdown() + &crate::admission::markdown()
}

fn section(entry: &Entry) -> String {
    let list = |all: &[Capability]| match all {
        [] => "nothing".to_owned(),
        all => all.iter().map(|one| one.name()).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("\n### {}\n\n{}\n\n", entry.name, entry.summary);
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "- {what}: {value}");
    };
    line("From", entry.paper);
    line("Needs", &list(entry.needs));
    if !entry.uses.is_empty() {
        line("Uses where it can", &list(entry.uses));
    }
    if let Some(class) = entry.dip {
        line("DIP class", class.name());
    }
    text + &keys_table(entry.keys(), &entry.defaults()) + &picture(entry.name)
}

/// The picture of a policy at work, beside the page.
pub(crate) fn picture(name: &str) -> String {
    format!("\n![{name} at work](policies/{name}.svg)\n")
}

/// Keys with their defaults and what they mean; nothing where there are none.
pub(crate) fn keys_table(keys: &[Key], defaults: &toml::Table) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n| key | default | meaning |\n|---|---|---|\n");
    for key in keys {
        let default = defaults.get(key.name).map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | `{default}` | {} |", key.name, key.help.trim());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;
    use lull_measure::Missing;
    use std::collections::BTreeSet;

    /// A machine that has everything.
    fn machine() -> Machine {
        let mut machine = MemoryPlant::new(4, Vec::new()).machine().clone();
        for capability in Capability::ALL {
            machine.capabilities = machine.capabilities.with(capability, "test");
        }
        machine
    }

    fn message(error: &PolicyError) -> String {
        assert!(matches!(error, PolicyError::Config { key, .. } if key == "name"), "{error:?}");
        error.to_string()
    }

    #[test]
    fn names_are_unique_and_easy_to_type() {
        let names: BTreeSet<_> = ALL.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ALL.len());
        let easy = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(names.iter().all(|name| easy(name)), "{names:?}");
    }

    #[test]
    fn a_slip_is_answered_with_the_nearest_name_and_all_names() {
        let text = message(&find("ark").unwrap_err());
        assert!(text.contains("Did you mean `arq`?"), "{text}");
        assert!(ALL.iter().all(|entry| text.contains(entry.name)), "{text}");
        let text = message(&find("LC_First").unwrap_err());
        assert!(text.contains("Did you mean `lc-first`?"), "{text}");
        assert!(!message(&find("zzz").unwrap_err()).contains("Did you mean"));
    }

    #[test]
    fn every_policy_builds_from_its_own_defaults_and_refuses_strange_keys() {
        let machine = machine();
        for entry in ALL {
            let built = entry.build(&entry.defaults(), &machine, &[]);
            assert!(built.is_ok(), "{}: {:?}", entry.name, built.err());
            let strange = "no_such_key = 1".parse().unwrap();
            let refused = entry.build(&strange, &machine, &[]).err();
            let named = matches!(&refused,
                Some(PolicyError::Config { key, .. }) if key == "no_such_key");
            assert!(named, "{}: {refused:?}", entry.name);
        }
    }

    #[test]
    fn no_policy_runs_without_what_it_needs() {
        for entry in ALL {
            for need in entry.needs {
                let mut machine = machine();
                let gone = Missing::because("taken away");
                machine.capabilities = machine.capabilities.without(*need, gone.clone());
                let refused = entry.build(&toml::Table::new(), &machine, &[]).err();
                let lacks = PolicyError::Lacks { policy: entry.name, capability: *need, why: gone };
                assert_eq!(refused, Some(lacks));
            }
        }
    }

    #[test]
    fn every_key_is_documented_with_its_default() {
        for entry in ALL {
            let keys: Vec<_> = entry.keys().iter().map(|key| key.name).collect();
            let defaults = entry.defaults();
            assert_eq!(keys, defaults.keys().map(String::as_str).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_book_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policies.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(written, markdown(), "run the command in the first lines of docs/policies.md");
    }

    #[test]
    fn a_description_is_json() {
        let json = serde_json::to_value(find("arq").unwrap().describe()).unwrap();
        assert_eq!(json["defaults"]["period"], "500ms");
        assert_eq!(json["dip"], "D+I+P");
    }
}
