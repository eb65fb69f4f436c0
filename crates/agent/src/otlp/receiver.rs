//! `POST /v1/metrics`: the receiver's side of OTLP over HTTP.
//!
//! An export needs one of [`Rooms`] before its body is received, which bounds the memory of all. A
//! client that sends slowly keeps its rooms for about a second, and has two at most.

mod rooms;

use super::intake::{Arrival, Intake, Outcome};
use super::json::{self, PLAIN_MAX};
use super::wire::{PartialSuccess, Response as ExportResponse, Status};
use super::{OtlpSource, Window};
use crate::discovery::PodIdentity;
use crate::live::{self, Encryption, Peer, ServerIdentity, Serving, TokenDigest};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use flate2::read::GzDecoder;
use lull_measure::Nanos;
use prost::Message;
use rooms::Rooms;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;
use std::io::Read;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout, timeout_at};

/// Most bytes of an export as it is sent: some ten thousand series.
const BODY_MAX: usize = 4 << 20;
/// How long an export may wait for others.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);
/// How far the bytes of an export may be behind those of a client that sends [`PACE`] of them a
/// second.
const BODY_GRACE: Duration = Duration::from_secs(1);
const PACE: usize = 256 << 10;
/// The content types in both directions.
const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";
/// `google.rpc.Code.INVALID_ARGUMENT`, `UNAVAILABLE` and `UNAUTHENTICATED`.
const INVALID_ARGUMENT: i32 = 3;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

/// The protection of a receiver; each part is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Protection {
    /// The server's certificate and key for TLS.
    pub(crate) identity: Option<ServerIdentity>,
    /// Services must send this bearer token.
    pub(crate) token: Option<TokenDigest>,
}

/// A receiver. Dropping it closes every connection.
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    /// Its address and its host names, until it serves.
    waiting: Option<(TcpListener, Vec<String>)>,
    served: Option<Served>,
}

/// The parts of a receiver that serves.
struct Served {
    encryption: Option<Encryption>,
    _serving: Serving,
}

struct Shared {
    intake: Mutex<Intake>,
    rooms: Rooms,
    token: Mutex<Option<TokenDigest>>,
}

impl Shared {
    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self) -> MutexGuard<'_, Option<TokenDigest>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request has the token, if one is needed.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = *self.token() else { return true };
        let shown = headers.get(header::AUTHORIZATION).and_then(|shown| shown.to_str().ok());
        let shown = shown.and_then(|shown| shown.split_once(' '));
        shown.is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case("bearer") && token.is(shown.trim())
        })
    }
}

impl Receiver {
    /// Receives exports for these apps from what connects under one of the host names, as soon as
    /// [`Self::protect`] succeeds.
    pub(crate) fn new(listener: TcpListener, sources: Vec<OtlpSource>, names: Vec<String>) -> Self {
        let (intake, token) = (Mutex::new(Intake::new(sources)), Mutex::new(None));
        let shared = Arc::new(Shared { intake, rooms: Rooms::default(), token });
        Self { shared, waiting: Some((listener, names)), served: None }
    }

    /// Takes a certificate and a token, and serves from the first call that succeeds on.
    ///
    /// # Errors
    /// If the certificate is none. A receiver that serves keeps the one before; one that does not
    /// serve yet accepts no connection until a call succeeds.
    pub(crate) fn protect(&mut self, protection: &Protection) -> Result<(), String> {
        *self.shared.token() = protection.token;
        if let Some(Served { encryption, .. }) = &self.served {
            return match (encryption, &protection.identity) {
                (Some(encryption), Some(identity)) => encryption.renew(identity),
                _ => Ok(()),
            };
        }
        let encryption = protection.identity.as_ref().map(Encryption::new).transpose()?;
        if let Some((listener, names)) = self.waiting.take() {
            let routes = Router::new().route("/v1/metrics", post(receive));
            let routes = routes.with_state(Arc::clone(&self.shared));
            let serving = live::serve_routes(listener, routes, names, encryption.clone());
            self.served = Some(Served { encryption, _serving: serving });
        }
        Ok(())
    }

    /// Notes which pod an app is from now on.
    pub(crate) fn assign(&self, app: u16, pod: Option<&PodIdentity>) {
        self.shared.intake().assign(app, pod);
    }

    /// Returns the counts and notices since the last call.
    pub(crate) fn drain(&self) -> (Vec<Window>, Vec<String>) {
        let mut intake = self.shared.intake();
        (intake.drain(), intake.take_notices())
    }
}

/// The encoding of an export, and of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Protobuf,
    Json,
}

/// The refusal of an export.
struct Refusal {
    status: StatusCode,
    code: i32,
    why: String,
}

impl Refusal {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        let code = match status {
            StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
            StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
            _ => INVALID_ARGUMENT,
        };
        Self { status, code, why: why.into() }
    }
}

async fn receive(
    State(shared): State<Arc<Shared>>,
    Extension(Peer(client)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let encoding = match Encoding::from_headers(&headers) {
        Ok(encoding) => encoding,
        Err(why) => {
            let refusal = Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
            return Encoding::Protobuf.refuse(refusal);
        }
    };
    if !shared.admits(&headers) {
        let why = "the bearer token is missing or wrong: set OTEL_EXPORTER_OTLP_HEADERS=\
                   authorization=Bearer%20TOKEN";
        return encoding.refuse(Refusal::new(StatusCode::UNAUTHORIZED, why));
    }
    let taken = async {
        let unavailable = |why| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why);
        let room = shared.rooms.enter(client).map_err(unavailable)?;
        let waited = timeout(ROOM_TIMEOUT, room.wait()).await;
        let _held = waited.map_err(|_| {
            unavailable(
                "no room for the export within 5 s: send it \
                                                    again later",
            )
        })?;
        let body = receive_body(body, BODY_GRACE).await?;
        take(&shared, encoding, &headers, &body, client)
    };
    match taken.await {
        Ok(outcome) => encoding.answer(outcome),
        Err(refusal) => encoding.refuse(refusal),
    }
}

/// Receives the body of an export, for as long as its client keeps the pace.
async fn receive_body(mut body: Body, grace: Duration) -> Result<Vec<u8>, Refusal> {
    let (began, mut bytes) = (Instant::now(), Vec::new());
    loop {
        let due = began + grace + time_of(bytes.len());
        let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let late = |_| {
            let why = "the export arrives too slowly: 256 KiB a second are the least";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
        };
        let Some(frame) = timeout_at(due, next).await.map_err(late)? else { return Ok(bytes) };
        let frame = frame.map_err(|error| {
            Refusal::new(StatusCode::BAD_REQUEST, format!("the export is cut off: {error}"))
        })?;
        // A frame of trailers has no data.
        let data = frame.into_data().unwrap_or_default();
        if bytes.len() + data.len() > BODY_MAX {
            let why = "an export has more than 4 MiB: send fewer series in one";
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        bytes.extend_from_slice(&data);
    }
}

/// Returns the time that this many bytes take at the slowest permitted rate.
fn time_of(bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 / PACE as f64)
}

fn take(
    shared: &Shared,
    encoding: Encoding,
    headers: &HeaderMap,
    body: &[u8],
    client: IpAddr,
) -> Result<Outcome, Refusal> {
    let bad = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
    let mut plain = decompress(headers, body).map_err(bad)?;
    if encoding == Encoding::Json {
        let rewritten = json::to_protobuf(&plain);
        plain =
            rewritten.map_err(|error| bad(format!("it is not an export as JSON: {error}")))?.into();
    }
    let taken = shared.intake().take(&plain, arrival(client));
    taken.map_err(|error| bad(error.to_string()))
}

/// Returns the export's own bytes; inflates only as far as an export may be long.
fn decompress<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<Cow<'a, [u8]>, String> {
    match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => Ok(body.into()),
        Some(b"gzip") => {
            let mut plain = Vec::new();
            let inflated = GzDecoder::new(body).take(PLAIN_MAX as u64 + 1).read_to_end(&mut plain);
            inflated.map_err(|error| format!("it is not gzip ({error})"))?;
            if plain.len() > PLAIN_MAX {
                return Err("it inflates to more than 16 MiB: send fewer series in one".to_owned());
            }
            Ok(plain.into())
        }
        Some(_) => Err("its Content-Encoding is neither gzip nor identity".to_owned()),
    }
}

fn arrival(client: IpAddr) -> Arrival {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unix = Nanos(u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX));
    Arrival { monotonic: lull_host::monotonic(), unix, client }
}

impl Encoding {
    /// Returns the encoding of an export by its headers.
    fn from_headers(headers: &HeaderMap) -> Result<Self, &'static str> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        match kind.and_then(|kind| kind.split(';').next()).map(str::trim) {
            Some(PROTOBUF) => Ok(Self::Protobuf),
            Some(JSON) => Ok(Self::Json),
            _ => Err("the Content-Type of an export is application/x-protobuf or application/json"),
        }
    }

    /// Answers an export: points that were refused are a partial success, which is not sent again.
    fn answer(self, outcome: Outcome) -> Response {
        let Outcome { rejected, why } = outcome;
        let rejected_data_points = i64::try_from(rejected).unwrap_or(i64::MAX);
        match (self, why) {
            (Self::Protobuf, why) => {
                let partial_success =
                    why.map(|error_message| PartialSuccess { rejected_data_points, error_message });
                let answer = ExportResponse { partial_success };
                self.respond(StatusCode::OK, answer.encode_to_vec())
            }
            (Self::Json, None) => self.respond(StatusCode::OK, b"{}".to_vec()),
            (Self::Json, Some(why)) => {
                let rejected = rejected_data_points.to_string();
                let partial = json!({ "rejectedDataPoints": rejected, "errorMessage": why });
                let answer = json!({ "partialSuccess": partial });
                self.respond(StatusCode::OK, answer.to_string().into())
            }
        }
    }

    fn refuse(self, refusal: Refusal) -> Response {
        let Refusal { status, code, why: message } = refusal;
        let body = match self {
            Self::Protobuf => Status { code, message }.encode_to_vec(),
            Self::Json => json!({ "code": code, "message": message }).to_string().into(),
        };
        self.respond(status, body)
    }

    fn respond(self, status: StatusCode, body: Vec<u8>) -> Response {
        let kind = match self {
            Self::Protobuf => PROTOBUF,
            Self::Json => JSON,
        };
        (status, [(header::CONTENT_TYPE, kind)], body).into_response()
    }
}

#[cfg(test)]
mod tests;
