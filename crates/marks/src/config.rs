//! The config file: the objective, the dispatcher and the cores.

use lull_control::dispatcher::{
    CoreSpeed, Dispatcher, DispatcherError, Ladder, LadderError, Supply,
};
use lull_control::{CoreSet, PolicyError};
use lull_host::Roots;
use lull_host::dispatch::{Dispatch, DispatchError, Floor, Safety, Speeds, SpeedsError};
use lull_host::guard::{GuardCommand, StateDir};
use lull_measure::{Hertz, Nanos, Percentile, Watts};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A config file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The percentile of the latency objective.
    pub percentile: Percentile,
    /// The bound of that percentile.
    pub target: Nanos,
    /// The age at which a request loses its core.
    #[serde(default = "default_abandon")]
    pub abandon: Nanos,
    /// The work of many requests, each as its time alone on a core of speed 1.
    #[serde(default)]
    pub profile: Vec<Nanos>,
    /// The key `name`, and the dispatcher's own keys.
    pub dispatcher: toml::Table,
    /// The core types, slowest first.
    pub core: Vec<CoreType>,
    /// Cores of which each can be of every type, by its frequency. Then no type has cores of
    /// its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<CoreSet>,
    /// The program `lull`, which restores frequencies if this process dies.
    #[serde(default = "default_guard")]
    pub guard: PathBuf,
    /// The directory of the former frequencies; by default Lull's state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,
}

/// A core type and its cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreType {
    /// The name in messages.
    pub name: String,
    /// The speed relative to the slowest type.
    pub speed: f64,
    /// The power of a busy core, for the modelled energy.
    pub watts: f64,
    /// The cores, by the kernel's numbers: `0-3,8`. None where each core can be of every type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<CoreSet>,
    /// The frequency of a core of this type, where each core can be of every type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency: Option<Hertz>,
}

/// Many times the usual target, so that only stuck requests are abandoned.
fn default_abandon() -> Nanos {
    Nanos::from_secs(60)
}

/// Found through `PATH`.
fn default_guard() -> PathBuf {
    "lull".into()
}

/// The reason why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value cannot be used.
    #[error("{key}: {message}")]
    Key {
        /// The key of the file.
        key: String,
        /// The reason, and what to write instead.
        message: String,
    },
}

impl ConfigError {
    fn at(key: &str, message: impl Into<String>) -> Self {
        Self::Key { key: key.to_owned(), message: message.into() }
    }

    /// Returns the key of the file.
    pub fn key(&self) -> &str {
        let Self::Key { key, .. } = self;
        key
    }

    /// Returns the reason, and what to write instead.
    pub fn message(&self) -> &str {
        let Self::Key { message, .. } = self;
        message
    }
}

/// The reason why a file cannot start a dispatcher.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file is not a config.
    #[error("{file}: {source}")]
    Toml {
        /// The file.
        file: PathBuf,
        /// The reason, with line and column.
        source: Box<toml::de::Error>,
    },
    /// A value of the file cannot be used.
    #[error("{file}: {source}")]
    Config {
        /// The file.
        file: PathBuf,
        /// The key and the reason.
        source: ConfigError,
    },
    /// The machine refuses cores, threads or frequencies.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is not a config.
    pub fn read(file: &Path) -> Result<Self, OpenError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| OpenError::Unreadable { file: file.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|source| OpenError::Toml { file: file.to_owned(), source: Box::new(source) })
    }

    /// Returns the core types and their cores.
    ///
    /// # Errors
    /// At `core` or `cores`, if types are not ordered by speed and power, have no
    /// cores, or have both cores and frequencies.
    pub fn floor(&self) -> Result<Floor, ConfigError> {
        let speed = |one: &CoreType| CoreSpeed {
            name: one.name.clone(),
            speed: one.speed,
            watts: Watts(one.watts),
        };
        let (supply, cores) = self.supply()?;
        let ladder = Ladder::new(self.core.iter().map(speed).collect(), supply)
            .map_err(|error: LadderError| ConfigError::at("core", error.to_string()))?;
        if self.abandon <= self.target {
            let message = format!(
                "{} is not above the target of {}: a late request would lose its core; write \
                 several targets",
                self.abandon, self.target
            );
            return Err(ConfigError::at("abandon", message));
        }
        let floor = Floor { ladder, cores, abandon: self.abandon };
        floor.check().map_err(|error| ConfigError::at("core", error.to_string()))?;
        Ok(floor)
    }

    /// Returns the cores: each type has its own, or each core can be of every type.
    fn supply(&self) -> Result<(Supply, Vec<CoreSet>), ConfigError> {
        let wrong = |key, name: &str, why| Err(ConfigError::at(key, format!("`{name}` {why}")));
        for one in &self.core {
            match (&self.cores, &one.cores, one.frequency) {
                (None, Some(_), None) | (Some(_), None, Some(_)) => {}
                (None, None, _) => return wrong("core", &one.name, "has no `cores`"),
                (None, Some(_), Some(_)) => {
                    let why = "has `cores` of its own, and Lull does not set their frequency: \
                               leave out `frequency`, or write `cores` once, above all types";
                    return wrong("core", &one.name, why);
                }
                (Some(_), Some(_), _) => {
                    let why = "has `cores` beside those that can be of every type: write one of \
                               them";
                    return wrong("core", &one.name, why);
                }
                (Some(_), None, None) => {
                    let why = "has no `frequency`: write that of its cores, as \"2.4GHz\"";
                    return wrong("core", &one.name, why);
                }
            }
        }
        if let Some(cores) = &self.cores {
            return Ok((Supply::Any(cores.len() as u32), vec![cores.clone()]));
        }
        let sets: Vec<CoreSet> = self.core.iter().filter_map(|one| one.cores.clone()).collect();
        Ok((Supply::Fixed(sets.iter().map(|set| set.len() as u32).collect()), sets))
    }

    /// Returns the dispatcher for these cores.
    ///
    /// # Errors
    /// At `dispatcher`, at one of its keys, or at a key that it needs.
    pub fn dispatcher(&self, ladder: &Ladder) -> Result<Box<dyn Dispatcher>, ConfigError> {
        let mut keys = self.dispatcher.clone();
        let Some(toml::Value::String(name)) = keys.remove("name") else {
            let message =
                "has no `name`: write the name of a dispatcher; `lull policies` lists them";
            return Err(ConfigError::at("dispatcher", message));
        };
        let Self { percentile, target, .. } = *self;
        let site = Site { ladder, percentile, target, profile: &self.profile };
        DISPATCHERS.build(&name, &keys, &site).map_err(|error| match &error {
            DispatcherError::Config(PolicyError::Config { key, .. }) => {
                ConfigError::at(&format!("dispatcher.{key}"), error.to_string())
            }
            DispatcherError::Unreachable { .. } => ConfigError::at("target", error.to_string()),
            DispatcherError::Profile { .. } => ConfigError::at("profile", error.to_string()),
            _ => ConfigError::at("dispatcher", error.to_string()),
        })
    }

    /// Dispatches the requests of this process from now on; `file` is for messages.
    ///
    /// # Errors
    /// If a value cannot be used, or the machine refuses.
    pub fn open(&self, file: &Path) -> Result<Dispatch, OpenError> {
        let wrong = |source| OpenError::Config { file: file.to_owned(), source };
        let floor = self.floor().map_err(wrong)?;
        let dispatcher = self.dispatcher(&floor.ladder).map_err(wrong)?;
        let guard = GuardCommand { program: self.guard.clone(), args: vec!["guard".into()] };
        Ok(self.start(floor, dispatcher, guard)?)
    }

    /// The same with a floor and a dispatcher of this config, and another command that starts
    /// the guard, which frequencies need.
    ///
    /// # Errors
    /// If the machine refuses cores, threads or frequencies.
    pub fn start(
        &self,
        floor: Floor,
        dispatcher: Box<dyn Dispatcher>,
        guard: GuardCommand,
    ) -> Result<Dispatch, DispatchError> {
        match self.speeds(&floor, guard)? {
            None => Dispatch::start(floor, dispatcher),
            Some(speeds) => Dispatch::start_scaling(floor, dispatcher, speeds),
        }
    }

    /// Returns the frequencies of the cores of a floor of this config, where each core can be of
    /// every type; `guard` is the command that starts the guard.
    ///
    /// # Errors
    /// If the machine refuses the frequencies.
    pub fn speeds(
        &self,
        floor: &Floor,
        guard: GuardCommand,
    ) -> Result<Option<Speeds>, DispatchError> {
        if !floor.ladder.scales() {
            return Ok(None);
        }
        let roots = Roots::default();
        let state = StateDir::locate(self.state.as_deref()).map_err(SpeedsError::from)?;
        let levels: Vec<Hertz> = self.core.iter().filter_map(|one| one.frequency).collect();
        let safety = Safety::open(state, &roots, guard)?;
        Ok(Some(Speeds::open(floor, &levels, &roots, safety)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        percentile = "p99"
        target = "100ms"
        dispatcher = { name = "eetl", epoch = 600 }
        core = [
            { name = "slow", speed = 1.0, watts = 1.0, cores = "1" },
            { name = "fast", speed = 2.0, watts = 6.8, cores = "0" },
        ]
    "#;

    fn config(from: &str, to: &str) -> Config {
        toml::from_str(&GOOD.replace(from, to)).unwrap()
    }

    fn refused(from: &str, to: &str) -> (String, String) {
        let config = config(from, to);
        let error = match config.floor() {
            Err(error) => error,
            Ok(floor) => config.dispatcher(&floor.ladder).err().unwrap(),
        };
        (error.key().to_owned(), error.message().to_owned())
    }

    #[test]
    fn a_file_gives_the_dispatcher_its_keys_and_its_target() {
        let config = config("", "");
        let floor = config.floor().unwrap();
        let dispatcher = config.dispatcher(&floor.ladder).unwrap();
        assert_eq!(dispatcher.thresholds(), [Nanos::from_millis(50)], "half of the target");
        let lull_control::dispatcher::MeasurementPeriod::Answers(every) =
            dispatcher.measurement_rule().unwrap().every
        else {
            panic!("eetl counts answers")
        };
        assert_eq!(every, 600);
    }

    #[test]
    fn an_unusable_value_is_refused_at_its_key() {
        let (key, why) = refused("eetl\", epoch = 600", "etel\"");
        assert!(key.starts_with("dispatcher") && why.contains("eetl"), "{key} {why}");
        let (key, why) = refused("epoch = 600", "epoch = 0");
        assert_eq!(key, "dispatcher.epoch", "{why}");
        let (key, why) = refused("name = \"eetl\", ", "");
        assert!(key == "dispatcher" && why.contains("no `name`"), "{key} {why}");
        let (key, why) = refused("speed = 2.0", "speed = 0.5");
        assert!(key == "core" && why.contains("slow to fast"), "{key} {why}");
        let (key, why) = refused("cores = \"0\"", "cores = \"1\"");
        assert!(key == "core" && why.contains("two types"), "{key} {why}");
        let (key, why) = refused("target", "abandon = \"50ms\"\ntarget");
        assert!(key == "abandon" && why.contains("several targets"), "{key} {why}");
    }

    /// Two cores that can each be set to 1.2 and 2.4 GHz.
    fn scaling(from: &str, to: &str) -> Config {
        let text = GOOD
            .replace("dispatcher =", "cores = \"0-1\"\ndispatcher =")
            .replace("cores = \"1\"", "frequency = \"1.2GHz\"")
            .replace("cores = \"0\" }", "frequency = \"2.4GHz\" }");
        toml::from_str(&text.replace(from, to)).unwrap()
    }

    #[test]
    fn types_of_cores_that_can_be_of_every_type_have_a_frequency_and_no_cores() {
        let floor = scaling("", "").floor().unwrap();
        assert!(floor.ladder.scales() && floor.ladder.all_cores() == 2 && floor.cores.len() == 1);
        let refused = |from, to| {
            let error = scaling(from, to).floor().unwrap_err();
            assert_eq!(error.key(), "core");
            error.message().to_owned()
        };
        let why = refused("frequency = \"1.2GHz\"", "cores = \"2\"");
        assert!(why.contains("`slow` has `cores` beside"), "{why}");
        let why = refused(", frequency = \"2.4GHz\"", "");
        assert!(why.contains("`fast` has no `frequency`"), "{why}");
        let why = refused("cores = \"0-1\"", "");
        assert!(why.contains("`slow` has no `cores`"), "{why}");
        let both = config("cores = \"0\"", "cores = \"0\", frequency = \"2.4GHz\"");
        assert!(both.floor().unwrap_err().message().contains("leave out `frequency`"));
    }

    #[test]
    fn a_machine_without_frequencies_or_guard_places_nothing_by_frequency() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let with = |guard: &str| {
            let mut config = scaling("", "");
            (config.state, config.guard) = (Some(state.clone()), guard.into());
            config.open(Path::new("dispatch.toml")).err().unwrap().to_string()
        };
        assert!(with("/no/such/lull").contains("not set without a guard"));
        // It does not answer as a guard does.
        assert!(with("/bin/echo").contains("not set without a guard"));
    }

    #[test]
    fn the_error_of_an_unfit_profile_names_what_is_needed() {
        let with = |profile: String| refused("percentile", &format!("{profile}\npercentile"));
        let (key, why) = with("profile = [\"10ms\"]".to_owned());
        assert!(key == "profile" && why.contains("needs 500"), "{key} {why}");
        let long = vec!["\"300ms\""; 500].join(",");
        let (key, why) = with(format!("profile = [{long}]"));
        assert!(key == "target" && why.contains("150ms"), "{key} {why}");
    }

    #[test]
    fn unknown_keys_and_missing_files_are_named() {
        let error = toml::from_str::<Config>(&GOOD.replace("target", "aim")).unwrap_err();
        assert!(error.to_string().contains("aim"), "{error}");
        let error = Config::read(Path::new("/no/such/dispatch.toml")).unwrap_err();
        assert!(error.to_string().contains("/no/such/dispatch.toml"), "{error}");
    }
}
