//! The space of a search: the numeric knobs that a plant offers, as a grid.

mod adaptive;

use super::level::{Level, scaled};
use super::{gates, hardware};
use lull_control::{
    AppSpec, Capability, Coalescing, CoreSet, Knob, Machine, Nic, NicId, Setting, WayMask, numbered,
};
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};

/// The ITR delay that counts as fast: short, but not an interrupt for each
/// packet, which a loaded core cannot afford (ours).
const FAST_DELAY: Nanos = Nanos::from_micros(20);

/// Most delays of a card beyond none (ours): twice those of an 82599, which go to 1022 us in steps
/// of 2 us. A level is counted in 16 bits, and a search predicts every setting at each trial.
const DELAYS_MAX: u64 = 1024;

/// A point of the search space: one level for every dimension.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SearchPoint(pub Vec<u16>);

/// One knob, or all of its kind together, with the levels that can be set.
#[derive(Debug, Clone, PartialEq)]
pub struct Dimension {
    /// The capability that the dimension sets.
    pub knob: Capability,
    /// Its levels, ascending.
    pub levels: Vec<Level>,
    /// The level that is best for latency.
    pub fast: u16,
}

/// All points that can be tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    dimensions: Vec<Dimension>,
}

/// Why a space cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpaceError {
    /// A requested knob does not exist.
    #[error("there is no {knob} to search: {why}")]
    Missing {
        /// The capability.
        knob: Capability,
        /// Why not.
        why: String,
    },
    /// The knob is not numeric.
    #[error(
        "{0} is not a number: search over coalescing, frequency, cores, cache-ways, gate-cap, \
         gate-batch, gate-delay, uncore-frequency, idle-latency or energy-preference"
    )]
    NotNumeric(Capability),
    /// No choice is left.
    #[error("this machine offers nothing to search: {0}")]
    Nothing(String),
}

/// Knobs that can be searched, in the order in which they are tried.
pub(crate) const NUMERIC: [Capability; 10] = [
    Capability::Coalescing,
    Capability::Frequency,
    Capability::Cores,
    Capability::CacheWays,
    Capability::GateCap,
    Capability::GateBatch,
    Capability::GateDelay,
    Capability::UncoreFrequency,
    Capability::IdleLatency,
    Capability::EnergyPreference,
];

/// Knobs that are searched if none is named: those that affect only speed. The numbers of a gate
/// were chosen by an operator, so they are searched only if named. Of the last two see
/// [`hardware::check_relevance`].
const USUAL: [Capability; 6] = [
    Capability::Coalescing,
    Capability::Frequency,
    Capability::Cores,
    Capability::UncoreFrequency,
    Capability::IdleLatency,
    Capability::EnergyPreference,
];

impl Space {
    /// Returns the space of a machine's knobs for these apps: those named, or the available ones
    /// among coalescing, frequency, cores and uncore frequency, and idle states and energy
    /// preference where they matter.
    ///
    /// # Errors
    /// A named knob that is missing or not a number, or nothing to choose at all.
    pub fn from_machine(
        machine: &Machine,
        apps: &[AppSpec],
        named: &[Capability],
    ) -> Result<Self, SpaceError> {
        if let Some(other) = named.iter().find(|knob| !NUMERIC.contains(knob)) {
            return Err(SpaceError::NotNumeric(*other));
        }
        let mut dimensions = Vec::new();
        let mut reasons = Vec::new();
        let wanted = if named.is_empty() { &USUAL[..] } else { named };
        for knob in wanted {
            let relevant = |found| match named.is_empty() {
                true => hardware::check_relevance(*knob, machine, apps).map(|()| found),
                false => Ok(found),
            };
            match dimension(*knob, machine, apps).and_then(relevant) {
                Ok(dimension) => dimensions.push(dimension),
                Err(why) if named.is_empty() => reasons.push(format!("{knob}: {why}")),
                Err(why) => return Err(SpaceError::Missing { knob: *knob, why }),
            }
        }
        if dimensions.is_empty() {
            return Err(SpaceError::Nothing(reasons.join("; ")));
        }
        Ok(Self { dimensions })
    }

    /// A space of these dimensions.
    pub fn new(dimensions: Vec<Dimension>) -> Self {
        Self { dimensions }
    }

    /// The space of these values of knobs, in each knob's own unit, for a caller who sets them
    /// itself: its levels have no settings.
    ///
    /// The level that is best for latency is the highest, but the lowest of a batch or a delay
    /// at a gate, of an idle latency and of an energy preference, and the lowest from 20 us on of
    /// an interrupt delay.
    ///
    /// # Errors
    /// A knob that is not a number, is named twice, or has fewer than two different values.
    pub fn from_values(values: &[(Capability, Vec<f64>)]) -> Result<Self, SpaceError> {
        let mut dimensions: Vec<Dimension> = Vec::new();
        for (knob, values) in values {
            if !NUMERIC.contains(knob) {
                return Err(SpaceError::NotNumeric(*knob));
            }
            let missing = |why: &str| SpaceError::Missing { knob: *knob, why: why.to_owned() };
            if dimensions.iter().any(|known| known.knob == *knob) {
                return Err(missing("it is named twice"));
            }
            let mut values = values.clone();
            values.sort_by(f64::total_cmp);
            values.dedup();
            let (scale, least): (fn(f64) -> f64, f64) = match knob {
                Capability::Frequency | Capability::UncoreFrequency => {
                    (|value| value, f64::MIN_POSITIVE)
                }
                Capability::EnergyPreference => (|value| value, 0.0),
                Capability::Coalescing | Capability::GateDelay => (f64::sqrt, 0.0),
                _ => (f64::ln, 1.0),
            };
            if !values.iter().all(|value| value.is_finite() && *value >= least) {
                return Err(missing("it has a value that it cannot be set to"));
            }
            if !(2..=usize::from(u16::MAX)).contains(&values.len()) {
                return Err(missing("give it 2 to 65,535 different values"));
            }
            let from_fast = |value: &f64| *value >= FAST_DELAY.as_micros_f64();
            let last = values.len() - 1;
            let fast = match knob {
                Capability::Coalescing => values.iter().position(from_fast).unwrap_or(last),
                Capability::GateBatch
                | Capability::GateDelay
                | Capability::IdleLatency
                | Capability::EnergyPreference => 0,
                _ => last,
            };
            let levels =
                scaled(values.into_iter().map(|value| (value, Vec::new())).collect(), scale);
            dimensions.push(Dimension { knob: *knob, levels, fast: fast as u16 });
        }
        if dimensions.is_empty() {
            return Err(SpaceError::Nothing("no knob is named".to_owned()));
        }
        Ok(Self { dimensions })
    }

    /// Its dimensions.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// The same space with only those levels of one knob that are nearest to
    /// these values.
    #[must_use]
    pub fn only(mut self, knob: Capability, values: &[f64]) -> Self {
        for dimension in self.dimensions.iter_mut().filter(|it| it.knob == knob) {
            let mut kept: Vec<u16> = values.iter().map(|value| dimension.nearest(*value)).collect();
            kept.sort_unstable();
            kept.dedup();
            let fast = dimension.levels[usize::from(dimension.fast)].value;
            let all = std::mem::take(&mut dimension.levels);
            dimension.levels = kept.iter().map(|level| all[usize::from(*level)].clone()).collect();
            dimension.fast = dimension.nearest(fast);
        }
        self
    }

    /// Returns the same space with fewer levels of its knobs, so that it has at most this many
    /// settings: the lowest, the highest and evenly spaced ones between them, with the one that is
    /// best for latency. Two levels of each knob are left in any case, and three where one is the
    /// adaptive mode.
    #[must_use]
    pub fn at_most(&self, settings: usize) -> Self {
        let least = |dimension: &Dimension| 2 + usize::from(dimension.has_adaptive());
        let mut counts: Vec<_> =
            self.dimensions.iter().map(|it| (it.levels.len(), least(it))).collect();
        while counts.iter().map(|(count, _)| count).product::<usize>() > settings {
            let open = counts.iter_mut().filter(|(count, least)| count > least);
            let Some((most, _)) = open.max_by_key(|(count, _)| *count) else { break };
            *most -= 1;
        }
        let thinned = self.dimensions.iter().zip(counts).map(|(dimension, (count, _))| {
            let last = dimension.levels.len() - 1;
            let mut kept: Vec<_> = (0..count).map(|at| (at * last) / (count - 1)).collect();
            let fast = usize::from(dimension.fast);
            // The ends stay; of the others the nearest one makes room for the fastest.
            let inner = kept.iter_mut().filter(|at| **at != 0 && **at != last);
            if fast != 0
                && fast != last
                && let Some(nearest) = inner.min_by_key(|at| at.abs_diff(fast))
            {
                *nearest = fast;
            }
            let values: Vec<_> = kept.iter().map(|at| dimension.levels[*at].value).collect();
            (dimension.knob, values)
        });
        thinned.fold(self.clone(), |space, (knob, values)| space.only(knob, &values))
    }

    /// Returns the space without a knob; `None` if nothing is left to choose.
    #[must_use]
    pub fn without(&self, knob: Capability) -> Option<Self> {
        let left = self.dimensions.iter().filter(|it| it.knob != knob);
        let dimensions: Vec<_> = left.cloned().collect();
        (!dimensions.is_empty()).then_some(Self { dimensions })
    }

    /// Returns the space without the delays of a network card; `None` if they are those of no
    /// other card.
    pub(crate) fn without_card(mut self, card: NicId) -> Option<Self> {
        let mut dimensions = self.dimensions.iter_mut();
        let coalescing = dimensions.find(|it| it.knob == Capability::Coalescing)?;
        for level in &mut coalescing.levels {
            level.settings.retain(|setting| setting.knob() != Knob::Coalescing(card));
        }
        let has_other = coalescing.levels.iter().all(|level| !level.settings.is_empty());
        has_other.then_some(self)
    }

    /// Number of points.
    pub fn size(&self) -> usize {
        self.dimensions.iter().map(|dimension| dimension.levels.len()).product()
    }

    /// All points, the first dimension slowest.
    pub fn points(&self) -> impl Iterator<Item = SearchPoint> + '_ {
        (0..self.size()).map(|number| self.point(number))
    }

    /// Returns the point with this index in the order of [`Space::points`].
    pub fn point(&self, number: usize) -> SearchPoint {
        let mut rest = number;
        let mut levels = vec![0; self.dimensions.len()];
        for (level, dimension) in levels.iter_mut().zip(&self.dimensions).rev() {
            *level = (rest % dimension.levels.len()) as u16;
            rest /= dimension.levels.len();
        }
        SearchPoint(levels)
    }

    /// The point that is best for latency.
    pub fn fastest(&self) -> SearchPoint {
        SearchPoint(self.dimensions.iter().map(|dimension| dimension.fast).collect())
    }

    /// Coordinates in [0, 1], as models see them: one of each dimension, then one of each mode.
    pub fn coordinates(&self, point: &SearchPoint) -> Vec<f64> {
        self.levels(point).map(|level| level.at).chain(self.modes(point)).collect()
    }

    /// Values in each knob's own unit.
    pub fn values(&self, point: &SearchPoint) -> Vec<f64> {
        self.levels(point).map(|level| level.value).collect()
    }

    /// Returns the settings of a point.
    pub fn settings(&self, point: &SearchPoint) -> Vec<Setting> {
        self.levels(point).flat_map(|level| level.settings.clone()).collect()
    }

    /// The point nearest to these values, in each knob's own unit.
    pub fn nearest(&self, values: &[f64]) -> SearchPoint {
        let pairs = self.dimensions.iter().zip(values);
        SearchPoint(pairs.map(|(dimension, value)| dimension.nearest(*value)).collect())
    }

    /// The point at these coordinates of its dimensions, with fixed delays.
    pub(crate) fn at(&self, coordinates: &[f64]) -> SearchPoint {
        let level = |(dimension, at): (&Dimension, &f64)| {
            let distance = |level: &Level| (level.at - at).abs();
            let pairs = dimension.levels.iter().enumerate();
            let numbers = pairs.filter(|(_, level)| !level.is_adaptive());
            let best = numbers.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
            best.map_or(0, |(level, _)| level as u16)
        };
        SearchPoint(self.dimensions.iter().zip(coordinates).map(level).collect())
    }

    /// Whether a point lies in the space (a stored one may be of another machine).
    pub fn contains(&self, point: &SearchPoint) -> bool {
        let within =
            |(level, dimension): (&u16, &Dimension)| usize::from(*level) < dimension.levels.len();
        point.0.len() == self.dimensions.len() && point.0.iter().zip(&self.dimensions).all(within)
    }

    /// Describes a point for people: `coalescing 200 us, frequency 1.3 GHz`.
    pub fn describe(&self, point: &SearchPoint) -> String {
        let pairs = self.dimensions.iter().zip(self.levels(point));
        let text = pairs.map(|(dimension, level)| match level.is_adaptive() {
            true => format!("{} adaptive", dimension.knob),
            false => format!("{} {} {}", dimension.knob, level.value, dimension.unit()),
        });
        text.collect::<Vec<_>>().join(", ")
    }

    fn levels<'a>(&'a self, point: &'a SearchPoint) -> impl Iterator<Item = &'a Level> {
        let pairs = self.dimensions.iter().zip(&point.0);
        pairs.map(|(dimension, level)| &dimension.levels[usize::from(*level)])
    }
}

impl Dimension {
    /// The unit of its values.
    pub fn unit(&self) -> &'static str {
        match self.knob {
            Capability::Frequency | Capability::UncoreFrequency => "GHz",
            Capability::Coalescing => "us",
            Capability::Cores => "cores",
            Capability::GateCap => "workers",
            Capability::GateBatch => "transactions",
            Capability::GateDelay | Capability::IdleLatency => "us",
            Capability::EnergyPreference => "of 255",
            _ => "ways",
        }
    }

    /// The level nearest to a value: no mode is near to a number.
    fn nearest(&self, value: f64) -> u16 {
        let distance = |level: &Level| match level.is_adaptive() == (value < 0.0) {
            true => (level.value - value).abs(),
            false => f64::INFINITY,
        };
        let pairs = self.levels.iter().enumerate();
        let best = pairs.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        best.map_or(0, |(level, _)| level as u16)
    }
}

fn dimension(knob: Capability, machine: &Machine, apps: &[AppSpec]) -> Result<Dimension, String> {
    machine.capabilities.get(knob).map_err(|why| why.to_string())?;
    let (levels, fast) = match knob {
        Capability::Frequency => (frequencies(machine), u16::MAX),
        Capability::Coalescing => {
            let levels = delays(machine);
            let fast = levels.iter().position(|level| level.value >= FAST_DELAY.as_micros_f64());
            (levels, fast.unwrap_or(0) as u16)
        }
        Capability::Cores => (cores(machine, apps), u16::MAX),
        // A gate that is nearly open, single transactions, no rest: the server by itself.
        Capability::GateCap => (gates::caps(machine)?, u16::MAX),
        Capability::GateBatch => (gates::batches(machine)?, 0),
        Capability::GateDelay => (gates::delays(machine, apps)?, 0),
        Capability::UncoreFrequency => (hardware::uncores(machine), u16::MAX),
        Capability::IdleLatency => (hardware::idle_latencies(machine), 0),
        Capability::EnergyPreference => (hardware::energy_preferences(machine), 0),
        _ => (ways(machine, apps), u16::MAX),
    };
    if levels.len() < 2 {
        return Err("it has one level only".to_owned());
    }
    let fast = fast.min(levels.len() as u16 - 1);
    Ok(Dimension { knob, levels, fast })
}

/// All domains at one frequency: the steps of the domain that has the fewest.
fn frequencies(machine: &Machine) -> Vec<Level> {
    let fewest = machine
        .domains
        .iter()
        .filter(|domain| !domain.steps.is_empty())
        .min_by_key(|domain| domain.steps.len());
    let Some(fewest) = fewest else { return Vec::new() };
    let (lowest, highest) = (fewest.steps[0], fewest.steps[fewest.steps.len() - 1]);
    let steps = match fewest.continuous {
        false => fewest.steps.clone(),
        // A range is searched in steps of 100 MHz.
        true => (0..=(highest.0 - lowest.0) / 100_000_000)
            .map(|step| Hertz(lowest.0 + step * 100_000_000))
            .collect(),
    };
    let level = |hertz: Hertz| {
        let settings = machine
            .domains
            .iter()
            .filter_map(|domain| Some(Setting::Frequency(domain.id, domain.nearest(hertz)?)));
        (hertz.as_ghz(), settings.collect())
    };
    scaled(steps.into_iter().map(level).collect(), |ghz| ghz)
}

/// All cards at one delay, in steps of the coarsest, or in as many of its steps as leave no more
/// than [`DELAYS_MAX`] delays.
fn delays(machine: &Machine) -> Vec<Level> {
    let finest = machine.nics.iter().map(|nic| nic.delay_step.0.max(1)).max().unwrap_or(1);
    let most = machine.nics.iter().map(|nic| nic.delay_max.0).min().unwrap_or(0);
    let step = finest.saturating_mul((most / finest).div_ceil(DELAYS_MAX).max(1));
    let level = |steps: u64| {
        let delay = Nanos(steps * step);
        let set = |nic: &Nic| Setting::Coalescing(nic.id, Coalescing::Delay(nic.nearest(delay)));
        (delay.as_micros_f64(), machine.nics.iter().map(set).collect())
    };
    scaled((0..=most / step).map(level).collect(), f64::sqrt)
}

/// The first this many cores for every latency-critical app.
fn cores(machine: &Machine, apps: &[AppSpec]) -> Vec<Level> {
    let all = machine.all_cores();
    let critical = || numbered(apps).filter(|(_, app)| app.is_latency_critical());
    if critical().next().is_none() {
        return Vec::new();
    }
    let level = |count: usize| {
        let first: CoreSet = all.iter().take(count).collect();
        let settings = critical().map(|(app, _)| Setting::Cores(app, first.clone()));
        (count as f64, settings.collect())
    };
    scaled((1..=all.len()).map(level).collect(), f64::ln)
}

/// The first this many ways for every latency-critical app.
fn ways(machine: &Machine, apps: &[AppSpec]) -> Vec<Level> {
    let most = machine.cache.as_ref().map_or(0, |cache| cache.ways);
    let level = |count: u32| {
        let critical = numbered(apps).filter(|(_, app)| app.is_latency_critical());
        let set = critical.map(|(app, _)| Setting::CacheWays(app, WayMask::run(0, count)));
        (f64::from(count), set.collect())
    };
    scaled((1..=most).map(level).collect(), f64::ln)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lc_spec, machine};

    const THREE: [Capability; 3] =
        [Capability::Coalescing, Capability::Frequency, Capability::Cores];

    fn space(named: &[Capability]) -> Space {
        Space::from_machine(&machine(4), &[lc_spec("a")], named).unwrap()
    }

    #[test]
    fn every_knob_has_its_levels_and_a_point_sets_all() {
        let space = space(&[]);
        let sizes: Vec<_> = space.dimensions().iter().map(|it| it.levels.len()).collect();
        assert_eq!(sizes, [501, 2, 4, 11]);
        assert_eq!(space.size(), 501 * 2 * 4 * 11);
        let fastest = space.fastest();
        assert_eq!(space.values(&fastest), [20.0, 2.0, 4.0, 2.0]);
        assert_eq!(space.settings(&fastest).len(), 4);
        let text = "coalescing 20 us, frequency 2 GHz, cores 4 cores, uncore-frequency 2 GHz";
        assert_eq!(space.describe(&fastest), text);
    }

    #[test]
    fn a_card_with_many_delays_is_searched_in_longer_steps() {
        let delays = |max, step| {
            let mut machine = machine(4);
            machine.nics[0].delay_max = max;
            machine.nics[0].delay_step = step;
            let named = [Capability::Coalescing];
            let space = Space::from_machine(&machine, &[lc_spec("a")], &named).unwrap();
            let levels = &space.dimensions()[0].levels;
            (levels.len(), levels[1].value, levels[levels.len() - 1].value)
        };
        let micros = Nanos::from_micros;
        assert_eq!(delays(micros(1024), micros(1)), (1025, 1.0, 1024.0));
        assert_eq!(delays(micros(1024), Nanos(1)), (1025, 1.0, 1024.0));
        assert_eq!(delays(micros(65_535), micros(1)), (1024, 64.0, 65_472.0));
        let (count, _, longest) = delays(Nanos::from_secs(36_000_000), Nanos(1));
        assert!(count <= 1025 && longest > 3.5e13, "{count} {longest}");
    }

    #[test]
    fn given_values_make_a_space_whose_fastest_point_is_known() {
        let delays = vec![100.0, 0.0, 20.0];
        let space = Space::from_values(&[
            (Capability::Coalescing, delays.clone()),
            (Capability::Frequency, vec![1.2, 2.4]),
            (Capability::GateDelay, vec![0.0, 500.0]),
        ]);
        let space = space.unwrap();
        assert_eq!((space.size(), space.values(&space.fastest())), (12, vec![20.0, 2.4, 0.0]));
        let refused = |values: &[_]| Space::from_values(values).unwrap_err().to_string();
        let twice = [(Capability::Coalescing, delays.clone()), (Capability::Coalescing, delays)];
        assert!(refused(&twice).contains("no coalescing to search: it is named twice"));
        assert!(refused(&[(Capability::Cores, vec![0.0, 1.0])]).contains("cannot be set to"));
        let idle = (Capability::IdleLatency, vec![133.0, 2.0]);
        let space = Space::from_values(&[idle, (Capability::EnergyPreference, vec![0.0, 255.0])]);
        let space = space.unwrap();
        assert_eq!(space.values(&space.fastest()), [2.0, 0.0]);
        assert!(refused(&[(Capability::Cores, vec![2.0, 2.0])]).contains("2 to 65,535"));
        assert!(
            refused(&[(Capability::Energy, vec![1.0, 2.0])]).contains("energy is not a number")
        );
    }

    #[test]
    fn numbers_and_coordinates_go_both_ways() {
        let space = space(&THREE);
        for number in [0, 1, 77, space.size() - 1] {
            let point = space.point(number);
            assert!(space.contains(&point));
            assert_eq!(space.at(&space.coordinates(&point)), point);
            assert_eq!(space.nearest(&space.values(&point)), point);
        }
        assert!(
            !space.contains(&SearchPoint(vec![0, 2, 0])) && !space.contains(&SearchPoint(vec![0]))
        );
    }

    #[test]
    fn a_grid_keeps_the_levels_nearest_to_its_values() {
        let grid = space(&THREE).only(Capability::Coalescing, &[0.0, 3.0, 50.0, 400.0]);
        let values: Vec<_> = grid.dimensions()[0].levels.iter().map(|it| it.value).collect();
        assert_eq!(values, [0.0, 2.0, 50.0, 400.0]);
        assert_eq!(grid.values(&grid.fastest())[0], 2.0, "nearest to 20");
    }

    #[test]
    fn a_thinned_space_keeps_the_ends_and_the_fastest_level_and_has_the_requested_size() {
        let whole = space(&THREE);
        for most in [8, 24, 100, 5000] {
            let thin = whole.at_most(most);
            assert!(thin.size() <= most.max(8) && thin.size() > most.min(4008) / 2, "{most}");
            assert_eq!(thin.values(&thin.fastest())[1..], [2.0, 4.0], "{most}");
            for (dimension, all) in thin.dimensions().iter().zip(whole.dimensions()) {
                let ends =
                    |it: &Dimension| [&it.levels[0], it.levels.last().unwrap()].map(|l| l.value);
                assert_eq!(ends(dimension), ends(all));
            }
        }
        let values = whole.at_most(24).values(&whole.at_most(24).fastest());
        assert_eq!(values, [20.0, 2.0, 4.0], "the fastest delay is among its levels");
        assert_eq!(whole.at_most(5000), whole);
    }

    #[test]
    fn what_is_missing_or_no_number_is_refused_by_name() {
        let refused = |named: &[Capability], machine| {
            Space::from_machine(machine, &[lc_spec("a")], named).unwrap_err().to_string()
        };
        let whole = machine(4);
        assert!(refused(&[Capability::Scheduling], &whole).contains("scheduling is not a number"));
        let mut bare = machine(1);
        bare.capabilities = lull_control::Capabilities::default();
        assert!(refused(&[Capability::Frequency], &bare).contains("no frequency to search"));
        assert!(refused(&[], &bare).contains("nothing to search"));
    }
}
