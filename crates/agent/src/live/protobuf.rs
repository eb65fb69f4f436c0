//! Metrics as Prometheus' protobuf, with native histograms beside the classic buckets.
//!
//! Source: `io.prometheus.client.MetricFamily`,
//! <https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>.

use super::exposition::{self, Labels, Values};
use lull_control::{LatencyTotals, NATIVE_SCHEMA};
use lull_measure::catalogue::histogram::LATENCY_BOUNDS_NS;
use prost::Message;

/// `MetricType`.
const COUNTER: i32 = 0;
const GAUGE: i32 = 1;
const HISTOGRAM: i32 = 4;

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// `Gauge` and `Counter`.
#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

/// Returns all families, each with its length before it.
pub(super) fn encode(families: &[exposition::Family<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32_768);
    for family in families {
        let message = family_message(family);
        bytes.extend_from_slice(&message.encode_length_delimited_to_vec());
    }
    bytes
}

fn family_message(family: &exposition::Family<'_>) -> MetricFamily {
    let number = |value: f64| Some(Number { value: Some(value) });
    let (name, kind, metric) = match &family.values {
        Values::Gauges(all) => {
            let metric = |(of, value): &(Labels<'_>, f64)| Metric {
                gauge: number(*value),
                ..with_labels(of)
            };
            (family.name.clone(), GAUGE, all.iter().map(metric).collect())
        }
        Values::Counters(all) => {
            let metric = |(of, value): &(Labels<'_>, f64)| Metric {
                counter: number(*value),
                ..with_labels(of)
            };
            (format!("{}_total", family.name), COUNTER, all.iter().map(metric).collect())
        }
        Values::Histograms(all) => {
            let metric = |(of, latencies): &(Labels<'_>, &LatencyTotals)| Metric {
                histogram: Some(histogram(latencies)),
                ..with_labels(of)
            };
            (family.name.clone(), HISTOGRAM, all.iter().map(metric).collect())
        }
    };
    let help = Some(family.help.to_owned());
    MetricFamily { name: Some(name), help, kind: Some(kind), metric }
}

fn with_labels(labels: &Labels<'_>) -> Metric {
    let pair = |(name, value): &(&'static str, &str)| LabelPair {
        name: Some((*name).to_owned()),
        value: Some((*value).to_owned()),
    };
    Metric { label: labels.iter().map(pair).collect(), ..Metric::default() }
}

fn histogram(latencies: &LatencyTotals) -> Histogram {
    let mut below = 0_u64;
    let classic = LATENCY_BOUNDS_NS.iter().zip(&latencies.classic).map(|(bound, count)| {
        below = below.saturating_add(*count);
        Bucket { cumulative_count: Some(below), upper_bound: Some(*bound as f64 / 1e9) }
    });
    let bucket = classic.collect();
    let (positive_span, positive_delta) = native(latencies);
    Histogram {
        sample_count: Some(latencies.count),
        sample_sum: Some(latencies.sum_s),
        bucket,
        schema: Some(NATIVE_SCHEMA),
        zero_threshold: Some(0.0),
        zero_count: Some(0),
        positive_span,
        positive_delta,
    }
}

/// Native buckets as Prometheus writes them: runs of consecutive buckets, each with its distance
/// from the end of the run before, and each count as the difference to the one before.
fn native(latencies: &LatencyTotals) -> (Vec<BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas) = (Vec::<BucketSpan>::new(), Vec::new());
    let (mut next, mut before) = (None, 0_i64);
    for (index, count) in &latencies.native {
        match (spans.last_mut(), next) {
            (Some(span), Some(at)) if at == *index => {
                span.length = span.length.map(|length| length + 1);
            }
            _ => {
                let offset = index - next.unwrap_or_default();
                spans.push(BucketSpan { offset: Some(offset), length: Some(1) });
            }
        }
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        deltas.push(count.saturating_sub(before));
        (next, before) = (Some(index + 1), count);
    }
    (spans, deltas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_buckets_are_runs_with_differences() {
        let native_counts = [(-40, 5), (-39, 7), (-30, 1)].into_iter().collect();
        let latencies = LatencyTotals { native: native_counts, ..LatencyTotals::default() };
        let (spans, deltas) = native(&latencies);
        let spans: Vec<_> =
            spans.iter().map(|it| (it.offset.unwrap(), it.length.unwrap())).collect();
        assert_eq!(spans, [(-40, 2), (8, 1)]);
        assert_eq!(deltas, [5, 2, -6]);
    }

    #[test]
    fn a_family_is_read_back_as_it_was_written() {
        let counter = exposition::Family {
            name: "lull_requests".to_owned(),
            help: "Requests answered.",
            unit: None,
            values: Values::Counters(vec![(vec![("app", "a\"b")], 0.0)]),
        };
        let bytes = encode(&[counter]);
        let family = MetricFamily::decode_length_delimited(bytes.as_slice()).unwrap();
        assert_eq!(family.name.as_deref(), Some("lull_requests_total"));
        assert_eq!(family.kind, Some(COUNTER));
        assert_eq!(family.metric[0].label[0].value.as_deref(), Some("a\"b"));
        assert_eq!(
            family.metric[0].counter,
            Some(Number { value: Some(0.0) }),
            "0 is written, too"
        );
    }
}
