//! The differences between two texts of a config.

use toml::{Table, Value};

/// The parts of a text that a former one lacks. Entries of sections are numbered as in the text
/// that has them; those of [`NAMED`] sections are the same if their names are, in any order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// The keys that differ, as `policy.period` and `app[1].objectives`.
    pub(super) keys: Vec<String>,
    /// Apps and templates that the former text does not have.
    pub(super) added: Vec<NamedEntry>,
    /// Apps and templates that only the former text has.
    pub(super) removed: Vec<NamedEntry>,
}

/// An `[[app]]` or a `[[match]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedEntry {
    /// Its place in its text, as `app[1]`.
    pub(super) key: String,
    /// Its title in messages.
    pub(super) title: String,
}

/// Sections whose entries have unique names, and what an entry is.
const NAMED: [(&str, &str); 2] = [("app", "app"), ("match", "template")];

impl Difference {
    /// Compares two texts.
    pub(super) fn between(former: &Table, new: &Table) -> Self {
        let mut sections: Vec<&String> = former.keys().chain(new.keys()).collect();
        sections.sort_unstable();
        sections.dedup();
        let empty = Value::Table(Table::new());
        let none = Value::Array(Vec::new());
        let mut all = Self::default();
        for section in sections {
            let there = former.get(section).or(new.get(section));
            let absent = if there.is_some_and(Value::is_array) { &none } else { &empty };
            let a = former.get(section).unwrap_or(absent);
            let b = new.get(section).unwrap_or(absent);
            let kind = NAMED.iter().find(|(name, _)| name == section);
            match (kind, a.as_array(), b.as_array()) {
                (Some((_, kind)), Some(a), Some(b)) => {
                    all.compare_named(section.as_str(), kind, a, b);
                }
                _ => all.keys.extend(in_section(section, a, b)),
            }
        }
        all
    }

    /// Whether the texts say the same.
    pub(super) const fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.added.is_empty() && self.removed.is_empty()
    }

    /// Whether a section, or one key of it, differs.
    pub(super) fn concerns(&self, what: &str) -> bool {
        self.keys.iter().any(|key| key.starts_with(what))
    }

    /// Whether an entry of the new text is not in the former one.
    pub(super) fn has_added(&self, key: &str) -> bool {
        self.added.iter().any(|entry| entry.key == key)
    }

    fn compare_named(&mut self, section: &str, kind: &str, former: &[Value], new: &[Value]) {
        let entry = |index: usize, value: &Value| NamedEntry {
            key: format!("{section}[{index}]"),
            title: format!("{kind} `{}`", name(value).unwrap_or_default()),
        };
        let find =
            |all: &[Value], one: &Value| all.iter().position(|other| name(other) == name(one));
        for (index, value) in new.iter().enumerate() {
            match find(former, value) {
                Some(before) => {
                    let key = format!("{section}[{index}]");
                    self.keys.extend(in_section(&key, &former[before], value));
                }
                None => self.added.push(entry(index, value)),
            }
        }
        let all = former.iter().enumerate();
        let gone = all.filter(|(_, value)| find(new, value).is_none());
        self.removed.extend(gone.map(|(index, value)| entry(index, value)));
    }
}

fn name(entry: &Value) -> Option<&str> {
    entry.get("name")?.as_str()
}

/// The keys that differ in a section, or the section if its entries cannot be compared.
fn in_section(section: &str, old: &Value, new: &Value) -> Vec<String> {
    match (old, new) {
        (Value::Table(old), Value::Table(new)) => keys_that_differ(section, old, new),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let each = old.iter().zip(new).enumerate();
            let differing = |(index, (old, new)): (usize, (&Value, &Value))| {
                in_section(&format!("{section}[{index}]"), old, new)
            };
            each.flat_map(differing).collect()
        }
        _ if old == new => Vec::new(),
        _ => vec![section.to_owned()],
    }
}

fn keys_that_differ(section: &str, old: &Table, new: &Table) -> Vec<String> {
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &&&String| old.get(**key) != new.get(**key);
    keys.iter().filter(differs).map(|key| format!("{section}.{key}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(former: &str, new: &str) -> Difference {
        Difference::between(&former.parse().unwrap(), &new.parse().unwrap())
    }

    /// The keys that differ where no entry is added or removed.
    fn keys(former: &str, new: &str) -> Vec<String> {
        let Difference { keys, added, removed } = between(former, new);
        assert_eq!((added, removed), (Vec::new(), Vec::new()));
        keys
    }

    fn titles(entries: &[NamedEntry]) -> Vec<(&str, &str)> {
        entries.iter().map(|entry| (entry.key.as_str(), entry.title.as_str())).collect()
    }

    const OLD: &str =
        "[policy]\nname = \"arq\"\n[[app]]\nname = \"a\"\nthreads = 1\n[[app]]\nname = \"b\"\n";

    #[test]
    fn what_differs_is_named_by_key_and_entry() {
        assert_eq!(keys(OLD, OLD), [""; 0]);
        assert_eq!(keys(OLD, &OLD.replace("threads = 1", "threads = 2")), ["app[0].threads"]);
        let new = format!("{OLD}max_load = 3.0\n[limits]\ncores = \"0\"\n");
        assert_eq!(keys(OLD, &new), ["app[1].max_load", "limits.cores"]);
        assert_eq!(keys(&new, OLD), ["app[1].max_load", "limits.cores"]);
        assert_eq!(keys(OLD, &OLD.replace("arq", "tide")), ["policy.name"]);
        assert_eq!(keys(OLD, &format!("{OLD}[[load]]\napp = \"a\"\n")), ["load"]);
    }

    #[test]
    fn apps_and_templates_that_are_added_removed_or_renamed_are_entries() {
        let new = OLD.replace("\"b\"", "\"c\"") + "[[match]]\nname = \"w\"\n";
        let difference = between(OLD, &new);
        assert!(difference.keys.is_empty() && !difference.is_empty());
        let added = [("app[1]", "app `c`"), ("match[0]", "template `w`")];
        assert_eq!(titles(&difference.added), added);
        assert_eq!(titles(&difference.removed), [("app[1]", "app `b`")]);
        assert!(difference.has_added("match[0]") && !difference.has_added("app[0]"));
        let back = between(&new, OLD);
        assert_eq!(titles(&back.removed), added);
    }

    #[test]
    fn entries_in_another_order_are_the_same_and_have_their_new_numbers() {
        let new = "[policy]\nname = \"arq\"\n[[app]]\nname = \"b\"\n[[app]]\nname = \"a\"\n\
                   threads = 2\n";
        assert_eq!(keys(OLD, new), ["app[1].threads"]);
        assert_eq!(keys(OLD, &new.replace('2', "1")), [""; 0]);
    }
}
