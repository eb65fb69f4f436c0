//! The end of a process that registers itself.

use lull_measure::push::{Fill, LineReader};
use lull_measure::register::{Answer, MAX_LINE_BYTES, Refusal, Request};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, Write};
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the agent may take to answer: it answers between two epochs at the latest, and may
/// be writing knobs.
const PATIENCE: Duration = Duration::from_secs(10);

/// This process, as long as it is registered. It departs when this is dropped.
#[derive(Debug)]
pub struct Registration {
    stream: UnixStream,
    app: String,
}

/// Why this process is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// No agent listens.
    #[error("cannot connect to {path}: {source}; is an agent running, whose config has a [[match]] \
             with `register`?", path = .path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The agent does not answer.
    #[error("the agent at {path} has not answered: {source}", path = .path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The agent has refused.
    #[error("the agent has refused: {0}")]
    Refused(#[from] Refusal),
}

/// Registers this process with the agent that listens at `socket`, with a template of the
/// agent's config; `None` is the only one that the user may name.
///
/// # Errors
/// If no agent listens there, it does not answer within 10 s, or it refuses.
pub fn register(socket: &Path, template: Option<&str>) -> Result<Registration, RegisterError> {
    let path = || socket.to_owned();
    let stream = open(socket).map_err(|source| RegisterError::Connect { path: path(), source })?;
    let request = Request::Register { template: template.map(str::to_owned) };
    let answer = exchange(&stream, &request)
        .map_err(|source| RegisterError::NoAnswer { path: path(), source })?;
    match Answer::parse(&answer)? {
        Answer::Accepted { app } => Ok(Registration { stream, app: app.unwrap_or_default() }),
        Answer::Refused(refusal) => Err(refusal.into()),
    }
}

impl Registration {
    /// The app that this process is.
    pub fn app(&self) -> &str {
        &self.app
    }

    /// Departs, and waits until the agent has taken notice.
    ///
    /// # Errors
    /// If the agent does not answer; it takes notice of the closed connection later.
    pub fn leave(self) -> io::Result<()> {
        exchange(&self.stream, &Request::Leave).map(drop)
    }

    /// Keeps the registration for as long as this process runs, also where it executes another
    /// program: the connection is inherited by that program and by children, and is closed by
    /// none of them on purpose.
    ///
    /// # Errors
    /// If the descriptor cannot be changed.
    pub fn keep_across_exec(self) -> io::Result<RawFd> {
        fcntl_setfd(&self.stream, FdFlags::empty())?;
        Ok(self.stream.into_raw_fd())
    }
}

/// Connects without waiting, since an agent that does not accept connections must not hold up
/// the start of a server.
fn open(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
        Errno::AGAIN => io::Error::other("too many processes connect at once"),
        other => other.into(),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request and returns the line of the answer.
fn exchange(mut stream: &UnixStream, request: &Request) -> io::Result<Vec<u8>> {
    // The agent may have refused already and closed; its answer is read all the same.
    let sent = stream.write_all(request.to_line().as_bytes());
    let mut lines = LineReader::new(MAX_LINE_BYTES);
    loop {
        if let Some(line) = lines.next_line() {
            return line.map(<[u8]>::to_vec).map_err(io::Error::other);
        }
        match lines.fill(&mut stream)? {
            Fill::Read(_) => {}
            Fill::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Fill::End => {
                sent?;
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
