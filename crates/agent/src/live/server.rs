//! The server's thread: receives epochs, serves connections, and ends with the run.

use super::backoff::Backoff;
use super::connections::{Connections, Peer};
use super::facts::Facts;
use super::history::History;
use super::moment::Moment;
use super::operator::Order;
use super::token::Token;
use super::{LiveError, routes};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc};

/// Epochs that wait for a slow viewer; older ones are not sent to it.
const WAITING_MAX: usize = 8;
/// Longest time to receive a request's head, and longest idle time of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a viewer that receives nothing is disconnected.
const DEAD_AFTER_MS: u32 = 60_000;
/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 * 1024;
/// Wait after a failed accept, for example if no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What the routes share.
pub(super) struct Shared {
    pub(super) facts: Facts,
    pub(super) token: Option<Token>,
    backoff: Mutex<Backoff>,
    pub(super) orders: SyncSender<Order>,
    pub(super) viewers: broadcast::Sender<Arc<str>>,
    seen: Mutex<Seen>,
}

/// The epochs so far. Only the server's thread holds them, so that the control loop never waits.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) latest: Option<Moment>,
    /// When the latest epoch arrived.
    arrived: Option<Instant>,
    pub(super) history: History,
}

impl Seen {
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

    /// What has been seen.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, moment: Moment) {
        if self.viewers.receiver_count() > 0 {
            // Sending fails only if the last viewer has just disconnected.
            let _ = self.viewers.send(moment.to_json().into());
        }
        let mut seen = self.seen();
        seen.history.add(&moment);
        seen.latest = Some(moment);
        seen.arrived = Some(Instant::now());
    }
}

/// What a server begins with.
pub(super) struct Serving {
    pub(super) listener: std::net::TcpListener,
    pub(super) names: Vec<String>,
    pub(super) facts: Facts,
    pub(super) token: Option<Token>,
    pub(super) orders: SyncSender<Order>,
}

impl Serving {
    /// Serves on a thread of its own until no more moments can come.
    pub(super) fn start(
        self,
        moments: mpsc::Receiver<Moment>,
    ) -> Result<JoinHandle<()>, LiveError> {
        let Self { listener, names, facts, token, orders } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(LiveError::Start)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(LiveError::Start)?
        };
        let (viewers, _) = broadcast::channel(WAITING_MAX);
        let (backoff, seen) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { facts, token, backoff, orders, viewers, seen });
        let names: Arc<[String]> = names.into();
        let serve = move || runtime.block_on(until_the_end(listener, names, shared, moments));
        let thread = std::thread::Builder::new().name("lull-http".to_owned());
        thread.spawn(serve).map_err(LiveError::Start)
    }
}

async fn until_the_end(
    listener: TcpListener,
    names: Arc<[String]>,
    shared: Arc<Shared>,
    mut moments: mpsc::Receiver<Moment>,
) {
    let accepting = tokio::spawn(accept(listener, routes::all(names, Arc::clone(&shared))));
    while let Some(moment) = moments.recv().await {
        shared.take(moment);
    }
    accepting.abort();
}

async fn accept(listener: TcpListener, routes: axum::Router) {
    let connections = Arc::new(Connections::default());
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(number) = connections.admit() else { continue };
        let serving = serve(stream, Peer(peer.ip()), routes.clone(), number, connections.clone());
        let task = tokio::spawn(serving);
        connections.opened(number, task.abort_handle());
    }
}

async fn serve(
    stream: TcpStream,
    peer: Peer,
    routes: axum::Router,
    number: u64,
    connections: Arc<Connections>,
) {
    let open = connections.guard(number);
    // Both options are optimisations, and a connection works without them.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, DEAD_AFTER_MS);
    let routes = TowerToHyperService::new(routes);
    let answer = |mut request: Request<Incoming>| {
        connections.working(number);
        request.extensions_mut().insert(peer);
        let answered = routes.call(request);
        let connections = Arc::clone(&connections);
        async move {
            let answer = answered.await;
            // A stream is busy until it ends; any other connection waits for its client again.
            if !answer.as_ref().is_ok_and(is_stream) {
                connections.waiting(number);
            }
            answer
        }
    };
    let _ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
    drop(open);
}

fn is_stream<T>(answer: &hyper::Response<T>) -> bool {
    answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
}
