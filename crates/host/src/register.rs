//! The socket at which processes register themselves as apps.
//!
//! The protocol is [`lull_measure::register`]. Its lines are parsed by another process, which
//! has no rights and returns typed requests (`parser.rs`). Any process may connect. Whether it
//! may register follows from what the kernel reports of it (`peer.rs`): its user must match the
//! template, and the process that has connected is the one that becomes an app. Nothing that it
//! writes names another process, a class or a bound.
//!
//! What a connection can cost is bounded. At most [`NEWCOMERS_MAX`] connections are not
//! registered yet, at most [`NEWCOMERS_OF_USER_MAX`] of one user; each has `PATIENCE` to
//! register, may write `LINES_MAX` lines, of which one at a time waits to be parsed, and is closed
//! if it does not read its answers. The socket is served at most every `PAUSE`, and then up to
//! `ACCEPTS_MAX` connections and `EVENTS_MAX` events are attended to, so that a flood delays other
//! processes and not the agent. A user may register 64 times at once and four times a second from
//! then on.

mod client;
mod decide;
mod newcomer;
mod parser;
mod peer;

pub use client::{RegisterError, Registration, register};
pub use parser::{LINE_DATAGRAM_BYTES, parse_datagram};

use crate::Roots;
use crate::apps::{GlobError, ProcessId, ProcessSlots, UserGlob};
use crate::gauges::push::{PushSocket, PushSocketError};
use decide::Users;
use lull_measure::Nanos;
use lull_measure::register::{Answer, Reason, Refusal, Request};
use newcomer::{Connection, Turn};
use parser::{Parsed, Parser};
use rustix::event::{Timespec, epoll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Most connections that are not registered yet.
pub const NEWCOMERS_MAX: usize = 64;
/// Most of them of one user, so that a user cannot keep others from registering.
pub const NEWCOMERS_OF_USER_MAX: usize = 16;
/// How long a connection may take to register.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// Shortest time between two services of the socket.
pub(crate) const PAUSE: Nanos = Nanos::from_millis(20);
/// Most connections that are accepted at a time.
const ACCEPTS_MAX: usize = 32;
/// Most events that are attended to at a time.
const EVENTS_MAX: usize = 64;
/// Most lines of one connection.
const LINES_MAX: u32 = 16;
/// Notices kept until they are taken; later ones are only counted.
const NOTICES_MAX: usize = 16;
/// The numbers of the listening socket and of parsed lines among the events; those of connections
/// are even, those of their processes odd.
const LISTENER: u64 = 0;
const PARSED: u64 = 1;

/// A template as which processes may register.
#[derive(Debug, Clone)]
pub struct Template {
    /// Its name, as the processes write it.
    pub name: String,
    /// A glob for the users whose processes may register, by name or number.
    pub users: String,
    /// How many processes may be registered at a time.
    pub most: usize,
}

/// Why processes cannot register.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket cannot be made.
    #[error("processes cannot register: {0}")]
    Socket(#[from] PushSocketError),
    /// A glob for users is none.
    #[error("processes cannot register: {0}")]
    Glob(#[from] GlobError),
    /// The kernel refused.
    #[error("processes cannot register at {path}: {source}", path = .path.display())]
    Kernel {
        /// Where.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// The agent's end of the protocol.
#[derive(Debug)]
pub struct Registrar {
    socket: PushSocket,
    events: OwnedFd,
    parser: Parser,
    roots: Roots,
    templates: Vec<Offer>,
    users: Users,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// When the socket was served last, `CLOCK_MONOTONIC`.
    served: Nanos,
    notices: Vec<String>,
    unsaid: u64,
}

/// A template and its slots.
#[derive(Debug)]
struct Offer {
    users: UserGlob,
    slots: ProcessSlots,
}

/// Finds the app that a process belongs to.
pub(crate) type OwnerOf<'a> = &'a dyn Fn(ProcessId) -> Option<String>;

impl Registrar {
    /// Listens at `path`, to which any user may connect.
    ///
    /// # Errors
    /// If another agent listens there, the socket cannot be made, or a glob is none.
    pub fn listen(path: &Path, templates: &[Template], roots: &Roots) -> Result<Self, ListenError> {
        let failed = |source: io::Error| ListenError::Kernel { path: path.to_owned(), source };
        let offer = |template: &Template| {
            let slots = ProcessSlots::new(&template.name, template.most);
            Ok(Offer { users: UserGlob::new(&template.users)?, slots })
        };
        let templates = templates.iter().map(offer).collect::<Result<_, GlobError>>()?;
        let socket = PushSocket::bind(path)?;
        admit_all(path).map_err(failed)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC);
        let events = events.map_err(|error| failed(error.into()))?;
        let registrar = Self {
            socket,
            events,
            parser: Parser::new().map_err(failed)?,
            roots: roots.clone(),
            templates,
            users: Users::default(),
            connections: BTreeMap::new(),
            next: 2,
            served: Nanos::ZERO,
            notices: Vec::new(),
            unsaid: 0,
        };
        registrar.watch(registrar.socket.listener().as_fd(), LISTENER).map_err(failed)?;
        registrar.watch(registrar.parser.socket(), PARSED).map_err(failed)?;
        Ok(registrar)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// The socket at which lines arrive to be parsed: each datagram is answered by what
    /// [`parse_datagram`] makes of it. While no process does that, none can register.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub fn parser(&self) -> io::Result<UnixDatagram> {
        self.parser.parsing_end()
    }

    /// The slots of a template.
    pub fn slots(&self, template: &str) -> Option<&ProcessSlots> {
        let mut all = self.templates.iter().map(|offer| &offer.slots);
        all.find(|slots| slots.template() == template)
    }

    /// Becomes readable when there is something to serve.
    pub(crate) const fn events(&self) -> &OwnedFd {
        &self.events
    }

    /// Whether it may be served again, `time` by `CLOCK_MONOTONIC`.
    pub(crate) fn is_due(&self, time: Nanos) -> bool {
        time >= self.served.saturating_add(PAUSE)
    }

    /// Returns the errors since the last call, for the journal.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let unsaid = std::mem::take(&mut self.unsaid);
        let mut notices = std::mem::take(&mut self.notices);
        if unsaid > 0 {
            notices.push(format!("{unsaid} more registrations were refused"));
        }
        notices
    }

    /// Accepts and answers new requests, without waiting, and frees the slots of departed
    /// processes. `owner` finds the app that a process belongs to.
    pub(crate) fn serve(&mut self, time: Nanos, owner: OwnerOf<'_>) {
        self.served = time;
        for number in self.ready() {
            match number {
                LISTENER => self.accept(time),
                PARSED => self.carry_out(owner),
                process if process % 2 == 1 => self.depart(process - 1, None),
                connection => self.take_turn(connection),
            }
        }
        let is_late = |(number, one): (&u64, &Connection)| {
            let is_late = one.slot.is_none() && time >= one.since.saturating_add(PATIENCE);
            is_late.then_some(*number)
        };
        let late: Vec<u64> = self.connections.iter().filter_map(is_late).collect();
        for number in late {
            let is_sent = self.connections.get(&number).is_some_and(Connection::is_sent);
            let refusal = match is_sent {
                true => busy(&format!("the agent has not read the request within {PATIENCE}")),
                false => Refusal {
                    reason: Reason::Malformed,
                    message: format!("no request within {PATIENCE}"),
                },
            };
            self.depart(number, Some(refusal));
        }
    }

    /// Returns the numbers of readable connections; one that has to wait is found again.
    fn ready(&self) -> Vec<u64> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; EVENTS_MAX];
        let count = epoll::wait(&self.events, &mut events[..], Some(&at_once)).unwrap_or(0);
        // A copy, because an event has the kernel's packed layout.
        events.iter().take(count).map(|event| { event.data }.u64()).collect()
    }

    fn watch(&self, what: std::os::fd::BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let number = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.events, what, number, epoll::EventFlags::IN)?)
    }

    fn accept(&mut self, time: Nanos) {
        for _ in 0..ACCEPTS_MAX {
            let Ok((stream, _)) = self.socket.listener().accept() else { return };
            // A connection whose peer cannot be identified is closed.
            let Some(mut new) = Connection::new(stream, time) else { continue };
            match self.refuse_newcomer(&new) {
                Some(refusal) => {
                    new.answer(&Answer::Refused(refusal.clone()));
                    self.notice(&new, &refusal);
                }
                None if self.watch(new.stream(), self.next).is_ok() => {
                    self.connections.insert(self.next, new);
                    self.next += 2;
                }
                None => {}
            }
        }
    }

    /// Why a connection is closed before anything is read from it.
    fn refuse_newcomer(&mut self, new: &Connection) -> Option<Refusal> {
        if self.users.offers(new.uid(), new.since, &self.templates).is_empty() {
            let message = format!("user {} may not register with any template", new.uid());
            return Some(Refusal { reason: Reason::User, message });
        }
        let newcomers = || self.connections.values().filter(|one| one.slot.is_none());
        let of_user = newcomers().filter(|one| one.uid() == new.uid()).count();
        if newcomers().count() < NEWCOMERS_MAX && of_user < NEWCOMERS_OF_USER_MAX {
            return None;
        }
        Some(busy("too many processes register at once"))
    }

    /// Has the next line of a connection parsed. While one is being parsed, later ones stay where
    /// they are, so that a connection cannot fill the queue that all share.
    fn take_turn(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        while !connection.is_sent() {
            match connection.read() {
                Turn::Line(line) if self.parser.send(number, &line) => connection.note_sent(),
                Turn::Line(_) => {
                    let refusal = busy("too many requests wait");
                    // A process that is registered stays so.
                    let stays = connection.slot.is_some();
                    if !stays || !connection.answer(&Answer::Refused(refusal.clone())) {
                        return self.depart(number, Some(refusal));
                    }
                }
                Turn::Part => return,
                Turn::Over => return self.depart(number, None),
            }
        }
    }

    /// Carries out the parsed requests.
    fn carry_out(&mut self, owner: OwnerOf<'_>) {
        for _ in 0..EVENTS_MAX {
            let Ok(parsed) = self.parser.receive() else { return };
            let Some(Parsed { connection: number, request }) = parsed else { continue };
            // A request counts only if the connection has written a line, and as often.
            let connection = self.connections.get_mut(&number);
            if connection.is_some_and(Connection::take_sent)
                && let Some(connection) = self.connections.remove(&number)
            {
                self.answer(number, connection, request, owner);
                // Its next line may have been read with this one.
                self.take_turn(number);
            }
        }
    }

    /// Carries out and answers one request, and keeps the connection if it is registered then.
    fn answer(
        &mut self,
        number: u64,
        mut connection: Connection,
        request: Result<Request, Refusal>,
        owner: OwnerOf<'_>,
    ) {
        let answer = self.decide(&mut connection, request, owner);
        if let Ok(Some(process)) = &answer
            && self.watch(process.as_fd(), number + 1).is_err()
        {
            return self.close(connection, None);
        }
        let is_read = match &answer {
            Ok(_) => connection.answer(&Answer::Accepted { app: connection.app() }),
            Err(refusal) => {
                self.notice(&connection, refusal);
                connection.answer(&Answer::Refused(refusal.clone()))
            }
        };
        connection.keep(answer.ok().flatten());
        if !is_read || connection.slot.is_none() {
            return self.close(connection, None);
        }
        self.connections.insert(number, connection);
    }

    fn depart(&mut self, number: u64, why: Option<Refusal>) {
        if let Some(connection) = self.connections.remove(&number) {
            self.close(connection, why);
        }
    }

    /// Closes a connection and frees its slot.
    fn close(&mut self, mut connection: Connection, why: Option<Refusal>) {
        if let Some(slot) = connection.slot.take() {
            self.templates[slot.template].slots.free(slot.index);
        }
        if let Some(refusal) = why {
            connection.answer(&Answer::Refused(refusal.clone()));
            self.notice(&connection, &refusal);
        }
    }

    fn notice(&mut self, connection: &Connection, refusal: &Refusal) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(format!("{connection} was not registered: {refusal}"));
        } else {
            self.unsaid += 1;
        }
    }
}

/// Lets every user connect to the socket at `path`, which this process has made.
fn admit_all(path: &Path) -> io::Result<()> {
    // The owner of the directory may have put a link in its place since.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if !is_socket || found.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("the socket was replaced by another file"));
    }
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(by_descriptor, std::fs::Permissions::from_mode(0o666))
}

/// Returns a refusal after which a client may try again later.
fn busy(what: &str) -> Refusal {
    Refusal { reason: Reason::Busy, message: format!("{what}: try again later") }
}

/// Returns a refusal.
fn refuse<T>(reason: Reason, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { reason, message: message.into() })
}

#[cfg(test)]
mod tests;
