//! Levels of values that the hardware chooses itself within limits: uncore frequencies, idle states
//! and frequencies under an energy preference.
//!
//! ```text
//! uncore               highest frequency, from the lowest to the highest that all uncores have
//! idle latency         exit latency of the deepest idle state that cores may enter
//! energy preference    the named ones, from performance (0) to power (255)
//! ```
//!
//! A deep idle state saves power and adds its exit latency to a request that wakes a core. That
//! matters to bounds which are not much longer. The energy preference matters where the processor
//! chooses frequencies: a search that sets frequencies leaves it no choice.

use super::level::{Level, scaled};
use lull_control::{
    AppSpec, Capability, Dial, EnergyPreference, FrequencyDomain, Machine, Setting,
};
use lull_measure::{Hertz, Nanos};

/// The part of the bound that the longest exit latency must be for idle states to be searched
/// without being named (ours): less moves the tail by less than most trials vary.
const RELEVANT_PART: u64 = 50;

/// Refuses a knob that makes no difference worth a search here. It can be named all the same.
pub(super) fn check_relevance(
    knob: Capability,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<(), String> {
    match knob {
        Capability::IdleLatency => {
            let longest = machine.idle_latencies.last().copied().unwrap_or(Nanos::ZERO);
            let critical = apps.iter().filter(|app| app.is_latency_critical());
            let bounds = critical.filter_map(AppSpec::tail).map(|(_, bound)| bound);
            match bounds.min() {
                Some(bound) if longest < bound / RELEVANT_PART => Err(format!(
                    "{longest} to leave the deepest idle state is little beside a bound of \
                     {bound}; name the knob to search it"
                )),
                _ => Ok(()),
            }
        }
        Capability::EnergyPreference if machine.capabilities.has(Capability::Frequency) => {
            Err("a set frequency leaves the processor no choice; name the knob to search it"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// All uncores with one highest frequency, in steps of the coarsest.
pub(super) fn uncores(machine: &Machine) -> Vec<Level> {
    let dials = || machine.dials.iter().filter(|dial| dial.knob == Capability::UncoreFrequency);
    let ends = (dials().map(|dial| dial.lowest).max(), dials().map(|dial| dial.highest).min());
    let (Some(lowest), Some(highest)) = ends else { return Vec::new() };
    let step = dials().map(|dial| dial.step.0.max(1)).max().unwrap_or(1);
    let level = |number: u64| {
        let hertz = Hertz(lowest.0 + number * step);
        let set = |dial: &Dial| Setting::UncoreFrequency(dial.id, dial.nearest(hertz));
        (hertz.as_ghz(), dials().map(set).collect())
    };
    let steps = highest.0.saturating_sub(lowest.0) / step;
    scaled((0..=steps).map(level).collect(), |ghz| ghz)
}

/// All cores with one limit of the exit latency.
pub(super) fn idle_latencies(machine: &Machine) -> Vec<Level> {
    let level = |latency: &Nanos| (latency.as_micros_f64(), vec![Setting::IdleLatency(*latency)]);
    scaled(machine.idle_latencies.iter().map(level).collect(), f64::ln)
}

/// All domains at one preference.
pub(super) fn energy_preferences(machine: &Machine) -> Vec<Level> {
    let level = |preference: &EnergyPreference| {
        let set = |domain: &FrequencyDomain| Setting::EnergyPreference(domain.id, *preference);
        (f64::from(preference.0), machine.domains.iter().map(set).collect())
    };
    scaled(machine.energy_preferences.iter().map(level).collect(), |number| number)
}

#[cfg(test)]
mod tests {
    use super::super::Space;
    use super::*;
    use crate::testing::{be_spec, lc_spec, machine};
    use lull_control::DomainId;

    fn knobs(space: &Space) -> Vec<Capability> {
        space.dimensions().iter().map(|it| it.knob).collect()
    }

    #[test]
    fn an_uncore_is_searched_over_the_range_that_all_of_them_have() {
        let mut machine = machine(4);
        let other = Dial { id: lull_control::DialId(7), ..machine.dials[0].clone() };
        machine.dials.push(Dial { lowest: Hertz(1_200_000_000), ..other });
        let named = [Capability::UncoreFrequency];
        let space = Space::from_machine(&machine, &[lc_spec("a")], &named).unwrap();
        let values: Vec<_> = space.points().map(|point| space.values(&point)[0]).collect();
        assert_eq!((values.len(), values[0], values[8]), (9, 1.2, 2.0));
        let lowest = space.settings(&space.point(0));
        let set = |dial| Setting::UncoreFrequency(dial, Hertz(1_200_000_000));
        assert_eq!(lowest, [set(machine.dials[0].id), set(lull_control::DialId(7))]);
    }

    #[test]
    fn idle_states_and_preferences_are_searched_from_what_is_best_for_latency() {
        let mut machine = machine(4);
        let second = FrequencyDomain { id: DomainId(1), ..machine.domains[0].clone() };
        machine.domains.push(second);
        let named = [Capability::IdleLatency, Capability::EnergyPreference];
        let space = Space::from_machine(&machine, &[lc_spec("a")], &named).unwrap();
        let fastest = space.fastest();
        assert_eq!((space.size(), space.values(&fastest)), (12, vec![2.0, 0.0]));
        let text = "idle-latency 2 us, energy-preference 0 of 255";
        assert_eq!(space.describe(&fastest), text);
        let last = space.settings(&space.point(11));
        let power = |domain| Setting::EnergyPreference(DomainId(domain), EnergyPreference(255));
        let deepest = Setting::IdleLatency(Nanos::from_micros(50));
        assert_eq!(last, [deepest, power(0), power(1)]);
    }

    #[test]
    fn idle_states_are_searched_unnamed_where_the_bound_is_short_enough_to_notice_them() {
        let usual = |deepest_us: u64, apps: &[AppSpec]| {
            let mut machine = machine(4);
            machine.idle_latencies = [2, deepest_us].map(Nanos::from_micros).to_vec();
            let space = Space::from_machine(&machine, apps, &[]).unwrap();
            knobs(&space).contains(&Capability::IdleLatency)
        };
        // The bound is 10 ms.
        let apps = [be_spec("b"), lc_spec("a")];
        assert!(usual(200, &apps) && !usual(199, &apps));
    }

    #[test]
    fn the_preference_is_searched_unnamed_where_no_frequency_can_be_set() {
        let whole = machine(4);
        let apps = [lc_spec("a")];
        let usual = |machine: &Machine| knobs(&Space::from_machine(machine, &apps, &[]).unwrap());
        assert!(!usual(&whole).contains(&Capability::EnergyPreference));
        let mut bare = whole;
        bare.capabilities = bare.capabilities.unstated(Capability::Frequency);
        assert!(usual(&bare).contains(&Capability::EnergyPreference));
        bare.energy_preferences.truncate(1);
        assert!(!usual(&bare).contains(&Capability::EnergyPreference), "one level only");
    }
}
