//! Room for exports that are received at once, in all and by client.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most exports that are received at once.
const ROOMS: usize = 8;
/// Most of one client.
const ROOMS_OF_ONE: usize = 2;
/// Most exports of one client that are received or wait for a room.
const EXPORTS_OF_ONE_MAX: usize = 32;

/// The room of one receiver.
#[derive(Debug)]
pub(super) struct Rooms {
    all: Arc<Semaphore>,
    clients: Mutex<BTreeMap<IpAddr, Client>>,
}

/// A client with exports.
#[derive(Debug)]
struct Client {
    room: Arc<Semaphore>,
    exports: usize,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(ROOMS)), clients: Mutex::default() }
    }
}

impl Rooms {
    /// Notes that a client has an export, until the returned entry is dropped.
    ///
    /// # Errors
    /// If it has too many.
    pub(super) fn enter(&self, address: IpAddr) -> Result<Entry<'_>, &'static str> {
        let mut clients = self.clients();
        let client = clients.entry(address).or_insert_with(|| {
            let room = Arc::new(Semaphore::new(ROOMS_OF_ONE));
            Client { room, exports: 0 }
        });
        if client.exports >= EXPORTS_OF_ONE_MAX {
            return Err("32 exports of this client are under way: send it again later");
        }
        client.exports += 1;
        Ok(Entry { rooms: self, address, room: Arc::clone(&client.room) })
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An export of a client.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    rooms: &'a Rooms,
    address: IpAddr,
    room: Arc<Semaphore>,
}

impl Entry<'_> {
    /// Waits for a room, of the client first: a client that waits for its own takes none of the
    /// others'. `None` would be a closed semaphore, and none is closed.
    pub(super) async fn wait(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        let own = Arc::clone(&self.room).acquire_owned().await.ok()?;
        let any = Arc::clone(&self.rooms.all).acquire_owned().await.ok()?;
        Some([own, any])
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut clients = self.rooms.clients();
        if let Some(client) = clients.get_mut(&self.address) {
            client.exports -= 1;
            if client.exports == 0 {
                clients.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    /// The room of an export, if it need not wait.
    fn room_of(entry: &Entry<'_>) -> Option<[OwnedSemaphorePermit; 2]> {
        match pin!(entry.wait()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => room,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_client_has_two_rooms_and_leaves_the_others_to_others() {
        let rooms = Rooms::default();
        let slow: Vec<Entry<'_>> = (0..8).map(|_| rooms.enter(address(1)).unwrap()).collect();
        let mut held: Vec<_> = slow.iter().filter_map(room_of).collect();
        assert_eq!(held.len(), ROOMS_OF_ONE);
        let other = rooms.enter(address(2)).unwrap();
        assert!(room_of(&other).is_some());
        held.pop();
        assert!(room_of(&slow[7]).is_some(), "its room is free again");
    }

    #[test]
    fn all_clients_together_have_eight_rooms() {
        let rooms = Rooms::default();
        let each = (0..10).map(|last| rooms.enter(address(last)).unwrap());
        let each: Vec<Entry<'_>> = each.collect();
        let mut held: Vec<_> = each.iter().filter_map(room_of).collect();
        assert_eq!(held.len(), ROOMS);
        held.pop();
        assert!(room_of(&each[9]).is_some());
    }

    #[test]
    fn the_exports_of_a_client_that_wait_are_bounded_and_a_client_without_any_is_forgotten() {
        let rooms = Rooms::default();
        let enter = |_| rooms.enter(address(1));
        let all: Result<Vec<_>, _> = (0..EXPORTS_OF_ONE_MAX).map(enter).collect();
        assert!(enter(0).unwrap_err().contains("32 exports"));
        assert!(rooms.enter(address(2)).is_ok());
        drop(all);
        assert!(enter(0).is_ok());
        assert!(rooms.clients().is_empty());
    }
}
