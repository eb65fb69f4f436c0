//! Real sockets in real epoll descriptors, hidden and armed again.

use super::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

const ONCE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT).cast_unsigned();

/// A connection in an epoll descriptor of its own, as a pool arms it.
struct Armed {
    id: Id,
    epoll: c_int,
    server: UnixStream,
    client: UnixStream,
}

impl Armed {
    fn new(id: u32) -> Self {
        let (client, server) = UnixStream::pair().unwrap();
        // SAFETY: the call only makes a descriptor.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let armed = Self { id: Id(id), epoll, server, client };
        armed.control(libc::EPOLL_CTL_ADD, ONCE);
        armed
    }

    fn data(&self) -> u64 {
        0x5555_0000_0000 + 64 * u64::from(self.id.0)
    }

    /// As the hook of `epoll_ctl` does for the server.
    fn control(&self, operation: c_int, events: u32) -> ServedBy {
        let mut event = libc::epoll_event { events, u64: self.data() };
        let served_by = server_arms(self.id, self.server.as_raw_fd(), self.epoll, &event);
        let (epoll, fd) = (self.epoll, self.server.as_raw_fd());
        // SAFETY: one event, read only.
        assert_eq!(unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) }, 0);
        served_by
    }

    /// Returns the event that the kernel has now.
    fn event(&self) -> Option<libc::epoll_event> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let count = unsafe { libc::epoll_wait(self.epoll, &raw mut event, 1, 0) };
        (count == 1).then_some(event)
    }

    fn is_hidden(&self) -> bool {
        hidden().any(|id| id == self.id)
    }

    /// Sends a query, and hides its event.
    fn hide(&self) {
        (&self.client).write_all(b"query").unwrap();
        let event = self.event().unwrap();
        assert_eq!(find(self.epoll, &event), Some((self.id, self.server.as_raw_fd())));
        assert_eq!(examine(self.id), Some(false));
        assert_eq!(hide(self.id), HideOutcome::Hidden);
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        forget(self.id);
        // SAFETY: the descriptor is this test's.
        unsafe { libc::close(self.epoll) };
    }
}

#[test]
fn a_connection_is_armed_in_its_own_epoll_descriptor_only() {
    let (one, other) = (Armed::new(108), Armed::new(109));
    assert!(is_armed_at(one.id, one.epoll) && !is_armed_at(one.id, other.epoll));
    assert_eq!(descriptor(one.id), Some(one.server.as_raw_fd()));
    forget(one.id);
    assert!(!is_armed_at(one.id, one.epoll));
}

#[test]
fn a_thread_that_shows_what_another_has_hidden_leaves_none_counted() {
    let armed = Armed::new(110);
    armed.hide();
    show(armed.id);
    assert!(!armed.is_hidden());
}

#[test]
fn a_hidden_event_is_reported_again_once_its_connection_is_admitted() {
    let armed = Armed::new(100);
    armed.hide();
    assert!(armed.event().is_none() && armed.is_hidden());
    assert!(wake(armed.id) && !armed.is_hidden());
    let event = armed.event().unwrap();
    let (events, data) = (event.events, event.u64);
    assert_eq!((events, data), (libc::EPOLLIN.cast_unsigned(), armed.data()));
    assert!(armed.event().is_none(), "reported once");
    assert_eq!(examine(armed.id), Some(true));
    show(armed.id);
    assert!(wake(armed.id) && armed.event().is_none(), "what is served is not armed");
    armed.control(libc::EPOLL_CTL_MOD, ONCE);
    assert!(armed.event().is_some(), "its bytes are still unread");
}

#[test]
fn a_connection_that_is_admitted_while_it_is_examined_is_not_hidden() {
    let armed = Armed::new(101);
    (&armed.client).write_all(b"query").unwrap();
    assert!(armed.event().is_some());
    assert_eq!(examine(armed.id), Some(false));
    assert_eq!(examine(armed.id), None, "one thread examines it");
    assert!(wake(armed.id));
    assert_eq!(hide(armed.id), HideOutcome::Admitted);
    assert!(!armed.is_hidden() && armed.event().is_none());
    assert_eq!(hide(armed.id), HideOutcome::Hidden, "it may have to wait after all");
}

#[test]
fn a_closed_connection_is_neither_found_nor_armed_again() {
    let armed = Armed::new(102);
    armed.hide();
    forget(armed.id);
    assert!(!armed.is_hidden() && !wake(armed.id));
    assert!(armed.event().is_none(), "its number may be another connection's by now");
    let event = libc::epoll_event { events: 1, u64: armed.data() };
    assert_eq!(find(armed.epoll, &event), None);
    assert_eq!(hide(armed.id), HideOutcome::Gone);
}

#[test]
fn only_a_connection_that_is_armed_for_one_event_at_a_time_is_found() {
    let armed = Armed::new(103);
    assert_eq!(armed.control(libc::EPOLL_CTL_MOD, ONCE), ServedBy::Pool);
    let event = libc::epoll_event { events: 1, u64: armed.data() };
    assert!(find(armed.epoll, &event).is_some());
    assert_eq!(find(armed.epoll + 1, &event), None, "an event of another descriptor");
    let always = libc::EPOLLIN.cast_unsigned();
    assert_eq!(armed.control(libc::EPOLL_CTL_MOD, always), ServedBy::Loop);
    assert_eq!(find(armed.epoll, &event), None);
}

#[test]
fn of_many_wakes_at_once_each_event_is_reported_exactly_once() {
    let armed = Armed::new(104);
    (&armed.client).write_all(b"query").unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    wake(armed.id);
                    std::thread::yield_now();
                }
            });
        }
        for _ in 0..1_000 {
            // The kernel reports it, since the threads arm it whenever it is hidden.
            while armed.event().is_none() {
                std::thread::yield_now();
            }
            assert!(examine(armed.id).is_some(), "another thread has its event");
            while hide(armed.id) != HideOutcome::Hidden {}
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(wake(armed.id));
}
