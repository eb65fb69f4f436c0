//! Latency from OpenTelemetry: histograms that services export by OTLP over HTTP.
//!
//! The receiver runs in the front end ([`crate::frontend`]), which is confined. An export
//! (`POST /v1/metrics`, protobuf or JSON, gzip allowed) is walked field by field (`wire`), so that
//! it costs no more memory than its bytes and one data point. JSON is first rewritten as protobuf
//! of bounded length (`json`). The points of histograms that an app of the config names become
//! counts by bucket since the point before (`series`); these are summed up by app and sender
//! (`intake`), and reach the agent as windows of latency, as pushed windows do.
//!
//! Data that stops is distinguished from a service without requests. A service that exports and has
//! no new requests gives a window without requests. A service that exports nothing gives no
//! window, and its app's latency is missing once a window is overdue.
//!
//! Source: OTLP 1.9, <https://opentelemetry.io/docs/specs/otlp/>, and the data model of metrics,
//! <https://opentelemetry.io/docs/specs/otel/metrics/data-model/>.

mod collector;
mod export;
mod exporter;
mod histogram;
mod intake;
mod json;
mod receiver;
mod senders;
mod series;
mod wire;

pub use collector::Collector;
pub(crate) use exporter::{Exporter, Times, encode};
pub(crate) use intake::{Intake, Window};
pub(crate) use receiver::{Protection, Receiver};
pub(crate) use senders::Senders;

use lull_measure::Nanos;
use lull_measure::push::{LatencyWindow, Message};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// The histogram of a server's requests in the semantic conventions of HTTP.
pub(crate) const USUAL_METRIC: &str = "http.server.request.duration";
/// The attribute with the route of a request.
const ROUTE: &str = "http.route";

/// The histogram from which an app's latency is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OtlpSource {
    /// The app's number.
    pub(crate) app: u16,
    /// The senders whose exports are read.
    pub(crate) from: Senders,
    /// The value of `http.route`; all routes if absent.
    pub(crate) route: Option<String>,
    /// The histogram's name.
    pub(crate) metric: String,
}

impl Window {
    /// Returns the window as a pushed one, whose app is known by its number only.
    pub(crate) fn to_message(&self) -> Message {
        let count = self.buckets.count();
        Message::Latency(Box::new(LatencyWindow {
            start_ns: self.end.saturating_sub(self.length),
            length_ns: self.length,
            // A histogram of a server has the requests that were answered, and no others.
            due: count,
            sent: count,
            completed: count,
            errors: self.errors,
            buckets: self.buckets.clone(),
            ..LatencyWindow::default()
        }))
    }
}

/// Reads bytes as an export that arrives at a receiver with one app, for tests and the fuzz
/// target: returns how many requests were counted, and how many points were refused.
#[doc(hidden)]
pub fn read_export(bytes: &[u8]) -> Result<(u64, u64), String> {
    let source = OtlpSource {
        app: 0,
        from: Senders::Service("checkout".to_owned()),
        route: None,
        metric: USUAL_METRIC.to_owned(),
    };
    let mut intake = Intake::new(vec![source]);
    let (monotonic, unix) = (Nanos::from_secs(100), Nanos::from_secs(1_800_000_000));
    let arrival = intake::Arrival { monotonic, unix, client: Ipv4Addr::LOCALHOST.into() };
    // No export in protobuf begins with a brace.
    let rewritten = match bytes.first() {
        Some(b'{') => Some(json::to_protobuf(bytes).map_err(|error| error.to_string())?),
        _ => None,
    };
    let taken = intake.take(rewritten.as_deref().unwrap_or(bytes), arrival);
    let outcome = taken.map_err(|error| error.to_string())?;
    let windows = intake.drain();
    let counted = windows.iter().map(|window| window.buckets.count());
    Ok((counted.fold(0, u64::saturating_add), outcome.rejected))
}
