//! The addresses: page, JSON, events, metrics, orders.

use super::backoff::Refusal;
use super::connections::{OpenStream, Peer, Streams};
use super::exposition::{self, Format};
use super::history::HistoryRequest;
use super::operator::Command;
use super::outgoing::Outgoing;
use super::server::{OrderRequest, Shared};
use super::{assets, checks, openmetrics, protobuf};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

/// Most bytes of an order.
const ORDER_MAX: usize = 4096;
/// How long the bytes of an order may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an order may wait for the end of its epoch.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two signs of life on a stream without epochs.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// Most bytes of the histories that are being sent.
const HISTORIES_MAX: usize = 64 << 20;

/// How late an epoch may be before the agent counts as stale.
const LATE_MAX: Duration = Duration::from_secs(5);

type SharedState = State<Arc<Shared>>;

/// All of them, behind the checks.
pub(super) fn all(names: Arc<[String]>, shared: Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/api/run", get(facts))
        .route("/api/history", get(history))
        .route("/api/epoch", get(epoch))
        .route("/api/missing", get(missing))
        .route("/api/events", get(events))
        .route("/api/control", post(control))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .fallback(get(asset))
        .layer(Extension(Streams::default()))
        .layer(Extension(Outgoing::new(HISTORIES_MAX)))
        .with_state(shared);
    check_hosts(routes, names)
}

/// Lets routes answer only requests whose `Host` names this machine.
pub(super) fn check_hosts(routes: Router, names: Arc<[String]>) -> Router {
    routes.layer(middleware::from_fn_with_state(names, checks::host))
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn as_json(value: &impl serde::Serialize) -> Response {
    as_json_in(value, Body::from)
}

/// A value as JSON, in a body that is made of its text.
fn as_json_in(value: &impl serde::Serialize, body: impl FnOnce(String) -> Body) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => {
            let length = HeaderValue::from(text.len());
            let kind = HeaderValue::from_static("application/json");
            let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_LENGTH, length)];
            (headers, body(text)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn refused(status: StatusCode, why: &str) -> Response {
    let body = serde_json::json!({ "error": why }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn asset(uri: Uri) -> Response {
    match assets::at(uri.path()) {
        Some(asset) => ([(header::CONTENT_TYPE, asset.kind)], asset.bytes).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no such page\n").into_response(),
    }
}

async fn facts(State(shared): SharedState) -> Response {
    json(shared.facts().clone())
}

/// `?series=a,b&epochs=300`
#[derive(Debug, Deserialize)]
struct HistoryQuery {
    #[serde(default)]
    series: String,
    epochs: Option<usize>,
}

async fn history(
    State(shared): SharedState,
    Extension(outgoing): Extension<Outgoing>,
    Query(query): Query<HistoryQuery>,
) -> Response {
    let series = query.series.split(',').filter(|series| !series.is_empty()).collect();
    let wanted = HistoryRequest { series, epochs: query.epochs.unwrap_or(usize::MAX) };
    let seen = shared.seen();
    as_json_in(&seen.history.send(&shared.run, &wanted), |text| outgoing.body(text))
}

fn not_yet() -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, "no epoch is over yet")
}

async fn epoch(State(shared): SharedState) -> Response {
    match &shared.seen().latest {
        Some(snapshot) => json(snapshot.to_json()),
        None => not_yet(),
    }
}

async fn missing(State(shared): SharedState) -> Response {
    match &shared.seen().latest {
        Some(snapshot) => as_json(&snapshot.missing()),
        None => not_yet(),
    }
}

async fn metrics(State(shared): SharedState, headers: HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    let format = Format::accepted(accepted.unwrap_or_default());
    let seen = shared.seen();
    let (Some(snapshot), Some(age)) = (&seen.latest, seen.age()) else { return not_yet() };
    let families = exposition::families(snapshot, age);
    let body = match format {
        Format::Protobuf => protobuf::encode(&families),
        Format::OpenMetrics | Format::Text => openmetrics::write(&families, format).into_bytes(),
    };
    ([(header::CONTENT_TYPE, format.content_type())], body).into_response()
}

/// Answers 200 while epochs come, and 503 before the first one and once they no longer come.
async fn health(State(shared): SharedState) -> Response {
    let seen = shared.seen();
    let (Some(snapshot), Some(age)) = (&seen.latest, seen.age()) else { return not_yet() };
    let is_stale = is_stale(snapshot.head.next_epoch_s, age);
    let body = serde_json::json!({
        "status": if is_stale { "stale" } else { "ok" },
        "epoch": snapshot.head.epoch,
        "epoch_age_seconds": age.as_secs_f64(),
    });
    match is_stale {
        false => json(body.to_string()),
        true => (StatusCode::SERVICE_UNAVAILABLE, json(body.to_string())).into_response(),
    }
}

/// Whether the next epoch is overdue by more than its own length and some seconds, by which a
/// busy machine may be late.
fn is_stale(next_epoch_s: f64, age: Duration) -> bool {
    age.as_secs_f64() > 2.0 * next_epoch_s + LATE_MAX.as_secs_f64()
}

/// Streams every epoch from now on. A viewer that cannot keep up misses epochs.
async fn events(
    State(shared): SharedState,
    Extension(streams): Extension<Streams>,
    peer: Option<Extension<Peer>>,
) -> Response {
    match streams.open(peer.map(|Extension(peer)| peer)) {
        Ok(open) => stream_of(&shared, open).into_response(),
        Err(why) => refused(StatusCode::TOO_MANY_REQUESTS, why),
    }
}

fn stream_of(
    shared: &Shared,
    open: OpenStream,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
    let hello = Event::default().event("run").data(&shared.run);
    let epochs = BroadcastStream::new(shared.subscribe());
    let epochs = epochs.filter_map(move |epoch| {
        // The stream counts until it is dropped.
        let _ = &open;
        Some(Ok(Event::default().data(&*epoch.ok()?)))
    });
    let stream = tokio_stream::once(Ok(hello)).chain(epochs);
    Sse::new(stream).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE))
}

/// Accepts an order from a client that presents the token, and answers when it is done. The
/// token is checked before the body is read, so that no other client can keep a connection busy.
async fn control(
    State(shared): SharedState,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(token) = &shared.token else {
        let why = "this agent only shows: start it with --control to give it orders";
        return refused(StatusCode::FORBIDDEN, why);
    };
    if let Some(why) = checks::foreign_page(&headers) {
        return refused(StatusCode::FORBIDDEN, why);
    }
    let shown = headers.get(header::AUTHORIZATION).and_then(|shown| shown.to_str().ok());
    let Some(shown) = shown.and_then(|shown| shown.strip_prefix("Bearer ")) else {
        return refused(StatusCode::UNAUTHORIZED, "the token is missing");
    };
    let client = peer.map_or(Ipv4Addr::LOCALHOST.into(), |Extension(Peer(address))| address);
    let checked = shared.backoff().check(client, Instant::now(), || token.is(shown));
    if let Err(refusal) = checked {
        return refused_token(refusal);
    }
    let body = match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, ORDER_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return refused(StatusCode::PAYLOAD_TOO_LARGE, "no order is so long"),
        Err(_) => return refused(StatusCode::REQUEST_TIMEOUT, "the order did not arrive in time"),
    };
    match serde_json::from_slice(&body) {
        Ok(command) => carry_out(&shared, command, shown.to_owned()).await,
        Err(error) => refused(StatusCode::BAD_REQUEST, &format!("no order: {error}")),
    }
}

fn refused_token(refusal: Refusal) -> Response {
    let Refusal::TooMany { retry_after_s } = refusal else {
        return refused(StatusCode::UNAUTHORIZED, "the token is not that of this run");
    };
    let why = format!("too many wrong tokens: try again in {retry_after_s} s");
    let mut response = refused(StatusCode::TOO_MANY_REQUESTS, &why);
    response.headers_mut().insert(header::RETRY_AFTER, retry_after_s.into());
    response
}

async fn carry_out(shared: &Shared, command: Command, token: String) -> Response {
    let (answer, answered) = oneshot::channel();
    let room = shared.room.try_acquire();
    let is_sent =
        room.is_ok() && shared.orders.try_send(OrderRequest { command, token, answer }).is_ok();
    if !is_sent {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "too many orders wait already");
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
        Ok(Ok(Ok(done))) => as_json(&serde_json::json!({ "done": done })),
        Ok(Ok(Err(why))) => refused(StatusCode::CONFLICT, &why),
        Ok(Err(_)) => refused(StatusCode::SERVICE_UNAVAILABLE, "the run is ending"),
        Err(_) => refused(StatusCode::GATEWAY_TIMEOUT, "the epoch is not over yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_stale_once_an_epoch_is_overdue() {
        let second = Duration::from_secs(1);
        assert!(!is_stale(1.0, 6 * second));
        assert!(is_stale(1.0, 8 * second));
        assert!(!is_stale(60.0, 120 * second), "epochs may be long");
        assert!(is_stale(0.1, 6 * second));
    }
}
