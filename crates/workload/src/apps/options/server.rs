//! The server: one acceptor, a bounded queue, a pool of workers.
//!
//! The acceptor waits for all connections at once and reads their requests. A
//! connection with a request in the queue or at work is not read from, so that
//! replies keep their order and a client cannot fill the server's memory.

use super::connection::{Connection, ReadOutcome};
use super::queue::Queue;
use super::{AsianCall, DEFAULT_PORT, RequestError, estimate};
use crate::clock;
use crate::poller::{Events, Interest, Poller};
use crate::summary::Summary;
use lull_measure::{Latency, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How the server is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Threads that price, at least 1.
    pub workers: usize,
    /// Requests that may wait for a worker; further ones are refused.
    pub queue: usize,
    /// Most path steps (`m * n`) of one request.
    pub max_path_steps: u64,
    /// Connections held at once; further ones are closed.
    pub max_connections: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into(),
            workers: thread::available_parallelism().map_or(1, usize::from),
            queue: 4096,
            // Some 4 s at 15 ns a step.
            max_path_steps: 256_000_000,
            max_connections: 4096,
        }
    }
}

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; is another server using the port?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// There are no workers or there is no queue.
    #[error("workers, queue and max_connections must be at least 1")]
    Empty,
    /// The system refuses threads or descriptors.
    #[error("cannot serve: {0}")]
    System(#[from] std::io::Error),
}

/// The counts of the server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServerReport {
    /// Requests priced.
    pub answered_requests: u64,
    /// Requests refused because the queue was full.
    pub refused_requests: u64,
    /// Lines that were not requests.
    pub malformed_requests: u64,
    /// Requests abandoned because the server was stopped.
    pub abandoned_requests: u64,
    /// Connections taken.
    pub connections: u64,
    /// Time at work on a request.
    pub service: Summary,
    /// Time from a request's arrival to its start.
    pub queueing: Summary,
}

impl fmt::Display for ServerReport {
    /// Writes a line of counts, then one line for each distribution.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests  answered {}  refused {}  malformed {}  abandoned {}  on {} connections",
            self.answered_requests,
            self.refused_requests,
            self.malformed_requests,
            self.abandoned_requests,
            self.connections
        )?;
        write!(f, "service   {}\nqueueing  {}", self.service, self.queueing)
    }
}

/// Runs on the worker around each request, from before its start to after its end:
/// this is where a dispatcher puts requests on cores.
pub trait RequestHook: Sync {
    /// Runs `work`, once, for a request that arrived `age` ago. It may wait first.
    fn around(&self, age: Nanos, work: &mut dyn FnMut());
}

/// Runs requests at once, without a dispatcher.
struct Undispatched;

impl RequestHook for Undispatched {
    fn around(&self, _: Nanos, work: &mut dyn FnMut()) {
        work();
    }
}

/// A listening server that does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    config: ServerConfig,
}

/// The number of the listening socket; connections count from 0.
const LISTENER: u64 = u64::MAX;
/// Longest wait, so that a stop is noticed within this time.
const LOOK: Duration = Duration::from_millis(20);

impl Server {
    /// Listens; connections wait from here on.
    ///
    /// # Errors
    /// If the address is in use or not the machine's, or the configuration is empty.
    pub fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        if config.workers == 0 || config.queue == 0 || config.max_connections == 0 {
            return Err(ServerError::Empty);
        }
        let wrong = |source| ServerError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).map_err(wrong)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, config })
    }

    /// Where it listens, with the port that was found.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is set; then requests waiting and at work are given up
    /// with an `ERR`. Threads are named `opt-accept` and `opt-worker-N`.
    ///
    /// # Errors
    /// If the system refuses threads or descriptors.
    pub fn run(self, stop: &AtomicBool) -> Result<ServerReport, ServerError> {
        self.run_around(stop, &Undispatched)
    }

    /// As [`Server::run`], with a wrapper around each request.
    ///
    /// # Errors
    /// As [`Server::run`].
    pub fn run_around(
        self,
        stop: &AtomicBool,
        around: &dyn RequestHook,
    ) -> Result<ServerReport, ServerError> {
        let shared = Shared {
            around,
            queue: Queue::new(self.config.queue),
            poller: Poller::new().map_err(std::io::Error::from)?,
            max_path_steps: self.config.max_path_steps,
            counts: Counts::default(),
        };
        shared
            .poller
            .add(&self.listener, LISTENER, Interest::Read)
            .map_err(std::io::Error::from)?;
        let (service, queueing) = thread::scope(|scope| {
            let mut workers = Vec::new();
            for number in 0..self.config.workers {
                let builder = thread::Builder::new().name(format!("opt-worker-{number}"));
                match builder.spawn_scoped(scope, || shared.work(stop)) {
                    Ok(worker) => workers.push(worker),
                    Err(error) => {
                        shared.queue.close();
                        return Err(ServerError::from(error));
                    }
                }
            }
            let acceptor = thread::Builder::new().name("opt-accept".to_owned());
            let accepted =
                acceptor.spawn_scoped(scope, || self.accept(&shared, stop)).map(|acceptor| {
                    acceptor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
            for job in shared.queue.close() {
                shared.abandon(&job);
            }
            accepted??;
            Ok(merge(workers.into_iter().map(joined)))
        })?;
        Ok(shared.counts.report(&service, &queueing))
    }

    fn accept(&self, shared: &Shared<'_>, stop: &AtomicBool) -> std::io::Result<()> {
        let mut events = Events::new();
        let mut table = Table { slots: Vec::new(), free: Vec::new() };
        while !stop.load(Ordering::Relaxed) {
            shared.poller.wait(&mut events, LOOK)?;
            let mut index = 0;
            while let Some(ready) = events.get(index) {
                index += 1;
                if ready.number == LISTENER {
                    self.take_all(shared, &mut table);
                } else {
                    shared.handle_ready(&mut table, ready.number as usize);
                }
            }
        }
        Ok(())
    }

    /// Takes the connections that wait.
    fn take_all(&self, shared: &Shared<'_>, table: &mut Table) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if table.len() < self.config.max_connections => {
                    let place = |number| {
                        let connection = Arc::new(Connection::new(number, stream)?);
                        shared.poller.add(&*connection, number as u64, Interest::ReadOnce)?;
                        Ok(connection)
                    };
                    if table.insert(place).is_ok() {
                        shared.counts.connections.fetch_add(1, Ordering::Relaxed);
                    }
                }
                // Dropping the stream closes the connection, which the client sees.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors: without a pause the listener, which stays
                    // ready, would turn this into a busy loop.
                    thread::sleep(LOOK);
                    return;
                }
            }
        }
    }
}

/// Connections by number.
struct Table {
    slots: Vec<Option<Arc<Connection>>>,
    free: Vec<usize>,
}

impl Table {
    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(
        &mut self,
        make: impl FnOnce(usize) -> std::io::Result<Arc<Connection>>,
    ) -> std::io::Result<()> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        match make(number) {
            Ok(connection) => self.slots[number] = Some(connection),
            Err(error) => {
                self.free.push(number);
                return Err(error);
            }
        }
        Ok(())
    }

    fn remove(&mut self, number: usize) {
        self.slots[number] = None;
        self.free.push(number);
    }
}

/// A request that waits for a worker.
struct Job {
    connection: Arc<Connection>,
    call: AsianCall,
    arrived: Nanos,
}

/// State that acceptor and workers share.
struct Shared<'a> {
    around: &'a dyn RequestHook,
    queue: Queue<Job>,
    poller: Poller,
    max_path_steps: u64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    refused: AtomicU64,
    malformed: AtomicU64,
    abandoned: AtomicU64,
    connections: AtomicU64,
}

impl Shared<'_> {
    /// Reads a connection that has bytes to read.
    fn handle_ready(&self, table: &mut Table, number: usize) {
        let Some(connection) = table.slots.get(number).cloned().flatten() else { return };
        match connection.read() {
            ReadOutcome::Something => self.go_on(&connection),
            ReadOutcome::End => table.remove(number),
        }
    }

    /// Queues the connection's next request, or waits for one.
    fn go_on(&self, connection: &Arc<Connection>) {
        while let Some((line, arrived)) = connection.next_line() {
            let call = match line {
                Ok(line) => self.read(&line),
                Err(too_long) => {
                    self.refuse_line(connection, &too_long.to_string());
                    connection.give_up();
                    break;
                }
            };
            match call {
                Err(error) => self.refuse_line(connection, &error.to_string()),
                Ok(call) => {
                    match self.queue.push(Job { connection: connection.clone(), call, arrived }) {
                        Ok(()) => return,
                        Err(job) => {
                            self.counts.refused.fetch_add(1, Ordering::Relaxed);
                            job.connection.reply("ERR the queue is full: try again later\n");
                        }
                    }
                }
            }
        }
        // Fails only for a connection that is closed, which needs no events any more.
        let _ = self.poller.change(&**connection, connection.number as u64, Interest::ReadOnce);
    }

    fn read(&self, line: &str) -> Result<AsianCall, RequestError> {
        let call: AsianCall = line.parse()?;
        let (steps, limit) = (call.path_steps(), self.max_path_steps);
        if steps > limit { Err(RequestError::TooMuch { steps, limit }) } else { Ok(call) }
    }

    fn refuse_line(&self, connection: &Connection, reason: &str) {
        self.counts.malformed.fetch_add(1, Ordering::Relaxed);
        connection.reply(&format!("ERR {reason}\n"));
    }

    fn abandon(&self, job: &Job) {
        self.counts.abandoned.fetch_add(1, Ordering::Relaxed);
        job.connection.reply("ERR the server is stopping\n");
    }

    /// Runs a worker until the queue is closed. Returns the service and queueing times
    /// of its requests.
    fn work(&self, stop: &AtomicBool) -> (Latency, Latency) {
        let (mut service, mut queueing) = (Latency::default(), Latency::default());
        while let Some(job) = self.queue.pop() {
            let (mut priced, mut start, mut end) = (None, job.arrived, job.arrived);
            let age = clock::now().saturating_sub(job.arrived);
            self.around.around(age, &mut || {
                start = clock::now();
                priced = estimate(&job.call, || !stop.load(Ordering::Relaxed));
                end = clock::now();
            });
            let (took, waited) = (end.saturating_sub(start), start.saturating_sub(job.arrived));
            let Some(estimate) = priced else {
                self.abandon(&job);
                continue;
            };
            service.record(took);
            queueing.record(waited);
            self.counts.answered.fetch_add(1, Ordering::Relaxed);
            let (price, error) = (estimate.price, estimate.standard_error);
            let (took_us, waited_us) = (took.0 / 1000, waited.0 / 1000);
            job.connection.reply(&format!("OK {price} {error} {took_us} {waited_us}\n"));
            self.go_on(&job.connection);
        }
        (service, queueing)
    }
}

impl Counts {
    fn report(&self, service: &Latency, queueing: &Latency) -> ServerReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ServerReport {
            answered_requests: read(&self.answered),
            refused_requests: read(&self.refused),
            malformed_requests: read(&self.malformed),
            abandoned_requests: read(&self.abandoned),
            connections: read(&self.connections),
            service: service.into(),
            queueing: queueing.into(),
        }
    }
}

/// Returns a thread's result, or resumes its panic in this thread.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn merge(parts: impl Iterator<Item = (Latency, Latency)>) -> (Latency, Latency) {
    parts.fold((Latency::default(), Latency::default()), |mut all, part| {
        all.0.merge(&part.0);
        all.1.merge(&part.1);
        all
    })
}
