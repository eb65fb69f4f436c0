//! The agent's config file.
//!
//! [`Config::load`] reads and checks it; what it returns can be run. Every
//! refusal names file, line and key.

mod gate;
mod schema;

pub(crate) use gate::GateSection;
pub(crate) use schema::{
    AgentSection, AppSection, LatencySource, LoadSection, MeasureWord, PowerSection,
    ProgressSource, Reference, Where,
};

use crate::located::{InputError, Located};
use lull_control::{AppSpec, Limits};
use lull_measure::Nanos;
use schema::File;
use std::collections::BTreeSet;
use std::path::Path;

/// Shortest stretch of time that a record can be bounded to.
const KEEP_MIN: Nanos = Nanos::from_secs(10);

/// A checked config.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The text it came from, for records and for later errors.
    pub(crate) source: Located,
    /// `[agent]`.
    pub(crate) agent: AgentSection,
    /// `[limits]`.
    pub(crate) limits: Limits,
    /// `[power]`.
    pub(crate) power: PowerSection,
    /// `policy.name`.
    pub(crate) policy: String,
    /// The other keys of `[policy]`.
    pub(crate) policy_keys: toml::Table,
    /// `[[app]]`, in order.
    pub(crate) apps: Vec<AppSection>,
    /// `[[load]]`, in order.
    pub(crate) loads: Vec<LoadSection>,
}

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(path: &Path) -> Result<Self, InputError> {
        Self::from_located(Located::read(path)?)
    }

    /// Checks a text that was read already.
    pub(crate) fn from_located(source: Located) -> Result<Self, InputError> {
        let File { agent, limits, power, mut policy, app, load } = source.parse()?;
        let name = match policy.remove("name") {
            Some(toml::Value::String(name)) => name,
            Some(_) => return Err(source.error("policy.name", "must be a text: name = \"arq\"")),
            None => return Err(source.error("policy", "has no name: write name = \"arq\"")),
        };
        let config = Self {
            source,
            agent,
            limits,
            power,
            policy: name,
            policy_keys: policy,
            apps: app,
            loads: load,
        };
        config.check()?;
        Ok(config)
    }

    /// The apps as policies know them; measured references are still open.
    pub(crate) fn specs(&self) -> Vec<AppSpec> {
        self.apps.iter().map(AppSection::spec).collect()
    }

    /// The config under another policy, whose keys stay only if they are its own.
    pub(crate) fn under(&self, policy: &str) -> Self {
        let mut other = self.clone();
        if policy != self.policy {
            other.policy_keys.clear();
        }
        other.policy = policy.to_owned();
        other
    }

    fn check(&self) -> Result<(), InputError> {
        if self.apps.is_empty() {
            return Err(self.source.error("", "has no [[app]]: name at least one app"));
        }
        if self.agent.epoch.0 < 10_000_000 {
            return Err(self.source.error("agent.epoch", "is below 10ms, too short to measure in"));
        }
        if self.agent.keep.is_some_and(|keep| keep < KEEP_MIN) {
            let message = format!("is below {KEEP_MIN}: leave it out to keep all");
            return Err(self.source.error("agent.keep", message));
        }
        let is_odd = |name: &&String| !crate::live::is_hostname(name);
        if let Some(name) = self.agent.http_names.iter().find(is_odd) {
            let message = format!("`{name}` is no name of a host: write it without port");
            return Err(self.source.error("agent.http_names", message));
        }
        if self.agent.control && self.agent.http.is_none() {
            let message = "needs http, over which orders come: write http = \"127.0.0.1:7077\"";
            return Err(self.source.error("agent.control", message));
        }
        if let Err(error) = self.agent.epoch_rule().check() {
            return Err(self.source.error("agent.adaptive_epoch", error.to_string()));
        }
        let mut names = BTreeSet::new();
        for (index, app) in self.apps.iter().enumerate() {
            let at = |key: &str| format!("app[{index}].{key}");
            if !names.insert(&app.name) {
                let message = format!("two apps are called `{}`: give each its own name", app.name);
                return Err(self.source.error(&at("name"), message));
            }
            self.check_app(app, &at)?;
        }
        for (index, load) in self.loads.iter().enumerate() {
            let key = format!("load[{index}].app");
            if !names.contains(&load.app) {
                let message = format!("there is no app called `{}`", load.app);
                return Err(self.source.error(&key, message));
            }
        }
        Ok(())
    }

    fn check_app(&self, app: &AppSection, at: &dyn Fn(&str) -> String) -> Result<(), InputError> {
        let fail = |key: &str, message: String| Err(self.source.error(&at(key), message));
        // The name is also that of the file of its output.
        let is_odd = |letter: char| letter.is_whitespace() || letter == '/';
        if app.name.is_empty() || app.name.contains(is_odd) {
            return fail("name", "must be a word without blanks and slashes".to_owned());
        }
        if let Err(message) = app.place() {
            return fail("name", message);
        }
        if app.start.as_ref().is_some_and(Vec::is_empty) {
            return fail("start", "is empty: write start = [\"program\", \"argument\"]".to_owned());
        }
        if app.latency == LatencySource::Preload && app.start.is_none() {
            let message = "`preload` needs `start`: a library is only loaded when a program starts";
            return fail("latency", message.to_owned());
        }
        if let Some(gate) = &app.gate {
            if app.latency != LatencySource::Preload {
                return fail("gate", "needs latency = \"preload\"".to_owned());
            }
            gate.settings()
                .map(drop)
                .or_else(|(key, message)| fail(&format!("gate.{key}"), message))?;
        }
        app.spec().check().or_else(|error| fail(error.key, error.message))
    }
}

#[cfg(test)]
mod tests;
