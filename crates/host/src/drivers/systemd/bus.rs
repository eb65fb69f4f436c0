//! A connection to systemd: one call at a time, and all before one deadline.
//!
//! Root reaches systemd at its private socket, also where no D-Bus daemon runs, as `systemctl`
//! does; others reach it through the system's bus.

use super::SystemdError;
use super::wire::{FIXED_BYTES, Method, Received, Writer, length_of, receive};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The bus itself, which gives each client a name.
const HELLO: Method<'_> = Method {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    name: "Hello",
};

#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    serial: u32,
    /// When every step of every call fails, however much systemd has sent by then.
    deadline: Instant,
}

impl Bus {
    /// Connects to the sockets below `run`. Calls that are not answered before `deadline` fail.
    pub(super) fn connect(run: &Path, deadline: Instant) -> Result<Self, SystemdError> {
        let private = run.join("systemd/private");
        let system = run.join("dbus/system_bus_socket");
        Self::open(&private, deadline).or_else(|first| {
            // A systemd that is busy answers at neither socket.
            if is_timeout(&first) {
                return Err(first);
            }
            let mut bus = Self::open(&system, deadline).map_err(|second| match second {
                SystemdError::Unreachable { ref source, .. }
                    if source.kind() == ErrorKind::NotFound =>
                {
                    first
                }
                other => other,
            })?;
            bus.call(HELLO, "", Writer::default())?;
            Ok(bus)
        })
    }

    fn open(path: &Path, deadline: Instant) -> Result<Self, SystemdError> {
        let unreachable = |source| SystemdError::Unreachable { path: path.to_owned(), source };
        let stream = connect_until(path, deadline).map_err(unreachable)?;
        let mut bus = Self { stream, serial: 0, deadline };
        bus.authenticate().map_err(unreachable)?;
        Ok(bus)
    }

    /// The mechanism EXTERNAL: the kernel reports the user of this process to the other side.
    fn authenticate(&mut self) -> io::Result<()> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let digits: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        // `BEGIN` before the answer, as systemd's own clients do: systemd 252 does not look at a
        // first message that arrives together with `BEGIN` until a second one arrives.
        let dialogue = format!("\0AUTH EXTERNAL {digits}\r\nBEGIN\r\n");
        self.send(dialogue.as_bytes())?;
        let line = self.line()?;
        if !line.starts_with("OK ") {
            return Err(io::Error::other(format!("it refuses this user: {}", line.trim_end())));
        }
        Ok(())
    }

    /// Reads one line of the dialogue before the first message, byte by byte: binary messages
    /// follow it.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 256 {
            let mut byte = [0];
            self.receive_exact(&mut byte)?;
            line.extend(byte);
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Calls a method and returns the body of the reply.
    pub(super) fn call(
        &mut self,
        method: Method<'_>,
        signature: &str,
        body: Writer,
    ) -> Result<Vec<u8>, SystemdError> {
        self.serial += 1;
        let failed = |source| SystemdError::NoReply { method: method.name.to_owned(), source };
        let message = body.into_call(self.serial, method, signature);
        self.send(&message).map_err(failed)?;
        loop {
            let received = self.next().map_err(failed)?;
            // Signals, and late replies to nothing, are not for this call.
            if received.answers != Some(self.serial) {
                continue;
            }
            return match received.error {
                None => Ok(received.body),
                Some(name) => {
                    let message = super::wire::Reader::new(&received.body).text();
                    let message = message.unwrap_or_default();
                    Err(SystemdError::Refused { method: method.name.to_owned(), name, message })
                }
            };
        }
    }

    fn next(&mut self) -> io::Result<Received> {
        let mut fixed = [0; FIXED_BYTES];
        self.receive_exact(&mut fixed)?;
        let damaged = || io::Error::new(ErrorKind::InvalidData, "no D-Bus message");
        let length = length_of(&fixed).ok_or_else(damaged)?;
        let mut message = fixed.to_vec();
        message.resize(length, 0);
        self.receive_exact(&mut message[FIXED_BYTES..])?;
        receive(&message).ok_or_else(damaged)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.time_left()?))?;
        self.stream.write_all(bytes).map_err(name_timeout)
    }

    /// Fills a buffer. The timeout is set again before each read, so that a peer that sends one
    /// byte at a time does not extend the deadline.
    fn receive_exact(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(self.time_left()?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => buffer = &mut buffer[length..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(name_timeout(error)),
            }
        }
        Ok(())
    }

    fn time_left(&self) -> io::Result<Duration> {
        time_until(self.deadline)
    }
}

/// Connects to a socket. While the queue of the listener is full, the kernel lets `connect` wait
/// for as long as a send may take (`unix_stream_connect` of `net/unix/af_unix.c`).
fn connect_until(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(time_until(deadline)?))?;
    connect(&socket, &address).map_err(|error| name_timeout(error.into()))?;
    Ok(socket.into())
}

fn time_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The kernel reports a timeout of a socket as `EAGAIN`.
fn name_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

fn is_timeout(error: &SystemdError) -> bool {
    match error {
        SystemdError::Unreachable { source, .. } => source.kind() == ErrorKind::TimedOut,
        _ => false,
    }
}
