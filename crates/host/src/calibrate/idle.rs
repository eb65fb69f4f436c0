//! How long a core must sleep for sleep to pay (REEF, SoCC'25, section 2.1 and
//! Fig. 2).
//!
//! Cores sleep for 10 to 5000 us, repeatedly, with one idle state allowed;
//! power is set against the mean stay in that state, and against the power of
//! the same cores awake. Entering costs energy, so short stays take more than
//! none, and the break-even is where a stay takes as much. With entry cost `e`,
//! power awake `a` and asleep `s` (each core's), entries per second `n` and mean
//! stay `r` the cores take
//!
//! ```text
//!   P = a + n (e - (a - s) r)        break-even T = e / (a - s)
//! ```
//!
//! `e` and `a - s` are fitted to all points at once; beside them stand the stays
//! where the curve itself crosses the power awake, which assume no shape.

use lull_measure::{Joules, Nanos, Watts};
use nalgebra::{DVector, Dyn, OMatrix, U2};

/// Sleeps of the paper's figure, in microseconds.
pub const SLEEPS_US: [u64; 13] = [10, 20, 50, 100, 200, 300, 400, 500, 700, 1000, 1500, 2500, 5000];

/// The measurement of cores that slept for one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The requested length of each sleep.
    pub sleep: Nanos,
    /// Mean stay in the idle state.
    pub stay: Nanos,
    /// Entries of one core in a second.
    pub entries_per_s: f64,
    /// Power of one core beyond its power awake; below zero it saves.
    pub extra: Watts,
}

/// Where on the axis of stays something begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Edge {
    /// At a length below the shortest that was measured.
    Before(Nanos),
    /// Between two stays that were measured.
    At(Nanos),
    /// At a length above the longest that was measured.
    Beyond(Nanos),
}

/// The cost of a sleep and the length from which it pays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakEven {
    /// Shorter stays take more than staying awake.
    pub costs_until: Edge,
    /// Longer stays take less than staying awake.
    pub saves_from: Edge,
    /// The same by the fitted curve; `None` where sleep saves nothing or costs nothing.
    pub fitted: Option<Entry>,
}

/// The fitted curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Energy of one entry and exit beyond the power asleep.
    pub cost: Joules,
    /// The power that a core saves while asleep.
    pub saving: Watts,
    /// Stay at which both are equal.
    pub break_even: Nanos,
    /// Root mean square of what the curve is off.
    pub residual: Watts,
}

/// Why points give no break-even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BreakEvenError {
    /// Too few stays differ.
    #[error("{0} lengths of sleep were measured and 3 are needed: name more of them with --sleep")]
    Few(usize),
}

/// Reads the break-even off points in any order; power that differs by less
/// than `noise` counts as equal.
///
/// # Errors
/// [`BreakEvenError`].
pub fn break_even(points: &[Point], noise: Watts) -> Result<BreakEven, BreakEvenError> {
    let mut points: Vec<Point> =
        points.iter().copied().filter(|point| point.stay > Nanos::ZERO).collect();
    points.sort_by_key(|point| point.stay);
    points.dedup_by_key(|point| point.stay);
    if points.len() < 3 {
        return Err(BreakEvenError::Few(points.len()));
    }
    Ok(BreakEven {
        costs_until: costs_until(&points, noise),
        saves_from: saves_from(&points, noise),
        fitted: fitted(&points),
    })
}

/// Returns the first length at which the curve, from the shortest stay on, falls to the power
/// awake.
fn costs_until(points: &[Point], noise: Watts) -> Edge {
    let costs = |point: &Point| point.extra > noise;
    match points.iter().position(|point| !costs(point)) {
        None => Edge::Beyond(points[points.len() - 1].stay),
        Some(0) => Edge::Before(points[0].stay),
        Some(first) => Edge::At(crossing(points[first - 1], points[first], noise)),
    }
}

/// Returns the last length at which the curve, from the longest stay back, rises to the power
/// awake.
fn saves_from(points: &[Point], noise: Watts) -> Edge {
    let level = Watts(-noise.0);
    let saves = |point: &Point| point.extra < level;
    match points.iter().rposition(|point| !saves(point)) {
        None => Edge::Before(points[0].stay),
        Some(last) if last + 1 == points.len() => Edge::Beyond(points[last].stay),
        Some(last) => Edge::At(crossing(points[last], points[last + 1], level)),
    }
}

/// Returns the stay at which power is `level` between two points. Power is linear in one
/// over the stay, so the interpolation is linear in that.
fn crossing(short: Point, long: Point, level: Watts) -> Nanos {
    let inverse = |point: Point| 1.0 / point.stay.as_secs_f64();
    let share = (level.0 - short.extra.0) / (long.extra.0 - short.extra.0);
    let at = inverse(short) + share.clamp(0.0, 1.0) * (inverse(long) - inverse(short));
    Nanos::from_secs_f64(1.0 / at)
}

/// `extra = n cost - n stay saving`, by least squares.
fn fitted(points: &[Point]) -> Option<Entry> {
    let column =
        |point: &Point| [point.entries_per_s, -point.entries_per_s * point.stay.as_secs_f64()];
    let terms =
        OMatrix::<f64, Dyn, U2>::from_fn(points.len(), |at, term| column(&points[at])[term]);
    let extra = DVector::from_iterator(points.len(), points.iter().map(|point| point.extra.0));
    let solution = terms.clone().svd(true, true).solve(&extra, f64::EPSILON).ok()?;
    let (cost, saving) = (solution[0], solution[1]);
    if !(cost > 0.0 && saving > 0.0) {
        return None;
    }
    let off = (terms * solution - extra).norm() / (points.len() as f64).sqrt();
    Some(Entry {
        cost: Joules(cost),
        saving: Watts(saving),
        break_even: Nanos::from_secs_f64(cost / saving),
        residual: Watts(off),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A core that takes `saving` less asleep, `cost` joules an entry, and is awake
    /// for `overhead` between two sleeps.
    fn curve(cost: f64, saving: f64, overhead: f64) -> Vec<Point> {
        let point = |us: u64| {
            let sleep = Nanos::from_micros(us);
            let stay = sleep.as_secs_f64();
            let entries_per_s = 1.0 / (stay + overhead);
            let extra = Watts(entries_per_s * (cost - saving * stay));
            Point { sleep, stay: sleep, entries_per_s, extra }
        };
        SLEEPS_US.iter().map(|us| point(*us)).collect()
    }

    fn us(of: Nanos) -> f64 {
        of.as_micros_f64()
    }

    fn at(edge: Edge) -> f64 {
        let Edge::At(stay) = edge else { panic!("{edge:?}") };
        us(stay)
    }

    #[test]
    fn the_papers_processor_breaks_even_at_one_millisecond() {
        // Seed 000: 3 W awake, 0.3 W asleep, entry such that 1000 us are even.
        let found = break_even(&curve(2.7e-3, 2.7, 5e-6), Watts(0.0)).unwrap();
        let fitted = found.fitted.unwrap();
        assert!((us(fitted.break_even) - 1000.0).abs() < 0.01, "{fitted:?}");
        assert!((fitted.cost.0 - 2.7e-3).abs() < 1e-9 && fitted.residual.0 < 1e-9, "{fitted:?}");
        assert_eq!((at(found.costs_until), at(found.saves_from)), (1000.0, 1000.0));
    }

    #[test]
    fn between_the_papers_two_anchors_power_is_as_awake() {
        // The other reading of the figure: above until 300 us, even until 1000, then below.
        let mut points = curve(2.7e-3, 2.7, 5e-6);
        for point in &mut points {
            if (300.0..=1000.0).contains(&us(point.stay)) {
                point.extra = Watts(0.0);
            }
        }
        let found = break_even(&points, Watts(0.01)).unwrap();
        assert!((200.0..=300.0).contains(&at(found.costs_until)), "{found:?}");
        assert!((1000.0..=1500.0).contains(&at(found.saves_from)), "{found:?}");
    }

    #[test]
    fn a_break_even_outside_of_what_was_measured_is_not_made_up() {
        let cheap = break_even(&curve(1e-9, 2.0, 5e-6), Watts(0.0)).unwrap();
        assert_eq!(cheap.saves_from, Edge::Before(Nanos::from_micros(10)));
        let dear = break_even(&curve(1.0, 2.0, 5e-6), Watts(0.0)).unwrap();
        assert_eq!(dear.costs_until, Edge::Beyond(Nanos::from_micros(5000)));
        assert_eq!(dear.saves_from, Edge::Beyond(Nanos::from_micros(5000)));
        let useless = break_even(&curve(1e-3, -0.5, 5e-6), Watts(0.0)).unwrap();
        assert_eq!(useless.fitted, None);
    }

    #[test]
    fn too_few_stays_are_refused() {
        let points = curve(1e-3, 1.0, 0.0);
        assert_eq!(break_even(&points[..2], Watts(0.0)), Err(BreakEvenError::Few(2)));
        let same = [points[0]; 9];
        assert_eq!(break_even(&same, Watts(0.0)), Err(BreakEvenError::Few(1)));
    }

    proptest! {
        #[test]
        fn the_break_even_is_found_again(
            even_us in 20.0..4_000.0_f64,
            saving in 0.1..10.0_f64,
            overhead_us in 0.0..30.0_f64,
        ) {
            let points = curve(even_us * 1e-6 * saving, saving, overhead_us * 1e-6);
            let found = break_even(&points, Watts(0.0)).unwrap();
            prop_assert!((us(found.fitted.unwrap().break_even) / even_us - 1.0).abs() < 1e-3);
            // Overhead bends the curve between two points, no further.
            let (low, high) = neighbours(even_us);
            prop_assert!((low..=high).contains(&at(found.saves_from)), "{:?}", found);
            prop_assert!((low..=high).contains(&at(found.costs_until)), "{:?}", found);
        }
    }

    /// The measured stays around this one.
    fn neighbours(even_us: f64) -> (f64, f64) {
        let all = SLEEPS_US.map(|us| us as f64);
        let above = all.iter().position(|us| *us >= even_us).unwrap();
        (all[above - 1] - 0.01, all[above] + 0.01)
    }
}
