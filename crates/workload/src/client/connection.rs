//! One connection to the server: bytes out, bytes in, requests in flight.

use super::ledger::Request;
use crate::target::{Decoder, Outcome, ProtocolError};
use lull_measure::Nanos;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// First and longest pause before the client reconnects a lost connection.
const FIRST_PAUSE: Nanos = Nanos::from_millis(10);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(1);

/// Whether a connection can carry requests.
#[derive(Debug)]
pub(super) enum State {
    /// Lost; to be reconnected from this instant on.
    Down(Nanos),
    /// Connecting since this instant.
    Connecting(Nanos, TcpStream),
    /// Open.
    Up(TcpStream),
}

/// A connection with its buffers and its requests in flight.
pub(super) struct Connection {
    pub(super) state: State,
    /// Increases with each loss, so that slots of an earlier connection are recognised.
    pub(super) generation: u32,
    decoder: Box<dyn Decoder>,
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
            in_flight: VecDeque::with_capacity(depth),
            unsent: 0,
            out: Vec::new(),
            written: 0,
            held: Vec::new(),
            pause: FIRST_PAUSE,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, server: SocketAddr, now: Nanos) -> Result<&TcpStream, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        self.state = State::Connecting(now, TcpStream::from(socket));
        Ok(self.stream().expect("connecting has a stream"))
    }

    /// Completes a connection attempt after the socket has become writable.
    pub(super) fn finish(&mut self) -> std::io::Result<&TcpStream> {
        let State::Connecting(_, stream) = &self.state else {
            return Err(ErrorKind::NotConnected.into());
        };
        sockopt::socket_error(stream)??;
        let State::Connecting(_, stream) =
            std::mem::replace(&mut self.state, State::Down(Nanos::ZERO))
        else {
            return Err(ErrorKind::NotConnected.into());
        };
        self.state = State::Up(stream);
        self.pause = FIRST_PAUSE;
        Ok(self.stream().expect("an open connection has a stream"))
    }

    pub(super) fn stream(&self) -> Option<&TcpStream> {
        match &self.state {
            State::Down(_) => None,
            State::Connecting(_, stream) | State::Up(stream) => Some(stream),
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
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
        (self.unsent, self.written) = (0, 0);
        self.out.clear();
        self.held.clear();
        self.in_flight.drain(..)
    }

    /// Adds a request in flight. Returns whether it is the first since the last
    /// flush, and the buffer to which the caller appends its bytes.
    pub(super) fn push(&mut self, request: Request) -> (bool, &mut Vec<u8>) {
        self.in_flight.push_back(request);
        self.unsent += 1;
        (self.unsent == 1, &mut self.out)
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
        let State::Up(stream) = &mut self.state else { return Ok(Flush::Blocked) };
        while self.written < self.out.len() {
            match stream.write(&self.out[self.written..]) {
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

    /// Reads once into `scratch` and decodes. Appends outcomes in the order of `in_flight`.
    pub(super) fn read(
        &mut self,
        scratch: &mut [u8],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Loss> {
        let State::Up(stream) = &mut self.state else { return Ok(()) };
        match stream.read(scratch) {
            Ok(0) => {
                outcomes.extend(self.decoder.close());
                let announced = self.decoder.is_last();
                Err(if announced { Loss::Announced } else { Loss::Closed })
            }
            Ok(count) => self.decode(&scratch[..count], outcomes).map_err(Loss::Protocol),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(())
            }
            Err(error) => Err(Loss::Io(error)),
        }
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
