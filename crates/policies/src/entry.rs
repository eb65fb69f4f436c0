//! An entry of a registry: a name, its source, its requirements, its config, and the function that
//! builds it.
//!
//! Policies, dispatchers and admission controllers share [`Entry`]. A [`Kind`] adds what only
//! entries of one kind state. Whatever other crates must know of a policy is a field of
//! [`PolicyKind`], so that no list of policy names exists outside the registry.

use crate::config::{self, Config, Key};
use crate::dip::Dip;
use crate::search::Tuning;
use lull_control::{AppSpec, Capability, Machine, Policy, PolicyError, require};
use lull_measure::Nanos;
use serde::Serialize;

/// One entry of a registry.
#[derive(Debug)]
pub struct Entry<K: Kind> {
    /// The name in configs: lower case, words joined by `-`.
    pub name: &'static str,
    /// The source, with the section.
    pub paper: &'static str,
    /// A summary in one sentence.
    pub summary: &'static str,
    /// The properties that only entries of this kind have.
    pub kind: K,
    pub(crate) config: ConfigSchema,
    pub(crate) make: K::Make,
}

/// A kind of entries: policies, dispatchers or admission controllers.
pub trait Kind: Serialize + 'static {
    /// The function that builds what an entry describes.
    type Make: Copy;

    /// The name of the kind in messages.
    const NOUN: &'static str;

    /// The group under which listings show the entry.
    fn family(&self) -> &'static str;

    /// Returns the entry's requirements as text; empty if it has none.
    fn needs(&self) -> String;

    /// Further facts for docs/policies.md, each with its title.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// The properties that only policies have.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PolicyKind {
    /// The part of the machine that the policy steers.
    #[serde(skip)]
    pub family: Family,
    /// The capabilities that the policy cannot work without.
    pub needs: &'static [Capability],
    /// The capabilities that it also uses where the machine has them or its config says so.
    pub uses: &'static [Capability],
    /// Its DIP class; `None` where the theory does not apply (frequency, tuning).
    pub dip: Option<Dip>,
    /// How much of each latency window it reads.
    pub latency: LatencyDetail,
    /// How long an epoch is unless the user chooses it.
    #[serde(skip)]
    pub epoch: NaturalEpoch,
    /// Whether and how it searches for settings.
    #[serde(skip)]
    pub search: SettingSearch,
}

impl PolicyKind {
    /// A policy that needs nothing of the machine, reads one tail an epoch and decides by rules.
    pub(crate) const fn new(family: Family) -> Self {
        Self {
            family,
            needs: &[],
            uses: &[],
            dip: None,
            latency: LatencyDetail::TailOnly,
            epoch: NaturalEpoch::USUAL,
            search: SettingSearch::None,
        }
    }
}

/// How often a policy observes and decides unless the user chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NaturalEpoch {
    /// Always this long.
    Fixed(Nanos),
    /// The time under this key of the policy's config.
    Key(&'static str),
}

impl NaturalEpoch {
    /// The epoch of policies without a period of their own, and of policies that merge epochs
    /// until a longer period has passed: 500 ms, that of PARTIES and Ah-Q.
    pub const USUAL: Self = Self::Fixed(USUAL_EPOCH);
}

/// See [`NaturalEpoch::USUAL`].
pub const USUAL_EPOCH: Nanos = Nanos::from_millis(500);

/// How much of a latency window a policy reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyDetail {
    /// One tail an epoch is enough, as Prometheus reports it, or the policy reads no latency.
    TailOnly,
    /// The policy counts requests or reads the latency of each.
    EveryRequest,
}

/// Whether and how a policy searches for settings.
#[derive(Debug, Clone, Copy)]
pub enum SettingSearch {
    /// The policy decides by rules.
    None,
    /// The policy takes settings that were measured beforehand, under the config key `profile`.
    Profiled,
    /// The policy fits a model within the run and keeps the result to itself.
    Internal,
    /// `lull tune` can run the same search on its own, and the settings that were found can be
    /// stored and passed to later runs under the config key `known`. The function reads the
    /// search from the policy's config.
    Reusable(ReadTuning),
}

/// Reads a search from a policy's config, for this machine and these apps.
pub type ReadTuning = fn(&toml::Table, &Machine, &[AppSpec]) -> Result<Tuning, PolicyError>;

/// Builds a policy from its config, for this machine and these apps.
pub type MakePolicy =
    fn(&toml::Table, &Machine, &[AppSpec]) -> Result<Box<dyn Policy>, PolicyError>;

impl SettingSearch {
    /// Whether the policy searches at all.
    pub const fn is_some(self) -> bool {
        matches!(self, Self::Internal | Self::Reusable(_))
    }

    /// Whether the policy takes a profile.
    pub const fn takes_profile(self) -> bool {
        matches!(self, Self::Profiled)
    }

    /// The function that reads the search from a config, if others may run it.
    pub const fn reusable(self) -> Option<ReadTuning> {
        match self {
            Self::Reusable(read) => Some(read),
            Self::None | Self::Profiled | Self::Internal => None,
        }
    }
}

impl Kind for PolicyKind {
    type Make = MakePolicy;

    const NOUN: &'static str = "policy";

    fn family(&self) -> &'static str {
        self.family.name()
    }

    fn needs(&self) -> String {
        join_names(self.needs)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let uses = (!self.uses.is_empty()).then(|| ("Uses where it can", join_names(self.uses)));
        let dip = self.dip.map(|class| ("DIP class", class.name().to_owned()));
        let epoch = match self.epoch {
            NaturalEpoch::Fixed(epoch) => epoch.to_string(),
            NaturalEpoch::Key(key) => format!("its `{key}`"),
        };
        let epoch = ("Epoch unless another is given", epoch);
        uses.into_iter().chain(dip).chain([epoch]).collect()
    }
}

fn join_names(capabilities: &[Capability]) -> String {
    capabilities.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ")
}

/// The part of the machine that a policy steers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Cores, ways, bandwidth and priority of apps that share a machine.
    Colocation,
    /// Frequencies of domains.
    Frequency,
    /// Interrupt delay, frequency and other numeric knobs.
    Tuning,
}

impl Family {
    /// All families, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Colocation, Self::Frequency, Self::Tuning];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Colocation => "colocation",
            Self::Frequency => "frequency",
            Self::Tuning => "tuning",
        }
    }

    /// The heading in docs/policies.md.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Colocation => "Apps that share a machine",
            Self::Frequency => "Frequencies",
            Self::Tuning => "Interrupt delay, frequency and other numbers",
        }
    }
}

/// The keys and defaults of a config type.
#[derive(Debug)]
pub(crate) struct ConfigSchema {
    keys: &'static [Key],
    defaults: fn() -> toml::Table,
}

impl ConfigSchema {
    /// Describes the config type `C`.
    pub(crate) const fn new<C: Config>() -> Self {
        Self { keys: C::KEYS, defaults: config::defaults::<C> }
    }
}

/// An entry as data, for JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Description<'a, K> {
    /// [`Entry::name`].
    pub name: &'static str,
    /// [`Kind::family`].
    pub family: &'static str,
    /// [`Entry::paper`].
    pub paper: &'static str,
    /// [`Entry::summary`].
    pub summary: &'static str,
    /// [`Entry::kind`].
    #[serde(flatten)]
    pub kind: &'a K,
    /// [`Entry::keys`].
    pub keys: &'static [Key],
    /// [`Entry::defaults`].
    pub defaults: toml::Table,
}

impl<K: Kind> Entry<K> {
    /// Returns the keys of the config, with help.
    pub fn keys(&self) -> &'static [Key] {
        self.config.keys
    }

    /// Returns the config's defaults as a user would write them.
    pub fn defaults(&self) -> toml::Table {
        (self.config.defaults)()
    }

    /// Returns the entry as data.
    pub fn describe(&self) -> Description<'_, K> {
        Description {
            name: self.name,
            family: self.kind.family(),
            paper: self.paper,
            summary: self.summary,
            kind: &self.kind,
            keys: self.keys(),
            defaults: self.defaults(),
        }
    }
}

impl Entry<PolicyKind> {
    /// How often it observes and decides under this config unless the user chooses it.
    ///
    /// A config that the policy refuses has the epoch of its defaults.
    pub fn natural_epoch(&self, config: &toml::Table) -> Nanos {
        let key = match self.kind.epoch {
            NaturalEpoch::Fixed(epoch) => return epoch,
            NaturalEpoch::Key(key) => key,
        };
        let time = |table: &toml::Table| table.get(key)?.as_str()?.parse::<Nanos>().ok();
        let given = time(config).filter(|epoch| *epoch > Nanos::ZERO);
        given.or_else(|| time(&self.defaults())).unwrap_or(USUAL_EPOCH)
    }

    /// Builds the policy for a machine and its apps.
    ///
    /// `config` holds the keys of `[policy]` without `name`.
    ///
    /// # Errors
    /// A missing capability, a config key at fault, or apps that do not suit the policy.
    pub fn build(
        &self,
        config: &toml::Table,
        machine: &Machine,
        apps: &[AppSpec],
    ) -> Result<Box<dyn Policy>, PolicyError> {
        require(self.name, self.kind.needs, machine)?;
        (self.make)(config, machine, apps)
    }
}

/// All entries of one kind.
pub struct Registry<K: Kind>(pub(crate) &'static [&'static Entry<K>]);

impl<K: Kind> std::fmt::Debug for Registry<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl<K: Kind> Registry<K> {
    /// Iterates over the entries, in the order of the documentation.
    pub fn iter(&self) -> impl Iterator<Item = &'static Entry<K>> + use<K> {
        self.0.iter().copied()
    }

    /// Iterates over the names of the entries.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<K> {
        self.iter().map(|entry| entry.name)
    }

    /// Returns whether an entry has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Returns the entry with this name.
    ///
    /// # Errors
    /// [`PolicyError::Config`] at `name`, with the nearest name and all names.
    pub fn find(&self, name: &str) -> Result<&'static Entry<K>, PolicyError> {
        let found = self.iter().find(|entry| entry.name == name);
        found.ok_or_else(|| self.unknown_name(name))
    }

    fn unknown_name(&self, name: &str) -> PolicyError {
        let likeness = |known: &str| strsim::jaro_winkler(known, &name.to_lowercase());
        let nearest = self.names().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let hint = nearest.filter(|nearest| likeness(nearest) > 0.7);
        let hint = hint.map(|nearest| format!(" Did you mean `{nearest}`?")).unwrap_or_default();
        let names = self.names().collect::<Vec<_>>().join(", ");
        let message = format!("no {} is called `{name}`.{hint} There are: {names}", K::NOUN);
        config::wrong("name", message)
    }
}

impl Registry<PolicyKind> {
    /// Builds a policy by name; see [`Entry::build`].
    ///
    /// # Errors
    /// An unknown name, or those of [`Entry::build`].
    pub fn build(
        &self,
        name: &str,
        config: &toml::Table,
        machine: &Machine,
        apps: &[AppSpec],
    ) -> Result<Box<dyn Policy>, PolicyError> {
        self.find(name)?.build(config, machine, apps)
    }
}
