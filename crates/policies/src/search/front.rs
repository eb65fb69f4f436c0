//! Fronts of two and three objectives, and the expected growth of the hypervolume below one.
//!
//! All objectives are minimised. The *front* holds the points that no other point beats in one
//! objective without being worse in another; its *hypervolume* is the area, or volume, between
//! the front and a reference point. A candidate is worth the area that its reading is expected to
//! add (expected hypervolume improvement). For two objectives with independent normal posteriors
//! it has a closed form: the front divides the first objective into strips, the improvement of a
//! point is the sum of its rectangles in the strips, and the mean of each rectangle is a product
//!
//! ```text
//! sum over strips [a, b] of height h:  (psi_1(b) - psi_1(a)) psi_2(h)
//! psi(c) = E max(c - Y, 0)
//! ```
//!
//! because `E max(c - Y, 0)` is the integral of `P(Y <= z)` up to `c`. Source: Emmerich, Deutz
//! and Klinkenberg, "Hypervolume-based expected improvement", CEC 2011; the strips are those of
//! Yang et al., "Efficient computation of expected hypervolume improvement", JOGO 2019. Three
//! objectives are in `front/boxes.rs`.

mod boxes;

pub(super) use boxes::{Boxes, Point3, front_of_three};

use crate::toolkit::surrogate::{Posterior, log_expected_improvement};

/// A point of two objectives, both of which are minimised.
pub(super) type Point = [f64; 2];

/// Returns the points that no other one beats, ascending in the first objective; of equal ones,
/// the first.
pub(super) fn front_of(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| {
        let ([a1, a2], [b1, b2]) = (points[*a], points[*b]);
        a1.total_cmp(&b1).then(a2.total_cmp(&b2))
    });
    let mut best = f64::INFINITY;
    order.retain(|at| {
        let is_better = points[*at][1] < best;
        best = best.min(points[*at][1]);
        is_better
    });
    order
}

/// A front within a reference point, as strips of the first objective.
#[derive(Debug, Clone)]
pub(super) struct Front {
    /// Begin, end and height of each strip, ascending. The first has no begin.
    strips: Vec<[f64; 3]>,
    /// The area between the front and the reference point.
    pub(super) hypervolume: f64,
}

impl Front {
    /// The front of some points. Points that are not below the reference in both objectives do
    /// not count.
    pub(super) fn new(points: &[Point], reference: Point) -> Self {
        let is_within = |point: &&Point| point[0] < reference[0] && point[1] < reference[1];
        let within: Vec<Point> = points.iter().filter(is_within).copied().collect();
        let mut strips = Vec::new();
        let (mut begin, mut height, mut hypervolume) = (f64::NEG_INFINITY, reference[1], 0.0);
        for at in front_of(&within) {
            let [first, second] = within[at];
            strips.push([begin, first, height]);
            hypervolume += (reference[0] - first) * (height - second);
            (begin, height) = (first, second);
        }
        strips.push([begin, reference[0], height]);
        Self { strips, hypervolume }
    }

    /// Returns the area that a point with these independent posteriors is expected to add.
    pub(super) fn expected_improvement(&self, posteriors: [Posterior; 2]) -> f64 {
        let [first, second] = posteriors;
        let rectangle = |[begin, end, height]: &[f64; 3]| {
            let width = mean_below(first, *end) - mean_below(first, *begin);
            width.max(0.0) * mean_below(second, *height)
        };
        self.strips.iter().map(rectangle).sum()
    }
}

/// Returns the mean of how far a normal variable is below a limit, zero where it is above.
fn mean_below(posterior: Posterior, limit: f64) -> f64 {
    if limit == f64::NEG_INFINITY {
        return 0.0;
    }
    if posterior.std_dev <= 0.0 {
        return (limit - posterior.mean).max(0.0);
    }
    log_expected_improvement(posterior, limit).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng;
    use rand::{RngExt, SeedableRng};
    use rand_distr::{Distribution, Normal};

    const REFERENCE: Point = [10.0, 10.0];

    #[test]
    fn a_front_has_the_points_that_none_beats_in_both() {
        let points = [[3.0, 3.0], [1.0, 5.0], [3.0, 3.0], [4.0, 3.0], [5.0, 1.0], [2.0, 6.0]];
        assert_eq!(front_of(&points), [1, 0, 4]);
        assert!(front_of(&[]).is_empty());
    }

    #[test]
    fn the_hypervolume_is_the_area_of_the_staircase_and_points_outside_do_not_count() {
        let of = |points: &[Point]| Front::new(points, REFERENCE).hypervolume;
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[[2.0, 4.0]]), 48.0);
        // 48 and what the second adds below it: 4 wide, 3 high.
        assert_eq!(of(&[[2.0, 4.0], [6.0, 1.0]]), 60.0);
        assert_eq!(of(&[[2.0, 4.0], [3.0, 5.0], [11.0, 0.0], [0.0, 10.0]]), 48.0);
    }

    #[test]
    fn a_point_that_is_known_adds_exactly_its_own_area() {
        let front = Front::new(&[[2.0, 4.0], [6.0, 1.0]], REFERENCE);
        let known = |mean: f64| Posterior { mean, std_dev: 0.0 };
        for point in [[1.0, 5.0], [4.0, 2.0], [7.0, 0.5], [1.0, 0.0], [8.0, 8.0], [12.0, 1.0]] {
            let with = Front::new(&[[2.0, 4.0], [6.0, 1.0], point], REFERENCE);
            let added = with.hypervolume - front.hypervolume;
            let expected = front.expected_improvement(point.map(known));
            assert!((expected - added).abs() < 1e-9, "{point:?}: {expected} {added}");
        }
    }

    /// The mean hypervolume that points drawn from the posteriors add, and its standard error.
    fn by_chance(points: &[Point], posteriors: [Posterior; 2], rng: &mut Rng) -> (f64, f64) {
        let front = Front::new(points, REFERENCE);
        let normals = posteriors.map(|it| Normal::new(it.mean, it.std_dev).unwrap());
        let draws = 40_000;
        let added = (0..draws).map(|_| {
            let mut with = points.to_vec();
            with.push([normals[0].sample(rng), normals[1].sample(rng)]);
            Front::new(&with, REFERENCE).hypervolume - front.hypervolume
        });
        let added: Vec<f64> = added.collect();
        let mean = added.iter().sum::<f64>() / f64::from(draws);
        let square = added.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
        (mean, square.sqrt() / f64::from(draws))
    }

    #[test]
    fn the_closed_form_is_the_mean_of_what_drawn_points_add() {
        let mut rng = Rng::seed_from_u64(11);
        for count in [0, 1, 2, 5, 12] {
            let point = |rng: &mut Rng| [0, 1].map(|_: i32| 1.0 + 9.0 * rng.random::<f64>());
            let points: Vec<Point> = (0..count).map(|_| point(&mut rng)).collect();
            for _ in 0..3 {
                let posteriors = [0, 1].map(|_: i32| Posterior {
                    mean: 12.0 * rng.random::<f64>(),
                    std_dev: 0.2 + 3.0 * rng.random::<f64>(),
                });
                let exact = Front::new(&points, REFERENCE).expected_improvement(posteriors);
                let (mean, error) = by_chance(&points, posteriors, &mut rng);
                // 15 comparisons: five standard errors fail one time in 100,000.
                let distance = (exact - mean).abs();
                assert!(distance < 5.0 * error + 1e-6, "{count}: {exact} {mean} {error}");
            }
        }
    }
}
