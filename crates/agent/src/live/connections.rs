//! Limits of connections and streams, so that `/metrics` and `/healthz` always have room.
//!
//! Before its head is read, a connection for `/metrics` is like any other. So the limit does not
//! refuse a new connection: it closes the one that has waited longest for its client to send a
//! request. Streams of events stay open for as long as their viewers, so they have a limit of
//! their own, far below that of connections, in all and by address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// Most simultaneous connections.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Most simultaneous streams of events.
const STREAMS_MAX: usize = 160;
/// Most simultaneous streams of events to one address.
const STREAMS_OF_ONE_MAX: usize = 128;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// The open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// How to close each connection, by its number.
    open: BTreeMap<u64, Connection>,
    /// Connections that wait for a request, by when they began to wait.
    waiting: BTreeMap<u64, u64>,
    next: u64,
}

#[derive(Debug, Default)]
struct Connection {
    /// Closes it; `None` until its task exists.
    task: Option<AbortHandle>,
    /// Its key in `waiting`.
    turn: Option<u64>,
}

impl Connections {
    /// Makes room for a new connection and returns its number, or `None` if all connections are
    /// busy.
    pub(super) fn admit(&self) -> Option<u64> {
        let mut table = self.table();
        if table.open.len() >= CONNECTIONS_MAX {
            let (_, oldest) = table.waiting.pop_first()?;
            let task = table.open.remove(&oldest).and_then(|connection| connection.task);
            task.into_iter().for_each(|task| task.abort());
        }
        let number = table.next_number();
        table.open.insert(number, Connection::default());
        table.begin_wait(number);
        Some(number)
    }

    /// Registers the task of a connection, by which it can be closed.
    pub(super) fn opened(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.table().open.get_mut(&number) {
            connection.task = Some(task);
        }
    }

    /// Notes that a connection has sent a request. It waits for its next one from when the
    /// returned value is dropped.
    pub(super) fn busy(self: &Arc<Self>, number: u64) -> BusyConnection {
        self.table().end_wait(number);
        BusyConnection { connections: Arc::clone(self), number }
    }

    /// Closes all connections.
    pub(super) fn close_all(&self) {
        let open = std::mem::take(&mut self.table().open);
        open.into_values().filter_map(|connection| connection.task).for_each(|task| task.abort());
    }

    /// Removes a connection when the returned value is dropped.
    pub(super) fn guard(self: &Arc<Self>, number: u64) -> OpenConnection {
        OpenConnection { connections: Arc::clone(self), number }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn begin_wait(&mut self, number: u64) {
        self.end_wait(number);
        let turn = self.next_number();
        if let Some(connection) = self.open.get_mut(&number) {
            connection.turn = Some(turn);
            self.waiting.insert(turn, number);
        }
    }

    fn end_wait(&mut self, number: u64) {
        let turn = self.open.get_mut(&number).and_then(|connection| connection.turn.take());
        if let Some(turn) = turn {
            self.waiting.remove(&turn);
        }
    }
}

/// A connection whose request is being answered.
#[derive(Debug)]
pub(super) struct BusyConnection {
    connections: Arc<Connections>,
    number: u64,
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.connections.table().begin_wait(self.number);
    }
}

/// A connection that is open.
#[derive(Debug)]
pub(super) struct OpenConnection {
    connections: Arc<Connections>,
    number: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.end_wait(self.number);
        table.open.remove(&self.number);
    }
}

/// The streams of events, by the address of their viewers.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    by_peer: Arc<Mutex<BTreeMap<Option<Peer>, usize>>>,
}

impl Streams {
    /// Opens a stream to an address, or returns why not.
    pub(super) fn open(&self, peer: Option<Peer>) -> Result<OpenStream, &'static str> {
        let mut by_peer = self.table();
        if by_peer.values().sum::<usize>() >= STREAMS_MAX {
            return Err("160 streams of events are open already, the most: close a page");
        }
        let of_one = by_peer.entry(peer).or_default();
        if *of_one >= STREAMS_OF_ONE_MAX {
            return Err("128 streams of events to this address are open already, the most: close \
                        a page");
        }
        *of_one += 1;
        Ok(OpenStream { streams: self.clone(), peer })
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<Option<Peer>, usize>> {
        self.by_peer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that is open.
#[derive(Debug)]
pub(super) struct OpenStream {
    streams: Streams,
    peer: Option<Peer>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut by_peer = self.streams.table();
        if let Some(open) = by_peer.get_mut(&self.peer) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_takes_the_place_of_the_one_that_waits_longest() {
        let connections = Arc::new(Connections::default());
        let numbers: Vec<u64> =
            (0..CONNECTIONS_MAX).map(|_| connections.admit().unwrap()).collect();
        let _first = connections.busy(numbers[0]);
        drop(connections.busy(numbers[1]));
        let is_open = |number: u64| connections.table().open.contains_key(&number);
        connections.admit().unwrap();
        assert!(is_open(numbers[0]) && is_open(numbers[1]) && !is_open(numbers[2]));
        for _ in 3..CONNECTIONS_MAX {
            connections.admit().unwrap();
        }
        assert!(is_open(numbers[1]), "it has waited for a shorter time");
        connections.admit().unwrap();
        assert!(is_open(numbers[0]) && !is_open(numbers[1]));
        assert_eq!(connections.table().open.len(), CONNECTIONS_MAX);
        drop(connections.guard(numbers[0]));
        assert_eq!(connections.table().open.len(), CONNECTIONS_MAX - 1);
    }

    #[test]
    fn no_connection_is_admitted_where_all_are_busy() {
        let connections = Arc::new(Connections::default());
        let busy: Vec<_> =
            (0..CONNECTIONS_MAX).map(|_| connections.busy(connections.admit().unwrap())).collect();
        assert_eq!(connections.admit(), None);
        drop(busy);
        assert!(connections.admit().is_some());
    }

    #[test]
    fn streams_are_limited_by_address_and_in_all() {
        let streams = Streams::default();
        let peer = |last: u8| Some(Peer(IpAddr::from([192, 0, 2, last])));
        let of_one: Vec<_> =
            (0..STREAMS_OF_ONE_MAX).map(|_| streams.open(peer(1)).unwrap()).collect();
        assert!(streams.open(peer(1)).unwrap_err().contains("this address"));
        let others: Vec<_> = (0..STREAMS_MAX - STREAMS_OF_ONE_MAX)
            .map(|number| streams.open(peer(2 + number as u8 % 4)).unwrap())
            .collect();
        assert!(streams.open(peer(9)).unwrap_err().contains("160 streams"));
        drop(of_one);
        assert!(streams.open(peer(1)).is_ok());
        drop(others);
        assert!(streams.table().is_empty());
    }
}
