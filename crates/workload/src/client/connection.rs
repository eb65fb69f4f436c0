//! One connection to the server: bytes out, bytes in, requests in flight.

use super::ledger::{Handshakes, Request};
use crate::target::{
    Decoder, Endpoint, Outcome, ProtocolError, RequestKind, Stream, Target, TlsClient, Transport,
};
use crate::{Generator, clock};
use lull_measure::Nanos;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::ErrorKind;

/// First and longest pause before the client reconnects a lost connection.
const FIRST_PAUSE: Nanos = Nanos::from_millis(10);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(1);

/// Whether a connection can carry requests.
#[derive(Debug)]
pub(super) enum State {
    /// Lost; to be reconnected from this instant on.
    Down(Nanos),
    /// Connecting since this instant.
    Connecting(Nanos, Stream),
    /// Open.
    Up(Transport),
}

/// A connection with its buffers and its requests in flight.
pub(super) struct Connection {
    pub(super) state: State,
    /// Increases with each loss, so that slots of an earlier connection are recognised.
    pub(super) generation: u32,
    pub(super) decoder: Box<dyn Decoder>,
    /// Whether its slots were offered since it was connected, or since its last dialogue began.
    pub(super) is_offered: bool,
    /// When it was connected.
    pub(super) up_since: Nanos,
    /// Its handshakes of TLS so far, those before a loss included.
    pub(super) handshakes: Handshakes,
    /// The time for which a wake-up is set.
    pub(super) wakes_at: Option<Nanos>,
    /// Requests in the order of their replies; the last `unsent` are not yet written.
    pub(super) in_flight: VecDeque<Request>,
    unsent: usize,
    out: Vec<u8>,
    written: usize,
    /// Received bytes that the decoder has not consumed yet.
    held: Vec<u8>,
    pause: Nanos,
}

/// Result of a flush.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// All bytes are written.
    Done,
    /// The socket buffer is full: wait until it is writable.
    Blocked,
}

/// Why a connection is lost.
#[derive(Debug)]
pub(super) enum Loss {
    /// The server closed it, as it had announced.
    Announced,
    /// The server closed it.
    Closed,
    /// The system reported an error.
    Io(std::io::Error),
    /// The server does not speak the protocol.
    Protocol(ProtocolError),
}

impl Connection {
    pub(super) fn new(decoder: Box<dyn Decoder>, depth: usize) -> Self {
        Self {
            state: State::Down(Nanos::ZERO),
            generation: 0,
            decoder,
            is_offered: false,
            up_since: Nanos::ZERO,
            handshakes: Handshakes::default(),
            wakes_at: None,
            in_flight: VecDeque::with_capacity(depth),
            unsent: 0,
            out: Vec::new(),
            written: 0,
            held: Vec::new(),
            pause: FIRST_PAUSE,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(
        &mut self,
        server: &Endpoint,
        now: Nanos,
    ) -> Result<BorrowedFd<'_>, Errno> {
        self.state = State::Connecting(now, server.begin()?);
        self.socket().ok_or(Errno::NOTCONN)
    }

    /// Puts a connection attempt off for a moment; returns its time.
    pub(super) fn postpone(&mut self, now: Nanos) -> Nanos {
        let until = now + FIRST_PAUSE;
        self.state = State::Down(until);
        until
    }

    /// Completes a connection attempt after the socket has become writable.
    pub(super) fn finish(&mut self, tls: Option<&TlsClient>) -> std::io::Result<()> {
        let State::Connecting(_, stream) = &self.state else {
            return Err(ErrorKind::NotConnected.into());
        };
        sockopt::socket_error(stream)??;
        let State::Connecting(_, stream) =
            std::mem::replace(&mut self.state, State::Down(Nanos::ZERO))
        else {
            return Err(ErrorKind::NotConnected.into());
        };
        let mut transport = Transport::new(stream);
        if let Some(tls) = tls {
            transport.begin_tls(tls, Vec::new())?;
        }
        self.state = State::Up(transport);
        self.up_since = clock::now();
        Ok(())
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Down(_) => None,
            State::Connecting(_, stream) => Some(stream.as_fd()),
            State::Up(transport) => Some(transport.as_fd()),
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Returns whether it is connected and logged in.
    pub(super) fn is_usable(&self) -> bool {
        self.is_up() && self.is_offered
    }

    /// Returns whether its slots can be offered now; they are offered once.
    pub(super) fn offer(&mut self) -> bool {
        if let State::Up(transport) = &mut self.state
            && let Some(is_resumed) = transport.take_handshake()
        {
            self.handshakes += Handshakes { completed: 1, resumed: is_resumed.into() };
        }
        let is_open = matches!(&self.state, State::Up(transport) if transport.is_open());
        let offers = is_open && !self.is_offered && self.decoder.is_ready();
        if offers {
            (self.is_offered, self.pause) = (true, FIRST_PAUSE);
        }
        offers
    }

    /// Drops the socket and returns the requests that were in flight.
    /// `decoder` is the decoder of the next connection.
    pub(super) fn lose(
        &mut self,
        now: Nanos,
        at_once: bool,
        decoder: Box<dyn Decoder>,
    ) -> impl Iterator<Item = Request> + '_ {
        let pause = if at_once { Nanos::ZERO } else { self.pause };
        self.pause = Nanos((self.pause.0 * 2).min(LONGEST_PAUSE.0));
        self.state = State::Down(now + pause);
        self.generation = self.generation.wrapping_add(1);
        self.decoder = decoder;
        (self.is_offered, self.wakes_at) = (false, None);
        (self.unsent, self.written) = (0, 0);
        self.out.clear();
        self.held.clear();
        self.in_flight.drain(..)
    }

    /// Adds a request in flight, whose bytes the caller writes to the output. Returns whether
    /// it is the first since the last flush.
    pub(super) fn push(&mut self, request: Request) -> bool {
        self.in_flight.push_back(request);
        self.unsent += 1;
        self.unsent == 1
    }

    /// Writes the next request of a target.
    pub(super) fn write(&mut self, target: &mut dyn Target, rng: &mut Generator) -> RequestKind {
        let begin = self.out.len();
        let kind = target.encode(rng, &mut self.out);
        self.decoder.number(&mut self.out[begin..]);
        kind
    }

    /// Lets the decoder write the bytes to send now, and begins TLS where it requests that.
    pub(super) fn proceed(
        &mut self,
        now: Nanos,
        tls: Option<&TlsClient>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Loss> {
        self.decoder.proceed(now, outcomes, &mut self.out);
        if let (State::Up(transport), Some(tls)) = (&mut self.state, tls)
            && self.decoder.begins_tls()
        {
            let clear = self.out.split_off(std::mem::take(&mut self.written));
            self.out.clear();
            transport.begin_tls(tls, clear).map_err(Loss::Io)?;
            self.decoder.proceed(now, outcomes, &mut self.out);
        }
        Ok(())
    }

    /// Returns whether bytes wait for a flush.
    pub(super) fn has_output(&self) -> bool {
        let is_behind = matches!(&self.state, State::Up(transport) if transport.has_output());
        is_behind || self.written < self.out.len()
    }

    /// Sets `now` as the send time of all requests that are not written yet.
    pub(super) fn stamp(&mut self, now: Nanos) -> impl Iterator<Item = &Request> {
        let first = self.in_flight.len() - std::mem::take(&mut self.unsent);
        self.in_flight.range_mut(first..).map(move |request| {
            request.sent = now;
            &*request
        })
    }

    /// Writes the bytes that wait in the output buffer.
    pub(super) fn flush(&mut self) -> Result<Flush, Loss> {
        let State::Up(transport) = &mut self.state else { return Ok(Flush::Blocked) };
        loop {
            let sent = match &self.out[self.written..] {
                [] => transport.flush().map(|()| 0),
                bytes => transport.send(bytes),
            };
            match sent {
                Ok(0) => break,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Flush::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Loss::Io(error)),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(Flush::Done)
    }

    /// Reads once into `scratch` and decodes, or until all decrypted bytes are read. Appends
    /// outcomes as [`Decoder::position`] places them.
    pub(super) fn read(
        &mut self,
        scratch: &mut [u8],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Loss> {
        while let State::Up(transport) = &mut self.state {
            let received = transport.receive(scratch);
            let is_all = !transport.has_received();
            match received {
                Ok(0) => {
                    outcomes.extend(self.decoder.close());
                    let announced = self.decoder.is_last();
                    return Err(if announced { Loss::Announced } else { Loss::Closed });
                }
                Ok(count) => self.decode(&scratch[..count], outcomes).map_err(Loss::Protocol)?,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(Loss::Io(error)),
            }
            if is_all {
                return Ok(());
            }
        }
        Ok(())
    }

    fn decode(&mut self, bytes: &[u8], outcomes: &mut Vec<Outcome>) -> Result<(), ProtocolError> {
        if self.held.is_empty() {
            let used = self.decoder.decode(bytes, outcomes)?;
            self.held.extend_from_slice(&bytes[used..]);
        } else {
            self.held.extend_from_slice(bytes);
            let used = self.decoder.decode(&self.held, outcomes)?;
            self.held.drain(..used);
        }
        Ok(())
    }

    /// Returns whether the server has announced that it will close this connection.
    pub(super) fn is_last(&self) -> bool {
        self.decoder.is_last()
    }

    /// Returns the due time of the oldest request that has not been counted as timed out.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        self.in_flight.iter().find(|request| !request.timed_out).map(|request| request.due)
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Announced => f.write_str("the server ended the connection as announced"),
            Self::Closed => f.write_str("the server closed the connection"),
            Self::Io(error) => error.fmt(f),
            Self::Protocol(error) => error.fmt(f),
        }
    }
}
