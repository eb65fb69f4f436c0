//! Co-PI: settings by request rate, from a profile made beforehand.
//!
//! IEEE Access 2020, as Dong et al. use it (CCDS 2026, sections 2 and 5.2.2): the least
//! power that meets the bound is found offline for a few request rates. At run time
//! the setting is looked up by the current rate. Only the abstract of the paper is
//! available. Which profiled rate is used for one in between is not stated there:
//! `nearest` (default; Dong et al. report misses at 200 us, which fit it), or `ceil`,
//! the smallest that is no lower.
//!
//! Without a profile the policy changes nothing. `lull sweep` measures a profile, also of
//! other knobs than the paper's two (ours), and `agent.profile` names its file. The rate is
//! that of the app with the first tail objective, as in a sweep; without one it is the sum of
//! all apps.

use super::profile::{Profiled, check_profile};
use crate::config::{config, positive_time, read, text};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::search::{NUMERIC, first_tail};
use crate::toolkit::period::Period;
use crate::toolkit::revise;
use lull_control::{
    AppId, AppSpec, Capability, Machine, Observation, Plan, Policy, PolicyError, Reason, Rng,
    RosterChange, Setting,
};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "co-pi",
    paper: "Co-PI, IEEE Access 2020, as used by Dong et al., CCDS 2026, section 5.2.2",
    summary: "Takes interrupt delay and frequency by the rate of requests from a profile made \
              beforehand.",
    kind: PolicyKind {
        family: Family::Tuning,
        needs: &[Capability::TailLatency],
        uses: &NUMERIC,
        dip: None,
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::USUAL,
        search: SettingSearch::Profiled,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(CoPi::new(&read(table)?, machine, apps)?)),
};

config! {
    /// The profile, and how it is read.
    struct Config checked by check {
        /// Interval at which the request rate is compared with the profile (ours).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_secs(1),
        /// Choice of the profiled rate: "nearest" or "ceil" (ours).
        take: RateRounding = RateRounding::Nearest,
        /// Rates with their delay, frequency and values of other knobs.
        profile: Vec<Profiled> = Vec::new(),
    }
}

/// The profiled rate that is used for a rate that was not profiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RateRounding {
    Nearest,
    Ceil,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    check_profile(&config.profile)
}

/// The settings of one rate of requests per second.
struct RateSettings {
    rate_per_s: f64,
    settings: Vec<Setting>,
}

/// The policy.
struct CoPi {
    rounding: RateRounding,
    /// Ascending by rate.
    profile: Vec<RateSettings>,
    /// The app whose rate counts; all without one.
    app: Option<AppId>,
    is_of_apps: bool,
    period: Period,
    plan: Plan,
}

impl CoPi {
    fn new(config: &Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        let settings = |it: &Profiled| {
            let settings = it.settings(ENTRY.name, machine, apps)?;
            Ok(RateSettings { rate_per_s: it.rate_per_s, settings })
        };
        let profile: Result<Vec<_>, PolicyError> = config.profile.iter().map(settings).collect();
        let mut profile = profile?;
        profile.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
        Ok(Self {
            rounding: config.take,
            profile,
            app: first_tail(apps).map(|(app, ..)| app),
            is_of_apps: config.profile.iter().any(Profiled::is_of_apps),
            period: Period::new(config.period),
            plan: Plan::keep(),
        })
    }

    /// The rate of requests per second that counts.
    fn rate_per_s(&self, seen: &Observation) -> f64 {
        let counts = |app: AppId| self.app.is_none_or(|one| one == app);
        let apps = (0u16..).map(AppId).zip(&seen.apps).filter(|(app, _)| counts(*app));
        let latency = apps.filter_map(|(_, app)| app.latency.as_ref().ok());
        latency.map(|it| it.offered_per_s).sum()
    }
}

/// Returns the entry of an ascending profile to use at this rate.
fn lookup(
    profile: &[RateSettings],
    rate_per_s: f64,
    rounding: RateRounding,
) -> Option<&RateSettings> {
    let off = |it: &RateSettings| (it.rate_per_s - rate_per_s).abs();
    match rounding {
        RateRounding::Nearest => profile.iter().min_by(|a, b| off(a).total_cmp(&off(b))),
        RateRounding::Ceil => {
            let above = profile.iter().find(|it| it.rate_per_s >= rate_per_s);
            above.or(profile.last())
        }
    }
}

impl Policy for CoPi {
    /// The machine's settings hold whichever apps are there; those of apps are rebuilt.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        !self.is_of_apps
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        if let Some(whole) = self.period.add(seen) {
            let rate_per_s = self.rate_per_s(&whole);
            if let Some(profiled) = lookup(&self.profile, rate_per_s, self.rounding) {
                let reason = Reason::Found { trials: 0, score: profiled.rate_per_s };
                revise(&mut self.plan, profiled.settings.clone(), &reason);
            }
        }
        self.plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, lc, lc_spec, machine};
    use lull_control::{CoreSet, DomainId, Knob};
    use lull_measure::Hertz;

    const PROFILE: &str = "profile = [\
        { rate_per_s = 4000.0, delay = \"50us\", frequency = \"2GHz\" },\
        { rate_per_s = 1900.0, delay = \"200us\", frequency = \"1GHz\" }]";

    fn made(text: &str) -> CoPi {
        CoPi::new(&read(&text.parse().unwrap()).unwrap(), &machine(2), &[lc_spec("a")]).unwrap()
    }

    fn lookup_of(rate: f64, rounding: RateRounding) -> f64 {
        lookup(&made(PROFILE).profile, rate, rounding).unwrap().rate_per_s
    }

    #[test]
    fn a_rate_in_between_is_that_of_the_nearest_or_of_the_next() {
        assert_eq!(lookup_of(2000.0, RateRounding::Nearest), 1900.0);
        assert_eq!(lookup_of(2000.0, RateRounding::Ceil), 4000.0);
        assert_eq!(lookup_of(9000.0, RateRounding::Ceil), 4000.0);
        assert_eq!(lookup_of(1.0, RateRounding::Nearest), 1900.0);
    }

    #[test]
    fn the_settings_of_the_rate_are_taken() {
        // Apps in these tests have 2,000 requests a second.
        let mut bench = Bench::new(made(PROFILE), Nanos::from_secs(1));
        let plan = bench.see(vec![lc(1.0)]);
        let frequency = Setting::Frequency(DomainId(0), Hertz(1_000_000_000));
        assert_eq!(plan.setting(Knob::Frequency(DomainId(0))), Some(&frequency));
    }

    #[test]
    fn without_a_profile_nothing_is_touched_and_a_bad_one_is_refused() {
        assert!(Bench::new(made(""), Nanos::from_secs(1)).see(vec![lc(1.0)]).is_empty());
        let bad = "profile = [{ rate_per_s = -1.0, delay = \"1us\", frequency = \"1GHz\" }]";
        assert!(read::<Config>(&bad.parse().unwrap()).is_err());
    }

    #[test]
    fn a_profile_of_cores_sets_the_cores_of_the_rate_and_is_rebuilt_with_other_apps() {
        let mut made = made(
            "profile = [{ rate_per_s = 900.0, values = { cores = 1 } },\
             { rate_per_s = 2100.0, values = { cores = 2 } }]",
        );
        assert!(!made.roster_changed(&[]));
        let mut bench = Bench::new(made, Nanos::from_secs(1));
        let plan = bench.see(vec![lc(1.0)]);
        let two = Setting::Cores(AppId(0), CoreSet::first(2));
        assert_eq!(plan.setting(Knob::Cores(AppId(0))), Some(&two));
    }

    #[test]
    fn a_profile_of_a_knob_that_the_machine_lacks_is_refused() {
        let mut bare = machine(2);
        bare.capabilities = lull_control::Capabilities::default();
        let config = read(&PROFILE.parse().unwrap()).unwrap();
        let refused = CoPi::new(&config, &bare, &[]).err().unwrap();
        assert!(refused.to_string().contains("needs coalescing"), "{refused}");
    }
}
