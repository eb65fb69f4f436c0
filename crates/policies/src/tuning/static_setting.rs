//! `static`: one interrupt delay and one frequency for the whole run.
//!
//! Linux-static and EbbRT-static of Dong et al., CCDS 2026 (section 3.5): every point of their
//! study is this policy with another pair. With a profile of `lull sweep`, the settings of its
//! highest rate hold for the whole run (ours), because they carry the other rates as well.

use super::profile::{Profiled, check_profile};
use crate::config::{config, read, wrong};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::search::NUMERIC;
use lull_control::{
    AppSpec, Capability, Coalescing, Machine, Observation, Plan, Policy, PolicyError, Reason, Rng,
    RosterChange, Setting,
};
use lull_measure::{Hertz, Nanos};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "static",
    paper: "Dong et al., CCDS 2026, section 3.5 (there: Linux-static)",
    summary: "Keeps one interrupt delay and one frequency, as far as they are given.",
    kind: PolicyKind {
        family: Family::Tuning,
        needs: &[],
        uses: &NUMERIC,
        dip: None,
        latency: LatencyDetail::TailOnly,
        epoch: NaturalEpoch::USUAL,
        search: SettingSearch::Profiled,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Static::new(&read(table)?, machine, apps)?)),
};

config! {
    /// The settings; an empty one is left alone.
    struct Config checked by check {
        /// Interrupt delay of all network interfaces, such as "100us"; empty for none.
        delay: String = String::new(),
        /// Frequency of all domains, such as "1.3GHz"; empty for none.
        frequency: String = String::new(),
        /// Settings by rate, as `lull sweep` writes them: those of the highest rate are set, and
        /// `delay` and `frequency` overrule them (ours).
        profile: Vec<Profiled> = Vec::new(),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    delay(config)?;
    frequency(config)?;
    check_profile(&config.profile)
}

fn delay(config: &Config) -> Result<Option<Nanos>, PolicyError> {
    let read = (!config.delay.is_empty()).then(|| config.delay.parse());
    read.transpose().map_err(|error: lull_measure::UnitError| wrong("delay", error.to_string()))
}

fn frequency(config: &Config) -> Result<Option<Hertz>, PolicyError> {
    let read = (!config.frequency.is_empty()).then(|| config.frequency.parse());
    let named = |error: lull_measure::UnitError| wrong("frequency", error.to_string());
    read.transpose().map_err(named)
}

/// The policy.
struct Static {
    plan: Plan,
    is_of_apps: bool,
}

impl Static {
    fn new(config: &Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        let is_of_apps = config.profile.iter().any(Profiled::is_of_apps);
        Ok(Self { plan: plan(config, machine, apps)?, is_of_apps })
    }
}

/// Returns a plan for the configured settings; a configured knob that is missing is refused.
fn plan(config: &Config, machine: &Machine, apps: &[AppSpec]) -> Result<Plan, PolicyError> {
    let lacks = |capability| {
        let found = machine.capabilities.get(capability).map(drop);
        found.map_err(|why| PolicyError::Lacks { policy: ENTRY.name, capability, why })
    };
    let mut plan = Plan::keep();
    let highest = config.profile.iter().max_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    if let Some(highest) = highest {
        for setting in highest.settings(ENTRY.name, machine, apps)? {
            plan.set(setting, Reason::Fixed);
        }
    }
    if let Some(delay) = delay(config)? {
        lacks(Capability::Coalescing)?;
        for nic in &machine.nics {
            let how = Coalescing::Delay(nic.nearest(delay));
            plan.set(Setting::Coalescing(nic.id, how), Reason::Fixed);
        }
    }
    if let Some(hertz) = frequency(config)? {
        lacks(Capability::Frequency)?;
        for domain in &machine.domains {
            if let Some(nearest) = domain.nearest(hertz) {
                plan.set(Setting::Frequency(domain.id, nearest), Reason::Fixed);
            }
        }
    }
    Ok(plan)
}

impl Policy for Static {
    /// The machine's settings hold whichever apps are there; those of apps are rebuilt.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        !self.is_of_apps
    }

    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lc_spec, machine};
    use lull_control::{AppId, CoreSet, DomainId, NicId};

    fn made(text: &str, machine: &Machine) -> Result<Plan, PolicyError> {
        plan(&read(&text.parse().unwrap())?, machine, &[lc_spec("a")])
    }

    #[test]
    fn what_is_given_is_set_to_the_nearest_there_is() {
        let plan = made("delay = \"101us\"\nfrequency = \"1.1GHz\"", &machine(2)).unwrap();
        let settings: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        let delay = Coalescing::Delay(Nanos::from_micros(102));
        let wanted = [
            Setting::Frequency(DomainId(0), Hertz(1_000_000_000)),
            Setting::Coalescing(NicId(0), delay),
        ];
        assert_eq!(settings, wanted);
        assert!(made("", &machine(2)).unwrap().is_empty());
    }

    #[test]
    fn a_knob_that_is_not_there_and_a_value_without_unit_are_refused() {
        let mut bare = machine(2);
        bare.capabilities = lull_control::Capabilities::default();
        let refused = made("delay = \"100us\"", &bare).unwrap_err();
        assert!(refused.to_string().contains("needs coalescing"), "{refused}");
        let refused = made("frequency = \"2\"", &machine(2)).unwrap_err();
        assert!(matches!(refused, PolicyError::Config { key, .. } if key == "frequency"));
    }

    #[test]
    fn of_a_profile_the_highest_rate_is_set_and_a_key_overrules_it() {
        let profile = "profile = [\
            { rate_per_s = 90.0, values = { cores = 2, frequency = 1.0 } },\
            { rate_per_s = 9.0, values = { cores = 1 } }]";
        let frequency = |ghz: u64| Setting::Frequency(DomainId(0), Hertz(ghz * 1_000_000_000));
        let set = |text: &str| -> Vec<Setting> {
            let plan = made(text, &machine(2)).unwrap();
            plan.steps().map(|step| step.setting.clone()).collect()
        };
        let cores = Setting::Cores(AppId(0), CoreSet::first(2));
        assert!(set(profile).contains(&cores) && set(profile).contains(&frequency(1)));
        let overruled = set(&format!("frequency = \"2GHz\"\n{profile}"));
        assert!(overruled.contains(&frequency(2)) && !overruled.contains(&frequency(1)));
    }
}
