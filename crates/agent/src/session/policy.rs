//! The policies of a session, built from its config: the one that acts, the
//! search that it describes, and the shadow.

use super::keeper::FindingsStore;
use super::shadow::Shadow;
use crate::config::Config;
use crate::located::InputError;
use crate::profile;
use crate::tuning_store::{Store, Subject};
use lull_control::{
    AppSpec, LimitsError, Machine, Plant, Policy, PolicyError, RebuildPolicy, Rules, TrialEvidence,
    build_without_removed,
};
use lull_host::plant::HostPlant;
use lull_policies::{POLICIES, ReadTuning, search::Tuning};

/// The config's policy for these apps, without those that were removed from the run; a bad key is
/// an error with its line.
pub fn policy_of(
    config: &Config,
    whole: &Machine,
    apps: &[AppSpec],
) -> Result<Box<dyn Policy>, InputError> {
    config.check_latency_detail()?;
    build_without_removed(&allowed_of(config, whole), apps, |machine, apps| {
        let built = match config.own_policy() {
            Some(own) => own.build(machine, apps),
            None => {
                let keys = profile::policy_keys(config, whole, apps)?;
                POLICIES.build(&config.policy, &keys, machine, apps)
            }
        };
        built.map_err(|error| policy_error(config, error))
    })
}

/// Returns how the config's policy is rebuilt when the roster of apps changes.
pub(super) fn rebuild_of(config: &Config, machine: &Machine) -> RebuildPolicy {
    let (config, machine) = (config.clone(), machine.clone());
    Box::new(move |apps| {
        policy_of(&config, &machine, apps).map_err(|error| error.message().to_owned())
    })
}

/// Reads the search that the config describes; a bad key is an error with its line.
pub fn tuning_of(
    config: &Config,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<Tuning, InputError> {
    let tuning = search_of(config)?(&config.policy_keys, &allowed_of(config, machine), apps);
    tuning.map_err(|error| policy_error(config, error))
}

/// Returns the search of the config's policy, which others may run, or an error with the line
/// of the policy's name.
///
/// # Errors
/// An unknown policy, or one without such a search.
pub fn search_of(config: &Config) -> Result<ReadTuning, InputError> {
    let entry = POLICIES.find(&config.policy).map_err(|error| policy_error(config, error))?;
    entry.kind.search.reusable().ok_or_else(|| {
        let reusable = POLICIES.iter().filter(|entry| entry.kind.search.reusable().is_some());
        let names: Vec<_> = reusable.map(|entry| format!("name = \"{}\"", entry.name)).collect();
        let message = format!(
            "`{}` has no search that `lull tune` and `lull sweep` can run: write {}",
            config.policy,
            names.join(" or ")
        );
        config.source.error("policy.name", message)
    })
}

/// Returns the machine restricted to what the config allows Lull to use.
fn allowed_of(config: &Config, machine: &Machine) -> Machine {
    let limits = &config.limits;
    let cores = config.allowed_cores().unwrap_or_else(|| machine.all_cores());
    let allowed = machine.clone().restricted_to(&cores);
    allowed.within_frequencies(limits.frequency_min, limits.frequency_max)
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

/// Checks the store as a start does, and makes none: a missing one is made by the start.
pub(super) fn check_store(config: &Config, machine: &Machine) -> anyhow::Result<()> {
    let missing = config.agent.spots.as_deref().filter(|path| !path.exists());
    match missing.filter(|_| search_of(config).is_ok()) {
        Some(path) => Ok(Store::check_directory(path)?),
        None => read_store(config, machine),
    }
}

/// Reads the store, and makes a missing one, so that a broken file fails before anything is
/// started.
pub(super) fn read_store(config: &Config, machine: &Machine) -> anyhow::Result<()> {
    remember(&mut config.clone(), machine, &config.specs(), &|_| {}).map(drop)
}

/// Passes settings that were stored for the app on this machine to a policy that can reuse
/// them, if the config names a store. Settings that the config lists itself come first.
/// Returns where the settings that this session finds are to be stored.
pub(super) fn remember(
    config: &mut Config,
    machine: &Machine,
    apps: &[AppSpec],
    say: &dyn Fn(&str),
) -> anyhow::Result<Option<FindingsStore>> {
    let has_search = search_of(config).is_ok();
    let Some(path) = config.agent.spots.clone().filter(|_| has_search) else { return Ok(None) };
    let Tuning { space, protocol, .. } = tuning_of(config, machine, apps)?;
    let app = &apps[protocol.app.index()].name;
    let subject = Subject::new(machine, app, protocol.percentile, protocol.bound, &space);
    let store = Store::open(&path)?;
    store.rename_class(machine)?;
    let (mut entries, mut count, mut ignored) = (Vec::new(), 0, 0);
    for one in store.subjects_within(&subject)? {
        let (stored, refuted) = (store.known_settings(&one)?, store.refuted_settings(&one)?);
        count += stored.len();
        ignored += store.count_without_evidence(&one)?;
        entries.extend(stored.into_iter().map(|it| {
            let TrialEvidence { at_most, probability, .. } = it.evidence;
            let mut entry = known_entry(&one, it.rate_per_s, it.values);
            entry.insert("late_at_most".to_owned(), at_most.into());
            entry.insert("probability".to_owned(), probability.into());
            toml::Value::Table(entry)
        }));
        entries.extend(refuted.into_iter().map(|it| {
            let mut entry = known_entry(&one, it.rate_per_s, it.values);
            entry.insert("refuted".to_owned(), true.into());
            toml::Value::Table(entry)
        }));
    }
    let shown = path.display();
    say(&format!("{count} settings for `{app}` are known from {shown}"));
    if ignored > 0 {
        say(&format!(
            "{ignored} settings for `{app}` in {shown} were stored without evidence and are \
             ignored: search again"
        ));
    }
    if let Some(text) = store.describe_unused(&subject)? {
        say(&text);
    }
    let known = config.policy_keys.entry("known").or_insert_with(|| toml::Value::Array(Vec::new()));
    if let toml::Value::Array(known) = known {
        known.extend(entries);
    }
    Ok(Some(FindingsStore { path, subject }))
}

/// An entry of the policy's key `known`.
fn known_entry(subject: &Subject, rate_per_s: f64, values: Vec<f64>) -> toml::Table {
    let mut table = toml::Table::new();
    let knobs: Vec<toml::Value> = subject.knobs().map(Into::into).collect();
    table.insert("knobs".to_owned(), knobs.into());
    table.insert("rate_per_s".to_owned(), rate_per_s.into());
    table.insert("values".to_owned(), values.into());
    table
}

/// The policy that decides beside the acting one, if the config has one.
pub(super) fn shadow_of(
    config: &Config,
    rules: &Rules,
    plant: &HostPlant,
) -> Result<Option<Shadow>, InputError> {
    let Some(name) = &config.agent.shadow else { return Ok(None) };
    let policy = shadow_policy(config, name, plant.machine(), plant.apps())?;
    let seed = config.agent.seed();
    let shadow = Shadow::new(name, policy, rules.clone(), plant, seed);
    let mut shadow = shadow.map_err(|error| limits_error(config, &error))?;
    shadow.set_rebuild(rebuild_of(&config.under(name), plant.machine()));
    Ok(Some(shadow))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::Located;
    use lull_control::conformance::MemoryPlant;
    use lull_control::{AppId, Capability, Discovery};
    use lull_measure::{Hertz, Nanos, Percentile};

    const BOUND: Nanos = Nanos::from_millis(60);

    fn machine() -> Machine {
        let mut machine = MemoryPlant::new(4, Vec::new()).machine().clone();
        machine.domains[0].steps = [10, 20, 30].map(|tenths| Hertz(tenths * 100_000_000)).to_vec();
        machine
    }

    fn apps() -> Vec<AppSpec> {
        vec![AppSpec::latency_critical("a", Percentile::P95, BOUND)]
    }

    fn config(agent: &str, knobs: &str) -> Config {
        let text = format!(
            "[agent]\n{agent}\n[limits]\nfrequency_max = \"2GHz\"\n[policy]\nname = \"bayop\"\n\
             knobs = [{knobs}]\nallow_modelled = true\n[[app]]\nname = \"a\"\n\
             class = \"latency-critical\"\nobjectives = [{{ p95 = \"60ms\" }}]\npid = 7\n"
        );
        Config::from_located(Located::embedded("lull.toml", &text)).unwrap()
    }

    /// Two cores, found to meet the bound; one core was refuted.
    fn found() -> Discovery {
        let evidence = TrialEvidence {
            trials: 4,
            requests: 800,
            late: 3,
            at_least: 0.001,
            at_most: 0.02,
            allowed: 0.05,
            probability: 0.99,
        };
        Discovery {
            app: AppId(0),
            rate_per_s: 100.0,
            settings: Vec::new(),
            values: vec![2.0],
            knobs: vec![Capability::Cores],
            meets: true,
            tail_us: 5000.0,
            watts: 10.0,
            trials: 9,
            evidence: Some(evidence),
            refuted: vec![vec![1.0]],
        }
    }

    #[test]
    fn frequencies_beyond_the_limits_are_not_searched() {
        let tuning = tuning_of(&config("", "\"frequency\""), &machine(), &apps()).unwrap();
        let levels = &tuning.space.dimensions()[0].levels;
        assert_eq!(levels.iter().map(|it| it.value).collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!(tuning.space.values(&tuning.space.fastest()), [2.0]);
    }

    #[test]
    fn what_was_found_without_a_refused_knob_is_passed_to_the_policy_with_its_knobs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spots.sqlite");
        let mut config = config(&format!("spots = {path:?}"), "\"coalescing\", \"cores\"");
        let Tuning { space, .. } = tuning_of(&config, &machine(), &apps()).unwrap();
        let subject = Subject::new(&machine(), "a", Percentile::P95, BOUND, &space);
        Store::open(&path).unwrap().keep_found(&subject, &found()).unwrap();
        let notices = std::cell::RefCell::new(Vec::new());
        let say = |text: &str| notices.borrow_mut().push(text.to_owned());
        remember(&mut config, &machine(), &apps(), &say).unwrap();
        assert!(notices.borrow()[0].contains("1 settings for `a` are known"), "{notices:?}");
        let known = config.policy_keys["known"].as_array().unwrap();
        let knobs = |it: &toml::Value| it["knobs"].as_array().unwrap() == &["cores".into()];
        assert!(known.len() == 2 && known.iter().all(knobs), "{known:?}");
        let both = ["late_at_most", "probability"].map(|key| known[0][key].as_float());
        assert_eq!(both, [Some(0.02), Some(0.99)]);
        assert!(policy_of(&config, &machine(), &apps()).is_ok());
        assert_eq!(notices.borrow().len(), 1, "{notices:?}");
    }

    #[test]
    fn settings_of_another_machine_class_are_reported_and_not_passed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spots.sqlite");
        let mut config = config(&format!("spots = {path:?}"), "\"cores\"");
        let Tuning { space, .. } = tuning_of(&config, &machine(), &apps()).unwrap();
        let other = Machine { name: "another".to_owned(), ..machine() };
        let subject = Subject::new(&other, "a", Percentile::P95, BOUND, &space);
        Store::open(&path).unwrap().keep_found(&subject, &found()).unwrap();
        let notices = std::cell::RefCell::new(Vec::new());
        let say = |text: &str| notices.borrow_mut().push(text.to_owned());
        remember(&mut config, &machine(), &apps(), &say).unwrap();
        let notices = notices.borrow();
        assert!(notices[0].contains("0 settings for `a` are known"), "{notices:?}");
        assert!(notices[1].contains("1 settings for `a`"), "{notices:?}");
        assert!(notices[1].contains("another class of machine"), "{notices:?}");
        assert!(config.policy_keys["known"].as_array().unwrap().is_empty());
    }
}
