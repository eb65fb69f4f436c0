//! The client's event loop: it sends requests that are due and reads replies.

mod dialogue;

use super::config::LoadConfig;
use super::connection::{Connection, Flush, Loss, State};
use super::ledger::{Ledger, RunResult};
use super::parts::{Part, PartArrivals};
use super::report::LoadError;
use super::reporter::WindowSender;
use crate::poller::{Events, Interest, Poller, Ready, wake_exactly};
use crate::target::{Endpoint, Outcome, Target, TlsClient};
use crate::{Generator, clock};
use lull_measure::Nanos;
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most due requests that are encoded before the first of them is written: after a
/// pause many are due at once.
const BATCH: usize = 64;
/// Longest sleep, so that a stop is noticed within this time.
const STOP_POLL: Nanos = Nanos::from_millis(50);
/// Time-out of a connection attempt, and of all attempts before the run starts.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// The same where a connection begins with a login: hundreds of them take a server seconds.
const LOGIN_TIMEOUT: Nanos = Nanos::from_secs(20);

/// Room for one request on a connection, valid for one generation of it.
#[derive(Debug, Clone, Copy)]
struct RequestSlot {
    connection: usize,
    generation: u32,
}

/// Where the server is, and what its TLS sessions begin with.
pub(super) struct ServerAddress {
    pub(super) server: Endpoint,
    pub(super) tls: Option<TlsClient>,
}

impl ServerAddress {
    /// Returns the TLS client of connections whose protocol does not negotiate TLS.
    fn tls_at_once(&self, config: &LoadConfig) -> Option<&TlsClient> {
        self.tls.as_ref().filter(|_| !config.target.address.protocol().is_database())
    }
}

/// All state of a run.
pub(super) struct Engine<'a> {
    config: &'a LoadConfig,
    target: Box<dyn Target>,
    place: ServerAddress,
    rng: Generator,
    /// `None` in a closed loop.
    arrivals: Option<PartArrivals>,
    /// Real time of the schedule's 0.
    start: Nanos,
    next_due: Option<Nanos>,
    /// The due time of the last request that was taken from the schedule.
    last_due: Nanos,
    /// Due times of requests that wait for a free slot.
    waiting: VecDeque<Nanos>,
    connections: Vec<Connection>,
    /// Free slots; the one that has been free longest is first.
    free: VecDeque<RequestSlot>,
    /// Connections with something to write.
    unflushed: Vec<usize>,
    /// When pauses of dialogues end, and on which connection.
    wakeups: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The next instant at which a lost connection is to be reconnected.
    retry_at: Nanos,
    poller: Poller,
    scratch: Vec<u8>,
    outcomes: Vec<Outcome>,
    ledger: Ledger,
    window_end: Nanos,
    windows: WindowSender,
    losses: u64,
    last_loss: Option<String>,
    announced: u64,
}

fn system(what: &'static str) -> impl Fn(Errno) -> LoadError {
    move |error| LoadError::System { what, source: error.into() }
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        config: &'a LoadConfig,
        part: Part,
        place: ServerAddress,
        mut windows: WindowSender,
    ) -> Result<Self, LoadError> {
        let Part { target, connections, arrivals, rng } = part;
        let window = windows.spare().unwrap_or_default();
        Ok(Self {
            config,
            connections: (0..connections)
                .map(|_| Connection::new(target.decoder(), config.depth))
                .collect(),
            target,
            place,
            rng,
            arrivals,
            start: Nanos::ZERO,
            next_due: None,
            last_due: Nanos::ZERO,
            waiting: VecDeque::new(),
            free: VecDeque::with_capacity(connections * config.depth),
            unflushed: Vec::new(),
            wakeups: BinaryHeap::new(),
            retry_at: Nanos::ZERO,
            poller: Poller::new().map_err(system("make an epoll"))?,
            scratch: vec![0; 64 * 1024],
            outcomes: Vec::new(),
            ledger: Ledger::new(Nanos::ZERO, window),
            window_end: Nanos::MAX,
            windows,
            losses: 0,
            last_loss: None,
            announced: 0,
        })
    }

    /// Runs from `start` to the end of the duration, or until `stop`.
    pub(super) fn run(mut self, start: Nanos, stop: &AtomicBool) -> Result<RunResult, LoadError> {
        wake_exactly().map_err(system("set the timer slack"))?;
        self.begin(start);
        let mut events = Events::new();
        let mut now = clock::now();
        while !stop.load(Ordering::Relaxed) && !self.is_over(now) {
            self.take_up(now);
            self.tick(now);
            self.sleep_and_handle(now, &mut events)?;
            now = clock::now();
        }
        self.end(now)
    }

    /// Opens the connections before the schedule starts.
    pub(super) fn connect_all(&mut self, stop: &AtomicBool) -> Result<(), LoadError> {
        let begin = clock::now();
        let (mut now, mut events) = (begin, Events::new());
        while self.connections.iter().any(|connection| !connection.is_usable()) {
            if now.saturating_sub(begin) > self.patience() || stop.load(Ordering::Relaxed) {
                // The run starts with the connections that are up; `tick` retries the others.
                break;
            }
            self.retry(now);
            self.poll(&mut events, Duration::from_millis(5))?;
            self.handle_all(&events);
            now = clock::now();
        }
        Ok(())
    }

    /// How long a connection may take until it is usable.
    fn patience(&self) -> Nanos {
        let address = &self.config.target.address;
        match address.protocol().is_database() || address.is_tls() {
            true => LOGIN_TIMEOUT,
            false => CONNECT_TIMEOUT,
        }
    }

    fn begin(&mut self, start: Nanos) {
        self.start = start;
        self.last_due = self.start;
        let window = std::mem::take(&mut self.ledger.window);
        self.ledger = Ledger::new(self.start + self.config.warmup, window);
        self.open_window(self.start);
        self.draw_next();
    }

    /// Draws the next due time; none once the duration is over.
    fn draw_next(&mut self) {
        let longest = self.config.duration.unwrap_or(Nanos::MAX);
        let next = self.arrivals.as_mut().and_then(Iterator::next).filter(|due| *due < longest);
        self.next_due = next.map(|due| self.start.saturating_add(due));
    }

    fn is_over(&self, now: Nanos) -> bool {
        if self.next_due.is_some() {
            return false;
        }
        let end = match self.config.duration {
            Some(duration) => self.start.saturating_add(duration),
            None if self.arrivals.is_none() => return false,
            None => self.last_due,
        };
        let idle = self.outstanding() == 0;
        now >= end && (idle || now >= end + self.config.drain)
    }

    /// Takes requests that are due from the schedule and sends those that have a slot.
    fn take_up(&mut self, now: Nanos) {
        for _ in 0..BATCH {
            let Some(due) = self.next_due.filter(|due| *due <= now) else { break };
            self.ledger.due(due);
            self.waiting.push_back(due);
            self.last_due = due;
            self.draw_next();
        }
        self.dispatch(Nanos::ZERO);
    }

    /// Sends waiting requests in free slots; no slot was free before `freed`. In a closed loop
    /// a request is due as soon as a slot is free.
    fn dispatch(&mut self, freed: Nanos) {
        let now = clock::now();
        let is_closed = self.arrivals.is_none() && self.is_sending(now);
        while !self.waiting.is_empty() || is_closed {
            let Some(index) = self.free_connection() else { break };
            let due = self.waiting.pop_front().unwrap_or_else(|| {
                self.ledger.due(now);
                self.last_due = now;
                now
            });
            self.send(index, due, due.max(freed));
        }
        for at in 0..self.unflushed.len() {
            self.flush(self.unflushed[at]);
        }
        self.unflushed.clear();
    }

    /// Returns whether a closed loop sends: it has begun and is not over.
    fn is_sending(&self, now: Nanos) -> bool {
        let end = self.config.duration.map_or(Nanos::MAX, |time| self.start.saturating_add(time));
        self.start > Nanos::ZERO && now < end
    }

    fn free_connection(&mut self) -> Option<usize> {
        loop {
            let RequestSlot { connection, generation } = self.free.pop_front()?;
            let it = &self.connections[connection];
            // A server that has announced its end takes no more requests.
            if it.generation == generation && !it.is_last() {
                return Some(connection);
            }
        }
    }

    fn flush(&mut self, index: usize) {
        let now = clock::now();
        let connection = &mut self.connections[index];
        for request in connection.stamp(now) {
            self.ledger.sent(request);
        }
        match connection.flush() {
            Ok(Flush::Done) => {}
            Ok(Flush::Blocked) => self.watch(index, Interest::Both),
            Err(loss) => self.lose(index, &loss),
        }
    }

    /// Changes the events for which the poller watches a connection.
    fn watch(&mut self, index: usize, interest: Interest) {
        let Some(socket) = self.connections[index].socket() else { return };
        if let Err(error) = self.poller.change(socket, index as u64, interest) {
            self.lose(index, &Loss::Io(error.into()));
        }
    }

    fn sleep_and_handle(&mut self, now: Nanos, events: &mut Events) -> Result<(), LoadError> {
        let wakeup = self.wakeups.peek().map_or(Nanos::MAX, |Reverse((at, _))| *at);
        let timer = self.window_end.min(self.retry_at).min(now + STOP_POLL).min(wakeup);
        let due = self.next_due.map_or(Nanos::MAX, |due| due.saturating_sub(self.config.spin));
        let pause = timer.min(due).saturating_sub(clock::now());
        self.poll(events, pause.into())?;
        self.handle_all(events);
        Ok(())
    }

    fn poll(&mut self, events: &mut Events, pause: Duration) -> Result<(), LoadError> {
        self.poller.wait(events, pause).map_err(system("wait for events"))
    }

    fn handle_all(&mut self, events: &Events) {
        let mut index = 0;
        while let Some(ready) = events.get(index) {
            index += 1;
            self.handle_ready(ready);
        }
    }

    fn handle_ready(&mut self, ready: Ready) {
        let index = ready.number as usize;
        match self.connections[index].state {
            State::Down(_) => {}
            State::Connecting(..) => self.finish_connecting(index),
            State::Up(_) => {
                if ready.read {
                    self.read(index);
                }
                if ready.write && self.connections[index].is_up() {
                    self.flush_rest(index);
                }
            }
        }
    }

    fn read(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let read = connection.read(&mut self.scratch, &mut self.outcomes);
        if read.is_ok() {
            self.proceed(index);
        }
        let now = clock::now();
        let surplus = self.settle(index, now);
        match read {
            Err(loss) => self.lose(index, &loss),
            Ok(()) if surplus => self.lose(index, &Loss::Closed),
            Ok(())
                if self.connections[index].is_last()
                    && self.connections[index].in_flight.is_empty() =>
            {
                self.lose(index, &Loss::Announced);
            }
            Ok(()) if self.connections[index].has_output() => self.flush(index),
            Ok(()) => {}
        }
        self.dispatch(now);
        // Send due requests between two connections' replies: a batch of replies must
        // not add lag.
        self.take_up(now);
    }

    fn flush_rest(&mut self, index: usize) {
        match self.connections[index].flush() {
            Ok(Flush::Done) => self.watch(index, Interest::Read),
            Ok(Flush::Blocked) => {}
            Err(loss) => self.lose(index, &loss),
        }
    }

    fn finish_connecting(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        match connection.finish(self.place.tls_at_once(self.config)) {
            Ok(()) => {
                self.watch(index, Interest::Read);
                self.proceed(index);
                self.offer(index);
                self.flush(index);
                self.dispatch(clock::now());
            }
            Err(error) => self.lose(index, &Loss::Io(error)),
        }
    }

    /// Drops a connection and fails its requests in flight.
    fn lose(&mut self, index: usize, loss: &Loss) {
        let now = clock::now();
        let announced = matches!(loss, Loss::Announced);
        let connection = &mut self.connections[index];
        for request in connection.lose(now, announced, self.target.decoder()) {
            if !request.timed_out {
                self.ledger.failed(request.due);
            }
        }
        if let State::Down(until) = connection.state {
            self.retry_at = self.retry_at.min(until);
        }
        self.announced += u64::from(announced);
        if !announced {
            self.losses += 1;
            self.last_loss = Some(loss.to_string());
        }
    }

    /// Does the work of certain times: reconnecting and closing windows.
    fn tick(&mut self, now: Nanos) {
        if now >= self.retry_at {
            self.retry(now);
        }
        self.wake(now);
        if now >= self.window_end {
            self.time_out(now);
            self.give_up_connecting(now);
            self.close_window(now);
            self.open_window(now);
        }
    }

    /// Reconnects the connections after their pauses.
    fn retry(&mut self, now: Nanos) {
        self.retry_at = Nanos::MAX;
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            match connection.state {
                State::Down(until) if until <= now => {
                    let begun = connection
                        .connect(&self.place.server, now)
                        .and_then(|socket| self.poller.add(socket, index as u64, Interest::Write));
                    match begun {
                        Ok(()) => {}
                        // The server's queue of a unix socket is full: the connection is not lost.
                        Err(Errno::AGAIN) => {
                            self.retry_at = self.retry_at.min(connection.postpone(now));
                        }
                        Err(error) => self.lose(index, &Loss::Io(error.into())),
                    }
                }
                State::Down(until) => self.retry_at = self.retry_at.min(until),
                State::Connecting(..) | State::Up(_) => {}
            }
        }
    }

    fn give_up_connecting(&mut self, now: Nanos) {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            let slow = match connection.state {
                State::Connecting(since, _) => now.saturating_sub(since) > CONNECT_TIMEOUT,
                // The connection is open and has not logged in.
                State::Up(_) if !connection.is_offered && connection.in_flight.is_empty() => {
                    let is_pausing = connection.wakes_at.is_some();
                    !is_pausing && now.saturating_sub(connection.up_since) > self.patience()
                }
                State::Up(_) | State::Down(_) => false,
            };
            if slow {
                self.lose(index, &Loss::Io(std::io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Counts requests that exceed the time-out; those that wait for a slot are dropped.
    fn time_out(&mut self, now: Nanos) {
        let too_old = |due: Nanos| now.saturating_sub(due) >= self.config.timeout;
        while let Some(due) = self.waiting.pop_front_if(|due| too_old(*due)) {
            self.ledger.timed_out(due, now);
        }
        for connection in &mut self.connections {
            for request in
                connection.in_flight.iter_mut().take_while(|request| too_old(request.due))
            {
                if !std::mem::replace(&mut request.timed_out, true) {
                    self.ledger.sent_timed_out(request, now);
                }
            }
        }
    }

    fn open_window(&mut self, now: Nanos) {
        let window = &mut self.ledger.window;
        window.start = now;
        window.warmup = now < self.start + self.config.warmup;
        // The windows of all threads begin together; one that begins late is at least half as long.
        let length = self.config.window;
        window.number = (now.saturating_sub(self.start) + length / 2).0 / length.0;
        self.window_end = self.start + Nanos(length.0 * (window.number + 1));
    }

    /// Passes the window to the reporter and continues with a spare one.
    fn close_window(&mut self, now: Nanos) {
        let (outstanding, oldest) = (self.outstanding(), self.oldest(now));
        let window = &mut self.ledger.window;
        window.length = now.saturating_sub(window.start);
        (window.outstanding, window.oldest) = (outstanding, oldest);
        self.ledger.close_window();
        self.windows.exchange(&mut self.ledger.window);
    }

    fn outstanding(&self) -> u64 {
        let under_way = self.connections.iter().flat_map(|connection| &connection.in_flight);
        // A request that timed out is finished for the statistics; its reply is dropped.
        let alive = under_way.filter(|request| !request.timed_out).count();
        (alive + self.waiting.len()) as u64
    }

    /// Returns the age of the oldest unfinished request; 0 if there is none.
    fn oldest(&self, now: Nanos) -> Nanos {
        let under_way = self.connections.iter().filter_map(Connection::oldest);
        let oldest = under_way.chain(self.waiting.front().copied()).min();
        oldest.map_or(Nanos::ZERO, |due| now.saturating_sub(due))
    }

    fn end(mut self, now: Nanos) -> Result<RunResult, LoadError> {
        self.time_out(now);
        if now > self.ledger.window.start {
            self.close_window(now);
        }
        let end = self.config.duration.map_or(now, |duration| now.min(self.start + duration));
        Ok(RunResult {
            measured: end.saturating_sub(self.start + self.config.warmup),
            outstanding: self.outstanding(),
            oldest: self.oldest(now),
            losses: self.losses,
            last_loss: self.last_loss,
            announced: self.announced,
            handshakes: self.connections.iter().map(|connection| connection.handshakes).sum(),
            dropped_windows: self.windows.dropped(),
            total: self.ledger.total,
        })
    }
}
