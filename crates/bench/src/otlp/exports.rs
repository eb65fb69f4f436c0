//! Services that export histograms, as the SDKs of OpenTelemetry do.

use anyhow::{Context as _, Result, ensure};
use prost::Message;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The usual bounds of the SDKs for `http.server.request.duration`, in seconds.
const BOUNDS_S: [f64; 15] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0];
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
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
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "9")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Point>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Point {
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(fixed64, repeated, tag = "6")]
    bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    explicit_bounds: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<TextValue>,
}

#[derive(Clone, PartialEq, Message)]
struct TextValue {
    #[prost(string, tag = "1")]
    text: String,
}

/// Services that export in a thread.
pub(super) struct Exports {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<usize>>,
}

impl Exports {
    /// Lets services with this many routes export to an address, each once a period, evenly.
    pub(super) fn begin(
        address: SocketAddr,
        services: usize,
        routes: usize,
        period: Duration,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let gap = period / services as u32;
        let thread = std::thread::spawn(move || {
            let (started, mut next) = (unix_ns(), Instant::now());
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                let round = sent / services + 1;
                let body = body_of(sent % services, routes, round as u64, started);
                post(address, &body)?;
                sent += 1;
                next += gap;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok(sent)
        });
        Self { is_over, thread }
    }

    /// Ends the exporters. Returns the number of exports that were accepted.
    ///
    /// # Errors
    /// If one was not.
    pub(super) fn end(self) -> Result<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the exporting thread has panicked"))?
    }
}

/// The export of a service in its nth period: each route has had that many hundred requests.
fn body_of(service: usize, routes: usize, round: u64, started: u64) -> Vec<u8> {
    let now = unix_ns();
    let point = |route: usize| {
        let bucket_counts: Vec<u64> =
            (0..=BOUNDS_S.len()).map(|bucket| if bucket < 10 { 10 * round } else { 0 }).collect();
        Point {
            attributes: vec![
                text("http.request.method", "GET"),
                text("http.route", &format!("/api/{route}")),
                text("http.response.status_code", "200"),
            ],
            start_time_unix_nano: started,
            time_unix_nano: now,
            count: bucket_counts.iter().sum(),
            bucket_counts,
            explicit_bounds: BOUNDS_S.to_vec(),
        }
    };
    let histogram = Histogram {
        data_points: (0..routes).map(point).collect(),
        aggregation_temporality: CUMULATIVE,
    };
    let metric = Metric {
        name: "http.server.request.duration".to_owned(),
        unit: "s".to_owned(),
        histogram: Some(histogram),
    };
    let name = format!("service-{service}");
    let resource = Resource { attributes: vec![text("service.name", &name)] };
    let scope_metrics = vec![ScopeMetrics { metrics: vec![metric] }];
    let metrics = ResourceMetrics { resource: Some(resource), scope_metrics };
    Request { resource_metrics: vec![metrics] }.encode_to_vec()
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(TextValue { text: value.to_owned() }) }
}

/// Posts an export, which must be taken whole.
fn post(address: SocketAddr, body: &[u8]) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("the receiver is not there")?;
    let head = format!(
        "POST /v1/metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    // A body would state the refused parts of the export.
    let is_taken = answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n");
    ensure!(is_taken, "the receiver answers: {answer}");
    Ok(())
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_a_series_for_each_route_and_its_counts_grow() {
        let counts = |round| {
            let body = body_of(3, 500, round, 1);
            let request = Request::decode(body.as_slice()).unwrap();
            let metric = &request.resource_metrics[0].scope_metrics[0].metrics[0];
            let points = metric.histogram.clone().unwrap().data_points;
            assert_eq!((points.len(), points[7].explicit_bounds.len()), (500, 15));
            (points[7].count, points[7].bucket_counts.clone())
        };
        let (first, buckets) = counts(1);
        assert_eq!((first, buckets.len()), (100, 16));
        assert_eq!(counts(2).0, 200);
    }
}
