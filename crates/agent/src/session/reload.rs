//! A changed config is taken over while the session runs.
//!
//! Both texts are compared key by key. Objectives and references of apps, limits, the policy
//! and a few keys of the agent can change; everything else needs a restart and is refused, and
//! then nothing changes at all.

use super::Session;
use super::policy::{limits_error, policy_of, rebuild_of, shadow_of};
use crate::config::{AppSection, Config};
use crate::located::InputError;
use lull_control::journal::OperatorAct;
use lull_control::{AppSpec, LatencyOf, Plant, numbered};
use toml::{Table, Value};

/// Keys of `[agent]` that can change.
const OF_AGENT: [&str; 2] = ["importance", "silence"];
/// Keys of `[[app]]` that can change.
const OF_APP: [&str; 5] = ["ideal", "max_load", "objectives", "solo", "threads"];

impl Session {
    /// Takes over what differs in another text of the config; returns the keys that differ.
    /// What they do not concern keeps its state and its knobs.
    ///
    /// # Errors
    /// If the text has a key that needs a restart, or describes what cannot run here. The former
    /// config then stays in force.
    pub fn reload(&mut self, mut new: Config) -> Result<Vec<String>, InputError> {
        if let Some(own) = self.config.own.clone() {
            new.set_own(own);
        }
        let changed = differences(&table_of(&self.config)?, &table_of(&new)?);
        if changed.is_empty() {
            return Ok(changed);
        }
        self.refuse_restart(&new, &changed)?;
        let specs = self.respecified(&new);
        let machine = self.plant().machine().clone();
        let policy = policy_of(&new, &machine, &specs)?;
        let rules = new.rules(self.dry_run);
        rules.limits.check(&machine).map_err(|error| limits_error(&new, &error))?;
        let concerns = |what: &str| changed.iter().any(|key| key.starts_with(what));
        for (app, spec) in numbered(&specs) {
            self.control.plant_mut().update_spec(app, |now| now.clone_from(spec));
        }
        let adapted = self.control.reconfigure(rules.clone(), &specs);
        self.config = new;
        if self.shadow.is_some() {
            self.shadow = shadow_of(&self.config, &rules, self.plant())?;
        }
        if concerns("policy") {
            let name = self.config.policy.clone();
            self.switch(&name, policy);
            self.pace_by(&name);
        } else if !adapted || concerns("limits.cores") {
            self.control.replace_policy(policy);
        }
        self.control.set_rebuild(rebuild_of(&self.config, &machine));
        self.control.note(OperatorAct::Reloaded { changed: changed.clone() });
        Ok(changed)
    }

    /// Refuses the first key that cannot change in a run.
    fn refuse_restart(&self, new: &Config, changed: &[String]) -> Result<(), InputError> {
        let has_store = self.config.agent.spots.is_some();
        let is_fixed = |key: &&String| match key.split_once('.') {
            Some(("limits", _)) => false,
            Some(("policy", _)) => has_store,
            Some(("agent", rest)) => !OF_AGENT.contains(&rest),
            Some((app, rest)) => {
                let index = app.strip_prefix("app[").and_then(|rest| rest.strip_suffix(']'));
                let section = index.and_then(|index| new.apps.get(index.parse::<usize>().ok()?));
                section.is_none_or(|app| {
                    let before = self.config.apps.iter().find(|before| before.name == app.name);
                    let has_moved =
                        before.is_some_and(|before| source_of(before) != source_of(app));
                    has_moved || app.controller().is_some() || !OF_APP.contains(&rest)
                })
            }
            None => true,
        };
        match changed.iter().find(is_fixed) {
            None => Ok(()),
            Some(key) => {
                let why = "cannot change while the agent runs: restart it to take it over";
                Err(new.source.error(key, why))
            }
        }
    }

    /// The apps of the new config, with the references that this session has measured.
    fn respecified(&self, new: &Config) -> Vec<AppSpec> {
        let with_measured = |(spec, now): (AppSpec, &AppSpec)| AppSpec {
            ideal: spec.ideal.or(now.ideal),
            solo_per_s: spec.solo_per_s.or(now.solo_per_s),
            ..spec
        };
        let mut specs: Vec<AppSpec> =
            new.specs().into_iter().zip(self.apps()).map(with_measured).collect();
        if let Some(discovered) = &self.discovered {
            discovered.respecify(&mut specs);
        }
        specs
    }
}

/// What the latency of an app is measured of, which is fixed for a run.
fn source_of(app: &AppSection) -> LatencyOf {
    app.latency_of().unwrap_or(LatencyOf::Requests)
}

fn table_of(config: &Config) -> Result<Table, InputError> {
    config.source.parse()
}

/// The keys that differ, as `policy.period` and `app[1].objectives`; `app` if apps were added,
/// removed or renamed.
fn differences(old: &Table, new: &Table) -> Vec<String> {
    let mut sections: Vec<&String> = old.keys().chain(new.keys()).collect();
    sections.sort_unstable();
    sections.dedup();
    let empty = Value::Table(Table::new());
    let none = Value::Array(Vec::new());
    let of = |section: &&String| {
        let absent = if old.get(*section).or(new.get(*section)).is_some_and(Value::is_array) {
            &none
        } else {
            &empty
        };
        let (a, b) = (old.get(*section).unwrap_or(absent), new.get(*section).unwrap_or(absent));
        in_section(section, a, b)
    };
    sections.iter().flat_map(of).collect()
}

fn in_section(section: &str, old: &Value, new: &Value) -> Vec<String> {
    match (old, new) {
        (Value::Table(old), Value::Table(new)) => keys_that_differ(section, old, new),
        (Value::Array(old), Value::Array(new)) if names(old) == names(new) => {
            let each = old.iter().zip(new).enumerate();
            let of = |(index, (old, new)): (usize, (&Value, &Value))| {
                in_section(&format!("{section}[{index}]"), old, new)
            };
            each.flat_map(of).collect()
        }
        _ if old == new => Vec::new(),
        _ => vec![section.to_owned()],
    }
}

fn names(entries: &[Value]) -> Vec<Option<&Value>> {
    entries.iter().map(|entry| entry.get("name")).collect()
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

    fn between(old: &str, new: &str) -> Vec<String> {
        differences(&old.parse().unwrap(), &new.parse().unwrap())
    }

    #[test]
    fn what_differs_is_named_by_key_and_entry() {
        let old =
            "[policy]\nname = \"arq\"\n[[app]]\nname = \"a\"\nthreads = 1\n[[app]]\nname = \"b\"\n";
        assert_eq!(between(old, old), [""; 0]);
        let new = old.replace("threads = 1", "threads = 2");
        assert_eq!(between(old, &new), ["app[0].threads"]);
        let new = format!("{old}max_load = 3.0\n[limits]\ncores = \"0\"\n");
        assert_eq!(between(old, &new), ["app[1].max_load", "limits.cores"]);
        assert_eq!(between(&new, old), ["app[1].max_load", "limits.cores"]);
        let new = old.replace("arq", "tide");
        assert_eq!(between(old, &new), ["policy.name"]);
    }

    #[test]
    fn entries_that_come_go_or_are_renamed_are_named_together() {
        let old = "[[app]]\nname = \"a\"\n";
        assert_eq!(between(old, "[[app]]\nname = \"c\"\n"), ["app"]);
        assert_eq!(between(old, &format!("{old}[[app]]\nname = \"b\"\n")), ["app"]);
        assert_eq!(between(old, &format!("{old}[[load]]\napp = \"a\"\n")), ["load"]);
    }
}
