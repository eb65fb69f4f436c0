//! Policies that set one frequency a domain, each domain with its own state.
//!
//! A [`Governor`] decides from the load of one domain in windows of its own length, whatever the
//! loop's epoch: epochs are merged until the window has passed. The epoch whose end is nearest to
//! the window's end closes it; a window shorter than the epoch is one epoch. [`PerDomain`] makes a
//! policy of one governor for each domain. Merging costs little, so a governor may decide every few
//! milliseconds.

use super::for_present_apps;
use lull_control::{
    CoreSet, DomainId, FrequencyDomain, Machine, Observation, Plan, Policy, Reason, Rng,
    RosterChange, Setting,
};
use lull_measure::{Hertz, Nanos};

/// The frequencies of a domain.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    steps: Vec<Hertz>,
    continuous: bool,
}

impl Table {
    /// `None` for a domain whose frequency cannot be chosen.
    pub(crate) fn new(domain: &FrequencyDomain) -> Option<Self> {
        let steps = domain.steps.clone();
        (!steps.is_empty()).then_some(Self { steps, continuous: domain.continuous })
    }

    pub(crate) fn lowest(&self) -> Hertz {
        self.steps[0]
    }

    pub(crate) fn highest(&self) -> Hertz {
        self.steps[self.steps.len() - 1]
    }

    /// The nearest, the lower of two as near (cpufreq's RELATION_C).
    pub(crate) fn closest(&self, wanted: Hertz) -> Hertz {
        let distance = |step: &Hertz| step.0.abs_diff(wanted.0);
        let nearest = self.steps.iter().copied().min_by_key(distance);
        self.bounded(wanted).unwrap_or(nearest.unwrap_or(wanted))
    }

    /// The highest that is not above (RELATION_H), or the lowest there is.
    pub(crate) fn at_or_below(&self, wanted: Hertz) -> Hertz {
        let below = self.steps.iter().copied().rfind(|step| *step <= wanted);
        self.bounded(wanted).unwrap_or(below.unwrap_or(self.lowest()))
    }

    /// The lowest that is not below (RELATION_L), or the highest there is.
    pub(crate) fn at_or_above(&self, wanted: Hertz) -> Hertz {
        let above = self.steps.iter().copied().find(|step| *step >= wanted);
        self.bounded(wanted).unwrap_or(above.unwrap_or(self.highest()))
    }

    /// This many frequencies, evenly spread from the lowest to the highest, as
    /// near as the table has them.
    pub(crate) fn spread(&self, count: usize) -> Vec<Hertz> {
        let (low, high) = (self.lowest().0 as f64, self.highest().0 as f64);
        let gaps = count.saturating_sub(1).max(1) as f64;
        let wanted = (0..count).map(|level| low + (high - low) * level as f64 / gaps);
        let mut levels: Vec<_> =
            wanted.map(|hertz| self.closest(Hertz(hertz.round() as u64))).collect();
        levels.dedup();
        levels
    }

    /// Any value between the ends, where any can be set.
    fn bounded(&self, wanted: Hertz) -> Option<Hertz> {
        self.continuous.then(|| wanted.clamp(self.lowest(), self.highest()))
    }
}

/// The load of a domain in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Utilisation of its busiest core, in [0, 1].
    pub(crate) busiest: f64,
    /// Mean utilisation of its cores, in [0, 1].
    pub(crate) mean: f64,
    /// Length of the window as it was.
    pub(crate) length: Nanos,
    /// The frequency in force, as the machine reports it, or as last chosen.
    pub(crate) frequency: Hertz,
}

/// A frequency and why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) frequency: Hertz,
    pub(crate) reason: Reason,
}

/// A governor of the frequency of one domain.
pub(crate) trait Governor: Send {
    /// How long its next window is.
    fn window(&self) -> Nanos;

    /// Returns its choice before the first observation; `None` leaves the domain unchanged.
    fn start(&mut self, _: &Table) -> Option<Choice> {
        None
    }

    /// Returns its choice after a window; `None` for no change. `load` is `None` where no core's
    /// utilisation was known in some part of the window.
    fn after(&mut self, table: &Table, load: Option<Load>, now: Nanos) -> Option<Choice>;
}

/// One governor with its domain.
struct Governed<G> {
    id: DomainId,
    cores: CoreSet,
    table: Table,
    governor: G,
    /// Indexed by core of the domain: busy seconds in the window so far; `None` once unknown.
    busy_s: Vec<Option<f64>>,
    elapsed: Nanos,
    chosen: Option<Hertz>,
}

impl<G: Governor> Governed<G> {
    fn new(domain: &FrequencyDomain, governor: G) -> Option<Self> {
        Some(Self {
            id: domain.id,
            cores: domain.cores.clone(),
            table: Table::new(domain)?,
            governor,
            busy_s: vec![Some(0.0); domain.cores.len()],
            elapsed: Nanos::ZERO,
            chosen: None,
        })
    }

    /// Adds an epoch; returns the governor's choice, if its window ends.
    fn add(&mut self, seen: &Observation) -> Option<Choice> {
        let epoch_s = seen.epoch.as_secs_f64();
        for (core, busy_s) in self.cores.iter().zip(&mut self.busy_s) {
            let now = seen.cores.get(core.0 as usize);
            let busy = now.and_then(|core| core.utilisation.as_ref().ok());
            *busy_s = busy_s.zip(busy).map(|(sum, busy)| sum + busy.clamp(0.0, 1.0) * epoch_s);
        }
        self.elapsed += seen.epoch;
        if self.elapsed + seen.epoch / 2 <= self.governor.window() {
            return None;
        }
        let load = self.load(seen);
        self.busy_s.fill(Some(0.0));
        self.elapsed = Nanos::ZERO;
        let choice = self.governor.after(&self.table, load, seen.time)?;
        self.chosen = Some(choice.frequency);
        Some(choice)
    }

    fn load(&self, seen: &Observation) -> Option<Load> {
        let seconds = self.elapsed.as_secs_f64();
        let known: Vec<f64> = self.busy_s.iter().flatten().map(|busy| busy / seconds).collect();
        if known.is_empty() || self.elapsed == Nanos::ZERO {
            return None;
        }
        let confirmed = self
            .cores
            .iter()
            .find_map(|core| seen.cores.get(core.0 as usize)?.frequency.as_ref().ok().copied());
        Some(Load {
            busiest: known.iter().copied().fold(0.0, f64::max),
            mean: known.iter().sum::<f64>() / known.len() as f64,
            length: self.elapsed,
            frequency: confirmed.or(self.chosen).unwrap_or(self.table.highest()),
        })
    }
}

/// A policy with one governor for each domain.
pub(crate) struct PerDomain<G> {
    domains: Vec<Governed<G>>,
    plan: Plan,
}

impl<G: Governor> PerDomain<G> {
    /// A governor for every domain whose frequency can be chosen.
    pub(crate) fn new(machine: &Machine, governor: impl Fn() -> G) -> Self {
        let mut plan = Plan::keep();
        let governed = |domain| Governed::new(domain, governor());
        let mut domains: Vec<_> = machine.domains.iter().filter_map(governed).collect();
        for domain in &mut domains {
            if let Some(Choice { frequency, reason }) = domain.governor.start(&domain.table) {
                domain.chosen = Some(frequency);
                plan.set(Setting::Frequency(domain.id, frequency), reason);
            }
        }
        Self { domains, plan }
    }
}

impl<G: Governor> Policy for PerDomain<G> {
    /// The policy steers the machine, whichever apps are present.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        for domain in &mut self.domains {
            if let Some(Choice { frequency, reason }) = domain.add(seen) {
                let setting = Setting::Frequency(domain.id, frequency);
                super::revise(&mut self.plan, vec![setting], &reason);
            }
        }
        for_present_apps(&self.plan, seen)
    }
}

/// A governor that always chooses one frequency of the table.
pub(crate) struct Constant(pub(crate) fn(&Table) -> Hertz);

impl Governor for Constant {
    fn window(&self) -> Nanos {
        Nanos::MAX
    }

    fn start(&mut self, table: &Table) -> Option<Choice> {
        Some(Choice { frequency: (self.0)(table), reason: Reason::Fixed })
    }

    fn after(&mut self, _: &Table, _: Option<Load>, _: Nanos) -> Option<Choice> {
        None
    }
}

/// Helpers for the tests of governors.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) const MHZ: u64 = 1_000_000;

    /// 1000, 1200, ... 2000 MHz.
    pub(crate) fn table() -> Table {
        let steps = (10..=20).step_by(2).map(|step| Hertz(step * 100 * MHZ)).collect();
        Table { steps, continuous: false }
    }

    /// P8, P4 and P0 of Wang et al., TRIOS'13.
    pub(crate) fn xeon() -> Table {
        let steps = [1_197_000, 1_729_000, 2_260_000].map(Hertz::from_khz).to_vec();
        Table { steps, continuous: false }
    }

    pub(crate) fn load(busy: f64, length: Nanos, frequency: Hertz) -> Option<Load> {
        Some(Load { busiest: busy, mean: busy, length, frequency })
    }

    /// Shows a governor one load after another, its own choices in force; the
    /// frequencies in MHz after each.
    pub(crate) fn run(governor: &mut impl Governor, table: &Table, loads: &[f64]) -> Vec<u64> {
        let first = governor.start(table).map_or(table.lowest(), |choice| choice.frequency);
        let mut now = Nanos::ZERO;
        let mut frequency = first;
        let mut one = |busy: &f64| {
            let length = governor.window();
            now = now.saturating_add(length);
            if let Some(choice) = governor.after(table, load(*busy, length, frequency), now) {
                frequency = choice.frequency;
            }
            frequency.0 / MHZ
        };
        loads.iter().map(&mut one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::table;
    use super::*;
    use lull_control::conformance::MemoryPlant;
    use lull_control::{CoreObservation, Plant};
    use lull_measure::Missing;
    use rand::SeedableRng;

    fn mhz(number: u64) -> Hertz {
        Hertz(number * testing::MHZ)
    }

    #[test]
    fn relations_are_those_of_cpufreq() {
        let table = table();
        assert_eq!(table.closest(mhz(1_290)), mhz(1_200));
        assert_eq!(table.closest(mhz(1_310)), mhz(1_400));
        assert_eq!(table.at_or_below(mhz(1_399)), mhz(1_200));
        assert_eq!(table.at_or_above(mhz(1_201)), mhz(1_400));
        assert_eq!(
            (table.at_or_below(mhz(1)), table.at_or_above(mhz(9_999))),
            (mhz(1_000), mhz(2_000))
        );
    }

    #[test]
    fn three_states_are_the_ends_and_the_nearest_to_the_middle() {
        assert_eq!(table().spread(3), [mhz(1_000), mhz(1_400), mhz(2_000)]);
        assert_eq!(table().spread(2), [mhz(1_000), mhz(2_000)]);
        let range = Table { steps: vec![mhz(1_000), mhz(2_000)], continuous: true };
        assert_eq!(range.spread(3), [mhz(1_000), mhz(1_500), mhz(2_000)]);
        let two = Table { steps: vec![mhz(1_000), mhz(2_000)], continuous: false };
        assert_eq!(two.spread(3), [mhz(1_000), mhz(2_000)]);
    }

    /// Wants what it saw, as a frequency.
    struct Mirror;

    impl Governor for Mirror {
        fn window(&self) -> Nanos {
            Nanos::from_millis(100)
        }

        fn after(&mut self, _: &Table, load: Option<Load>, _: Nanos) -> Option<Choice> {
            let Load { busiest, mean, .. } = load?;
            let frequency = Hertz((busiest * 1e6).round() as u64 + (mean * 1e3).round() as u64);
            Some(Choice { frequency, reason: Reason::Fixed })
        }
    }

    fn seen(epoch_ms: u64, busy: &[Option<f64>]) -> Observation {
        let missing = Missing::because("test");
        let core = |busy: &Option<f64>| CoreObservation {
            utilisation: busy.ok_or_else(|| missing.clone()),
            ..CoreObservation::unknown(&missing)
        };
        let cores = busy.iter().map(core).collect();
        let epoch = Nanos::from_millis(epoch_ms);
        Observation { cores, ..Observation::unknown(Nanos::ZERO, epoch, &missing) }
    }

    fn mirror(epochs: &[Observation]) -> Vec<Option<u64>> {
        let machine = MemoryPlant::new(2, Vec::new()).machine().clone();
        let mut policy = PerDomain::new(&machine, || Mirror);
        let mut rng = Rng::seed_from_u64(1);
        let mut one = |seen: &Observation| {
            policy.decide(seen, &mut rng).steps().next().map(|step| match step.setting {
                Setting::Frequency(_, hertz) => hertz.0,
                _ => panic!("{step:?}"),
            })
        };
        epochs.iter().map(&mut one).collect()
    }

    #[test]
    fn a_window_gathers_epochs_and_weighs_them_by_length() {
        let epochs = [
            seen(25, &[Some(1.0), Some(0.0)]),
            seen(75, &[Some(0.2), Some(0.0)]),
            seen(100, &[Some(0.5), Some(0.5)]),
        ];
        assert_eq!(mirror(&epochs), [None, Some(400_200), Some(500_500)]);
    }

    #[test]
    fn a_core_that_was_unknown_for_part_of_the_window_is_left_out() {
        let epochs = [seen(50, &[None, Some(0.2)]), seen(50, &[Some(1.0), Some(0.2)])];
        assert_eq!(mirror(&epochs), [None, Some(200_200)]);
        let none = [seen(100, &[None, None])];
        assert_eq!(mirror(&none), [None]);
    }

    #[test]
    fn a_domain_without_frequencies_is_left_alone() {
        let mut machine = MemoryPlant::new(2, Vec::new()).machine().clone();
        machine.domains[0].steps.clear();
        let mut policy = PerDomain::new(&machine, || Constant(Table::highest));
        let plan = policy.decide(&seen(100, &[Some(1.0)]), &mut Rng::seed_from_u64(1));
        assert!(plan.is_empty());
    }
}
