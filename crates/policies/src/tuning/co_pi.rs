//! Co-PI: settings by request rate, from a profile made beforehand.
//!
//! IEEE Access 2020, as Dong et al. use it (CCDS 2026, sections 2 and 5.2.2): the least
//! power that meets the bound is found offline for a few request rates. At run time
//! the setting is looked up by the current rate. Only the abstract of the paper is
//! available. Which profiled rate is used for one in between is not stated there:
//! `nearest` (default; Dong et al. report misses at 200 us, which fit it), or `ceil`,
//! the smallest that is no lower.
//!
//! Without a profile the policy changes nothing. `lull sweep` measures a profile.

use crate::config::{config, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, PolicyKind, SettingSearch};
use crate::toolkit::period::Period;
use crate::toolkit::revise;
use lull_control::{
    Capability, Coalescing, FrequencyDomain, Machine, Nic, Observation, Plan, Policy, PolicyError,
    Reason, Rng, RosterChange, Setting,
};
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "co-pi",
    paper: "Co-PI, IEEE Access 2020, as used by Dong et al., CCDS 2026, section 5.2.2",
    summary: "Takes interrupt delay and frequency by the rate of requests from a profile made \
              beforehand.",
    kind: PolicyKind {
        family: Family::Tuning,
        needs: &[Capability::Coalescing, Capability::Frequency, Capability::TailLatency],
        uses: &[],
        dip: None,
        latency: LatencyDetail::EveryRequest,
        search: SettingSearch::None,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| Ok(Box::new(CoPi::new(read(table)?, machine))),
};

config! {
    /// The profile, and how it is read.
    struct Config checked by check {
        /// How often the rate is looked at (ours).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_secs(1),
        /// Which profiled rate counts: "nearest" or "ceil" (ours).
        take: Take = Take::Nearest,
        /// Rates with their delay and frequency.
        profile: Vec<Profiled> = Vec::new(),
    }
}

/// Which profiled rate is used for one in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Take {
    Nearest,
    Ceil,
}

/// The settings of one rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiled {
    rate_per_s: f64,
    delay: Nanos,
    frequency: Hertz,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    let sound = |it: &Profiled| it.rate_per_s.is_finite() && it.rate_per_s > 0.0;
    match config.profile.iter().all(sound) {
        true => Ok(()),
        false => Err(wrong("profile", "every profiled rate is above 0".to_owned())),
    }
}

/// The policy.
struct CoPi {
    config: Config,
    machine: Machine,
    period: Period,
    plan: Plan,
}

impl CoPi {
    fn new(mut config: Config, machine: &Machine) -> Self {
        config.profile.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
        let period = Period::new(config.period);
        Self { period, machine: machine.clone(), plan: Plan::keep(), config }
    }

    fn settings(&self, profiled: &Profiled) -> Vec<Setting> {
        let delay =
            |nic: &Nic| Setting::Coalescing(nic.id, Coalescing::Delay(nic.nearest(profiled.delay)));
        let frequency = |domain: &FrequencyDomain| {
            Some(Setting::Frequency(domain.id, domain.nearest(profiled.frequency)?))
        };
        let nics = self.machine.nics.iter().map(delay);
        nics.chain(self.machine.domains.iter().filter_map(frequency)).collect()
    }
}

/// Returns the entry of an ascending profile to use at this rate.
fn lookup(profile: &[Profiled], rate_per_s: f64, take: Take) -> Option<&Profiled> {
    let off = |it: &Profiled| (it.rate_per_s - rate_per_s).abs();
    match take {
        Take::Nearest => profile.iter().min_by(|a, b| off(a).total_cmp(&off(b))),
        Take::Ceil => {
            let above = profile.iter().find(|it| it.rate_per_s >= rate_per_s);
            above.or(profile.last())
        }
    }
}

impl Policy for CoPi {
    /// It steers the machine, whichever apps are there.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        if let Some(whole) = self.period.add(seen) {
            let latency = whole.apps.iter().filter_map(|app| app.latency.as_ref().ok());
            let rate: f64 = latency.map(|it| it.offered_per_s).sum();
            if let Some(profiled) = lookup(&self.config.profile, rate, self.config.take).copied() {
                let reason = Reason::Found { trials: 0, score: profiled.rate_per_s };
                let settings = self.settings(&profiled);
                revise(&mut self.plan, settings, &reason);
            }
        }
        self.plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, lc, machine};
    use lull_control::{DomainId, Knob};

    const PROFILE: &str = "profile = [\
        { rate_per_s = 4000.0, delay = \"50us\", frequency = \"2GHz\" },\
        { rate_per_s = 1900.0, delay = \"200us\", frequency = \"1GHz\" }]";

    fn lookup_of(rate: f64, take: Take) -> f64 {
        let config: Config = read(&PROFILE.parse().unwrap()).unwrap();
        let made = CoPi::new(config, &machine(2));
        lookup(&made.config.profile, rate, take).unwrap().rate_per_s
    }

    #[test]
    fn a_rate_in_between_is_that_of_the_nearest_or_of_the_next() {
        assert_eq!(lookup_of(2000.0, Take::Nearest), 1900.0);
        assert_eq!(lookup_of(2000.0, Take::Ceil), 4000.0);
        assert_eq!(lookup_of(9000.0, Take::Ceil), 4000.0);
        assert_eq!(lookup_of(1.0, Take::Nearest), 1900.0);
    }

    #[test]
    fn the_settings_of_the_rate_are_taken() {
        // Apps in these tests have 2,000 requests a second.
        let made = CoPi::new(read(&PROFILE.parse().unwrap()).unwrap(), &machine(2));
        let mut bench = Bench::new(made, Nanos::from_secs(1));
        let plan = bench.see(vec![lc(1.0)]);
        let frequency = Setting::Frequency(DomainId(0), Hertz(1_000_000_000));
        assert_eq!(plan.setting(Knob::Frequency(DomainId(0))), Some(&frequency));
    }

    #[test]
    fn without_a_profile_nothing_is_touched_and_a_bad_one_is_refused() {
        let made = CoPi::new(Config::default(), &machine(2));
        assert!(Bench::new(made, Nanos::from_secs(1)).see(vec![lc(1.0)]).is_empty());
        let bad = "profile = [{ rate_per_s = -1.0, delay = \"1us\", frequency = \"1GHz\" }]";
        assert!(read::<Config>(&bad.parse().unwrap()).is_err());
    }
}
