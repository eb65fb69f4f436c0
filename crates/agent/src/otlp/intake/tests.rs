//! Whole exports: which app they are of, senders, idle services, late exports.

use super::super::series::SERIES_MAX;
use super::super::wire::{ExplicitPoint, ExponentialBuckets, ExponentialPoint};
use super::*;
use crate::otlp::USUAL_METRIC;
use lull_measure::Percentile;
use prost::Message;

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1_800_000_000;

/// A field that holds a message or text.
fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, &mut field);
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend_from_slice(bytes);
    field
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: field(1, value.as_bytes()) }
}

/// An export of one service's instance with this one metric.
fn export(service: &str, instance: &str, metric: &[u8]) -> Vec<u8> {
    let resource = [attribute("service.name", service), attribute("service.instance.id", instance)];
    let resource: Vec<u8> = resource.iter().flat_map(|it| field(1, &it.encode_to_vec())).collect();
    let scope = [field(1, b"scope"), field(2, metric)].concat();
    field(1, &[field(1, &resource), field(2, &scope)].concat())
}

/// A histogram in seconds; `temporality` is 1 for delta and 2 for cumulative.
fn metric(name: &str, kind: u32, temporality: u8, points: &[Vec<u8>]) -> Vec<u8> {
    let points: Vec<u8> = points.iter().flat_map(|point| field(1, point)).collect();
    let data = [points, vec![2 << 3, temporality]].concat();
    [field(1, name.as_bytes()), field(3, b"s"), field(kind, &data)].concat()
}

/// Requests of at most 0.1 s, of at most 1 s, and longer ones.
fn point(times_s: (u64, u64), counts: [u64; 3], attributes: &[(&str, &str)]) -> Vec<u8> {
    let of = |(key, value): &(&str, &str)| attribute(key, value);
    ExplicitPoint {
        attributes: attributes.iter().map(of).collect(),
        start_time_unix_nano: (BEGIN + times_s.0) * SECOND,
        time_unix_nano: (BEGIN + times_s.1) * SECOND,
        count: counts.iter().sum(),
        bucket_counts: counts.to_vec(),
        explicit_bounds: vec![0.1, 1.0],
        ..ExplicitPoint::default()
    }
    .encode_to_vec()
}

fn cumulative(times_s: (u64, u64), counts: [u64; 3]) -> Vec<u8> {
    metric(USUAL_METRIC, 9, 2, &[point(times_s, counts, &[])])
}

fn intake() -> Intake {
    let source = |app, route: Option<&str>| OtlpSource {
        app,
        from: Senders::Service("shop".to_owned()),
        route: route.map(str::to_owned),
        metric: USUAL_METRIC.to_owned(),
    };
    Intake::new(vec![source(0, None), source(1, Some("/cart"))])
}

/// An export that arrives at this second.
fn take(intake: &mut Intake, at_s: u64, bytes: &[u8]) -> Outcome {
    take_from(intake, at_s, [127, 0, 0, 1], bytes)
}

/// The same from this address.
fn take_from(intake: &mut Intake, at_s: u64, client: [u8; 4], bytes: &[u8]) -> Outcome {
    let (monotonic, unix) = (Nanos::from_secs(at_s), Nanos((BEGIN + at_s) * SECOND));
    intake.take(bytes, Arrival { monotonic, unix, client: client.into() }).unwrap()
}

/// App, requests, errors and length in seconds of each window.
fn windows(intake: &mut Intake) -> Vec<(u16, u64, u64, u64)> {
    let short = |it: &Window| (it.app, it.buckets.count(), it.errors, it.length.0 / SECOND);
    intake.drain().iter().map(short).collect()
}

#[test]
fn the_requests_of_two_instances_are_those_of_one_app_each_in_its_own_windows() {
    let mut intake = intake();
    for (at, counts) in [(1_000, [9, 0, 0]), (1_010, [29, 1, 0])] {
        for instance in ["a", "b"] {
            take(&mut intake, at, &export("shop", instance, &cumulative((10, at), counts)));
        }
        if at == 1_000 {
            assert_eq!(windows(&mut intake), [], "what was before is of the past");
        }
    }
    let drained = intake.drain();
    let of_all: Vec<&Window> = drained.iter().filter(|it| it.app == 0).collect();
    assert_eq!(of_all.len(), 2);
    assert_ne!(of_all[0].sender, of_all[1].sender);
    assert_eq!((of_all[0].buckets.count(), of_all[0].length), (21, Nanos::from_secs(10)));
    assert_eq!(of_all[0].end, Nanos::from_secs(1_010));
    let range = of_all[0].buckets.quantile_range(Percentile::P50).unwrap();
    assert_eq!(range.high, Some(Nanos::from_millis(100)));
}

/// A cumulative histogram that does not say when it began.
fn without_start(at: u64, count: u64) -> Vec<u8> {
    let point = ExplicitPoint {
        time_unix_nano: (BEGIN + at) * SECOND,
        count,
        bucket_counts: vec![count, 0, 0],
        explicit_bounds: vec![0.1, 1.0],
        ..ExplicitPoint::default()
    };
    metric(USUAL_METRIC, 9, 2, &[point.encode_to_vec()])
}

#[test]
fn two_senders_with_the_same_attributes_and_without_a_start_are_refused_and_not_idle() {
    let (one, other) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (mut intake, mut refused) = (intake(), 0);
    for round in 0..5 {
        let at = 1_000 + 10 * round;
        for (client, count) in [(one, 100 + 7 * round), (other, 900 + 5 * round)] {
            let bytes = export("shop", "same", &without_start(at, count));
            refused += take_from(&mut intake, at, client, &bytes).rejected;
        }
        assert_eq!(windows(&mut intake), [], "it is not known what is new");
    }
    assert_eq!((refused, intake.series()), (2 * 4, 1));
    let notices = intake.take_notices();
    assert!(notices.iter().any(|text| text.contains("service.instance.id")), "{notices:?}");
}

#[test]
fn one_sender_that_exports_by_two_collectors_is_counted_once() {
    let metric = |has_start, at, count| match has_start {
        true => cumulative((10, at), [count, 0, 0]),
        false => without_start(at, count),
    };
    // Without a start the first export by the second one is where counting begins again.
    for (has_start, wanted) in [(true, 4 * 7), (false, 3 * 7)] {
        let (mut intake, mut counted) = (intake(), 0);
        for round in 0..5_u64 {
            let at = 1_000 + 10 * round;
            let bytes = export("shop", "a", &metric(has_start, at, 100 + 7 * round));
            let client = [10, 0, 0, 1 + (round % 2) as u8];
            assert_eq!(take_from(&mut intake, at, client, &bytes), Outcome::default());
            counted += windows(&mut intake).iter().map(|window| window.1).sum::<u64>();
        }
        assert_eq!((counted, intake.series()), (wanted, 1));
    }
}

#[test]
fn a_service_whose_points_are_refused_is_unknown_and_not_idle() {
    let mut intake = intake();
    for (at, count) in [(1_000, 5), (1_010, 12)] {
        take(&mut intake, at, &export("shop", "a", &cumulative((10, at), [count, 0, 0])));
    }
    assert_eq!(windows(&mut intake), [(0, 7, 0, 10)]);
    let in_bytes = [field(1, USUAL_METRIC.as_bytes()), field(3, b"By"), field(9, &[2 << 3, 2])];
    let negative = ExplicitPoint {
        count: 1,
        bucket_counts: vec![1, 0],
        explicit_bounds: vec![-1.0],
        ..ExplicitPoint::default()
    };
    let negative = metric(USUAL_METRIC, 9, 2, &[negative.encode_to_vec()]);
    for (at, metric) in [(1_020, in_bytes.concat()), (1_030, negative)] {
        assert_eq!(take(&mut intake, at, &export("shop", "a", &metric)).rejected, 1);
        assert_eq!(windows(&mut intake), []);
    }
}

#[test]
fn attributes_distinguish_routes_and_errors() {
    let mut intake = intake();
    let points = |at, cart, failed| {
        let points = [
            point((10, at), [cart, 0, 0], &[("http.route", "/cart")]),
            point((10, at), [50, 0, 0], &[("http.route", "/")]),
            point((10, at), [0, 0, failed], &[("http.route", "/cart"), ("error.type", "500")]),
        ];
        export("shop", "a", &metric(USUAL_METRIC, 9, 2, &points))
    };
    take(&mut intake, 1_000, &points(1_000, 7, 1));
    take(&mut intake, 1_010, &points(1_010, 12, 3));
    assert_eq!(windows(&mut intake), [(0, 7, 2, 10), (1, 7, 2, 10)]);
    assert_eq!(intake.series(), 3);
}

#[test]
fn exponential_histograms_of_delta_temporality_are_counted() {
    let mut intake = intake();
    let point = |from: u64, to: u64| {
        ExponentialPoint {
            start_time_unix_nano: (BEGIN + from) * SECOND,
            time_unix_nano: (BEGIN + to) * SECOND,
            count: 12,
            scale: 3,
            zero_count: 2,
            positive: Some(ExponentialBuckets { offset: -40, bucket_counts: vec![4, 6] }),
            ..ExponentialPoint::default()
        }
        .encode_to_vec()
    };
    for at in [1_000, 1_010] {
        let metric = metric(USUAL_METRIC, 10, 1, &[point(at - 10, at)]);
        assert_eq!(take(&mut intake, at, &export("shop", "a", &metric)), Outcome::default());
        assert_eq!(windows(&mut intake), [(0, 12, 0, 10)]);
    }
}

#[test]
fn a_service_that_exports_without_requests_is_idle_and_one_that_does_not_export_is_silent() {
    let mut intake = intake();
    let delta = |from, to| metric(USUAL_METRIC, 9, 1, &[point((from, to), [5, 0, 0], &[])]);
    let other = metric("process.cpu.time", 9, 2, &[]);
    take(&mut intake, 980, &export("shop", "a", &other));
    assert_eq!(windows(&mut intake), [], "nothing is known of the histogram yet");
    take(&mut intake, 1_000, &export("shop", "a", &delta(990, 1_000)));
    take(&mut intake, 1_010, &export("shop", "a", &other));
    assert_eq!(windows(&mut intake), [(0, 5, 0, 20)]);
    take(&mut intake, 1_020, &export("shop", "a", &other));
    assert_eq!(windows(&mut intake), [(0, 0, 0, 10)]);
    assert_eq!(windows(&mut intake), [], "it is silent");
    let notices = intake.take_notices();
    assert!(notices[0].contains("has not sent the histogram"), "{notices:?}");
}

#[test]
fn an_export_that_comes_in_parts_covers_its_time_once() {
    let mut intake = intake();
    let part = |at, counts, route| {
        let point = point((10, at), counts, &[("http.route", route)]);
        export("shop", "a", &metric(USUAL_METRIC, 9, 2, &[point]))
    };
    for (at, count) in [(1_000, 10), (1_010, 20), (1_020, 40)] {
        take(&mut intake, at, &part(at, [count, 0, 0], "/"));
        take(&mut intake, at, &part(at, [count, 0, 0], "/pay"));
    }
    assert_eq!(windows(&mut intake), [(0, 60, 0, 20)]);
}

#[test]
fn exports_that_were_kept_on_their_way_count_nothing_as_now() {
    let mut intake = intake();
    let send = |intake: &mut Intake, time, arrived, count| {
        let bytes = export("shop", "a", &cumulative((10, time), [count, 0, 0]));
        take(intake, arrived, &bytes);
    };
    send(&mut intake, 1_000, 1_000, 100);
    send(&mut intake, 1_010, 1_010, 110);
    assert_eq!(windows(&mut intake), [(0, 10, 0, 10)]);
    for (time, count) in [(1_020, 120), (1_030, 130), (1_040, 140)] {
        send(&mut intake, time, 1_060, count);
        assert_eq!(windows(&mut intake), []);
    }
    send(&mut intake, 1_060, 1_060, 160);
    assert_eq!(windows(&mut intake), [(0, 20, 0, 20)], "since the last that was late");
    assert!(intake.take_notices().iter().any(|text| text.contains("on its way")));
}

#[test]
fn exports_of_a_service_whose_clock_is_an_hour_wrong_count_as_of_now() {
    for (offset_s, words) in [(-3_600_i64, "3600 s before ours"), (3_600, "3600 s after ours")] {
        let mut intake = intake();
        for (at, count) in [(10_000_u64, 100), (10_010, 107), (10_020, 110)] {
            let time = at.checked_add_signed(offset_s).unwrap();
            let bytes = export("shop", "a", &cumulative((10, time), [count, 0, 0]));
            assert_eq!(take(&mut intake, at, &bytes), Outcome::default());
        }
        let drained = intake.drain();
        let window = drained.iter().find(|window| window.app == 0).unwrap();
        assert_eq!((window.buckets.count(), window.length), (10, Nanos::from_secs(20)));
        assert_eq!(window.end, Nanos::from_secs(10_020), "the arrival, whatever the sender says");
        let notices = intake.take_notices();
        assert!(notices.iter().any(|text| text.contains(words)), "{notices:?}");
    }
}

#[test]
fn a_point_that_is_refused_counts_nothing_and_the_next_goes_on() {
    let mut intake = intake();
    let with = |counts: [u64; 3], bounds: [f64; 2]| {
        ExplicitPoint {
            start_time_unix_nano: (BEGIN + 10) * SECOND,
            time_unix_nano: (BEGIN + 1_005) * SECOND,
            count: counts.iter().fold(0, |sum, count| sum.wrapping_add(*count)),
            bucket_counts: counts.to_vec(),
            explicit_bounds: bounds.to_vec(),
            ..ExplicitPoint::default()
        }
        .encode_to_vec()
    };
    take(&mut intake, 1_000, &export("shop", "a", &cumulative((10, 1_000), [5, 0, 0])));
    for (temporality, point, words) in [
        (2, with([1 << 41, 0, 0], [0.1, 1.0]), "2^40"),
        (2, with([u64::MAX, 8, 0], [0.1, 1.0]), "2^40"),
        (2, with([9, 0, 0], [-0.5, 1.0]), "negative"),
        (2, with([9, 0, 0], [0.1, f64::INFINITY]), "finite"),
        (2, with([9, 0, 0], [1.0, 0.1]), "ascend"),
        (0, with([9, 0, 0], [0.1, 1.0]), "temporality"),
        (3, with([9, 0, 0], [0.1, 1.0]), "temporality"),
    ] {
        let metric = metric(USUAL_METRIC, 9, temporality, &[point]);
        let outcome = take(&mut intake, 1_005, &export("shop", "a", &metric));
        assert_eq!(outcome.rejected, 1, "{words}");
        assert!(outcome.why.as_ref().is_some_and(|why| why.contains(words)), "{outcome:?}");
    }
    take(&mut intake, 1_010, &export("shop", "a", &cumulative((10, 1_010), [12, 0, 0])));
    assert_eq!(windows(&mut intake).iter().map(|window| window.1).sum::<u64>(), 7);
    assert_eq!(intake.series(), 1);
}

#[test]
fn the_series_of_one_service_are_bounded_and_those_that_are_known_go_on() {
    const EACH: u64 = 1_000;
    let mut intake = intake();
    let send = |intake: &mut Intake, at: u64, first: u64, count: u64| {
        let of = |number: u64| {
            let route = format!("/{number}");
            point((at - 10, at), [1, 0, 0], &[("http.route", &route)])
        };
        let points: Vec<Vec<u8>> = (first..first + count).map(of).collect();
        take(intake, at, &export("shop", "a", &metric(USUAL_METRIC, 9, 1, &points)))
    };
    for first in 0..SERIES_MAX as u64 / EACH {
        assert_eq!(send(&mut intake, 1_000, first * EACH, EACH), Outcome::default());
    }
    let refused = send(&mut intake, 1_001, SERIES_MAX as u64, 7);
    assert_eq!(refused.rejected, 7);
    let why = refused.why.unwrap();
    assert!(why.contains("drop attributes by a view"), "{why}");
    assert_eq!(intake.series(), SERIES_MAX);
    drop(intake.drain());
    assert_eq!(send(&mut intake, 1_010, 0, 3), Outcome::default(), "known series");
    assert_eq!(windows(&mut intake).iter().map(|window| window.1).sum::<u64>(), 3);
}

#[test]
fn what_cannot_be_counted_is_refused_with_its_reason() {
    let mut intake = intake();
    let mut why = |metric: &[u8]| {
        let outcome = take(&mut intake, 1_000, &export("shop", "a", metric));
        assert_eq!(outcome.rejected, 1);
        outcome.why.unwrap()
    };
    let one = [point((10, 1_000), [1, 0, 0], &[])];
    assert!(why(&metric(USUAL_METRIC, 9, 0, &one)).contains("temporality"));
    assert!(why(&metric(USUAL_METRIC, 7, 2, &one)).contains("not a histogram"));
    let in_bytes = [field(1, USUAL_METRIC.as_bytes()), field(3, b"By"), field(9, &[2 << 3, 2])];
    assert!(why(&in_bytes.concat()).contains("unit `By`"));
    let foreign = take(&mut intake, 1_000, &export("other", "a", &cumulative((10, 1_000), [1; 3])));
    assert_eq!(foreign, Outcome::default(), "others may export to the same receiver");
    let notices = intake.take_notices();
    assert!(notices.iter().any(|text| text.contains("`other`")), "{notices:?}");
}

#[test]
fn what_is_wrong_is_reported_once_an_hour_whatever_was_wrong_before() {
    let mut intake = intake();
    let mut noted = |at_s, service: &str| {
        take(&mut intake, at_s, &export(service, "a", &cumulative((10, at_s), [1, 0, 0])));
        intake.take_notices().len()
    };
    let each = (0..NOTED_MAX).map(|number| noted(4_000, &format!("unknown-{number}")));
    assert_eq!(each.sum::<usize>(), NOTED_MAX);
    assert_eq!(noted(7_599, "late"), 0, "too many");
    assert_eq!((noted(7_600, "late"), noted(7_601, "late")), (1, 0));
}

#[test]
fn a_service_that_is_restarted_counts_on_under_its_new_start() {
    let mut intake = intake();
    for (start, at, count) in [(10, 1_000, 500), (10, 1_010, 520), (1_012, 1_020, 3)] {
        let bytes = export("shop", "a", &cumulative((start, at), [count, 0, 0]));
        take(&mut intake, at, &bytes);
    }
    assert_eq!(windows(&mut intake), [(0, 23, 0, 20)]);
}

#[test]
fn the_history_of_another_scope_of_a_metric_is_not_of_now() {
    let mut intake = intake();
    let of_scope = |scope: &[u8], at, count| {
        let resource = field(1, &attribute("service.name", "shop").encode_to_vec());
        let metric = cumulative((10, at), [count, 0, 0]);
        let scope = [field(1, scope), field(2, &metric)].concat();
        field(1, &[field(1, &resource), field(2, &scope)].concat())
    };
    take(&mut intake, 1_000, &of_scope(b"one", 1_000, 500));
    take(&mut intake, 1_001, &of_scope(b"two", 1_001, 900));
    for at in [1_010, 1_020] {
        let export = [of_scope(b"one", at, at - 500), of_scope(b"two", at, at - 100)].concat();
        take(&mut intake, at, &export);
    }
    assert_eq!(windows(&mut intake).iter().map(|window| window.1).sum::<u64>(), 20 + 20);
}

/// An export of `shop` with these attributes of its resource besides, and this many requests.
fn of_pod(at: u64, attributes: &[(&str, &str)], count: u64) -> Vec<u8> {
    let resource = [("service.name", "shop")].iter().chain(attributes);
    let resource: Vec<u8> = resource
        .flat_map(|(key, value)| field(1, &attribute(key, value).encode_to_vec()))
        .collect();
    let scope = field(2, &cumulative((10, at), [count, 0, 0]));
    field(1, &[field(1, &resource), field(2, &scope)].concat())
}

#[test]
fn exports_of_a_pod_are_those_that_name_it() {
    let source = |app| OtlpSource {
        app,
        from: Senders::Pod { pod: None, service: None },
        route: None,
        metric: USUAL_METRIC.to_owned(),
    };
    let pod = |uid: &str, service: Option<&str>| PodIdentity {
        namespace: "ns".to_owned(),
        name: format!("web-{uid}"),
        uid: uid.to_owned(),
        container: "main".to_owned(),
        workload: "web".to_owned(),
        service: service.map(str::to_owned),
    };
    let mut intake = Intake::new(vec![source(0), source(1)]);
    let counted = |intake: &mut Intake, attributes: &[(&str, &str)], at: u64| {
        take(intake, at, &of_pod(at, attributes, 100));
        take(intake, at + 10, &of_pod(at + 10, attributes, 107));
        windows(intake).iter().map(|window| (window.0, window.1)).collect::<Vec<_>>()
    };
    let by_uid = [("k8s.pod.uid", "a")];
    assert_eq!(counted(&mut intake, &by_uid, 1_000), [], "no pod is an app");
    intake.assign(0, Some(&pod("a", None)));
    intake.assign(1, Some(&pod("b", Some("shop"))));
    assert_eq!(counted(&mut intake, &by_uid, 2_000), [(0, 7)]);
    let by_name = [("k8s.namespace.name", "ns"), ("k8s.pod.name", "web-b")];
    assert_eq!(counted(&mut intake, &by_name, 2_000), [(1, 7)]);
    assert_eq!(counted(&mut intake, &by_name[1..], 3_000), [], "of which namespace?");
    let sidecar = [("k8s.pod.uid", "a"), ("k8s.container.name", "proxy")];
    assert_eq!(counted(&mut intake, &sidecar, 3_000), []);
    assert_eq!(counted(&mut intake, &[], 3_000), [(1, 7)], "by the service of the pod");
    intake.assign(0, Some(&pod("c", Some("shop"))));
    assert_eq!(counted(&mut intake, &[], 4_000), [], "of which of the two?");
    let notices = intake.take_notices();
    assert!(notices.iter().any(|text| text.contains("several pods")), "{notices:?}");
    assert_eq!(counted(&mut intake, &by_uid, 4_000), [], "another pod is the app");
}

#[test]
fn senders_are_bounded() {
    let mut intake = intake();
    let mut rejected = 0;
    for number in 0..SENDERS_MAX + 5 {
        let bytes = export("shop", &number.to_string(), &cumulative((990, 1_000), [1, 0, 0]));
        rejected += take(&mut intake, 1_000, &bytes).rejected;
    }
    assert_eq!((rejected, intake.senders.len()), (5, SENDERS_MAX));
    assert_eq!(intake.swept_at, Nanos::from_secs(1_000), "one search is enough for a while");
    let bytes = export("shop", "late", &cumulative((1_390, 1_400), [1, 0, 0]));
    assert_eq!(take(&mut intake, 1_400, &bytes), Outcome::default());
    assert_eq!(intake.senders.len(), 1, "those that have ended make room");
}

#[test]
fn any_cut_of_an_export_is_an_export_or_an_error() {
    let whole = export("shop", "a", &cumulative((990, 1_000), [1, 2, 3]));
    for end in 0..whole.len() {
        let mut intake = intake();
        let (monotonic, unix) = (Nanos::from_secs(1), Nanos::from_secs(BEGIN));
        let arrival = Arrival { monotonic, unix, client: [127, 0, 0, 1].into() };
        let taken = intake.take(&whole[..end], arrival);
        assert!(taken.is_err() || end == 0, "{end}");
    }
}
