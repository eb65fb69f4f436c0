//! A changed config is taken over while the session runs.
//!
//! Both texts are compared key by key. Objectives, references and areas of apps, limits, the policy
//! and a few keys of the agent change in place. Apps and templates are added and removed, and those
//! that are found in another way leave and arrive. Everything else needs a restart and is refused,
//! and then nothing changes at all: what can fail is tried before the first change.

mod arrivals;
mod difference;
mod exchange;

use super::Session;
use super::open::checks::{check_kernel, check_pids};
use super::policy::{limits_error, policy_of, rebuild_of, shadow_of, shadow_policy};
use super::reference;
use crate::config::{AppSection, Config};
use crate::located::InputError;
use difference::Difference;
use exchange::{Exchange, RESTART};
use lull_control::journal::OperatorAct;
use lull_control::{AppId, AppSpec, Plant, Policy, Rules, numbered};
use lull_host::HostApp;
use toml::Table;

/// Keys of `[agent]` that a reload can change.
const OF_AGENT: [&str; 2] = ["importance", "silence"];

/// A config that was checked, and its consequences.
struct Prepared {
    /// Its apps are in the order of their ids.
    config: Config,
    specs: Vec<AppSpec>,
    /// The name of the policy that is followed from now on.
    followed: String,
    policy: Box<dyn Policy>,
    rules: Rules,
}

impl Session {
    /// Takes over the differences of another text of the config; returns the keys that differ, and
    /// the apps that were added and removed. All other parts keep their state and their knobs.
    ///
    /// # Errors
    /// If the text has a key that needs a restart, or describes something that cannot run here. The
    /// former config then stays in force.
    pub fn reload(&mut self, mut new: Config) -> Result<Vec<String>, InputError> {
        if let Some(own) = self.config.own.clone() {
            new.set_own(own);
        }
        new.pool.clone_from(&self.config.pool);
        let difference = Difference::between(&table_of(&self.config)?, &table_of(&new)?);
        if difference.is_empty() {
            return Ok(Vec::new());
        }
        self.refuse_restart(&new, &difference)?;
        let exchange = Exchange::plan(&self.config, self.apps(), &new, &difference)?;
        if !exchange.is_empty() && self.config.agent.spots.is_some() {
            let why = "keeps apps from being added and removed while the agent runs: restart it";
            return Err(new.source.error("agent.spots", why));
        }
        let prepared = self.prepare(&new, &exchange, &difference)?;
        let arriving = self.attach(&new, &exchange, &prepared.specs)?;
        let left = self.exchange_apps(&exchange, arriving);
        self.take_over(prepared, &exchange, &difference)?;
        let mut changed = difference.keys.clone();
        changed.extend(self.describe_exchange(&new, &exchange, &difference));
        changed.extend(left);
        changed.extend(self.report_apps(&exchange, &difference));
        self.control.note(OperatorAct::Reloaded { changed: changed.clone() });
        Ok(changed)
    }

    /// Refuses the first key outside of apps and templates that cannot change in a run.
    fn refuse_restart(&self, new: &Config, difference: &Difference) -> Result<(), InputError> {
        let has_store = self.config.agent.spots.is_some();
        let is_fixed = |key: &&String| match key.split_once('.') {
            Some(("limits", _)) => false,
            Some(("policy", _)) => has_store,
            Some(("agent", rest)) => !OF_AGENT.contains(&rest),
            Some((entry, _)) => !(entry.starts_with("app[") || entry.starts_with("match[")),
            None => true,
        };
        match difference.keys.iter().find(is_fixed) {
            None => Ok(()),
            Some(key) => Err(new.source.error(key, RESTART)),
        }
    }

    /// Checks a config against machine and kernel, and builds its policy; changes nothing.
    fn prepare(
        &self,
        new: &Config,
        exchange: &Exchange,
        difference: &Difference,
    ) -> Result<Prepared, InputError> {
        let machine = self.plant().machine();
        let mut specs = exchange.specs(&self.config, new, self.apps());
        if let Some(discovered) = &self.discovered {
            discovered.respecify(&mut specs);
        }
        let followed = match difference.concerns("policy") {
            true => new.policy.clone(),
            false => self.steered.policy().to_owned(),
        };
        // Keys of apps are numbered as in the text only here.
        new.under(&followed).check_latency_detail()?;
        // The agent must be able to start with this text again: with the text's own policy, also
        // if another one is followed, and without references that were measured in this run.
        reference::check(new)?;
        policy_of(new, machine, &new.specs())?;
        let config = exchange.arrange(&self.config, new);
        let policy = policy_of(&config.under(&followed), machine, &specs)?;
        if let Some(name) = &config.agent.shadow {
            shadow_policy(&config, name, machine, &specs)?;
        }
        let rules = config.rules(self.dry_run);
        rules.limits.check(machine).map_err(|error| limits_error(&config, &error))?;
        new.check_area_cores(machine)?;
        let arrives = |app: &AppSection| {
            exchange.arriving.iter().any(|(_, index)| new.apps[*index].name == app.name)
        };
        check_pids(new, &self.roots)?;
        check_kernel(new, &self.roots, &arrives)?;
        Ok(Prepared { config, specs, followed, policy, rules })
    }

    /// Lets apps leave and arrive; returns what could not be restored.
    fn exchange_apps(
        &mut self,
        exchange: &Exchange,
        arriving: Vec<(AppId, HostApp)>,
    ) -> Vec<String> {
        if exchange.is_empty() {
            return Vec::new();
        }
        for app in &exchange.leaving {
            // An app that is added later is another program, even under the same name.
            self.totals.forget(&self.config.apps[app.index()].name);
        }
        let failed = self.control.plant_mut().exchange_apps(&exchange.leaving, arriving);
        let text = |(app, why): (AppId, String)| {
            format!("app `{}` is not as before: {why}", self.config.apps[app.index()].name)
        };
        failed.into_iter().map(text).collect()
    }

    /// Continues with a config that was checked, the plant's apps being its own.
    fn take_over(
        &mut self,
        prepared: Prepared,
        exchange: &Exchange,
        difference: &Difference,
    ) -> Result<(), InputError> {
        let Prepared { config, specs, followed, policy, rules } = prepared;
        exchange.changed().into_iter().for_each(|app| self.references.forget(app));
        for (app, spec) in numbered(&specs) {
            let mut is_other = false;
            self.control.plant_mut().update_spec(app, |now| {
                is_other = *now != *spec;
                now.clone_from(spec);
            });
            if is_other {
                // Former results of the app may belong to other objectives.
                self.references.forget(app);
            }
        }
        let adapted = self.control.reconfigure(rules.clone(), &specs);
        self.config = config;
        self.areas.reload(&self.config);
        if difference.concerns("policy") {
            self.switch(&followed, policy);
            self.pace_by(&followed);
        } else if !adapted
            || difference.concerns("limits.cores")
            || difference.concerns("limits.frequency")
        {
            self.control.replace_policy(policy);
        }
        self.control.exchange_apps(&exchange.changed());
        let rebuild = rebuild_of(&self.config.under(&followed), self.plant().machine());
        self.control.set_rebuild(rebuild);
        if self.shadow.is_some() {
            self.shadow = shadow_of(&self.config, &rules, self.plant())?;
        }
        Ok(())
    }

    /// Passes on which apps there are: to the front end, the record and the page. Returns what
    /// failed, which changes nothing else.
    fn report_apps(&mut self, exchange: &Exchange, difference: &Difference) -> Vec<String> {
        let mut failed = Vec::new();
        let specs = self.apps().to_vec();
        if !exchange.is_empty() {
            let names = specs.iter().map(|spec| spec.name.clone()).collect();
            self.pod_apps.frontend().set_apps(names);
            let added = exchange.arriving.iter();
            let added = added.map(|(app, _)| (*app, specs[app.index()].clone()));
            let added: Vec<(AppId, AppSpec)> = added.collect();
            failed.extend(self.recorder.describe_added(&added).err().map(|it| it.to_string()));
        }
        let has_changed =
            !exchange.is_empty() || difference.concerns("app[") || difference.concerns("match[");
        if has_changed {
            failed.extend(self.update_facts().err());
        }
        failed
    }

    /// Describes which apps and templates were added and removed.
    fn describe_exchange(
        &self,
        new: &Config,
        exchange: &Exchange,
        difference: &Difference,
    ) -> Vec<String> {
        let is_present = |key: &str| {
            let mut arriving = exchange.arriving.iter();
            arriving.any(|(app, index)| {
                new.apps[*index].entry(*index) == key && self.plant().is_present(*app)
            })
        };
        let added = difference.added.iter().map(|entry| {
            let waits = if is_present(&entry.key) { "" } else { ", which has no process yet" };
            format!("{} added{waits}", entry.title)
        });
        let removed = difference.removed.iter().map(|entry| format!("{} removed", entry.title));
        added.chain(removed).collect()
    }
}

fn table_of(config: &Config) -> Result<Table, InputError> {
    config.source.parse()
}
