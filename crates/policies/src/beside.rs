//! What the registries beside that of the policies share: dispatchers and
//! admission controllers differ only in what an entry makes.

use crate::config::{self, Key};
use crate::registry::{ConfigOf, keys_table, picture, unknown};
use lull_control::PolicyError;
use serde::Serialize;
use std::fmt::Write;

/// What a registry knows of one entry; `M` makes it.
#[derive(Debug)]
pub struct Entry<M> {
    /// Its name in config.
    pub name: &'static str,
    /// Where it comes from, with the section.
    pub paper: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// What it needs, in words; empty if nothing.
    pub needs: &'static str,
    pub(crate) config: ConfigOf,
    pub(crate) make: M,
}

/// What a registry's entries are called.
pub trait Kind {
    /// Tells them from policies in one list.
    const FAMILY: &'static str;
    /// One of them, for people.
    const WHAT: &'static str;
}

/// An entry as data, for JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Description {
    /// [`Entry::name`].
    pub name: &'static str,
    /// [`Kind::FAMILY`].
    pub family: &'static str,
    /// [`Entry::paper`].
    pub paper: &'static str,
    /// [`Entry::summary`].
    pub summary: &'static str,
    /// [`Entry::needs`].
    pub needs: &'static str,
    /// [`Entry::keys`].
    pub keys: &'static [Key],
    /// [`Entry::defaults`].
    pub defaults: toml::Table,
}

impl<M> Entry<M> {
    /// The keys of its config, with help.
    pub fn keys(&self) -> &'static [Key] {
        self.config.keys
    }

    /// Its config's defaults, as a user would write them.
    pub fn defaults(&self) -> toml::Table {
        (self.config.defaults)()
    }
}

impl<M: Kind> Entry<M> {
    /// All that is known of it, as data.
    pub fn describe(&self) -> Description {
        Description {
            name: self.name,
            family: M::FAMILY,
            paper: self.paper,
            summary: self.summary,
            needs: self.needs,
            keys: self.keys(),
            defaults: self.defaults(),
        }
    }
}

/// The entry of this name.
///
/// # Errors
/// [`PolicyError::Config`] at `name`, with the nearest name and all of them.
pub(crate) fn find<M: Kind>(
    all: &[&'static Entry<M>],
    name: &str,
) -> Result<&'static Entry<M>, PolicyError> {
    let names = || all.iter().map(|entry| entry.name).collect::<Vec<_>>();
    let found = all.iter().copied().find(|entry| entry.name == name);
    found.ok_or_else(|| unknown(M::WHAT, name, &names()))
}

/// The part of docs/policies.md about them.
pub(crate) fn markdown<M>(title: &str, about: &str, all: &[&Entry<M>]) -> String {
    let mut page = format!("\n## {title}\n\n{about}\n");
    for entry in all {
        let (name, summary, paper) = (entry.name, entry.summary, entry.paper);
        let _ = writeln!(page, "\n### {name}\n\n{summary}\n\n- From: {paper}");
        let needs = if entry.needs.is_empty() { "nothing" } else { entry.needs };
        let _ = writeln!(page, "- Needs: {needs}");
        page.push_str(&keys_table(entry.keys(), &entry.defaults()));
        page.push_str(&picture(name));
    }
    page
}

/// Refuses a number that is not from `low` to `high`.
///
/// # Errors
/// [`PolicyError::Config`] at `key`.
pub(crate) fn within(key: &str, value: f64, (low, high): (f64, f64)) -> Result<(), PolicyError> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(config::wrong(key, format!("`{key}` is {value}: write a number from {low} to {high}")))
}
