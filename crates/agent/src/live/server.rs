//! The server's thread: receives epochs, serves connections, and ends with the run.

use super::facts::Facts;
use super::history::History;
use super::moment::Moment;
use super::operator::Order;
use super::token::Token;
use super::{LiveError, routes};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, broadcast, mpsc};

/// Most simultaneous connections; further ones are closed.
const CONNECTIONS_MAX: usize = 256;
/// Epochs that wait for a slow viewer; older ones are not sent to it.
const WAITING_MAX: usize = 8;
/// Longest time to receive a request's head, and longest idle time of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
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
    pub(super) orders: SyncSender<Order>,
    pub(super) viewers: broadcast::Sender<Arc<str>>,
    seen: Mutex<Seen>,
}

/// The epochs so far. Only the server's thread holds them, so that the control loop never waits.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) latest: Option<Moment>,
    pub(super) history: History,
}

impl Shared {
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
        let shared = Arc::new(Shared { facts, token, orders, viewers, seen: Mutex::default() });
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
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let routes = routes.clone();
        tokio::spawn(async move {
            serve(stream, routes).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, routes: axum::Router) {
    // Both options are optimisations, and a connection works without them.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, DEAD_AFTER_MS);
    let _ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
        .await;
}
