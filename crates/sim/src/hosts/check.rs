//! Checks of tiers and hosts together; errors name the key.

use super::Host;
use crate::model::{Checked, Model, ModelError, Tier, conflict, refuse_if, unknown};
use std::collections::BTreeMap;

/// Checks the hosts, and that each tier and its host fit.
pub(super) fn check(model: &Model, hosts: &BTreeMap<String, Host>) -> Checked {
    for (name, host) in hosts {
        check_host(model, name, host)?;
    }
    for (at, tier) in model.tier.iter().enumerate() {
        let Some(name) = &tier.host else { continue };
        let key = format!("tier[{at}].host");
        let Some(host) = hosts.get(name) else {
            return unknown("host", name, hosts.keys().map(String::as_str), &key);
        };
        let is_called = host.model.called().any(|app| host.model.app[app].name == tier.name);
        let none = "the host has no app of the tier's name whose activity is `called`";
        refuse_if(!is_called, key, none)?;
    }
    Ok(())
}

/// The error of a machine, with its key among those of all hosts.
pub(super) fn in_host(host: &str, error: ModelError) -> ModelError {
    ModelError { key: format!("host.{host}.{}", error.key), ..error }
}

fn check_host(model: &Model, name: &str, host: &Host) -> Checked {
    host.model.check().map_err(|error| in_host(name, error))?;
    let mut tiers = model.tier.iter().filter(|tier| tier.host.as_deref() == Some(name));
    let Some(first) = tiers.next() else {
        let problem = "no tier has this host: write its name as `host` of a tier";
        return conflict(format!("host.{name}"), problem);
    };
    let differ = tiers.any(|tier| tier.servers != first.servers);
    let same = "tiers on one host must have the same number of `servers`, one on each of its \
                machines";
    refuse_if(differ, format!("host.{name}"), same)?;
    let is_called = |tier: &Tier, app: usize| {
        tier.host.as_deref() == Some(name) && tier.name == host.model.app[app].name
    };
    match host.model.called().find(|app| !model.tier.iter().any(|tier| is_called(tier, *app))) {
        None => Ok(()),
        Some(app) => {
            let problem = "no tier of this name has the host: nothing would call the app";
            conflict(format!("host.{name}.app[{app}].name"), problem)
        }
    }
}
