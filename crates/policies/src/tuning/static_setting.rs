//! `static`: one interrupt delay and one frequency for the whole run.
//!
//! Linux-static and EbbRT-static of Dong et al., CCDS 2026 (section 3.5): every point of their
//! study is this policy with another pair.

use crate::config::{config, read, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, PolicyKind, SettingSearch};
use lull_control::{
    Capability, Coalescing, Machine, Observation, Plan, Policy, PolicyError, Reason, Rng,
    RosterChange, Setting,
};
use lull_measure::{Hertz, Nanos};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "static",
    paper: "Dong et al., CCDS 2026, section 3.5 (there: Linux-static)",
    summary: "One interrupt delay and one frequency for good, as far as they are given.",
    kind: PolicyKind {
        family: Family::Tuning,
        needs: &[],
        uses: &[Capability::Coalescing, Capability::Frequency],
        dip: None,
        latency: LatencyDetail::TailOnly,
        search: SettingSearch::None,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| Ok(Box::new(Static { plan: plan(&read(table)?, machine)? })),
};

config! {
    /// What to set; what is empty is left alone.
    struct Config checked by check {
        /// Interrupt delay of all network interfaces, such as "100us"; empty for none.
        delay: String = String::new(),
        /// Frequency of all domains, such as "1.3GHz"; empty for none.
        frequency: String = String::new(),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    delay(config)?;
    frequency(config).map(drop)
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
}

/// Returns a plan for the configured settings; a configured knob that is missing is refused.
fn plan(config: &Config, machine: &Machine) -> Result<Plan, PolicyError> {
    let lacks = |capability| {
        let found = machine.capabilities.get(capability).map(drop);
        found.map_err(|why| PolicyError::Lacks { policy: ENTRY.name, capability, why })
    };
    let mut plan = Plan::keep();
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
    /// It steers the machine, whichever apps are there.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;
    use lull_control::{DomainId, NicId};

    fn made(text: &str, machine: &Machine) -> Result<Plan, PolicyError> {
        plan(&read(&text.parse().unwrap())?, machine)
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
}
