//! Export of the agent's own metrics to an OpenTelemetry collector, by OTLP over HTTP.
//!
//! The loop encodes its gauges and counters once a period and hands the bytes to a thread, which
//! sends them. An export that the collector does not take in time is dropped, since the next one
//! has the same counters. Of the reply only the three digits of its status are read.

use super::collector::Collector;
use super::wire::{ExplicitPoint, KeyValue, Resource};
use crate::live::{Family, Labels, Values};
use crate::outbound::{Access, Outbound};
use lull_control::LatencyTotals;
use lull_measure::Nanos;
use lull_measure::catalogue::histogram::LATENCY_BOUNDS_NS;
use prost::Message;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

/// `AggregationTemporality.CUMULATIVE`.
const CUMULATIVE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Gauge>,
    #[prost(message, optional, tag = "7")]
    sum: Option<Sum>,
    #[prost(message, optional, tag = "9")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<ExplicitPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct NumberPoint {
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(double, optional, tag = "4")]
    as_double: Option<f64>,
}

/// `opentelemetry.proto.common.v1.AnyValue` with a text.
#[derive(Clone, PartialEq, Message)]
struct TextValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = TextValue { text: Some(value.to_owned()) }.encode_to_vec();
    KeyValue { key: key.to_owned(), value }
}

/// When counters began and when they were read, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// Encodes families as an export of the agent of this run on this host.
pub(crate) fn encode(families: &[Family<'_>], times: Times, host: &str, run: &str) -> Vec<u8> {
    let attributes = vec![
        attribute("service.name", "lull"),
        attribute("service.instance.id", run),
        attribute("service.version", crate::VERSION),
        attribute("host.name", host),
    ];
    let scope = Scope { name: "lull".to_owned(), version: crate::VERSION.to_owned() };
    let metrics = families.iter().map(|family| metric(family, times)).collect();
    Request {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics }],
        }],
    }
    .encode_to_vec()
}

fn metric(family: &Family<'_>, times: Times) -> Metric {
    let named = Metric {
        name: family.name.clone(),
        description: family.help.to_owned(),
        unit: family.unit.map_or("1", ucum).to_owned(),
        ..Metric::default()
    };
    let numbers = |values: &[(Labels<'_>, f64)]| {
        let point = |(labels, value): &(Labels<'_>, f64)| number(labels, *value, times);
        values.iter().map(point).collect()
    };
    match &family.values {
        Values::Gauges(values) => {
            Metric { gauge: Some(Gauge { data_points: numbers(values) }), ..named }
        }
        Values::Counters(values) => {
            let (aggregation_temporality, is_monotonic) = (CUMULATIVE, true);
            let data_points = numbers(values);
            Metric {
                sum: Some(Sum { data_points, aggregation_temporality, is_monotonic }),
                ..named
            }
        }
        Values::Histograms(all) => {
            let data_points = all.iter().map(|(of, one)| histogram(of, one, times)).collect();
            let aggregation_temporality = CUMULATIVE;
            Metric { histogram: Some(Histogram { data_points, aggregation_temporality }), ..named }
        }
    }
}

/// The unit in UCUM, OpenTelemetry's notation.
fn ucum(unit: &'static str) -> &'static str {
    match unit {
        "seconds" => "s",
        "joules" => "J",
        "watts" => "W",
        "hertz" => "Hz",
        "bytes" => "By",
        "bytes_per_second" => "By/s",
        "per_second" => "/s",
        _ => "1",
    }
}

fn attributes(labels: &Labels<'_>) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| attribute(semantic(name), value)).collect()
}

/// The name of a label in OpenTelemetry's semantic conventions.
fn semantic(label: &'static str) -> &'static str {
    match label {
        "namespace" => "k8s.namespace.name",
        "pod" => "k8s.pod.name",
        "container" => "k8s.container.name",
        "workload" => "k8s.workload.name",
        own => own,
    }
}

fn number(labels: &Labels<'_>, value: f64, Times { start, now }: Times) -> NumberPoint {
    NumberPoint {
        attributes: attributes(labels),
        start_time_unix_nano: start,
        time_unix_nano: now,
        as_double: Some(value),
    }
}

fn histogram(labels: &Labels<'_>, latencies: &LatencyTotals, times: Times) -> ExplicitPoint {
    ExplicitPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: latencies.count,
        sum: Some(latencies.sum_s),
        bucket_counts: latencies.classic.clone(),
        explicit_bounds: LATENCY_BOUNDS_NS.iter().map(|bound| *bound as f64 / 1e9).collect(),
        flags: 0,
    }
}

/// The loop's end of the thread that sends.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: Collector,
    period: Duration,
    due: Instant,
    bodies: SyncSender<Vec<u8>>,
    results: Receiver<Result<(), String>>,
    /// The last failure, reported once.
    failure: Option<String>,
}

impl Exporter {
    /// Starts the thread, which ends with the returned value.
    pub(crate) fn start(collector: Collector, access: Access, period: Nanos) -> io::Result<Self> {
        // One export may wait while another one is sent.
        let (bodies, waiting) = sync_channel::<Vec<u8>>(1);
        let (sender, results) = channel();
        let to = collector.clone();
        let thread = std::thread::Builder::new().name("lull-export".to_owned());
        thread.spawn(move || send_all(&to, Outbound::new(access), &waiting, &sender))?;
        let (period, due) = (period.into(), Instant::now());
        Ok(Self { collector, period, due, bodies, results, failure: None })
    }

    /// Sends what `encode` returns if an export is due; drops it if two are on their way already.
    pub(crate) fn export(&mut self, encode: impl FnOnce() -> Vec<u8>) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + self.period;
        if let Err(TrySendError::Disconnected(_)) = self.bodies.try_send(encode()) {
            self.failure = Some("the thread that exports has ended".to_owned());
        }
    }

    /// Returns a message when exports begin to fail, or to arrive again.
    pub(crate) fn take_notice(&mut self) -> Option<String> {
        let last = self.results.try_iter().last()?;
        let authority = self.collector.authority();
        match (last, self.failure.take()) {
            (Ok(()), Some(_)) => Some(format!("the export of metrics to {authority} works again")),
            (Ok(()), None) => None,
            (Err(why), before) => {
                let is_new = before.is_none();
                let text = format!("metrics cannot be exported to {authority}: {why}");
                self.failure = Some(why);
                is_new.then_some(text)
            }
        }
    }
}

fn send_all(
    collector: &Collector,
    mut outbound: Outbound,
    bodies: &Receiver<Vec<u8>>,
    results: &Sender<Result<(), String>>,
) {
    for body in bodies {
        let sent = collector.post(&mut outbound, &body).map_err(|error| error.to_string());
        if results.send(sent).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::intake::{Arrival, Intake};
    use crate::otlp::{OtlpSource, Senders};
    use flate2::read::GzDecoder;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn families(latencies: &LatencyTotals) -> [Family<'_>; 2] {
        let counter = Values::Counters(vec![(vec![("app", "web")], 7.0)]);
        let histogram = Values::Histograms(vec![(vec![("app", "web")], latencies)]);
        [
            ("lull_requests", None, counter),
            ("lull_request_latency_seconds", Some("seconds"), histogram),
        ]
        .map(|(name, unit, values)| Family {
            name: name.to_owned(),
            help: "Help.",
            unit,
            values,
        })
    }

    #[test]
    fn what_the_agent_exports_its_own_receiver_reads() {
        let mut classic = vec![0; LATENCY_BOUNDS_NS.len() + 1];
        (classic[3], classic[22]) = (4, 3);
        let latencies = LatencyTotals { classic, count: 7, sum_s: 9.5, ..Default::default() };
        let second = 1_000_000_000;
        let times = Times { start: 1_000 * second, now: 1_010 * second };
        let body = encode(&families(&latencies), times, "host", "run");
        let metric = "lull_request_latency_seconds".to_owned();
        let source =
            OtlpSource { app: 0, from: Senders::Service("lull".to_owned()), route: None, metric };
        let mut intake = Intake::new(vec![source]);
        let (monotonic, unix) = (Nanos::from_secs(5), Nanos(times.now));
        let arrival = Arrival { monotonic, unix, client: [127, 0, 0, 1].into() };
        assert_eq!(intake.take(&body, arrival).unwrap().why, None);
        let windows = intake.drain();
        assert_eq!((windows[0].buckets.count(), windows[0].length), (7, Nanos::from_secs(10)));
        let low = windows[0].buckets.iter().next().unwrap();
        assert_eq!((low.0, low.1), (Nanos(50_000), Some(Nanos(100_000))));
    }

    #[test]
    fn a_failure_is_reported_once_and_so_is_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let replies = ["503 No", "503 No", "200 OK", "200 OK"];
        std::thread::spawn(move || {
            for reply in replies {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                let mut body = String::new();
                GzDecoder::new(&stream).read_to_string(&mut body).unwrap();
                assert_eq!(body, "body");
                // In one piece: the client closes as soon as it has the status.
                let answer = format!("HTTP/1.1 {reply}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let collector = Collector::try_from(format!("http://{address}")).unwrap();
        let mut exporter = Exporter::start(collector, Access::default(), Nanos::ZERO).unwrap();
        let mut notices = Vec::new();
        for _ in replies {
            exporter.export(|| b"body".to_vec());
            let last = exporter.results.recv().unwrap();
            let (sender, results) = channel();
            sender.send(last).unwrap();
            let others = std::mem::replace(&mut exporter.results, results);
            notices.push(exporter.take_notice());
            exporter.results = others;
        }
        let has_notice: Vec<bool> = notices.iter().map(Option::is_some).collect();
        assert_eq!(has_notice, [true, false, true, false], "{notices:?}");
        assert!(notices[0].as_ref().unwrap().contains("status 503"));
    }
}
