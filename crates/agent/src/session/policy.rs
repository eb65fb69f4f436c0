//! The policies of a session, built from its config: the one that acts, the
//! search that it describes, and the shadow.

use super::keeper::Place;
use super::shadow::Shadow;
use crate::config::Config;
use crate::located::InputError;
use crate::spots::{Store, Subject};
use lull_control::{AppSpec, LimitsError, Machine, Plant, Policy, PolicyError, Rules};
use lull_host::plant::HostPlant;
use lull_policies::tuning::{Tuning, tuning};

/// The config's policy for these apps; a bad key is an error with its line.
pub fn policy_of(
    config: &Config,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<Box<dyn Policy>, InputError> {
    config.check_enough_is_told()?;
    let machine = allowed_of(config, machine);
    let built = lull_policies::registry::build(&config.policy, &config.policy_keys, &machine, apps);
    built.map_err(|error| policy_error(config, error))
}

/// The search that a config of `bayop` describes; a bad key is an error with its line.
pub fn tuning_of(
    config: &Config,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<Tuning, InputError> {
    let tuning = tuning(&config.policy_keys, &allowed_of(config, machine), apps);
    tuning.map_err(|error| policy_error(config, error))
}

/// The machine as far as the config lets Lull use it.
fn allowed_of(config: &Config, machine: &Machine) -> Machine {
    let allowed = config.limits.cores.clone().unwrap_or_else(|| machine.all_cores());
    machine.clone().restricted_to(&allowed)
}

fn policy_error(config: &Config, error: PolicyError) -> InputError {
    match error {
        PolicyError::Config { key, message } if key.is_empty() => {
            config.source.error("policy", message)
        }
        PolicyError::Config { key, message } => {
            config.source.error(&format!("policy.{key}"), message)
        }
        other => config.source.error("policy.name", other.to_string()),
    }
}

/// Hands `bayop` what was found before for its app on this machine, if the config
/// says where that is; findings that the config names itself come first. Where that
/// is, and what is found for it from now on.
pub(super) fn remember(
    config: &mut Config,
    machine: &Machine,
    apps: &[AppSpec],
    say: &dyn Fn(&str),
) -> anyhow::Result<Option<Place>> {
    let Some(path) = config.agent.spots.clone().filter(|_| config.policy == "bayop") else {
        return Ok(None);
    };
    let Tuning { space, protocol, .. } = tuning_of(config, machine, apps)?;
    let app = &apps[protocol.app.index()].name;
    let subject = Subject::of(machine, app, (protocol.percentile, protocol.bound), &space);
    let spots = Store::open(&path)?.spots(&subject)?;
    say(&format!("{} settings for `{app}` are known from {}", spots.len(), path.display()));
    let known = config.policy_keys.entry("known").or_insert_with(|| toml::Value::Array(Vec::new()));
    if let toml::Value::Array(known) = known {
        known.extend(spots.iter().map(|spot| {
            let mut table = toml::Table::new();
            table.insert("rate_per_s".to_owned(), spot.rate_per_s.into());
            table.insert("values".to_owned(), spot.values.clone().into());
            table.into()
        }));
    }
    Ok(Some(Place { path, subject }))
}

/// The policy that decides beside the acting one, if the config has one.
pub(super) fn shadow_of(
    config: &Config,
    rules: &Rules,
    plant: &HostPlant,
) -> Result<Option<Shadow>, InputError> {
    let Some(name) = &config.agent.shadow else { return Ok(None) };
    let policy = shadow_policy(config, name, plant.machine(), plant.apps())?;
    let seed = config.agent.seed;
    let shadow = Shadow::new(name, policy, rules.clone(), plant, seed);
    shadow.map(Some).map_err(|error| limits_error(config, &error))
}

pub(super) fn shadow_policy(
    config: &Config,
    name: &str,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<Box<dyn Policy>, InputError> {
    let built = policy_of(&config.under(name), machine, apps);
    built.map_err(|error| {
        let why = error.message();
        config.source.error("agent.shadow", format!("`{name}` cannot be the shadow: {why}"))
    })
}

pub(super) fn limits_error(config: &Config, error: &LimitsError) -> InputError {
    config.source.error(&format!("limits.{}", error.key), &error.message)
}
