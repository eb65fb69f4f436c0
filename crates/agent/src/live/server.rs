//! The server: receives epochs, serves connections, and ends with the run.

use super::backoff::Backoff;
use super::connections::{BusyConnection, Connections, Peer};
use super::encryption::Encryption;
use super::epoch_snapshot::EpochSnapshot;
use super::history::History;
use super::operator::Command;
use super::{Serve, TokenDigest, routes};
use axum::body::{Body, HttpBody};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

/// Epochs that wait for a slow viewer; older ones are not sent to it.
const WAITING_MAX: usize = 8;
/// Longest time to receive a request's head, and longest idle time of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a viewer that receives nothing is disconnected.
const DEAD_AFTER_MS: u32 = 60_000;
/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 * 1024;
/// Most orders that wait for the end of the epoch; further ones are refused.
const ORDERS_MAX: usize = 8;
/// Wait after a failed accept, for example if no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// State that all routes share.
pub(super) struct Shared {
    /// Identifies the run.
    pub(super) run: String,
    /// The facts about it, as JSON.
    facts: Mutex<String>,
    pub(super) token: Option<TokenDigest>,
    backoff: Mutex<Backoff>,
    /// Room for orders that wait for their answers.
    pub(super) room: Semaphore,
    pub(super) orders: mpsc::Sender<OrderRequest>,
    viewers: Mutex<broadcast::Sender<Arc<str>>>,
    seen: Mutex<LiveEpochs>,
}

/// The epochs so far.
#[derive(Default)]
pub(super) struct LiveEpochs {
    pub(super) latest: Option<EpochSnapshot>,
    /// When the latest epoch arrived.
    arrived: Option<Instant>,
    pub(super) history: History,
}

impl LiveEpochs {
    /// Returns the time since the latest epoch arrived.
    pub(super) fn age(&self) -> Option<Duration> {
        self.arrived.map(|arrived| arrived.elapsed())
    }
}

impl Shared {
    /// The clients that presented wrong tokens.
    pub(super) fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts about the run, as JSON.
    pub(super) fn facts(&self) -> MutexGuard<'_, String> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn viewers(&self) -> MutexGuard<'_, broadcast::Sender<Arc<str>>> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epochs from now on, until the facts change.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.viewers().subscribe()
    }

    /// Locks the observations.
    pub(super) fn seen(&self) -> MutexGuard<'_, LiveEpochs> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, snapshot: EpochSnapshot) {
        let viewers = self.viewers();
        if viewers.receiver_count() > 0 {
            // Sending fails only if the last viewer has just disconnected.
            let _ = viewers.send(snapshot.to_json().into());
        }
        drop(viewers);
        let mut seen = self.seen();
        seen.history.add(&snapshot);
        seen.latest = Some(snapshot);
        seen.arrived = Some(Instant::now());
    }
}

/// An operator's order, with the token that was presented for it.
#[derive(Debug)]
pub(crate) struct OrderRequest {
    pub(crate) command: Command,
    pub(crate) token: String,
    pub(crate) answer: oneshot::Sender<Result<String, String>>,
}

/// Routes that are served. Dropping it closes every connection.
pub(crate) struct Serving {
    accepting: JoinHandle<()>,
    connections: Arc<Connections>,
}

impl Serving {
    fn start(listener: TcpListener, routes: axum::Router, encryption: Option<Encryption>) -> Self {
        let connections = Arc::new(Connections::default());
        let accepting = accept(listener, routes, encryption, Arc::clone(&connections));
        let accepting = tokio::spawn(accepting);
        Self { accepting, connections }
    }
}

/// Serves routes that are not of the page, to clients that request one of the host names.
pub(crate) fn serve_routes(
    listener: TcpListener,
    routes: axum::Router,
    names: Vec<String>,
    encryption: Option<Encryption>,
) -> Serving {
    Serving::start(listener, routes::check_hosts(routes, names.into()), encryption)
}

/// A running server. Dropping it closes every connection.
pub(crate) struct Server {
    shared: Arc<Shared>,
    _serving: Serving,
}

impl Server {
    /// Serves what connects; orders go to `orders`.
    pub(crate) fn start(
        listener: TcpListener,
        serve: Serve,
        orders: mpsc::Sender<OrderRequest>,
    ) -> Self {
        let Serve { run, facts, names, token } = serve;
        let viewers = Mutex::new(broadcast::Sender::new(WAITING_MAX));
        let (facts, backoff, seen) = (Mutex::new(facts), Mutex::default(), Mutex::default());
        let room = Semaphore::new(ORDERS_MAX);
        let shared = Shared { run, facts, token, backoff, room, orders, viewers, seen };
        let shared = Arc::new(shared);
        let routes = routes::all(names.into(), Arc::clone(&shared));
        Self { shared, _serving: Serving::start(listener, routes, None) }
    }

    /// Serves these facts from now on, and ends every stream of epochs, so that viewers read the
    /// facts when they connect again.
    pub(crate) fn set_facts(&self, facts: String) {
        *self.shared.facts() = facts;
        // The streams end with their sender.
        *self.shared.viewers() = broadcast::Sender::new(WAITING_MAX);
    }

    /// Shows an epoch.
    pub(crate) fn show(&self, snapshot: EpochSnapshot) {
        self.shared.take(snapshot);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
        self.connections.close_all();
    }
}

async fn accept(
    listener: TcpListener,
    routes: axum::Router,
    encryption: Option<Encryption>,
    connections: Arc<Connections>,
) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(number) = connections.admit() else { continue };
        let served = Served { peer: Peer(peer.ip()), number, connections: connections.clone() };
        let serving = open(stream, routes.clone(), encryption.clone(), served);
        let task = tokio::spawn(serving);
        connections.opened(number, task.abort_handle());
    }
}

/// A connection that is served.
struct Served {
    peer: Peer,
    number: u64,
    connections: Arc<Connections>,
}

/// Serves a connection, encrypted if requested, until it ends.
async fn open(
    stream: TcpStream,
    routes: axum::Router,
    encryption: Option<Encryption>,
    served: Served,
) {
    let open = served.connections.guard(served.number);
    // Both options are optimisations; a connection works without them.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, DEAD_AFTER_MS);
    match encryption {
        None => serve(stream, routes, served).await,
        #[cfg(feature = "tls")]
        Some(encryption) => {
            // A client that does not finish its handshake is not waited for.
            let accepted = tokio::time::timeout(HEAD_TIMEOUT, encryption.accept(stream)).await;
            if let Ok(Ok(stream)) = accepted {
                serve(stream, routes, served).await;
            }
        }
        #[cfg(not(feature = "tls"))]
        Some(_) => {}
    }
    drop(open);
}

async fn serve<S>(stream: S, routes: axum::Router, served: Served)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let Served { peer, number, connections } = served;
    let routes = TowerToHyperService::new(routes);
    let answer = |mut request: Request<Incoming>| {
        let busy = connections.busy(number);
        request.extensions_mut().insert(peer);
        let answered = routes.call(request);
        async move {
            // A stream is busy until it ends; any other connection waits for its client again.
            answered.await.map(|answer| match is_stream(&answer) {
                true => answer.map(|body| keep_busy(body, busy)),
                false => answer,
            })
        }
    };
    let _ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
}

/// Whether an answer is a stream of events. The answer to `HEAD` has the head of one, and ends.
fn is_stream(answer: &hyper::Response<Body>) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "text/event-stream") && !answer.body().is_end_stream()
}

/// Returns a body with which the connection is busy until it is dropped.
fn keep_busy(body: Body, busy: BusyConnection) -> Body {
    Body::from_stream(body.into_data_stream().map(move |data| {
        let _ = &busy;
        data
    }))
}

#[cfg(test)]
mod tests {
    use super::super::connections::CONNECTIONS_MAX;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::broadcast::error::RecvError;

    fn block_on(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    /// A server at a free port, and its address.
    async fn server() -> (Server, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (orders, _) = mpsc::channel(1);
        let (run, facts) = ("run".to_owned(), "{}".to_owned());
        let serve = Serve { run, facts, names: Vec::new(), token: None };
        (Server::start(listener, serve, orders), address)
    }

    #[test]
    fn a_stream_of_epochs_ends_when_the_facts_change_and_the_next_one_goes_on() {
        block_on(async {
            let (server, _) = server().await;
            let mut before = server.shared.subscribe();
            server.show(EpochSnapshot::empty());
            assert!(before.recv().await.is_ok());
            server.set_facts("{\"apps\":[]}".to_owned());
            let mut after = server.shared.subscribe();
            server.show(EpochSnapshot::empty());
            assert_eq!(before.recv().await, Err(RecvError::Closed));
            assert!(after.recv().await.is_ok());
            assert_eq!(*server.shared.facts(), "{\"apps\":[]}");
        });
    }

    async fn health(address: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Sends a request and reads until the answer contains a text.
    async fn answered(stream: &mut TcpStream, request: &str, end: &str) -> String {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        while !answer.contains(end) {
            let mut part = [0; 4096];
            let count = stream.read(&mut part).await.unwrap();
            assert!(count > 0, "closed after {answer}");
            answer += std::str::from_utf8(&part[..count]).unwrap();
        }
        answer
    }

    /// Admits connections and makes them busy until no more are admitted.
    fn fill(connections: &Arc<Connections>) -> Vec<BusyConnection> {
        let admitted = std::iter::from_fn(|| connections.admit());
        admitted.map(|number| connections.busy(number)).collect()
    }

    #[test]
    fn a_connection_is_busy_while_it_has_a_stream_and_then_waits() {
        block_on(async {
            let (server, address) = server().await;
            let mut stream = TcpStream::connect(&address).await.unwrap();
            let request = "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
            answered(&mut stream, request, "\r\n\r\n").await;
            let connections = &server._serving.connections;
            assert_eq!(fill(connections).len(), CONNECTIONS_MAX - 1, "a stream is busy");
            server.set_facts("{}".to_owned());
            answered(&mut stream, "", "0\r\n\r\n").await;
            assert_eq!(fill(connections).len(), CONNECTIONS_MAX);
        });
    }

    #[test]
    fn a_connection_that_requests_the_head_of_a_stream_waits_after_it() {
        block_on(async {
            let (server, address) = server().await;
            let mut stream = TcpStream::connect(&address).await.unwrap();
            let request = "HEAD /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let head = answered(&mut stream, request, "\r\n\r\n").await;
            assert!(head.contains("text/event-stream"), "{head}");
            assert_eq!(fill(&server._serving.connections).len(), CONNECTIONS_MAX);
        });
    }

    /// Reads what is left of an answer and returns its length.
    async fn rest(stream: &mut TcpStream) -> usize {
        let (mut all, mut part) = (0, vec![0; 1 << 16]);
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            all += count;
        }
        all
    }

    #[test]
    fn histories_that_are_not_read_make_room_for_a_further_one() {
        const LABEL: usize = 33 << 20;
        block_on(async {
            let (server, address) = server().await;
            let mut snapshot = EpochSnapshot::empty();
            snapshot.cores = vec![("a".repeat(LABEL), 2.0)];
            server.show(snapshot);
            let request = "GET /api/history HTTP/1.1\r\nHost: localhost\r\n\
                           Connection: close\r\n\r\n";
            let socket = TcpSocket::new_v4().unwrap();
            // The kernel must not take the whole answer for a client that does not read.
            socket.set_recv_buffer_size(1 << 16).unwrap();
            let mut first = socket.connect(address.parse().unwrap()).await.unwrap();
            answered(&mut first, request, "\r\n\r\n").await;
            let mut second = TcpStream::connect(&address).await.unwrap();
            answered(&mut second, request, "\r\n\r\n").await;
            assert!(rest(&mut first).await < LABEL - 8192);
            assert!(rest(&mut second).await > LABEL - 8192);
        });
    }

    #[test]
    fn a_long_epoch_after_one_that_an_arrival_has_cut_short_is_not_stale() {
        block_on(async {
            let (server, address) = server().await;
            let mut snapshot = EpochSnapshot::empty();
            (snapshot.head.epoch_s, snapshot.head.next_epoch_s) = (0.05, 60.0);
            server.show(snapshot);
            server.shared.seen().arrived = Instant::now().checked_sub(Duration::from_secs(60));
            let running = health(&address).await;
            assert!(running.starts_with("HTTP/1.1 200 "), "{running}");
        });
    }

    #[test]
    fn health_is_503_once_the_last_epoch_is_a_minute_old() {
        block_on(async {
            let (server, address) = server().await;
            server.show(EpochSnapshot::empty());
            let fresh = health(&address).await;
            assert!(fresh.starts_with("HTTP/1.1 200 "), "{fresh}");
            let minute_ago = Instant::now().checked_sub(Duration::from_secs(60));
            server.shared.seen().arrived = minute_ago;
            let stale = health(&address).await;
            assert!(stale.starts_with("HTTP/1.1 503 "), "{stale}");
            assert!(stale.contains(r#""status":"stale""#), "{stale}");
        });
    }
}
