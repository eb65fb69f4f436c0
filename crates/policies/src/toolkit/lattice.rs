//! All divisions of a machine between apps, and how to search them.
//!
//! A point is the number of units of each kind that each app has: at least the floor each, and all
//! units allocated (CLITE's constraints). Two points are neighbours if one unit moves between two
//! apps. The optimum of a model is found by hill climbing from random points. CLITE relaxes to real
//! numbers, solves with SLSQP and rounds; on the lattice itself no result violates a constraint.

use super::partition::Partition;
use super::regions::Kind;
use super::surrogate::{GaussianProcess, expected_improvement};
use lull_control::Rng;
use rand::RngExt;

/// Units by kind and app: all apps of the first kind, all of the second, ...
pub(crate) type Point = Vec<u32>;

/// The space of all points.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lattice {
    apps: usize,
    axes: Vec<Axis>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    kind: Kind,
    total: u32,
    floor: u32,
}

/// A search for the point from which a model expects most.
pub(crate) struct Search<'a> {
    pub(crate) model: &'a GaussianProcess,
    /// Best value so far.
    pub(crate) best: f64,
    /// The difference by which it must be exceeded.
    pub(crate) margin: f64,
    /// An app that keeps its resources in this point.
    pub(crate) frozen: Option<(usize, &'a Point)>,
    /// Points that are not to be tried again.
    pub(crate) tried: &'a [Point],
    /// How many random points to climb from.
    pub(crate) starts: usize,
    /// How many points to ask the model about, at most.
    pub(crate) budget: usize,
}

impl Lattice {
    /// The space of a partition between this many apps.
    pub(crate) fn new(partition: &Partition, apps: usize) -> Self {
        let axis = |kind| Axis { kind, total: partition.total(kind), floor: partition.floor(kind) };
        Self { apps, axes: partition.kinds().map(axis).collect() }
    }

    /// Everything divided evenly.
    pub(crate) fn even(&self) -> Point {
        let shares = |axis: &Axis| super::regions::even_shares(axis.total, self.apps);
        self.axes.iter().flat_map(shares).collect()
    }

    /// Returns the division in which one app has all but the others' floors.
    pub(crate) fn most_for(&self, app: usize) -> Point {
        let units = |axis: &Axis, other: usize| match other == app {
            true => axis.total - axis.floor * (self.apps as u32 - 1),
            false => axis.floor,
        };
        let of_axis =
            |axis: &Axis| (0..self.apps).map(|other| units(axis, other)).collect::<Vec<_>>();
        self.axes.iter().flat_map(of_axis).collect()
    }

    /// The units of each kind, by app.
    pub(crate) fn by_kind<'a>(
        &'a self,
        point: &'a Point,
    ) -> impl Iterator<Item = (Kind, &'a [u32])> + 'a {
        let rows = point.chunks(self.apps.max(1));
        self.axes.iter().zip(rows).map(|(axis, row)| (axis.kind, row))
    }

    /// A point as shares of the totals, for a model.
    pub(crate) fn shares(&self, point: &Point) -> Vec<f64> {
        let total = |at: usize| f64::from(self.axes[at / self.apps.max(1)].total);
        point.iter().enumerate().map(|(at, units)| f64::from(*units) / total(at)).collect()
    }

    /// Returns a random point; a frozen app keeps its resources.
    fn random(&self, frozen: Option<(usize, &Point)>, rng: &mut Rng) -> Point {
        let mut point = Vec::with_capacity(self.axes.len() * self.apps);
        for (number, axis) in self.axes.iter().enumerate() {
            let kept = frozen.map(|(app, kept)| (app, kept[number * self.apps + app]));
            let free = (0..self.apps).filter(|app| kept.is_none_or(|(frozen, _)| frozen != *app));
            let free: Vec<_> = free.collect();
            let taken = kept.map_or(0, |(_, units)| units);
            let spare = axis.total - taken - axis.floor * free.len() as u32;
            // Cuts of a line: every division is about as likely as any other.
            let mut cuts: Vec<u32> = (1..free.len()).map(|_| rng.random_range(0..=spare)).collect();
            cuts.sort_unstable();
            cuts.push(spare);
            let mut row = vec![taken; self.apps];
            let mut begin = 0;
            for (app, end) in free.into_iter().zip(cuts) {
                row[app] = axis.floor + end - begin;
                begin = end;
            }
            point.extend(row);
        }
        point
    }

    /// All moves of one unit between two apps that are not frozen: giver and
    /// receiver as indices into a point.
    fn moves(&self, frozen: Option<usize>) -> Vec<(usize, usize)> {
        let free = || (0..self.apps).filter(move |app| Some(*app) != frozen);
        let pairs = free().flat_map(|from| free().map(move |to| (from, to)));
        let pairs: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
        let of_axis = |axis: usize| {
            let base = axis * self.apps;
            pairs.iter().map(move |(from, to)| (base + from, base + to))
        };
        (0..self.axes.len()).flat_map(of_axis).collect()
    }

    fn floor_at(&self, index: usize) -> u32 {
        self.axes[index / self.apps].floor
    }

    /// The untried point from which the model expects most improvement, and how much.
    pub(crate) fn best(&self, search: &Search<'_>, rng: &mut Rng) -> Option<(Point, f64)> {
        let mut climb = Climb {
            lattice: self,
            search,
            moves: self.moves(search.frozen.map(|(app, _)| app)),
            evaluated: 0,
            best: None,
        };
        for _ in 0..search.starts {
            let start = self.random(search.frozen, rng);
            climb.from(start, rng);
        }
        climb.best
    }
}

/// A search under way.
struct Climb<'a> {
    lattice: &'a Lattice,
    search: &'a Search<'a>,
    moves: Vec<(usize, usize)>,
    evaluated: usize,
    best: Option<(Point, f64)>,
}

impl Climb<'_> {
    /// Up from a point, taking the first better neighbour each time.
    fn from(&mut self, mut point: Point, rng: &mut Rng) {
        let mut value = self.value(&point);
        let mut idle = 0;
        let mut at = if self.moves.is_empty() { 0 } else { rng.random_range(0..self.moves.len()) };
        // A full round without a better neighbour is a summit.
        while idle < self.moves.len() && self.evaluated < self.search.budget {
            at = (at + 1) % self.moves.len();
            idle += 1;
            let (from, to) = self.moves[at];
            if point[from] <= self.lattice.floor_at(from) {
                continue;
            }
            point[from] -= 1;
            point[to] += 1;
            let there = self.value(&point);
            if there > value {
                (value, idle) = (there, 0);
            } else {
                point[from] += 1;
                point[to] -= 1;
            }
        }
    }

    /// The improvement expected at a point; remembers the best that is untried.
    fn value(&mut self, point: &Point) -> f64 {
        self.evaluated += 1;
        let posterior = self.search.model.posterior(&self.lattice.shares(point));
        let value = expected_improvement(posterior, self.search.best, self.search.margin);
        let better = self.best.as_ref().is_none_or(|(_, best)| value > *best);
        if better && !self.search.tried.contains(point) {
            self.best = Some((point.clone(), value));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;
    use lull_control::{AppId, Rng};
    use proptest::prelude::*;
    use rand::SeedableRng;

    fn lattice(cores: u16, apps: u16) -> Lattice {
        let holders = (0..apps).map(|app| vec![AppId(app)]).collect();
        Lattice::new(&Partition::even(&machine(cores), holders).unwrap(), apps.into())
    }

    fn is_legal(lattice: &Lattice, point: &Point) -> bool {
        let axis = |(axis, row): (&Axis, &[u32])| {
            row.iter().sum::<u32>() == axis.total && row.iter().all(|units| *units >= axis.floor)
        };
        let rows = point.chunks(lattice.apps);
        point.len() == lattice.axes.len() * lattice.apps && lattice.axes.iter().zip(rows).all(axis)
    }

    #[test]
    fn the_even_point_and_the_corners_are_as_the_paper_has_them() {
        let lattice = lattice(8, 3);
        assert_eq!(lattice.even(), [3, 3, 2, 7, 7, 6, 4, 3, 3]);
        assert_eq!(lattice.most_for(1), [1, 6, 1, 1, 18, 1, 1, 8, 1]);
        assert_eq!(lattice.shares(&lattice.even())[..3], [0.375, 0.375, 0.25]);
    }

    #[test]
    fn climbing_finds_the_summit_of_a_hill() {
        // Value falls with the distance from a target; the model is trained on 80 points of it.
        let lattice = lattice(10, 3);
        let target = [6.0, 2.0, 2.0, 5.0, 10.0, 5.0, 2.0, 4.0, 4.0];
        let value = |point: &Point| {
            let far = |(units, target): (&u32, f64)| (f64::from(*units) - target).powi(2);
            1.0 - point.iter().zip(target).map(far).sum::<f64>() / 200.0
        };
        let mut rng = Rng::seed_from_u64(3);
        let points: Vec<_> = (0..80).map(|_| lattice.random(None, &mut rng)).collect();
        let inputs: Vec<_> = points.iter().map(|point| lattice.shares(point)).collect();
        let outputs: Vec<_> = points.iter().map(value).collect();
        let best = outputs.iter().copied().fold(f64::MIN, f64::max);
        let model = GaussianProcess::fit(&inputs, &outputs).unwrap();
        let search = Search {
            model: &model,
            best,
            margin: 0.0,
            frozen: None,
            tried: &points,
            starts: 20,
            budget: 5_000,
        };
        let (point, gain) = lattice.best(&search, &mut rng).unwrap();
        assert!(gain > 0.0 && value(&point) > best, "{point:?}: {} of {best}", value(&point));
        assert!(value(&point) > 0.9, "{point:?}");
    }

    proptest! {
        #[test]
        fn every_point_that_is_looked_at_is_legal(
            cores in 4u16..20,
            apps in 1u16..5,
            seed: u64,
            freeze: bool,
        ) {
            let lattice = lattice(cores, apps);
            let mut rng = Rng::seed_from_u64(seed);
            let kept = lattice.random(None, &mut rng);
            prop_assert!(is_legal(&lattice, &kept));
            let frozen = (freeze && apps > 1).then_some((0, &kept));
            let other = lattice.random(frozen, &mut rng);
            prop_assert!(is_legal(&lattice, &other), "{other:?}");
            if frozen.is_some() {
                prop_assert_eq!(kept[0], other[0]);
            }
            let inputs = [lattice.shares(&kept), lattice.shares(&other)];
            let model = GaussianProcess::fit(&inputs, &[0.2, 0.7]).unwrap();
            let tried = [kept.clone(), other];
            let search = Search {
                model: &model,
                best: 0.7,
                margin: 0.01,
                frozen,
                tried: &tried,
                starts: 3,
                budget: 200,
            };
            if let Some((point, _)) = lattice.best(&search, &mut rng) {
                prop_assert!(is_legal(&lattice, &point), "{point:?}");
                prop_assert!(!tried.contains(&point));
            }
        }
    }
}
