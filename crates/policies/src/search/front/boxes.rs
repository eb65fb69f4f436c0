//! Fronts of three objectives.
//!
//! Between two successive values of the third objective the points at or below the lower value
//! count, and what they leave is divided into strips of two objectives. A strip that is the same
//! in the next slab continues through it, so that the region that no point beats falls into boxes
//! whose number grows linearly with the points (the decomposition of Lacour, Klamroth and
//! Fonseca, "A box decomposition algorithm to compute the hypervolume indicator", Computers and
//! Operations Research 2017, in the form of Yang et al. 2019). The mean of what a point with
//! independent posteriors adds is exact:
//!
//! ```text
//! sum over boxes:  (psi_1(b_1) - psi_1(a_1)) psi_2(h) (psi_3(b_3) - psi_3(a_3))
//! ```

use super::{Front, Point, mean_below};
use crate::toolkit::surrogate::Posterior;

/// A point of three objectives, all of which are minimised.
pub(in super::super) type Point3 = [f64; 3];

/// Returns the points that no other one beats, in their order; of equal ones, the first.
pub(in super::super) fn front_of_three(points: &[Point3]) -> Vec<usize> {
    let beats = |(at, one): (usize, &Point3), (other_at, other): (usize, &Point3)| {
        let is_no_worse = one.iter().zip(other).all(|(a, b)| a <= b);
        is_no_worse && (one != other || at < other_at)
    };
    let all = || points.iter().enumerate();
    let is_beaten = |point: (usize, &Point3)| all().any(|one| beats(one, point));
    all().filter(|point| !is_beaten(*point)).map(|(at, _)| at).collect()
}

/// The region that a front of three objectives leaves below a reference point, as boxes.
#[derive(Debug, Clone)]
pub(in super::super) struct Boxes {
    /// Per objective the ends of all boxes; the first is minus infinity.
    edges: [Vec<f64>; 3],
    boxes: Vec<Box3>,
    /// The volume between the front and the reference point.
    pub(in super::super) hypervolume: f64,
}

/// A box by the numbers of its edges. In the second objective it has no begin.
#[derive(Debug, Clone, Copy)]
struct Box3 {
    first: [usize; 2],
    height: usize,
    third: [usize; 2],
}

impl Boxes {
    /// The front of some points. Points that are not below the reference in all objectives do
    /// not count.
    pub(in super::super) fn new(points: &[Point3], reference: Point3) -> Self {
        let is_within = |point: &&Point3| point.iter().zip(&reference).all(|(a, b)| a < b);
        let mut within: Vec<Point3> = points.iter().filter(is_within).copied().collect();
        within.sort_by(|a, b| a[2].total_cmp(&b[2]));
        let mut all = Vec::new();
        let mut hypervolume = 0.0;
        let mut open: Vec<([f64; 3], f64)> = Vec::new();
        let mut begin = f64::NEG_INFINITY;
        let ends = within.iter().map(|it| it[2]).chain([reference[2]]).enumerate();
        for (count, end) in ends {
            if end == begin {
                continue;
            }
            let below: Vec<Point> = within[..count].iter().map(|it| [it[0], it[1]]).collect();
            let front = Front::new(&below, [reference[0], reference[1]]);
            if count > 0 {
                hypervolume += front.hypervolume * (end - begin);
            }
            let (kept, closed) = open.into_iter().partition(|(it, _)| front.strips.contains(it));
            open = kept;
            let closed: Vec<([f64; 3], f64)> = closed;
            all.extend(closed.into_iter().map(|(strip, from)| (strip, [from, begin])));
            let known: Vec<[f64; 3]> = open.iter().map(|(strip, _)| *strip).collect();
            let new = front.strips.iter().filter(|strip| !known.contains(strip));
            open.extend(new.map(|strip| (*strip, begin)));
            begin = end;
        }
        all.extend(open.into_iter().map(|(strip, from)| (strip, [from, reference[2]])));
        Self::from_boxes(&all, hypervolume)
    }

    /// Numbers the edges, so that each mean is computed once for a candidate.
    fn from_boxes(all: &[([f64; 3], [f64; 2])], hypervolume: f64) -> Self {
        let sorted = |values: Vec<f64>| {
            let mut values = values;
            values.push(f64::NEG_INFINITY);
            values.sort_by(f64::total_cmp);
            values.dedup();
            values
        };
        let edges = [
            sorted(all.iter().flat_map(|(strip, _)| [strip[0], strip[1]]).collect()),
            sorted(all.iter().map(|(strip, _)| strip[2]).collect()),
            sorted(all.iter().flat_map(|(_, third)| *third).collect()),
        ];
        let number = |axis: usize, value: f64| edges[axis].partition_point(|edge| *edge < value);
        let numbered = |(strip, third): &([f64; 3], [f64; 2])| Box3 {
            first: [number(0, strip[0]), number(0, strip[1])],
            height: number(1, strip[2]),
            third: third.map(|value| number(2, value)),
        };
        let boxes = all.iter().map(numbered).collect();
        Self { edges, boxes, hypervolume }
    }

    /// Returns the volume that a point with these independent posteriors is expected to add.
    pub(in super::super) fn expected_improvement(&self, posteriors: [Posterior; 3]) -> f64 {
        let means = |axis: usize| -> Vec<f64> {
            self.edges[axis].iter().map(|edge| mean_below(posteriors[axis], *edge)).collect()
        };
        let [first, second, third] = [means(0), means(1), means(2)];
        let between = |means: &[f64], [from, to]: [usize; 2]| (means[to] - means[from]).max(0.0);
        let volume =
            |it: &Box3| between(&first, it.first) * second[it.height] * between(&third, it.third);
        self.boxes.iter().map(volume).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::{Distribution, Normal};

    const REFERENCE: Point3 = [10.0, 10.0, 10.0];

    fn random_points(count: usize, rng: &mut Rng) -> Vec<Point3> {
        (0..count).map(|_| [0, 1, 2].map(|_: i32| 1.0 + 9.0 * rng.random::<f64>())).collect()
    }

    #[test]
    fn a_front_of_three_keeps_what_is_best_in_one_objective_and_of_equal_points_the_first() {
        let points = [[3.0, 3.0, 3.0], [1.0, 5.0, 9.0], [3.0, 3.0, 3.0], [3.0, 3.0, 4.0]];
        assert_eq!(front_of_three(&points), [0, 1]);
        assert!(front_of_three(&[]).is_empty());
    }

    #[test]
    fn the_hypervolume_is_that_of_inclusion_and_exclusion() {
        let of = |points: &[Point3]| Boxes::new(points, REFERENCE).hypervolume;
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[[2.0, 4.0, 5.0]]), 8.0 * 6.0 * 5.0);
        assert_eq!(of(&[[2.0, 4.0, 10.0], [0.0, 0.0, 11.0]]), 0.0, "outside");
        let mut rng = Rng::seed_from_u64(3);
        for count in [2, 3, 4, 7] {
            let points = random_points(count, &mut rng);
            // The volume of a union: over all subsets, the box of their largest coordinates.
            let subset = |bits: usize| {
                let chosen = points.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
                let most = chosen.fold([0.0f64; 3], |most, (_, point)| {
                    [0, 1, 2].map(|axis| most[axis].max(point[axis]))
                });
                let volume: f64 = most.iter().map(|it| 10.0 - it).product();
                if bits.count_ones() % 2 == 1 { volume } else { -volume }
            };
            let exact: f64 = (1..1 << count).map(subset).sum();
            assert!((of(&points) - exact).abs() < 1e-9 * exact, "{count}: {} {exact}", of(&points));
        }
    }

    #[test]
    fn a_point_that_is_known_adds_exactly_its_own_volume_and_equal_heights_do_no_harm() {
        let mut rng = Rng::seed_from_u64(5);
        let mut points = random_points(9, &mut rng);
        points[3][2] = points[7][2];
        points[4][0] = points[1][0];
        let boxes = Boxes::new(&points, REFERENCE);
        assert!(boxes.boxes.len() <= 2 * points.len() + 1, "linear: {}", boxes.boxes.len());
        for point in random_points(30, &mut rng) {
            let mut with = points.clone();
            with.push(point);
            let added = Boxes::new(&with, REFERENCE).hypervolume - boxes.hypervolume;
            let known = point.map(|mean| Posterior { mean, std_dev: 0.0 });
            let expected = boxes.expected_improvement(known);
            assert!((expected - added).abs() < 1e-9, "{point:?}: {expected} {added}");
        }
    }

    #[test]
    fn where_the_third_objective_is_the_same_everywhere_it_is_the_front_of_two() {
        let mut rng = Rng::seed_from_u64(7);
        for count in [0, 1, 4, 12] {
            let points: Vec<Point3> =
                random_points(count, &mut rng).into_iter().map(|[a, b, _]| [a, b, 4.0]).collect();
            let flat: Vec<Point> = points.iter().map(|[a, b, _]| [*a, *b]).collect();
            let two = Front::new(&flat, [10.0, 10.0]);
            let three = Boxes::new(&points, REFERENCE);
            // From 4 to the reference: six high.
            assert!((three.hypervolume - 6.0 * two.hypervolume).abs() < 1e-9);
            for _ in 0..10 {
                let [first, second] = [0, 1].map(|_: i32| Posterior {
                    mean: 12.0 * rng.random::<f64>(),
                    std_dev: 0.1 + 2.0 * rng.random::<f64>(),
                });
                let third = Posterior { mean: 4.0, std_dev: 0.0 };
                let flat = 6.0 * two.expected_improvement([first, second]);
                let whole = three.expected_improvement([first, second, third]);
                assert!((whole - flat).abs() < 1e-9 * (1.0 + flat), "{count}: {whole} {flat}");
            }
        }
    }

    /// The mean hypervolume that points drawn from the posteriors add, and its standard error.
    fn by_chance(points: &[Point3], posteriors: [Posterior; 3], rng: &mut Rng) -> (f64, f64) {
        let before = Boxes::new(points, REFERENCE).hypervolume;
        let normals = posteriors.map(|it| Normal::new(it.mean, it.std_dev).unwrap());
        let draws = 8000;
        let added = (0..draws).map(|_| {
            let mut with = points.to_vec();
            with.push([0, 1, 2].map(|axis: usize| normals[axis].sample(rng)));
            Boxes::new(&with, REFERENCE).hypervolume - before
        });
        let added: Vec<f64> = added.collect();
        let mean = added.iter().sum::<f64>() / f64::from(draws);
        let square = added.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
        (mean, square.sqrt() / f64::from(draws))
    }

    #[test]
    fn the_closed_form_is_the_mean_of_what_drawn_points_add() {
        let mut rng = Rng::seed_from_u64(11);
        for count in [0, 1, 3, 8] {
            let points = random_points(count, &mut rng);
            for _ in 0..3 {
                let posteriors = [0, 1, 2].map(|_: i32| Posterior {
                    mean: 12.0 * rng.random::<f64>(),
                    std_dev: 0.2 + 3.0 * rng.random::<f64>(),
                });
                let exact = Boxes::new(&points, REFERENCE).expected_improvement(posteriors);
                let (mean, error) = by_chance(&points, posteriors, &mut rng);
                // 12 comparisons: five standard errors fail one time in 100,000.
                let distance = (exact - mean).abs();
                assert!(distance < 5.0 * error + 1e-6, "{count}: {exact} {mean} {error}");
            }
        }
    }
}
