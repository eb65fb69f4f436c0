//! Profiles: the settings that a sweep of a running server has shown to be best, by load.
//!
//! `lull sweep` writes one TOML file for an app on a class of machines, with an entry for each
//! load that was swept and the evidence for it. A config names the file (`agent.profile`), and
//! the policies that take a profile (`co-pi`, `static`) receive its entries. A file of another
//! machine class, app or objective is refused, because its measurements say nothing here.

use crate::config::Config;
use crate::error::UsageError;
use crate::located::InputError;
use crate::tuning_store::{machine_class, present_class, rates_near};
use lull_control::{AppSpec, Capability, Machine, TrialEvidence};
use lull_measure::statistics::Estimate;
use lull_measure::{Nanos, Percentile};
use lull_policies::POLICIES;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The version of the file, raised when an older reader would misread a new file.
const VERSION: u32 = 1;

/// The first lines of every file.
const HEAD: &str = "# Settings by load, measured by `lull sweep`. A config names this file\n\
                    # (agent.profile) for the policies co-pi and static.\n\n";

/// Settings by load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    version: u32,
    /// The class of the machine: its processor and a checksum of its knobs.
    pub machine: String,
    /// The app that was measured.
    pub app: String,
    /// Its objective, such as `p99 < 500us`.
    pub objective: String,
    /// The loads, by ascending rate.
    #[serde(default, rename = "load")]
    pub loads: Vec<ProfiledLoad>,
}

/// The best setting of a load, and the evidence for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfiledLoad {
    /// Requests per second.
    pub rate_per_s: f64,
    /// Values of the knobs, each in its own unit.
    pub values: BTreeMap<Capability, f64>,
    /// The tail at the percentile of the objective, in microseconds.
    pub tail_us: Interval,
    /// Power in watts.
    pub watts: Interval,
    /// The source of the power: a meter or a model.
    pub energy: String,
    /// The evidence that the setting meets its objective.
    pub evidence: TrialEvidence,
}

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl From<Estimate> for Interval {
    fn from(estimate: Estimate) -> Self {
        let Estimate { mean, half_width, .. } = estimate;
        Self { mean, low: mean - half_width, high: mean + half_width }
    }
}

/// Returns an objective as profiles and stores name it.
pub fn objective_text((percentile, bound): (Percentile, Nanos)) -> String {
    format!("{percentile} < {bound}")
}

impl Profile {
    /// Gives a profile that a former version has written the present name of its machine class.
    #[must_use]
    pub fn with_present_class(self, machine: &Machine) -> Self {
        Self { machine: present_class(&self.machine, machine), ..self }
    }

    /// Creates a profile without loads.
    pub fn new(machine: &Machine, app: &str, objective: (Percentile, Nanos)) -> Self {
        Self {
            version: VERSION,
            machine: machine_class(machine),
            app: app.to_owned(),
            objective: objective_text(objective),
            loads: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a profile.
    pub fn read(path: &Path) -> Result<Self, UsageError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            UsageError(format!("{shown} cannot be read: {error}; `lull sweep --profile` writes it"))
        })?;
        let no_profile = |why: &str| {
            UsageError(format!(
                "{shown} is not a profile of `lull sweep`: {why}; name another file"
            ))
        };
        let profile: Self = toml::from_str(&text).map_err(|error| no_profile(error.message()))?;
        match profile.version {
            VERSION => Ok(profile),
            other => Err(no_profile(&format!("its version is {other}, this lull reads {VERSION}"))),
        }
    }

    /// Refuses a profile that was not measured on this class of machine, or for another app or
    /// objective.
    ///
    /// # Errors
    /// The difference and the correction.
    pub fn check_is_of(&self, other: &Self) -> Result<(), String> {
        let advice = "sweep here, into another file";
        if self.machine != other.machine {
            let (theirs, ours) = (&self.machine, &other.machine);
            return Err(format!(
                "was measured on another class of machine, `{theirs}`, and this is `{ours}` \
                 (processor, and checksum of its knobs): {advice}"
            ));
        }
        if self.app != other.app {
            return Err(format!("is of the app `{}`, not of `{}`: {advice}", self.app, other.app));
        }
        match self.objective == other.objective {
            true => Ok(()),
            false => {
                let (theirs, ours) = (&self.objective, &other.objective);
                Err(format!("is of the objective {theirs}, and the app has {ours}: {advice}"))
            }
        }
    }

    /// Replaces the entries near a load by a new one, or by nothing if no setting is shown to meet
    /// the bound there.
    pub fn replace(&mut self, rate_per_s: f64, entry: Option<ProfiledLoad>) {
        self.loads.retain(|load| !rates_near(rate_per_s).contains(&load.rate_per_s));
        self.loads.extend(entry);
        self.loads.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// If a number cannot be written.
    pub fn to_toml(&self) -> anyhow::Result<String> {
        Ok(format!("{HEAD}{}", toml::to_string(self)?))
    }
}

/// Returns the keys of the config's policy, with the entries of the profile that the config
/// names if the policy takes one. Entries that the config lists itself come first.
///
/// # Errors
/// If the profile cannot be read, or is not one of this machine, its app and its objective.
pub(crate) fn policy_keys(
    config: &Config,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<toml::Table, InputError> {
    let mut keys = config.policy_keys.clone();
    let takes = POLICIES.find(&config.policy).is_ok_and(|it| it.kind.search.takes_profile());
    let Some(path) = config.agent.profile.as_deref().filter(|_| takes) else { return Ok(keys) };
    let refuse = |why: String| config.source.error("agent.profile", why);
    let profile = Profile::read(path).map_err(|error| refuse(error.0))?.with_present_class(machine);
    let app = apps.iter().find(|app| app.name == profile.app);
    // The settings of an app that has left are gone with it.
    let Some(app) = app else {
        let known = config.apps.iter().any(|app| app.name == profile.app);
        let missing = format!("{} is of the app `{}`: there is none", path.display(), profile.app);
        return if known { Ok(keys) } else { Err(refuse(missing)) };
    };
    let Some(objective) = app.tail() else {
        return Err(refuse(format!("the app `{}` has no tail objective", app.name)));
    };
    let here = Profile::new(machine, &app.name, objective);
    let checked = profile.check_is_of(&here);
    checked.map_err(|why| refuse(format!("{} {why}", path.display())))?;
    if profile.loads.is_empty() {
        let why = "has no load at which a setting is shown to meet the bound: sweep again";
        return Err(refuse(format!("{} {why}", path.display())));
    }
    let listed = keys.entry("profile").or_insert_with(|| toml::Value::Array(Vec::new()));
    if let toml::Value::Array(listed) = listed {
        listed.extend(profile.loads.iter().map(entry));
    }
    Ok(keys)
}

/// An entry of the policy's key `profile`.
fn entry(load: &ProfiledLoad) -> toml::Value {
    let value = |(knob, value): (&Capability, &f64)| (knob.name().to_owned(), (*value).into());
    let values: toml::Table = load.values.iter().map(value).collect();
    let mut table = toml::Table::new();
    table.insert("rate_per_s".to_owned(), load.rate_per_s.into());
    table.insert("values".to_owned(), values.into());
    table.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::Located;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::{AppId, CoreSet, Plant, Setting};

    const P95: (Percentile, Nanos) = (Percentile::P95, Nanos::from_millis(10));

    fn machine(cores: u16) -> Machine {
        MemoryPlant::new(cores, Vec::new()).machine().clone()
    }

    fn load(rate_per_s: f64, cores: f64) -> ProfiledLoad {
        let one = Interval { mean: 2.0, low: 1.0, high: 3.0 };
        ProfiledLoad {
            rate_per_s,
            values: BTreeMap::from([(Capability::Cores, cores)]),
            tail_us: one,
            watts: one,
            energy: "modelled".to_owned(),
            evidence: TrialEvidence {
                trials: 3,
                requests: 300,
                late: 0,
                at_least: 0.0,
                at_most: 0.015,
                allowed: 0.05,
                probability: 0.99,
            },
        }
    }

    /// A config whose policy takes the profile of a file.
    fn config(policy: &str, path: &Path, bound: &str) -> Config {
        let text = format!(
            "[agent]\nprofile = {path:?}\n[policy]\nname = \"{policy}\"\n[[app]]\nname = \"a\"\n\
             class = \"latency-critical\"\nobjectives = [{{ p95 = \"{bound}\" }}]\npid = 1\n"
        );
        Config::from_located(Located::embedded("lull.toml", &text)).unwrap()
    }

    fn written(profile: &Profile) -> (tempfile::TempDir, std::path::PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("profile.toml");
        std::fs::write(&path, profile.to_toml().unwrap()).unwrap();
        (directory, path)
    }

    #[test]
    fn a_profile_reads_back_and_a_later_sweep_of_a_load_replaces_it() {
        let mut profile = Profile::new(&machine(4), "a", P95);
        profile.replace(500.0, Some(load(500.0, 3.0)));
        profile.replace(100.0, Some(load(100.0, 1.0)));
        let (_directory, path) = written(&profile);
        assert_eq!(Profile::read(&path).unwrap(), profile);
        let rates =
            |profile: &Profile| profile.loads.iter().map(|it| it.rate_per_s).collect::<Vec<_>>();
        profile.replace(101.0, Some(load(101.0, 2.0)));
        assert_eq!(rates(&profile), [101.0, 500.0]);
        // No setting meets the bound any more, at a load that is 13 % lower.
        profile.replace(436.0, None);
        assert_eq!(rates(&profile), [101.0]);
    }

    #[test]
    fn the_policies_that_take_a_profile_receive_its_settings() {
        let mut profile = Profile::new(&machine(4), "a", P95);
        profile.replace(100.0, Some(load(100.0, 2.0)));
        profile.replace(500.0, Some(load(500.0, 3.0)));
        let (_directory, path) = written(&profile);
        let specs = config("static", &path, "10ms").specs();
        for policy in ["co-pi", "static"] {
            let config = config(policy, &path, "10ms");
            let keys = policy_keys(&config, &machine(4), &specs).unwrap();
            assert_eq!(keys["profile"].as_array().unwrap().len(), 2, "{policy}");
            POLICIES.build(policy, &keys, &machine(4), &specs).unwrap();
        }
        let keys = policy_keys(&config("even", &path, "10ms"), &machine(4), &specs).unwrap();
        assert!(keys.is_empty(), "other policies ignore it");
        let set = Setting::Cores(AppId(0), CoreSet::first(3));
        let keys = policy_keys(&config("static", &path, "10ms"), &machine(4), &specs).unwrap();
        let mut policy = POLICIES.build("static", &keys, &machine(4), &specs).unwrap();
        let app = MemoryApp {
            spec: specs[0].clone(),
            demand_cores: 1.0,
            service: Nanos::from_millis(1),
            threads: 4,
        };
        let mut plant = MemoryPlant::new(4, vec![app]);
        let seen = plant.observe(Nanos::from_secs(1)).unwrap();
        let mut rng = <lull_control::Rng as rand::SeedableRng>::seed_from_u64(1);
        let plan = policy.decide(&seen, &mut rng);
        assert!(plan.steps().any(|step| step.setting == set), "that of the highest load");
    }

    #[test]
    fn a_profile_of_another_machine_app_or_objective_is_refused_by_its_key() {
        let mut profile = Profile::new(&machine(4), "a", P95);
        profile.replace(100.0, Some(load(100.0, 2.0)));
        let (_directory, path) = written(&profile);
        let refused = |config: &Config, cores: u16| {
            let error = policy_keys(config, &machine(cores), &config.specs()).unwrap_err();
            assert_eq!(error.key(), "agent.profile");
            error.to_string()
        };
        let usual = config("co-pi", &path, "10ms");
        assert!(refused(&usual, 8).contains("another class of machine"));
        let other = config("co-pi", &path, "20ms");
        assert!(refused(&other, 4).contains("p95 < 10ms, and the app has p95 < 20ms"));
        let mut of_another_app = profile.clone();
        of_another_app.app = "b".to_owned();
        std::fs::write(&path, of_another_app.to_toml().unwrap()).unwrap();
        assert!(refused(&usual, 4).contains("is of the app `b`"));
        profile.loads.clear();
        std::fs::write(&path, profile.to_toml().unwrap()).unwrap();
        assert!(refused(&usual, 4).contains("has no load"));
        std::fs::write(&path, "this was a profile once").unwrap();
        assert!(refused(&usual, 4).contains("is not a profile"));
        std::fs::remove_file(&path).unwrap();
        assert!(refused(&usual, 4).contains("cannot be read"));
    }
}
