//! Restarts, repeated points, wrong temporality, bounds.

use super::super::wire::ExplicitPoint;
use super::*;

const SECOND: u64 = 1_000_000_000;
const KEY: Key = [7; 16];

fn histogram(counts: [u64; 3]) -> Histogram {
    Histogram::explicit(ExplicitPoint {
        count: counts.iter().sum(),
        bucket_counts: counts.to_vec(),
        explicit_bounds: vec![0.1, 1.0],
        ..ExplicitPoint::default()
    })
    .unwrap()
}

/// A point at this second of a series that began at another.
fn point(temporality: Temporality, (start_s, time_s): (u64, u64), counts: [u64; 3]) -> NewPoint {
    NewPoint {
        histogram: histogram(counts),
        temporality,
        start: start_s * SECOND,
        time: time_s * SECOND,
        client: [127, 0, 0, 1].into(),
        arrived_at: Nanos::from_secs(time_s),
    }
}

fn cumulative(times: (u64, u64), counts: [u64; 3]) -> NewPoint {
    point(Temporality::Cumulative, times, counts)
}

fn delta(times: (u64, u64), counts: [u64; 3]) -> NewPoint {
    point(Temporality::Delta, times, counts)
}

fn added(taken: Result<Option<Added>, String>) -> Option<(u64, u64)> {
    taken.unwrap().map(|added| (added.histogram.count(), added.span.0 / SECOND))
}

#[test]
fn a_cumulative_point_adds_what_is_new_in_it() {
    let mut table = SeriesTable::default();
    let mut take = |time, counts| added(table.take(KEY, cumulative((10, time), counts)));
    assert_eq!(take(1_000, [500, 20, 1]), None, "of the past");
    assert_eq!(take(1_010, [510, 22, 1]), Some((12, 10)));
    assert_eq!(take(1_010, [510, 22, 1]), None, "received before");
    assert_eq!(take(1_020, [510, 22, 1]), Some((0, 10)), "no request");
    assert_eq!(take(1_015, [510, 22, 1]), None, "out of order");
    assert_eq!(take(1_030, [511, 22, 1]), Some((1, 10)));
}

#[test]
fn a_young_series_counts_from_its_start_and_the_first_point_of_an_older_one_is_where_it_begins() {
    let mut table = SeriesTable::default();
    let mut take = |key, times, counts| added(table.take([key; 16], cumulative(times, counts)));
    assert_eq!(take(1, (995, 1_000), [5, 0, 0]), Some((5, 5)), "the service has just started");
    assert_eq!(take(2, (10, 1_000), [9, 0, 0]), None, "of long ago");
    assert_eq!(take(3, (10, 1_500), [0, 0, 2]), None, "it may have been exported elsewhere");
    assert_eq!(take(3, (10, 1_510), [0, 0, 3]), Some((1, 10)));
}

#[test]
fn a_counter_that_falls_is_a_restart_and_many_are_a_contradiction() {
    let mut table = SeriesTable::default();
    let mut take = |time, counts| table.take(KEY, cumulative((0, time), counts));
    assert_eq!(added(take(1_000, [500, 20, 1])), None);
    assert_eq!(added(take(1_010, [3, 0, 0])), Some((3, 10)));
    assert_eq!(added(take(1_020, [5, 0, 0])), Some((2, 10)));
    // Two senders with the same attributes.
    let mut refused = Vec::new();
    for at in 0..10 {
        let counts = if at % 2 == 0 { [600, 20, 1] } else { [at, 0, 0] };
        refused.extend(take(1_030 + at, counts).is_err().then_some(at));
    }
    assert_eq!(refused, [5, 6, 7, 8, 9], "from the fourth fall on, also what rises");
    let mut left = (1_040..1_339).map(|at| take(at, [700 + at, 20, 1]));
    assert!(left.all(|taken| taken.is_err()), "only one of them is left");
    assert_eq!(added(take(1_339, [2_040, 20, 1])), Some((2, 1)), "five minutes after a fall");
    assert_eq!(added(take(1_349, [4, 0, 0])), Some((4, 10)), "a restart again");
}

/// Takes points of one series without a start from hosts by turns; returns how many requests each
/// has added, or the reason for which it was refused.
fn without_start(points: &[(u8, u64, u64)]) -> Vec<Result<Option<u64>, String>> {
    let mut table = SeriesTable::default();
    let mut take = |(host, time, count): &(u8, u64, u64)| {
        let client = [10, 0, 0, *host].into();
        let point = NewPoint { client, ..cumulative((0, *time), [*count, 0, 0]) };
        table.take(KEY, point).map(|added| added.map(|added| added.histogram.count()))
    };
    points.iter().map(&mut take).collect()
}

#[test]
fn collectors_of_one_service_without_a_start_count_it_once() {
    // Each point by both collectors: the first one of a collector has an unknown increase.
    let both = [(1, 0, 100), (2, 0, 100), (1, 10, 107), (2, 10, 107), (2, 20, 109), (1, 20, 109)];
    let added = [None, None, Some(7), None, None, None].map(Ok);
    assert_eq!(without_start(&both), added);
    // Three collectors take turns.
    let turns = [(1, 0, 100), (2, 10, 107), (3, 20, 109), (1, 30, 112), (2, 40, 113), (3, 50, 119)];
    let added = [None, None, None, Some(3), Some(1), Some(6)].map(Ok);
    assert_eq!(without_start(&turns), added);
}

#[test]
fn services_without_a_start_that_have_the_same_attributes_are_refused() {
    for (one, other) in [(100, 900), (900, 100)] {
        let taken = without_start(&[
            (1, 0, one),
            (2, 5, other),
            (1, 10, one + 7),
            (2, 15, other + 5),
            (1, 20, one + 9),
            (2, 25, other + 6),
        ]);
        let is_counted = |taken: &Result<Option<u64>, String>| matches!(taken, Ok(Some(_)));
        assert!(!taken.iter().any(is_counted), "{taken:?}");
        let last = taken.last().unwrap().as_ref().unwrap_err();
        assert!(last.contains("set service.instance.id"), "{last}");
    }
}

#[test]
fn services_without_a_start_of_which_one_is_late_and_lower_are_refused() {
    let both = [
        (1, 10, 900),
        (2, 9, 100),
        (1, 20, 907),
        (2, 19, 105),
        (1, 30, 909),
        (2, 29, 108),
        (1, 40, 910),
    ];
    let taken = without_start(&both);
    assert_eq!(taken[..5], [None, None, Some(7), None, Some(2)].map(Ok));
    for refused in &taken[5..] {
        assert!(refused.as_ref().unwrap_err().contains("set service.instance.id"));
    }
    let of_one = [(1, 10, 100), (1, 20, 107), (2, 10, 100), (1, 30, 109), (2, 20, 107)];
    assert_eq!(without_start(&of_one), [None, Some(7), None, Some(2), None].map(Ok));
}

#[test]
fn a_service_without_a_start_is_counted_from_eight_addresses_and_refused_from_a_ninth() {
    // One more request each second, by nine collectors in turn.
    let at = |time: u64| ((time % 9) as u8, time, 100 + time);
    let taken = without_start(&(0..18).map(at).collect::<Vec<_>>());
    for ninth in [8, 17] {
        let error = taken[ninth].as_ref().unwrap_err();
        assert!(error.contains("more than 8 addresses"), "{error}");
    }
    let counted = taken[9..17].iter().map(|taken| taken.as_ref().unwrap().unwrap());
    assert_eq!(counted.sum::<u64>(), 9, "the requests of the ninth are in the points of others");
    let later = [(8, 299, 400), (8, 300, 401), (8, 301, 403)];
    let taken = without_start(&(0..8).map(at).chain(later).collect::<Vec<_>>());
    assert!(taken[8].is_err(), "all eight have sent within five minutes");
    assert_eq!(taken[9..], [None, Some(2)].map(Ok));
}

#[test]
fn a_service_without_a_start_that_was_moved_counts_on() {
    let moved = without_start(&[(1, 0, 100), (1, 10, 107), (2, 20, 3), (2, 30, 8), (2, 40, 9)]);
    assert_eq!(moved, [None, Some(7), None, Some(5), Some(1)].map(Ok));
    // Moved to a machine whose clock is behind.
    let moved = without_start(&[(1, 0, 100), (1, 10, 107), (2, 9, 3), (2, 19, 8), (2, 29, 9)]);
    assert_eq!(moved, [None, Some(7), None, Some(5), Some(1)].map(Ok));
    // With a point that is sent again.
    let points = [(1, 0, 100), (1, 10, 107), (2, 9, 3), (2, 9, 3), (2, 19, 8), (2, 29, 9)];
    let moved = without_start(&points);
    assert_eq!(moved, [None, Some(7), None, None, Some(5), Some(1)].map(Ok));
    // Far behind, points may be late ones of the former place, by a slower collector.
    let moved = without_start(&[(1, 900, 100), (1, 910, 107), (2, 9, 3), (2, 19, 8), (2, 29, 9)]);
    assert_eq!(moved, [None, Some(7), None, None, None].map(Ok));
}

#[test]
fn delta_points_count_whole_and_once() {
    let mut table = SeriesTable::default();
    let mut take = |times, counts| table.take(KEY, delta(times, counts));
    assert_eq!(added(take((990, 1_000), [4, 0, 0])), Some((4, 10)));
    assert_eq!(added(take((1_000, 1_010), [6, 0, 0])), Some((6, 10)));
    assert_eq!(added(take((1_000, 1_010), [6, 0, 0])), None, "sent again");
    let why = take((1_000, 1_020), [7, 0, 0]).unwrap_err();
    assert!(why.contains("cumulative"), "{why}");
}

#[test]
fn another_bound_restarts_the_series() {
    let mut table = SeriesTable::default();
    assert_eq!(added(table.take(KEY, cumulative((10, 1_000), [500, 20, 1]))), None);
    let mut other = cumulative((10, 1_010), [500, 20, 2]);
    let counts = ExplicitPoint {
        count: 8,
        bucket_counts: vec![7, 1],
        explicit_bounds: vec![0.5],
        ..ExplicitPoint::default()
    };
    other.histogram = Histogram::explicit(counts).unwrap();
    let taken = table.take(KEY, other).unwrap().unwrap();
    let mut buckets = lull_measure::Buckets::default();
    taken.histogram.add_to(&mut buckets, super::super::histogram::Unit::parse("s").unwrap());
    assert_eq!(buckets.count(), 8);
}

#[test]
fn series_are_bounded_and_those_that_have_ended_make_room() {
    let mut table = SeriesTable::default();
    let key = |number: u32| {
        let mut key = Key::default();
        key[..4].copy_from_slice(&number.to_le_bytes());
        key
    };
    for number in 0..SERIES_MAX as u32 {
        table.take(key(number), cumulative((10, 1_000), [1, 0, 0])).unwrap();
    }
    let more = key(SERIES_MAX as u32);
    let why = table.take(more, cumulative((10, 1_010), [1, 0, 0])).unwrap_err();
    assert!(why.contains("100000 are the most") || why.contains("100000 with"), "{why}");
    assert!(table.take(key(5), cumulative((10, 1_010), [2, 0, 0])).unwrap().is_some());
    table.take(more, cumulative((10, 1_400), [1, 0, 0])).unwrap();
    assert_eq!(table.len(), 1, "all others have been silent for five minutes");
    assert_eq!(table.counters, 5);
}
