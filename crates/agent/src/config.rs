//! The agent's config file.
//!
//! [`Config::load`] reads and checks it and returns a config that can be run. Every
//! error names file, line and key.

mod access;
mod agent;
mod allowed;
mod area;
mod client;
mod client_class;
mod gate;
mod kubernetes;
mod latency;
mod load;
mod machine;
mod origin;
mod power;
pub mod reference;
mod schema;
mod slots;
mod template;
mod values;

pub use access::{AccessSection, ReceiverSection};
pub use agent::AgentSection;
pub use client::{ClientSection, ContentionSection, MemorySection, WorkSection};
pub use client_class::{ClientClassSection, ClientMatchSection, bypass, client_classes};
pub use gate::{Concurrency, GateMode, GateSection};
pub use kubernetes::{CpuManager, Discover, KubernetesSection};
pub use latency::{LatencySource, OtlpSection, ProgressSource, PrometheusSection};
pub use machine::{
    BandwidthSection, CacheSection, CoreGroup, IdleSection, MachineSection, MeasuredPower,
    NicSection, SchedulerSection,
};
pub use origin::{AppOrigin, MatchSection, PodsAs, RegisterAs, TemplateSlot};
pub use power::PowerSection;
pub use schema::{AppSection, LoadSection, MeasureWord, Reference};
pub use template::TemplateSection;

use crate::located::{InputError, Located};
use crate::otlp::Collector;
use lull_control::{
    AppId, AppSpec, CoreSet, EpochRule, GateControl, LatencyOf, Limits, PolicyError,
};
use lull_host::gauges::energy::PowerModel;
use lull_host::oncall::gate_control;
use lull_lab::CustomPolicy;
use lull_lab::scenario::RunSection;
use lull_measure::Nanos;
use lull_policies::{Entry, LatencyDetail, POLICIES, PolicyKind, USUAL_EPOCH};
use schema::File;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// Shortest time that a record can be limited to.
const KEEP_MIN: Nanos = Nanos::from_secs(10);
/// Shortest epoch: a host's counters say little about less.
pub(crate) const EPOCH_MIN: Nanos = Nanos::from_millis(10);

/// Shortest time between two exports.
const EXPORT_PERIOD_MIN: Nanos = Nanos::from_secs(1);

/// A checked config.
#[derive(Debug, Clone)]
pub struct Config {
    /// The text of the file, for records and for later errors.
    pub source: Located,
    /// `[agent]`.
    pub agent: AgentSection,
    /// `[kubernetes]`.
    pub kubernetes: KubernetesSection,
    /// `[limits]`.
    pub limits: Limits,
    /// `[power]`.
    pub power: PowerSection,
    /// `policy.name`.
    pub policy: String,
    /// The other keys of `[policy]`.
    pub policy_keys: toml::Table,
    /// `[[app]]`, in order.
    pub apps: Vec<AppSection>,
    /// `[[load]]`, in order.
    pub loads: Vec<LoadSection>,
    /// `[machine]`, on which the config is simulated.
    pub machine: Option<MachineSection>,
    /// `[[client]]`, in order: what apps have to do where it is simulated.
    pub clients: Vec<ClientSection>,
    /// `[run]`: how long and how often it is simulated.
    pub run: Option<RunSection>,
    /// A policy that the caller hands in, which the text does not name.
    pub(crate) own: Option<OwnPolicy>,
    /// The cores that the pods may use, if they are fewer than the node's; no key of the text.
    pub(crate) pool: Option<CoreSet>,
}

/// A policy that the caller of the library provides, and its role.
#[derive(Debug, Clone)]
pub(crate) struct OwnPolicy {
    pub(crate) policy: CustomPolicy,
    pub(crate) role: PolicyRole,
}

/// The role of a policy that the caller provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyRole {
    /// The policy acts in place of the config's policy.
    Steers,
    /// The policy decides beside the config's policy and changes no knob.
    Shadow,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        let config = Self::from_located(Located::read(path)?)?;
        config.power_model()?;
        Ok(config)
    }

    /// Returns the power model. Not called for the config of a record, because the file
    /// named there may exist only on the machine that wrote the record.
    pub fn power_model(&self) -> Result<PowerModel, InputError> {
        let model = self.power.model();
        model.map_err(|(key, why)| self.source.error(&format!("power.{key}"), why))
    }

    /// How the loop chooses the length of its epochs: as the config says, else as the policy
    /// does, but never below the shortest epoch in which a host can be measured, nor above the
    /// usual one: page and guard follow it, and a policy with a longer period waits for it.
    pub fn epoch_rule(&self) -> EpochRule {
        if let Some(rule) = &self.agent.adaptive_epoch {
            return EpochRule::Adaptive(rule.clone());
        }
        let natural = || match self.own_policy() {
            Some(_) => USUAL_EPOCH,
            None => POLICIES
                .find(&self.policy)
                .map_or(USUAL_EPOCH, |entry| entry.natural_epoch(&self.policy_keys)),
        };
        let bounded = || natural().clamp(EPOCH_MIN, USUAL_EPOCH);
        EpochRule::Fixed(self.agent.epoch.unwrap_or_else(bounded))
    }

    /// Parses and checks a text that was read already.
    pub fn from_located(source: Located) -> Result<Self, InputError> {
        let File {
            mut agent,
            kubernetes,
            limits,
            power,
            mut policy,
            mut app,
            templates,
            load,
            machine,
            client,
            run,
        } = source.parse()?;
        // The keys of a hash map are random in each process. Half of the bits are exact in JSON.
        agent.seed.get_or_insert_with(|| RandomState::new().hash_one(0) >> 32);
        for (index, template) in templates.iter().enumerate() {
            template.check().map_err(|(key, message)| {
                source.error(&format!("match[{index}].{key}"), message)
            })?;
            app.extend(template.apps(index));
        }
        let name = match policy.remove("name") {
            Some(toml::Value::String(name)) => name,
            Some(_) => return Err(source.error("policy.name", "must be a text: name = \"arq\"")),
            None => return Err(source.error("policy", "has no name: write name = \"arq\"")),
        };
        let config = Self {
            source,
            agent,
            kubernetes,
            limits,
            power,
            policy: name,
            policy_keys: policy,
            apps: app,
            loads: load,
            machine,
            clients: client,
            run,
            own: None,
            pool: None,
        };
        config.check()?;
        Ok(config)
    }

    /// Lets a policy of the caller act or decide beside the acting one.
    pub(crate) fn set_own(&mut self, own: OwnPolicy) {
        let name = own.policy.name().to_owned();
        match own.role {
            PolicyRole::Steers => {
                self.policy = name;
                self.policy_keys.clear();
            }
            PolicyRole::Shadow => self.agent.shadow = Some(name),
        }
        self.own = Some(own);
    }

    /// Returns the caller's policy if it is followed now.
    pub(crate) fn own_policy(&self) -> Option<&CustomPolicy> {
        let own = self.own.as_ref().map(|own| &own.policy);
        own.filter(|policy| policy.name() == self.policy)
    }

    /// The apps as policies know them; measured references are still open.
    pub fn specs(&self) -> Vec<AppSpec> {
        self.apps.iter().map(AppSection::spec).collect()
    }

    /// The admission controllers of its apps' gates.
    pub fn admission_controllers(&self) -> Vec<&str> {
        self.apps.iter().filter_map(|app| Some(app.controller()?.name.as_str())).collect()
    }

    /// The gates of its apps, as far as a policy can set them.
    pub fn gates(&self) -> Vec<GateControl> {
        let apps = (0u16..).map(AppId).zip(&self.apps);
        let gated = apps.filter(|(_, app)| matches!(app.concurrency, Some(Concurrency::Limit(_))));
        gated.map(|(id, app)| gate_control(id, app.threads)).collect()
    }

    /// The config under another policy, whose keys stay only if they are its own.
    pub fn under(&self, policy: &str) -> Self {
        let mut other = self.clone();
        if policy != self.policy {
            other.policy_keys.clear();
        }
        other.policy = policy.to_owned();
        other
    }

    fn check(&self) -> Result<(), InputError> {
        if self.apps.is_empty() {
            return Err(self
                .source
                .error("", "has no [[app]] and no [[match]]: name at least one app"));
        }
        if self.agent.epoch.is_some_and(|epoch| epoch < EPOCH_MIN) {
            let message = format!("is below {EPOCH_MIN}, too short to measure in");
            return Err(self.source.error("agent.epoch", message));
        }
        if self.agent.keep < KEEP_MIN {
            let message = format!("is below {KEEP_MIN}: leave it out to keep a day");
            return Err(self.source.error("agent.keep", message));
        }
        let is_odd = |name: &&String| !crate::live::is_hostname(name);
        if let Some(name) = self.agent.http_names.iter().find(is_odd) {
            let message = format!("`{name}` is not a host name: write it without port");
            return Err(self.source.error("agent.http_names", message));
        }
        if self.agent.control && self.agent.http.is_none() {
            let message = "needs http, because orders arrive over it: write http = \
                           \"127.0.0.1:7077\"";
            return Err(self.source.error("agent.control", message));
        }
        if let Err(error) = self.epoch_rule().check() {
            return Err(self.source.error("agent.adaptive_epoch", error.to_string()));
        }
        if self.agent.export_period < EXPORT_PERIOD_MIN {
            let message = format!("is below {EXPORT_PERIOD_MIN}, the least");
            return Err(self.source.error("agent.export_period", message));
        }
        if let Some(key) = self.agent.empty_path() {
            let message = "is an empty path: leave it out, or name one";
            return Err(self.source.error(&format!("agent.{key}"), message));
        }
        self.check_access()?;
        let has_otlp = self.apps.iter().any(|app| app.latency == LatencySource::Otlp);
        if self.agent.otlp.is_some() && !has_otlp {
            let message = "needs an app whose latency it receives: write latency = \"otlp\" there";
            return Err(self.source.error("agent.otlp", message));
        }
        let registers = |app: &AppSection| app.register.is_some();
        if self.agent.register.is_some() && !self.apps.iter().any(registers) {
            let message = "needs a [[match]] whose `register` names the users who may register";
            return Err(self.source.error("agent.register", message));
        }
        self.check_discovery()?;
        let (mut names, mut pages) = (BTreeSet::new(), BTreeSet::new());
        for (index, app) in self.apps.iter().enumerate() {
            let at = |key: &str| format!("{}.{key}", app.entry(index));
            if !names.insert(&app.name) {
                let message = format!("two apps are called `{}`: give each its own name", app.name);
                return Err(self.source.error(&at("name"), message));
            }
            if app.page.as_ref().is_some_and(|page| !pages.insert(page)) {
                let message = "is another app's, too: give each its own directory";
                return Err(self.source.error(&at("page"), message));
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

    /// Rejects a discovery without a template for its workloads, and such a template without a
    /// discovery.
    fn check_discovery(&self) -> Result<(), InputError> {
        let mut pods = self.apps.iter().filter(|app| app.pods.is_some());
        match (self.agent.discover, pods.next()) {
            (Some(Discover::Kubernetes), None) => {
                let message = "needs a [[match]] with `pods`, the label selector of what it finds: \
                               pods = \"\" for all";
                Err(self.source.error("agent.discover", message))
            }
            (None, Some(app)) => {
                let template = app.slot.map_or(0, |slot| slot.template);
                let message = "needs agent.discover = \"kubernetes\"";
                Err(self.source.error(&format!("match[{template}].pods"), message))
            }
            _ => Ok(()),
        }
    }

    fn check_app(&self, app: &AppSection, at: &dyn Fn(&str) -> String) -> Result<(), InputError> {
        let fail = |key: &str, message: String| Err(self.source.error(&at(key), message));
        app.check_values().or_else(|(key, message)| fail(key, message))?;
        let checked = match app.origin() {
            Ok(place) => place.check(),
            Err(message) => return fail("name", message),
        };
        if let Err((key, message)) = checked {
            return fail(&key, message);
        }
        if app.start.as_ref().is_some_and(Vec::is_empty) {
            return fail("start", "is empty: write start = [\"program\", \"argument\"]".to_owned());
        }
        if app.page.is_some() && app.latency != LatencySource::Preload {
            return fail("page", "needs latency = \"preload\"".to_owned());
        }
        self.check_gate(app, at)?;
        self.check_areas(app, at)?;
        self.check_latency(app, at)?;
        app.spec().check().or_else(|error| fail(error.key, error.message))
    }

    /// Rejects invalid gates, and admission controllers that do not fit their gate.
    fn check_gate(&self, app: &AppSection, at: &dyn Fn(&str) -> String) -> Result<(), InputError> {
        let fail = |key: &str, message: String| Err(self.source.error(&at(key), message));
        let of_gate = |(key, message): (&str, String)| fail(&format!("gate.{key}"), message);
        let key = if app.concurrency.is_some() { "concurrency" } else { "gate" };
        let has_either = app.gate.is_some() || app.concurrency.is_some();
        if has_either && app.latency != LatencySource::Preload {
            return fail(key, "needs latency = \"preload\"".to_owned());
        }
        if app.controller().is_none() && !app.promise.is_empty() {
            let message = "needs an admission controller that keeps it: concurrency = \"pslo\"";
            return fail("promise", message.to_owned());
        }
        if app.concurrency.is_none() && app.gate.is_some() {
            let message = "is missing: a gate needs to know how many transactions may run at \
                           once: concurrency = 16, or \"auto\"";
            return fail("concurrency", message.to_owned());
        }
        if app.concurrency.is_none() && app.area.is_empty() && !app.client_class.is_empty() {
            let message = "needs a gate at which they wait (concurrency = 16, or \"auto\"), or \
                           cores of their own ([[app.area]])";
            return fail("client_class", message.to_owned());
        }
        client_classes(&app.client_class)
            .map(drop)
            .or_else(|(index, message)| fail(&format!("client_class[{index}]"), message))?;
        app.bypass(&[]).map(drop).or_else(|message| fail("gate.bypass", message))?;
        for (index, promise) in app.promise.iter().enumerate() {
            let of = |(key, message)| fail(&format!("promise[{index}].{key}"), message);
            promise.check().or_else(of)?;
            if let Some(class) = promise.client_class().filter(|class| !app.has_class(class)) {
                let message = format!("there is no class `{class}`: add [[app.client_class]]");
                return fail(&format!("promise[{index}].client_class"), message);
            }
        }
        let Some(setup) = app.admission_setup().or_else(|wrong| of_gate(wrong).map(|()| None))?
        else {
            return app.gate_settings().map(drop).or_else(of_gate);
        };
        setup.admission().map(drop).or_else(|error| match error {
            PolicyError::Config { key, message } => fail(&format!("concurrency.{key}"), message),
            other => fail("concurrency", other.to_string()),
        })
    }

    /// Rejects a policy that needs every request if a latency source reports only a tail.
    pub fn check_latency_detail(&self) -> Result<(), InputError> {
        let reports_a_tail = |app: &AppSection| matches!(app.latency, LatencySource::Prometheus(_));
        let Some(index) = self.apps.iter().position(reports_a_tail) else { return Ok(()) };
        // A policy of the caller reads the observation itself, and finds None where there is only a
        // tail.
        if self.own_policy().is_some() {
            return Ok(());
        }
        let by_tail = |entry: &Entry<PolicyKind>| entry.kind.latency == LatencyDetail::TailOnly;
        if POLICIES.find(&self.policy).is_ok_and(by_tail) {
            return Ok(());
        }
        let names = POLICIES.iter().filter(|entry| by_tail(entry)).map(|entry| entry.name);
        let message = format!(
            "`{}` needs every request, and Prometheus reports a tail only: push latency, or name \
             one of {}",
            self.policy,
            names.collect::<Vec<_>>().join(", ")
        );
        Err(self.source.error(&format!("app[{index}].latency"), message))
    }

    /// Checks how collector and receiver are protected.
    fn check_access(&self) -> Result<(), InputError> {
        let agent = &self.agent;
        let of = |section: &str| {
            let section = section.to_owned();
            move |(key, why): (&str, &str)| self.source.error(&format!("{section}.{key}"), why)
        };
        let is_encrypted = agent.export.as_ref().is_some_and(Collector::is_encrypted);
        let plain = "needs an encrypted connection: write export = \"https://...\"";
        agent.export_access.check(is_encrypted, plain).map_err(of("agent.export_access"))?;
        let is_local = agent.otlp.is_none_or(|address| address.ip().is_loopback());
        agent.otlp_access.check(is_local).map_err(of("agent.otlp_access"))
    }

    /// Checks the requirements and limits of latency that is not pushed.
    fn check_latency(
        &self,
        app: &AppSection,
        at: &dyn Fn(&str) -> String,
    ) -> Result<(), InputError> {
        let fail = |key: &str, message: &str| Err(self.source.error(&at(key), message));
        if let Some((of, other)) = app.latency_of().zip(app.other_latency()) {
            let both = format!("bounds {} and {}", of.name(), other.name());
            return fail("objectives", &format!("{both}: keep one, for an app has one latency"));
        }
        let measured = app.latency_of().filter(|of| *of != LatencyOf::Requests);
        if let Some(of) = measured.filter(|_| app.latency != LatencySource::Push) {
            return fail("latency", &format!("is not read for an objective of {}", of.name()));
        }
        if app.otlp.is_some() && app.latency != LatencySource::Otlp {
            return fail("otlp", "is for latency = \"otlp\" only");
        }
        match (&app.prometheus, &app.latency) {
            (Some(section), LatencySource::Prometheus(server)) => {
                let of = |(key, why): (&str, &str)| fail(&format!("prometheus.{key}"), why);
                section.check(server).or_else(of)?;
            }
            (Some(_), _) => return fail("prometheus", "is for latency = \"prometheus:URL\" only"),
            (None, _) => {}
        }
        let query = app.query.as_ref().map(|query| query.trim());
        match (&app.latency, query) {
            (LatencySource::Preload, _) if app.start.is_none() && app.page.is_none() => {
                let message = "`preload` needs `start`: a library is only loaded when a program \
                               starts; or `page`, of a server that was started with what `lull \
                               attach DIR --environment` prints";
                return fail("latency", message);
            }
            (LatencySource::Otlp, None) if self.agent.otlp.is_none() => {
                let message = "needs an address to receive at: write otlp = \"127.0.0.1:4318\" \
                               under [agent]";
                return fail("latency", message);
            }
            (LatencySource::Otlp, None) => {}
            (LatencySource::Push | LatencySource::Preload | LatencySource::Ebpf, None) => {
                return Ok(());
            }
            (_, Some(_)) if !matches!(app.latency, LatencySource::Prometheus(_)) => {
                return fail("query", "is for latency = \"prometheus:URL\" only");
            }
            (LatencySource::Prometheus(_), None | Some("")) => {
                let message = "needs `query`, the query to send: query = \
                               \"histogram_quantile(0.95, sum by (le) (rate(NAME_bucket[10s])))\"";
                return fail("latency", message);
            }
            (_, Some(_)) => {}
        }
        let spec = app.spec();
        if !spec.is_latency_critical() || spec.tail().is_none() {
            return fail("latency", "applies only to a latency-critical app with a tail objective");
        }
        if matches!(app.ideal, Some(Reference::Measure(_))) {
            let message = "cannot be measured with requests that Lull does not see: give a time";
            return fail("ideal", message);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
