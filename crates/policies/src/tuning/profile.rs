//! Profiles: settings that were measured beforehand, each for a rate of requests.
//!
//! `lull sweep` writes profiles of simulated and of running servers. `co-pi` takes the entry of
//! the current rate, and `static` the entry of the highest rate for the whole run.

use crate::config::wrong;
use crate::search::Space;
use lull_control::{
    AppSpec, Capability, Coalescing, FrequencyDomain, Machine, Nic, PolicyError, Setting,
};
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The settings of one rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiled {
    /// Requests per second.
    pub(crate) rate_per_s: f64,
    /// Interrupt delay of all network interfaces.
    #[serde(default)]
    delay: Option<Nanos>,
    /// Frequency of all domains.
    #[serde(default)]
    frequency: Option<Hertz>,
    /// Further knobs by name, each with a value in the unit of a search: GHz, microseconds,
    /// cores, ways, workers, transactions, or 0 to 255.
    #[serde(default)]
    values: BTreeMap<Capability, f64>,
}

/// Refuses a profile with a rate that is none, or with an entry that sets nothing.
pub(super) fn check_profile(profile: &[Profiled]) -> Result<(), PolicyError> {
    let refuse = |message: &str| Err(wrong("profile", message.to_owned()));
    if profile.iter().any(|it| !it.rate_per_s.is_finite() || it.rate_per_s <= 0.0) {
        return refuse("every profiled rate is above 0");
    }
    if profile.iter().any(Profiled::is_empty) {
        return refuse("an entry sets nothing: write delay, frequency or values");
    }
    match profile.iter().flat_map(|it| it.values.values()).all(|value| value.is_finite()) {
        true => Ok(()),
        false => refuse("every value is a number"),
    }
}

impl Profiled {
    fn is_empty(&self) -> bool {
        self.delay.is_none() && self.frequency.is_none() && self.values.is_empty()
    }

    /// Returns the knobs that the entry names.
    fn knobs(&self) -> impl Iterator<Item = Capability> + '_ {
        let delay = self.delay.map(|_| Capability::Coalescing);
        let frequency = self.frequency.map(|_| Capability::Frequency);
        delay.into_iter().chain(frequency).chain(self.values.keys().copied())
    }

    /// Returns the settings that are nearest to the values on this machine.
    ///
    /// # Errors
    /// A knob that the machine lacks, or that is not a number.
    pub(super) fn settings(
        &self,
        policy: &'static str,
        machine: &Machine,
        apps: &[AppSpec],
    ) -> Result<Vec<Setting>, PolicyError> {
        for capability in self.knobs() {
            let found = machine.capabilities.get(capability).map(drop);
            found.map_err(|why| PolicyError::Lacks { policy, capability, why })?;
        }
        let mut all: Vec<Setting> = Vec::new();
        if let Some(delay) = self.delay {
            let set =
                |nic: &Nic| Setting::Coalescing(nic.id, Coalescing::Delay(nic.nearest(delay)));
            all.extend(machine.nics.iter().map(set));
        }
        if let Some(frequency) = self.frequency {
            let set = |domain: &FrequencyDomain| {
                Some(Setting::Frequency(domain.id, domain.nearest(frequency)?))
            };
            all.extend(machine.domains.iter().filter_map(set));
        }
        for (knob, value) in &self.values {
            let space = Space::from_machine(machine, apps, &[*knob])
                .map_err(|error| wrong("profile", error.to_string()))?
                .with_adaptive(machine);
            all.extend(space.settings(&space.nearest(&[*value])));
        }
        Ok(all)
    }

    /// Whether some of its settings are of apps, so that they are other ones with other apps.
    pub(super) fn is_of_apps(&self) -> bool {
        !self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lc_spec, machine};
    use lull_control::{AppId, CoreSet, DomainId};

    fn settings(text: &str) -> Result<Vec<Setting>, PolicyError> {
        let one: Profiled = toml::from_str(text).unwrap();
        check_profile(std::slice::from_ref(&one))?;
        one.settings("co-pi", &machine(4), &[lc_spec("a")])
    }

    #[test]
    fn values_of_any_numeric_knob_are_the_nearest_settings() {
        let all = settings("rate_per_s = 9.0\nfrequency = \"1.1GHz\"\nvalues = { cores = 3.2 }");
        let wanted = [
            Setting::Frequency(DomainId(0), Hertz(1_000_000_000)),
            Setting::Cores(AppId(0), CoreSet::first(3)),
        ];
        assert_eq!(all.unwrap(), wanted);
    }

    #[test]
    fn what_sets_nothing_or_cannot_be_set_here_is_refused() {
        let refused = |text: &str| settings(text).unwrap_err().to_string();
        assert!(refused("rate_per_s = 9.0").contains("sets nothing"));
        assert!(refused("rate_per_s = 0.0\nvalues = { cores = 1.0 }").contains("above 0"));
        assert!(refused("rate_per_s = 9.0\nvalues = { cores = nan }").contains("a number"));
        assert!(refused("rate_per_s = 9.0\nvalues = { gate-cap = 4.0 }").contains("gate-cap"));
        assert!(
            refused("rate_per_s = 9.0\nvalues = { scheduling = 1.0 }").contains("not a number")
        );
    }
}
