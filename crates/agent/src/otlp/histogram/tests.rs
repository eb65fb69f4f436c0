//! Points of both kinds: what is refused, differences, bounds in time.

use super::*;
use lull_measure::Percentile;
use proptest::prelude::*;

fn explicit(bounds: &[f64], counts: &[u64]) -> Result<Histogram, String> {
    Histogram::explicit(ExplicitPoint {
        count: counts.iter().sum(),
        bucket_counts: counts.to_vec(),
        explicit_bounds: bounds.to_vec(),
        ..ExplicitPoint::default()
    })
}

fn exponential_point(scale: i32, offset: i32, counts: &[u64]) -> ExponentialPoint {
    ExponentialPoint {
        count: counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        scale,
        positive: Some(ExponentialBuckets { offset, bucket_counts: counts.to_vec() }),
        ..ExponentialPoint::default()
    }
}

fn exponential(scale: i32, offset: i32, counts: &[u64]) -> Histogram {
    Histogram::exponential(exponential_point(scale, offset, counts)).unwrap()
}

fn buckets(histogram: &Histogram, unit: &str) -> Vec<(u64, Option<u64>, u64)> {
    let mut buckets = Buckets::default();
    histogram.add_to(&mut buckets, Unit::parse(unit).unwrap());
    buckets.iter().map(|(low, high, count)| (low.0, high.map(|high| high.0), count)).collect()
}

#[test]
fn explicit_bounds_are_times_in_the_metrics_unit() {
    let histogram = explicit(&[0.0, 5.0, 10.0], &[0, 2, 3, 1]).unwrap();
    let milli = 1_000_000;
    let wanted = [(0, Some(5 * milli), 2), (5 * milli, Some(10 * milli), 3), (10 * milli, None, 1)];
    assert_eq!(buckets(&histogram, "ms"), wanted);
    assert_eq!(buckets(&histogram, "")[0].1, Some(5_000_000_000), "seconds if there is no unit");
    assert!(Unit::parse("By").is_err());
}

#[test]
fn counters_and_bounds_are_what_a_histogram_keeps() {
    assert_eq!(explicit(&[1.0, 2.0], &[0, 2, 3]).unwrap().len(), 5);
    assert_eq!(explicit(&[1.0, 2.0], &[]).unwrap().len(), 0);
    assert_eq!(exponential(0, 0, &[1, 2]).len(), 2);
}

#[test]
fn exponential_bounds_are_powers_of_the_base() {
    // Scale 0: base 2. Indices -2 and -1 are (1/4, 1/2] and (1/2, 1].
    let histogram = exponential(0, -2, &[3, 4]);
    let wanted = [(250_000_000, Some(500_000_000), 3), (500_000_000, Some(1_000_000_000), 4)];
    assert_eq!(buckets(&histogram, "s"), wanted);
    let zero = ExponentialPoint { count: 7, zero_count: 7, ..ExponentialPoint::default() };
    assert_eq!(buckets(&Histogram::exponential(zero).unwrap(), "s"), [(0, Some(0), 7)]);
}

#[test]
fn points_that_contradict_themselves_are_refused() {
    let why = |result: Result<Histogram, String>| result.unwrap_err();
    assert!(why(explicit(&[1.0], &[1, 2, 3])).contains("do not fit"));
    assert!(why(explicit(&[2.0, 1.0], &[1, 2, 3])).contains("ascend"));
    assert!(why(explicit(&[-1.0, 1.0], &[1, 2, 3])).contains("negative"));
    assert!(why(explicit(&[f64::NAN], &[1, 2])).contains("finite"));
    assert!(why(explicit(&vec![0.0; 2_000], &vec![0; 2_001])).contains("1024"));
    assert!(why(explicit(&vec![0.0; 2_000], &[])).contains("1024"), "bounds without counts");
    assert!(why(explicit(&[], &[COUNT_MAX + 1])).contains("2^40"));
    let bare = ExplicitPoint { count: 3, ..ExplicitPoint::default() };
    assert!(why(Histogram::explicit(bare)).contains("no buckets"));
    let with = |change: fn(&mut ExponentialPoint)| {
        let mut point = exponential_point(3, 0, &[1, 1]);
        change(&mut point);
        why(Histogram::exponential(point))
    };
    let negative = |it: &mut ExponentialPoint| {
        it.negative = Some(ExponentialBuckets { offset: 0, bucket_counts: vec![1] });
    };
    assert!(with(negative).contains("negative"));
    assert!(with(|it| it.scale = 30).contains("scale"));
    assert!(with(|it| it.zero_threshold = f64::NAN).contains("threshold"));
    assert!(with(|it| it.count = 5).contains("count is 5"));
    assert!(with(|it| it.positive.as_mut().unwrap().offset = i32::MAX).contains("offset"));
    let huge = exponential_point(3, 0, &[u64::MAX, u64::MAX]);
    assert!(why(Histogram::exponential(huge)).contains("2^40"));
}

#[test]
fn a_histogram_that_is_scaled_down_is_the_same_series() {
    // Scale 1, indices 0 to 3, become scale 0, indices 0 and 1; two requests are new.
    let before = exponential(1, 0, &[1, 2, 3, 4]);
    let after = exponential(0, -1, &[1, 3, 8]);
    let added = after.since(&before).unwrap();
    assert_eq!(added.count(), 2);
    assert_eq!(*added.counts, [1, 0, 1]);
    assert_eq!(before.since(&after), None, "a finer scale restarts the count");
}

#[test]
fn a_counter_that_falls_is_no_difference() {
    let at = |counts: &[u64]| explicit(&[1.0, 2.0], counts).unwrap();
    assert_eq!(at(&[5, 5, 5]).since(&at(&[5, 4, 3])).unwrap().count(), 3);
    assert_eq!(at(&[9, 9, 2]).since(&at(&[5, 4, 3])), None);
    assert_eq!(explicit(&[1.0, 3.0], &[9, 9, 9]).unwrap().since(&at(&[5, 4, 3])), None);
    let first = exponential(2, 4, &[1, 1]);
    assert_eq!(exponential(2, 5, &[1, 1]).since(&first), None, "index 4 is gone");
    let grown = exponential(2, 2, &[1, 0, 2, 1]);
    assert_eq!(grown.since(&first).unwrap().count(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The tail of exponential buckets is that of the requests, within the range that is stated.
    #[test]
    fn the_percentile_of_a_histogram_is_that_of_its_requests_within_the_stated_range(
        latencies_us in prop::collection::vec(1u64..30_000_000, 1..300),
        scale in -2i32..9,
        percent in 1.0f64..99.9,
    ) {
        let index = |micros: u64| {
            let seconds = micros as f64 / 1e6;
            (seconds.log2() * f64::from(scale).exp2()).ceil() as i32 - 1
        };
        let indices: Vec<i32> = latencies_us.iter().map(|micros| index(*micros)).collect();
        let offset = *indices.iter().min().unwrap();
        let mut counts = vec![0; (*indices.iter().max().unwrap() - offset) as usize + 1];
        indices.iter().for_each(|index| counts[(index - offset) as usize] += 1);
        let at = Percentile::new(percent).unwrap();
        let mut sorted = latencies_us.clone();
        sorted.sort_unstable();
        let rank = ((at.fraction() * sorted.len() as f64).ceil() as usize).max(1);
        let truth = Nanos::from_micros(sorted[rank - 1]);
        prop_assume!(counts.len() <= BUCKETS_MAX);
        let mut buckets = Buckets::default();
        exponential(scale, offset, &counts).add_to(&mut buckets, Unit::parse("s").unwrap());
        let range = buckets.quantile_range(at).unwrap();
        // Bounds are rounded to whole nanoseconds.
        prop_assert!(range.low <= truth + Nanos(1), "{truth} {range:?}");
        prop_assert!(truth <= range.high.unwrap() + Nanos(1), "{truth} {range:?}");
        let base = f64::from(-scale).exp2().exp2();
        let width = range.width().unwrap().0 as f64 / range.low.0.max(1) as f64;
        prop_assert!(buckets.len() > 4_000 || width <= base - 1.0 + 1e-3, "{width} {base}");
    }

    /// Whatever is added is what is found, across any lowering of the scale.
    #[test]
    fn what_was_added_since_is_found_at_any_lower_scale(
        first in prop::collection::vec(0u64..9, 1..40),
        more in prop::collection::vec(0u64..9, 1..40),
        offset in -50i32..50,
        steps in 0i32..4,
    ) {
        let before = exponential(5, offset, &first);
        let length = first.len().max(more.len());
        let at = |counts: &[u64], place: usize| counts.get(place).copied().unwrap_or_default();
        let all: Vec<u64> = (0..length).map(|place| at(&first, place) + at(&more, place)).collect();
        let after = exponential(5, offset, &all).at_scale(5 - steps);
        let added = after.since(&before).unwrap();
        prop_assert_eq!(added.count(), more.iter().sum::<u64>());
        let wanted = exponential(5, offset, &more).at_scale(5 - steps);
        prop_assert_eq!(buckets(&added, "s"), buckets(&wanted, "s"));
    }

    #[test]
    fn any_point_is_a_histogram_or_refused(
        scale in any::<i32>(),
        offset in any::<i32>(),
        counts in prop::collection::vec(any::<u64>(), 0..5),
        zero_threshold in any::<f64>(),
        bounds in prop::collection::vec(any::<f64>(), 0..5),
    ) {
        let point = exponential_point(scale, offset, &counts);
        let point = ExponentialPoint { zero_threshold, ..point };
        let kinds = [Histogram::exponential(point), explicit_of(&bounds, &counts)];
        for histogram in kinds.into_iter().flatten() {
            prop_assert!(histogram.count() <= COUNT_MAX);
            let mut buckets = Buckets::default();
            histogram.add_to(&mut buckets, Unit::parse("s").unwrap());
            prop_assert_eq!(buckets.count(), histogram.count());
            prop_assert_eq!(histogram.since(&histogram).unwrap().count(), 0);
        }
    }
}

fn explicit_of(bounds: &[f64], counts: &[u64]) -> Result<Histogram, String> {
    Histogram::explicit(ExplicitPoint {
        count: counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        bucket_counts: counts.to_vec(),
        explicit_bounds: bounds.to_vec(),
        ..ExplicitPoint::default()
    })
}
