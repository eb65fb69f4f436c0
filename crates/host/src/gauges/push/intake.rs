//! Where push messages come from: a source, and the one that reads sockets in this process.

use super::client::{ClientId, Drained, PushClient};
use super::socket::{PushSocket, accept};
use lull_measure::push::Message;
use std::fmt::Debug;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Turns of each client at a time. Further lines wait for the next time.
const TURNS_MAX: usize = 16;
/// Clients served at once; each may hold up to one line of memory.
pub(super) const CLIENTS_MAX: usize = 256;

/// A source of push messages.
pub trait PushSource: Debug + Send {
    /// Calls `take` with every message that has arrived, without waiting, and `notice` with
    /// what went wrong. A client whose message `take` refuses is disconnected. Returns `false` if
    /// messages that have arrived may have been left out.
    fn drain(
        &mut self,
        take: &mut dyn FnMut(ClientId, Message) -> Result<(), String>,
        notice: &mut dyn FnMut(String),
    ) -> bool;

    /// The path of the socket.
    fn path(&self) -> &Path;
}

/// Reads and decodes the lines of all clients of a socket.
#[derive(Debug)]
pub struct Intake {
    listener: UnixListener,
    clients: Vec<PushClient>,
    next_client: u64,
}

impl Intake {
    /// Accepts clients from a listening socket, which must not block.
    pub const fn accepting(listener: UnixListener) -> Self {
        Self { listener, clients: Vec::new(), next_client: 0 }
    }

    /// Calls `take` with every message that has arrived, without waiting, and `notice` with
    /// what went wrong. A client whose message `take` refuses is disconnected.
    pub fn drain(
        &mut self,
        take: &mut dyn FnMut(ClientId, Message) -> Result<(), String>,
        notice: &mut dyn FnMut(String),
    ) {
        self.accept(notice);
        for _ in 0..TURNS_MAX {
            let mut has_more = false;
            self.clients.retain_mut(|client| {
                let id = client.id();
                match client.drain(|message| take(id, message)) {
                    Drained::More => {
                        has_more = true;
                        true
                    }
                    Drained::Open => true,
                    Drained::Closed => false,
                    Drained::Bad(why) => {
                        notice(format!("{id} was dropped: {why}"));
                        false
                    }
                }
            });
            if !has_more {
                break;
            }
        }
    }

    /// Disconnects the client with this number.
    pub fn disconnect(&mut self, number: u64) {
        self.clients.retain(|client| client.id().number != number);
    }

    fn accept(&mut self, notice: &mut dyn FnMut(String)) {
        while let Some(stream) = accept(&self.listener) {
            let client = PushClient::new(self.next_client, stream);
            self.next_client += 1;
            if self.clients.len() < CLIENTS_MAX {
                self.clients.push(client);
            } else {
                let client = client.id();
                notice(format!("{client} was dropped: {CLIENTS_MAX} clients push already"));
            }
        }
    }
}

/// A socket of this process, and what reads it.
#[derive(Debug)]
pub(super) struct OwnIntake {
    pub(super) socket: PushSocket,
    pub(super) intake: Intake,
}

impl PushSource for OwnIntake {
    fn drain(
        &mut self,
        take: &mut dyn FnMut(ClientId, Message) -> Result<(), String>,
        notice: &mut dyn FnMut(String),
    ) -> bool {
        self.intake.drain(take, notice);
        true
    }

    fn path(&self) -> &Path {
        self.socket.path()
    }
}
