//! A plug-in of the container runtime by NRI, the Node Resource Interface of containerd and CRI-O
//! (`kubernetes.nri`): the runtime reports each container as it starts, changes and ends.
//!
//! So the agent learns of a pod before its kubelet has reported it to the API server, and of cores
//! that the kubelet's CPU manager sets at the moment at which it sets them. The plug-in requests no
//! change: what Lull steers are threads, not the cpusets that runtime and kubelet write.
//!
//! The watcher connects before it gives up its rights, because the socket is root's. A connection
//! that has ended is made again by another watcher, which the agent starts once the runtime has a
//! new socket, and at the same one at most every five minutes. Bytes and messages are in `trunk`
//! and `message`, the protocol in `session`.

mod message;
mod session;
mod trunk;

pub(crate) use session::{CONTAINERS_MAX, ContainerChange, RuntimeContainer, SessionError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use session::Session;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Most bytes that are read before something else gets its turn.
const TURN: usize = 1 << 20;
/// Reports that wait for the watcher.
const REPORTS_MAX: usize = 1_024;
/// How often a socket that refuses is tried, and the wait in between.
const TRIES: usize = 5;
const RETRY: Duration = Duration::from_millis(100);
/// Most bytes that wait for a runtime which does not read its answers.
const OUT_MAX: usize = 1 << 20;

/// Why the connection with a runtime has ended.
#[derive(Debug, Error)]
pub(crate) enum PluginError {
    #[error("it has closed the connection")]
    Closed,
    #[error("it does not read the answers to its calls")]
    Stuck,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Connects to the socket of a runtime. One that refuses may have made its socket only now, and is
/// tried again for a moment, as one is whose queue of connections is full: the pods of the node do
/// not wait for a runtime that accepts none.
///
/// # Errors
/// If there is none, it accepts no connection, or this process may not connect.
pub(crate) fn connect(socket: &Path) -> io::Result<StdUnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let mut tried = 1;
    loop {
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&stream, &address) {
            Ok(()) => return Ok(stream.into()),
            Err(Errno::CONNREFUSED | Errno::AGAIN) if tried < TRIES => {
                std::thread::sleep(RETRY);
                tried += 1;
            }
            Err(Errno::AGAIN) => {
                return Err(io::Error::new(
                    ErrorKind::WouldBlock,
                    "its queue of connections is full, and it accepts none",
                ));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The reports of a runtime, until its connection ends.
pub(crate) type Reports = mpsc::Receiver<Result<Vec<ContainerChange>, PluginError>>;

/// Follows a runtime in a local task, because the runtime waits for each answer, also while the
/// API server gives none. The task ends with the connection, or with the receiver.
///
/// # Errors
/// If the socket cannot be watched.
pub(crate) fn follow(stream: StdUnixStream) -> io::Result<Reports> {
    let mut plugin = Plugin::new(stream)?;
    let (sender, receiver) = mpsc::channel(REPORTS_MAX);
    tokio::task::spawn_local(async move {
        loop {
            let ready = plugin.ready().await.map_err(PluginError::from);
            let received = ready.and_then(|()| plugin.exchange());
            let has_ended = received.is_err();
            let says_nothing = received.as_ref().is_ok_and(Vec::is_empty);
            let is_received = says_nothing || sender.send(received).await.is_ok();
            if has_ended || !is_received {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Waits for the next report; for ever if no runtime is followed. May be cancelled.
///
/// # Errors
/// The reason why the connection has ended.
pub(crate) async fn next(
    reports: Option<&mut Reports>,
) -> Result<Vec<ContainerChange>, PluginError> {
    match reports {
        Some(reports) => reports.recv().await.unwrap_or(Err(PluginError::Closed)),
        None => std::future::pending().await,
    }
}

/// Waits for the first report, which lists all containers; `None` if no runtime is followed or it
/// does not come in time.
pub(crate) async fn first(
    reports: Option<&mut Reports>,
    within: Duration,
) -> Option<Result<Vec<ContainerChange>, PluginError>> {
    let reports = reports?;
    tokio::time::timeout(within, next(Some(reports))).await.ok()
}

/// Takes bytes as a runtime sends them, in pieces of this length, for the fuzz target `nri`:
/// returns what they report, in words, and the bytes of the answers.
///
/// # Errors
/// Why the connection ends.
#[doc(hidden)]
pub fn take_runtime_bytes(bytes: &[u8], piece: usize) -> Result<(Vec<String>, Vec<u8>), String> {
    let (mut session, mut reports) = (Session::new(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        let changes = session.take(piece).map_err(|error| error.to_string())?;
        reports.extend(changes.iter().map(|change| format!("{change:?}")));
    }
    Ok((reports, session.out))
}

/// A connection with a runtime.
#[derive(Debug)]
struct Plugin {
    stream: UnixStream,
    session: Session,
    bytes: Vec<u8>,
}

impl Plugin {
    fn new(stream: StdUnixStream) -> io::Result<Self> {
        let stream = UnixStream::from_std(stream)?;
        Ok(Self { stream, session: Session::new(), bytes: vec![0; 16 << 10] })
    }

    /// Waits until there is something to read, or room for what waits.
    async fn ready(&self) -> io::Result<()> {
        let writes = !self.session.out.is_empty();
        let interest = Interest::READABLE;
        let interest = if writes { interest | Interest::WRITABLE } else { interest };
        self.stream.ready(interest).await.map(drop)
    }

    /// Reads arrived bytes and sends pending ones, without waiting.
    ///
    /// # Errors
    /// The reason why the connection has ended.
    fn exchange(&mut self) -> Result<Vec<ContainerChange>, PluginError> {
        let mut changes = Vec::new();
        let mut total = 0;
        while total < TURN {
            match self.stream.try_read(&mut self.bytes) {
                Ok(0) => return Err(PluginError::Closed),
                Ok(count) => {
                    total += count;
                    changes.extend(self.session.take(&self.bytes[..count])?);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.send()?;
        Ok(changes)
    }

    fn send(&mut self) -> Result<(), PluginError> {
        while !self.session.out.is_empty() {
            match self.stream.try_write(&self.session.out) {
                Ok(count) => drop(self.session.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        if self.session.out.len() > OUT_MAX { Err(PluginError::Stuck) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
