//! The adaptive mode of interrupt coalescing, beside the fixed delays.
//!
//! In the adaptive mode the network driver chooses the delay itself: a delay exists in the other
//! mode only. A space has the mode as one more level of the knob. Models see two coordinates of
//! such a knob, the delay and the mode; in the adaptive mode the delay is imputed as the middle of
//! its scale, so that no fixed delay is nearer to it than the mode makes it (Hutter, Hoos and
//! Leyton-Brown, "Sequential model-based optimization for general algorithm configuration", LION
//! 2011, section 4.1).

use super::{Dimension, Level, SearchPoint, Space};
use lull_control::{Capability, Coalescing, Machine, Nic, Setting};

/// The value of the adaptive mode. Every delay is at least 0.
const ADAPTIVE: f64 = -1.0;
/// The delay's coordinate in the adaptive mode.
const IMPUTED: f64 = 0.5;

impl Space {
    /// Returns the same space in which coalescing, if it is searched, may be left to the drivers.
    #[must_use]
    pub fn with_adaptive(mut self, machine: &Machine) -> Self {
        let set = |nic: &Nic| Setting::Coalescing(nic.id, Coalescing::Adaptive);
        for dimension in &mut self.dimensions {
            if dimension.knob == Capability::Coalescing && !dimension.has_adaptive() {
                let settings = machine.nics.iter().map(set).collect();
                dimension.levels.insert(0, Level { value: ADAPTIVE, at: IMPUTED, settings });
                dimension.fast += 1;
            }
        }
        self
    }

    /// Returns the point nearest to values that were stored; `None` if they have a mode that this
    /// space lacks.
    pub fn stored(&self, values: &[f64]) -> Option<SearchPoint> {
        let mut pairs = self.dimensions.iter().zip(values);
        let lacks_mode = pairs.any(|(dimension, value)| *value < 0.0 && !dimension.has_adaptive());
        (!lacks_mode).then(|| self.nearest(values))
    }

    /// Returns the same point in each other mode.
    pub(crate) fn in_other_modes(&self, point: &SearchPoint) -> Vec<SearchPoint> {
        let axes = (0..self.dimensions.len()).filter(|axis| self.dimensions[*axis].has_adaptive());
        let adaptive = |axis: usize| {
            let mut other = point.clone();
            other.0[axis] = 0;
            other
        };
        axes.map(adaptive).collect()
    }

    /// The coordinates of a point's modes: 1 for adaptive.
    pub(super) fn modes<'a>(&'a self, point: &'a SearchPoint) -> impl Iterator<Item = f64> + 'a {
        let pairs = self.dimensions.iter().zip(self.levels(point));
        let with_modes = pairs.filter(|(dimension, _)| dimension.has_adaptive());
        with_modes.map(|(_, level)| f64::from(level.is_adaptive()))
    }
}

impl Dimension {
    /// Whether the adaptive mode is one of its levels: the first.
    pub(super) fn has_adaptive(&self) -> bool {
        self.levels.first().is_some_and(Level::is_adaptive)
    }
}

impl Level {
    /// Whether this is a mode, and no delay.
    pub(super) fn is_adaptive(&self) -> bool {
        self.value < 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Method, Reading, Rules, Search};
    use crate::testing::{lc_spec, machine};
    use lull_control::{NicId, Rng};
    use rand::SeedableRng;

    const KNOBS: [Capability; 2] = [Capability::Coalescing, Capability::Cores];

    fn spaces() -> [Space; 2] {
        let machine = machine(4);
        let fixed = Space::from_machine(&machine, &[lc_spec("a")], &KNOBS).unwrap();
        [fixed.clone(), fixed.with_adaptive(&machine)]
    }

    #[test]
    fn the_mode_is_one_more_level_with_a_coordinate_of_its_own() {
        let [fixed, space] = spaces();
        assert_eq!(space.size(), fixed.size() + 4);
        let point = space.nearest(&[-1.0, 2.0]);
        assert_eq!(space.values(&point), [-1.0, 2.0]);
        assert_eq!(space.describe(&point), "coalescing adaptive, cores 2 cores");
        let adaptive = Setting::Coalescing(NicId(0), Coalescing::Adaptive);
        assert_eq!(space.settings(&point)[0], adaptive);
        assert_eq!(space.coordinates(&point), [0.5, 0.5, 1.0]);
        let delayed = space.nearest(&[0.0, 2.0]);
        assert_eq!(space.coordinates(&delayed), [0.0, 0.5, 0.0]);
        assert_eq!(space.at(&[0.5, 0.5, 1.0]), space.nearest(&[250.0, 2.0]), "a delay");
        assert_eq!(space.values(&space.fastest()), fixed.values(&fixed.fastest()));
        assert_eq!(space.clone().with_adaptive(&machine(4)), space, "once");
        let thin = space.at_most(9);
        assert_eq!(thin.values(&thin.point(0))[0], -1.0, "a sweep has it, too");
    }

    #[test]
    fn a_thinned_space_keeps_the_fastest_delay_beside_the_mode() {
        let [_, space] = spaces();
        let thin = space.at_most(4);
        let values: Vec<_> = thin.dimensions()[0].levels.iter().map(|it| it.value).collect();
        assert_eq!((thin.size(), &values[..2]), (6, &[-1.0, 20.0][..]), "{values:?}");
        assert_eq!(thin.values(&thin.fastest()), space.values(&space.fastest()));
        assert_eq!(thin.values(&thin.nearest(&[0.0, 1.0])), [20.0, 1.0], "a delay");
        let grid = space.only(Capability::Coalescing, &[-1.0, 50.0]);
        assert_eq!(grid.values(&grid.fastest())[0], 50.0, "the fastest is not a mode");
    }

    #[test]
    fn stored_values_of_a_mode_that_is_not_searched_are_no_point() {
        let [fixed, space] = spaces();
        assert_eq!(fixed.stored(&[-1.0, 2.0]), None);
        assert_eq!(space.stored(&[-1.0, 2.0]), Some(space.nearest(&[-1.0, 2.0])));
        assert_eq!(fixed.stored(&[20.0, 2.0]), Some(fixed.nearest(&[20.0, 2.0])));
    }

    /// Searches a server whose adaptive mode takes so much power and has this tail.
    fn searched(watts: f64, tail_us: f64) -> Vec<f64> {
        let [_, space] = spaces();
        let mut search = Search::new(space, Rules::new(Method::Apart, 500.0, 24));
        let mut rng = Rng::seed_from_u64(3);
        while let Some(next) = search.ask(&mut rng) {
            let values = search.space().values(&next.point);
            let (delay, cores) = (values[0], values[1]);
            let fixed = (100.0 + delay + 100.0 / cores, 20.0 + cores + 400.0 / (delay + 40.0));
            let (tail_us, watts) = if delay < 0.0 { (tail_us, watts + cores) } else { fixed };
            let late = if tail_us > 500.0 { 300 } else { 0 };
            let reading = Reading { tail_us, watts, requests: 1000, late, progress_per_s: None };
            search.tell(next.point, Ok(reading));
        }
        let choice = search.choice().unwrap();
        assert!(choice.meets, "{choice:?}");
        search.space().values(&choice.point)
    }

    #[test]
    fn a_search_takes_the_mode_where_it_is_best_and_a_delay_where_it_is_not() {
        assert_eq!(searched(15.0, 200.0), [-1.0, 1.0]);
        assert!(searched(15.0, 2000.0)[0] > 20.0, "it misses the bound");
        assert!(searched(60.0, 200.0)[0] > 20.0, "it costs more");
    }
}
