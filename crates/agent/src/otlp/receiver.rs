//! `POST /v1/metrics`: the receiver's side of OTLP over HTTP.

use super::intake::{Arrival, Intake, Outcome};
use super::wire::{PartialSuccess, Response as ExportResponse, Status};
use super::{OtlpSource, Window};
use crate::live::{self, Serving};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use flate2::read::GzDecoder;
use lull_measure::Nanos;
use prost::Message;
use std::borrow::Cow;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most bytes of an export as it is sent: some ten thousand series.
const BODY_MAX: usize = 4 << 20;
/// Most bytes of an export that was compressed.
const PLAIN_MAX: usize = 16 << 20;
/// How long the bytes of an export may take to arrive, and it may wait for others.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most exports that are received at once.
const EXPORTS_MAX: usize = 8;
/// The type of what is sent in both directions.
const PROTOBUF: &str = "application/x-protobuf";
/// `google.rpc.Code.INVALID_ARGUMENT` and `UNAVAILABLE`.
const INVALID_ARGUMENT: i32 = 3;
const UNAVAILABLE: i32 = 14;

/// A receiver that serves. Dropping it closes every connection.
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    _serving: Serving,
}

struct Shared {
    intake: Mutex<Intake>,
    room: Semaphore,
}

impl Shared {
    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Receiver {
    /// Receives exports for these apps from what connects under one of the host names.
    pub(crate) fn start(
        listener: TcpListener,
        sources: Vec<OtlpSource>,
        names: Vec<String>,
    ) -> Self {
        let intake = Mutex::new(Intake::new(sources));
        let shared = Arc::new(Shared { intake, room: Semaphore::new(EXPORTS_MAX) });
        let routes = Router::new().route("/v1/metrics", post(receive));
        let routes = routes.with_state(Arc::clone(&shared));
        Self { shared, _serving: live::serve_routes(listener, routes, names) }
    }

    /// Returns what has been counted, and what is to be reported, since the last call.
    pub(crate) fn drain(&self) -> (Vec<Window>, Vec<String>) {
        let mut intake = self.shared.intake();
        (intake.drain(), intake.take_notices())
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    if let Err(why) = check_type(&headers) {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_ARGUMENT, why);
    }
    let read = async {
        let room = shared.room.acquire().await;
        (to_bytes(body, BODY_MAX).await, room)
    };
    let (body, _room) = match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok((Ok(body), room)) => (body, room),
        Ok((Err(_), _)) => {
            let why = "an export has more than 4 MiB: send fewer series in one";
            return refused(StatusCode::PAYLOAD_TOO_LARGE, INVALID_ARGUMENT, why);
        }
        Err(_) => {
            let why = "the export did not arrive within 5 s";
            return refused(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, why);
        }
    };
    let plain = match decompress(&headers, &body) {
        Ok(plain) => plain,
        Err(why) => return refused(StatusCode::BAD_REQUEST, INVALID_ARGUMENT, &why),
    };
    let taken = shared.intake().take(&plain, arrival());
    match taken {
        Ok(outcome) => answer(outcome),
        Err(error) => refused(StatusCode::BAD_REQUEST, INVALID_ARGUMENT, &error.to_string()),
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), &'static str> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    match kind {
        Some(PROTOBUF) => Ok(()),
        Some("application/json") => Err("exports as JSON are not read: set \
                                         OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
        _ => Err("the Content-Type of an export is application/x-protobuf"),
    }
}

/// Returns the export's own bytes; inflates only as far as an export may be long.
fn decompress<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<Cow<'a, [u8]>, String> {
    match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => Ok(body.into()),
        Some(b"gzip") => {
            let mut plain = Vec::new();
            let inflated = GzDecoder::new(body).take(PLAIN_MAX as u64 + 1).read_to_end(&mut plain);
            inflated.map_err(|error| format!("it is no gzip ({error})"))?;
            if plain.len() > PLAIN_MAX {
                return Err("it inflates to more than 16 MiB: send fewer series in one".to_owned());
            }
            Ok(plain.into())
        }
        Some(_) => Err("its Content-Encoding is neither gzip nor identity".to_owned()),
    }
}

fn arrival() -> Arrival {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unix = Nanos(u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX));
    Arrival { monotonic: lull_host::monotonic(), unix }
}

/// Answers an export: points that were refused are a partial success, which is not sent again.
fn answer(outcome: Outcome) -> Response {
    let Outcome { rejected, why } = outcome;
    let partial_success = why.map(|error_message| PartialSuccess {
        rejected_data_points: i64::try_from(rejected).unwrap_or(i64::MAX),
        error_message,
    });
    protobuf(StatusCode::OK, &ExportResponse { partial_success })
}

fn refused(status: StatusCode, code: i32, why: &str) -> Response {
    protobuf(status, &Status { code, message: why.to_owned() })
}

fn protobuf(status: StatusCode, message: &impl Message) -> Response {
    (status, [(header::CONTENT_TYPE, PROTOBUF)], message.encode_to_vec()).into_response()
}
