//! The same exports in both encodings, and what is none.

use super::super::intake::{Arrival, Intake, Outcome};
use super::super::wire::{KeyValue, parts};
use super::super::{OtlpSource, Senders, USUAL_METRIC};
use super::*;
use lull_measure::Nanos;
use serde_json::{Value, json};

const SECOND: u64 = 1_000_000_000;
const BEGIN_S: u64 = 1_800_000_000;

/// An export of `shop` with these data points of a histogram of this kind.
fn export(kind: &str, temporality: u8, points: &[Value]) -> Value {
    json!({ "resourceMetrics": [{
        "resource": { "attributes": [
            { "key": "service.name", "value": { "stringValue": "shop" } },
            { "key": "process.pid", "value": { "intValue": "7" } },
        ] },
        "scopeMetrics": [{
            "scope": { "name": "http" },
            "metrics": [{
                "name": USUAL_METRIC, "unit": "s", "description": "ignored",
                kind: { "aggregationTemporality": temporality, "dataPoints": points },
            }],
        }],
    }] })
}

fn time(at_s: u64) -> String {
    ((BEGIN_S + at_s) * SECOND).to_string()
}

/// A cumulative point of the last ten seconds, with this many requests of at most 0.1 s.
fn explicit(at_s: u64, count: u64) -> Value {
    json!({
        "startTimeUnixNano": time(10), "timeUnixNano": time(at_s),
        "count": count.to_string(), "sum": 1.5,
        "bucketCounts": [count.to_string(), 0, "0"], "explicitBounds": [0.1, 1],
        "attributes": [{ "key": "http.route", "value": { "stringValue": "/cart" } }],
    })
}

fn intake() -> Intake {
    Intake::new(vec![OtlpSource {
        app: 0,
        from: Senders::Service("shop".to_owned()),
        route: Some("/cart".to_owned()),
        metric: USUAL_METRIC.to_owned(),
    }])
}

fn take(intake: &mut Intake, at_s: u64, export: &Value) -> Outcome {
    let bytes = to_protobuf(export.to_string().as_bytes()).unwrap();
    let unix = Nanos((BEGIN_S + at_s) * SECOND);
    let (monotonic, client) = (Nanos::from_secs(at_s), [127, 0, 0, 1].into());
    intake.take(&bytes, Arrival { monotonic, unix, client }).unwrap()
}

#[test]
fn explicit_histograms_are_counted() {
    let mut intake = intake();
    for (at, count) in [(1_000, 50), (1_010, 62)] {
        let export = export("histogram", 2, &[explicit(at, count)]);
        assert_eq!(take(&mut intake, at, &export), Outcome::default());
    }
    let windows = intake.drain();
    assert_eq!((windows[0].buckets.count(), windows[0].length), (12, Nanos::from_secs(10)));
    let bucket = windows[0].buckets.iter().next().unwrap();
    assert_eq!((bucket.0, bucket.1), (Nanos::ZERO, Some(Nanos::from_millis(100))));
}

#[test]
fn exponential_histograms_are_counted() {
    let mut intake = intake();
    let point = json!({
        "startTimeUnixNano": time(990), "timeUnixNano": time(1_000), "count": 12, "scale": 3,
        "zeroCount": "2", "positive": { "offset": -40, "bucketCounts": ["4", "6"] },
        "negative": {}, "zeroThreshold": 0,
        "attributes": [{ "key": "http.route", "value": { "stringValue": "/cart" } }],
    });
    let export = export("exponentialHistogram", 1, &[point]);
    assert_eq!(take(&mut intake, 1_000, &export), Outcome::default());
    assert_eq!(intake.drain()[0].buckets.count(), 12);
}

#[test]
fn what_cannot_be_counted_is_refused_as_in_protobuf() {
    let mut intake = intake();
    let export_of = |point: Value| export("histogram", 2, &[point]);
    let mut negative = explicit(1_000, 1);
    negative["explicitBounds"] = json!([-1, "Infinity"]);
    let refused = take(&mut intake, 1_000, &export_of(negative));
    assert_eq!(refused.rejected, 1);
    assert!(refused.why.unwrap().contains("negative or not finite"));
    let gauge = export("gauge", 2, &[]);
    assert!(take(&mut intake, 1_000, &gauge).why.unwrap().contains("not a histogram"));
}

#[test]
fn what_is_no_export_is_an_error() {
    let cases = [
        "",
        "7",
        r#"[{"resource":{}}]"#,
        r#"{"resourceMetrics":{}}"#,
        r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"histogram":7}]}]}]}"#,
    ];
    for text in cases {
        assert!(to_protobuf(text.as_bytes()).is_err(), "{text}");
    }
    let with = |key: &str, value: Value| {
        let mut point = explicit(1_000, 1);
        point[key] = value;
        to_protobuf(export("histogram", 2, &[point]).to_string().as_bytes()).is_err()
    };
    assert!(with("count", json!("-1")) && with("count", json!("many")) && with("count", json!({})));
    assert!(with("timeUnixNano", json!("99999999999999999999")));
    assert!(with("bucketCounts", json!(vec![0; NUMBERS_MAX + 1])));
    assert!(!with("later", json!([[{}]])), "what is new is ignored");
    let deep = format!(r#"{{"x":{}"#, "[".repeat(1 << 20));
    assert!(to_protobuf(deep.as_bytes()).is_err());
}

#[test]
fn many_empty_points_take_no_more_memory_than_their_bytes() {
    let points = vec![json!({}); 100_000];
    let text = export("histogram", 2, &points).to_string();
    let bytes = to_protobuf(text.as_bytes()).unwrap();
    assert!(bytes.len() < text.len(), "{} of {}", bytes.len(), text.len());
}

#[test]
fn an_export_that_would_be_too_long_as_protobuf_is_refused() {
    let numbers = vec!["0"; NUMBERS_MAX].join(",");
    let point = format!(r#"{{"bucketCounts":[{numbers}]}}"#);
    let text_of = |count: usize| {
        let points = vec![point.as_str(); count].join(",");
        let metrics = format!(r#"[{{"histogram":{{"dataPoints":[{points}]}}}}]"#);
        format!(r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":{metrics}}}]}}]}}"#)
    };
    let text = text_of(PLAIN_MAX / (8 * NUMBERS_MAX));
    assert!(text.len() < PLAIN_MAX / 3);
    let refused = to_protobuf(text.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("more than 16 MiB as protobuf"), "{refused}");
    let next = to_protobuf(text_of(1).as_bytes());
    assert!(next.is_ok(), "a refused export takes no room from the next");
}

#[test]
fn the_lists_of_an_export_have_room_for_its_protobuf_together() {
    let points = vec![explicit(1_000, 1); 100];
    let one = export("histogram", 2, &points)["resourceMetrics"][0].clone();
    let text = json!({ "resourceMetrics": [one, one] }).to_string();
    let length = to_protobuf(text.as_bytes()).unwrap().len();
    assert_eq!(rewrite(text.as_bytes(), length).unwrap().len(), length);
    let refused = |text: &str, most| rewrite(text.as_bytes(), most).unwrap_err().to_string();
    assert!(refused(&text, length - 1).contains("as protobuf"));
    // The second resource is not complete, so that only its lists take room beside the first one.
    let cut = text.strip_suffix("]}]}").unwrap();
    assert!(refused(cut, length).contains("EOF"));
    assert!(refused(cut, length * 3 / 4).contains("as protobuf"));
}

#[test]
fn values_of_attributes_distinguish_series() {
    let values = [
        json!({ "stringValue": "1" }),
        json!({ "boolValue": true }),
        json!({ "intValue": "1" }),
        json!({ "doubleValue": 1.5 }),
        json!({ "arrayValue": { "values": [{ "stringValue": "1" }] } }),
        json!({ "kvlistValue": { "values": [{ "key": "1" }] } }),
        json!({ "bytesValue": "MQ==" }),
        json!({}),
    ];
    let encoded = values.iter().map(|value| {
        let attribute: Attribute =
            serde_json::from_value(json!({ "key": "k", "value": value })).unwrap();
        let mut bytes = Vec::new();
        attribute.encode(&mut bytes);
        KeyValue::decode(bytes.as_slice()).unwrap().value
    });
    let all: std::collections::BTreeSet<Vec<u8>> = encoded.collect();
    assert_eq!(all.len(), values.len());
    let resource = to_protobuf(export("histogram", 2, &[]).to_string().as_bytes()).unwrap();
    assert_eq!(parts(&resource, 1).count(), 1);
}
