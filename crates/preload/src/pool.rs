//! Connections that a pool of threads serves: where each is armed, and which events are hidden.
//!
//! A pool (`pool-of-threads` of MariaDB) arms each connection in an epoll descriptor for one
//! event (`EPOLLONESHOT`), and any of its threads may get that event. A thread of a pool must
//! not wait at the gate, since other connections wait for it. Instead, the event of a connection
//! that has to wait is taken out of what `epoll_wait` returns: it is *hidden*. The kernel has
//! disarmed the connection by then, so that no other thread gets the event. The thread that
//! gives the connection a slot arms it again with the server's own words. Its query is still
//! unread, so that the kernel reports the event again, to any thread of the pool.
//!
//! ```text
//!   Served ──event──▶ Examined ──has a slot──▶ Served
//!                       │   ▲ └─admitted meanwhile─▶ Called ─┐
//!            must wait  │   └────────────────────────────────┘
//!                       ▼
//!                    Hidden ──admitted──▶ Arming ──▶ Armed ──event──▶ Examined
//! ```
//!
//! Each step is one atomic step on a word that also counts the steps, so that of two threads
//! one makes it. Where events carry the data of the server's, [`index`] finds the connection.

mod index;

use lull_oncall::{CONNECTIONS, Id};
use std::ffi::{c_int, c_long};
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The server has armed the connection, or one of its threads serves it.
const SERVED: u32 = 0;
/// A thread of the server has its event and is about to call the gate.
const EXAMINED: u32 = 1;
/// Its event is hidden.
const HIDDEN: u32 = 2;
/// The event was admitted while it was examined.
const CALLED: u32 = 3;
/// A thread arms it again.
const ARMING: u32 = 4;
/// The event was armed again.
const ARMED: u32 = 5;
const STATE_MASK: u32 = 0xff;
/// One step, above the bits of the state.
const STEP: u32 = 0x100;

/// `EpollArming::epoll`: the connection is in no epoll descriptor.
const NONE: c_int = -1;

/// The kind of thread that serves a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// A thread or a process of its own.
    Alone,
    /// Any thread of a pool, which gets one event at a time.
    Pool,
    /// A thread that serves many connections by an event loop.
    Loop,
}

/// How the server has armed a connection.
struct EpollArming {
    /// The state and the number of steps.
    word: AtomicU32,
    epoll: AtomicI32,
    fd: AtomicI32,
    events: AtomicU32,
    /// The `epoll_data` that the server gets with each event; 0 if there is none.
    data: AtomicU64,
}

impl EpollArming {
    const fn new() -> Self {
        Self {
            word: AtomicU32::new(SERVED),
            epoll: AtomicI32::new(NONE),
            fd: AtomicI32::new(NONE),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
        }
    }

    fn word(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Makes a step from a word that was read. Returns the new word; `None` if another thread
    /// has made one.
    fn step(&self, from: u32, to: u32) -> Option<u32> {
        let next = (from & !STATE_MASK).wrapping_add(STEP) | to;
        let done = self.word.compare_exchange(from, next, Ordering::AcqRel, Ordering::Relaxed);
        done.ok().map(|_| next)
    }

    /// Arms it again. Returns `false` if its descriptor was closed.
    fn arm(&self) -> bool {
        let mut event = libc::epoll_event {
            events: self.events.load(Ordering::Relaxed),
            u64: self.data.load(Ordering::Relaxed),
        };
        let (epoll, fd) = (self.epoll.load(Ordering::Relaxed), self.fd.load(Ordering::Relaxed));
        let operation = c_long::from(libc::EPOLL_CTL_MOD);
        // A direct system call, since `epoll_ctl` is a hook of this library.
        // SAFETY: one event, read only.
        unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) == 0 }
    }

    /// Takes the connection from the library, whatever its state. Returns whether its event was
    /// hidden. Waits for a thread that arms it right now: that is one system call.
    fn take_back(&self) -> bool {
        loop {
            let word = self.word();
            match word & STATE_MASK {
                SERVED => return false,
                // SAFETY: the call has no conditions.
                ARMING => drop(unsafe { libc::sched_yield() }),
                state => {
                    if self.step(word, SERVED).is_some() {
                        return state == HIDDEN;
                    }
                }
            }
        }
    }
}

static ARMINGS: [EpollArming; CONNECTIONS] = [const { EpollArming::new() }; CONNECTIONS];

/// The connections whose events are hidden, a bit for each, and their number.
static HIDDEN_SET: [AtomicU64; CONNECTIONS.div_ceil(64)] =
    [const { AtomicU64::new(0) }; CONNECTIONS.div_ceil(64)];
static HIDDEN_COUNT: AtomicU32 = AtomicU32::new(0);
/// Whether any connection was armed in an epoll descriptor.
static IS_USED: AtomicU32 = AtomicU32::new(0);

fn get(id: Id) -> Option<&'static EpollArming> {
    ARMINGS.get(id.index())
}

/// Whether the server has armed any connection in an epoll descriptor.
#[inline]
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed) != 0
}

/// Notes that the server is about to arm a connection. Returns the kind of thread that serves it
/// then.
pub(crate) fn server_arms(id: Id, fd: c_int, epoll: c_int, event: &libc::epoll_event) -> ServedBy {
    let (events, data) = (event.events, event.u64);
    let Some(arming) = get(id) else { return ServedBy::Alone };
    if arming.take_back() {
        unmark(id);
    }
    let is_known = arming.epoll.load(Ordering::Relaxed) == epoll
        && arming.fd.load(Ordering::Relaxed) == fd
        && arming.data.load(Ordering::Relaxed) == data;
    arming.events.store(events, Ordering::Relaxed);
    if !is_known {
        index::remove(id, arming.data.load(Ordering::Relaxed));
        arming.fd.store(fd, Ordering::Relaxed);
        arming.data.store(data, Ordering::Relaxed);
        arming.epoll.store(epoll, Ordering::Release);
        index::insert(id, data);
        IS_USED.store(1, Ordering::Relaxed);
    }
    let is_once = events & libc::EPOLLONESHOT.cast_unsigned() != 0;
    if is_once { ServedBy::Pool } else { ServedBy::Loop }
}

/// Forgets where a connection is armed: it is closed, or taken out of its epoll descriptor.
pub(crate) fn forget(id: Id) {
    let Some(arming) = get(id) else { return };
    if arming.take_back() {
        unmark(id);
    }
    if arming.epoll.swap(NONE, Ordering::AcqRel) != NONE {
        index::remove(id, arming.data.swap(0, Ordering::AcqRel));
    }
}

/// Returns the connection of an event, and its descriptor, if it is armed for one event at a
/// time in this epoll descriptor.
pub(crate) fn find(epoll: c_int, event: &libc::epoll_event) -> Option<(Id, c_int)> {
    let data = event.u64;
    let id = index::find(data, |id| is_armed(id, epoll, data))?;
    let arming = get(id)?;
    let is_once = arming.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT.cast_unsigned() != 0;
    is_once.then(|| (id, arming.fd.load(Ordering::Relaxed)))
}

/// Whether a connection is armed in this epoll descriptor.
pub(crate) fn is_armed_at(id: Id, epoll: c_int) -> bool {
    get(id).is_some_and(|arming| arming.epoll.load(Ordering::Acquire) == epoll)
}

/// Returns the descriptor with which a connection was armed.
pub(crate) fn descriptor(id: Id) -> Option<c_int> {
    get(id).map(|arming| arming.fd.load(Ordering::Relaxed))
}

fn is_armed(id: Id, epoll: c_int, data: u64) -> bool {
    let is_it = |arming: &EpollArming| {
        let is_there = arming.epoll.load(Ordering::Acquire) == epoll;
        is_there && arming.data.load(Ordering::Relaxed) == data
    };
    get(id).is_some_and(is_it)
}

/// Begins to examine a connection's event. Returns whether the event was hidden before; `None` if
/// another thread has the connection, so that the event must be shown.
pub(crate) fn examine(id: Id) -> Option<bool> {
    let arming = get(id)?;
    loop {
        let word = arming.word();
        let was_hidden = match word & STATE_MASK {
            SERVED => false,
            ARMING | ARMED => true,
            _ => return None,
        };
        if arming.step(word, EXAMINED).is_some() {
            return Some(was_hidden);
        }
    }
}

/// Ends the examination: the server gets the event.
pub(crate) fn show(id: Id) {
    if get(id).is_some_and(EpollArming::take_back) {
        // Another thread has hidden the event, since the server armed it in between.
        unmark(id);
    }
}

/// The result of hiding an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HideOutcome {
    /// The event is hidden until [`wake`].
    Hidden,
    /// Its connection was admitted meanwhile, and is examined further.
    Admitted,
    /// Its connection was closed meanwhile.
    Gone,
}

/// Ends the examination of a connection that has to wait.
pub(crate) fn hide(id: Id) -> HideOutcome {
    let Some(arming) = get(id) else { return HideOutcome::Gone };
    // Mark before the step, after which another thread may already end the wait.
    mark(id);
    let word = arming.word();
    if word & STATE_MASK == EXAMINED && arming.step(word, HIDDEN).is_some() {
        return HideOutcome::Hidden;
    }
    unmark(id);
    let word = arming.word();
    if word & STATE_MASK == HIDDEN {
        // Another thread has hidden the event, since the server armed it in between.
        mark(id);
    }
    let is_called = word & STATE_MASK == CALLED && arming.step(word, EXAMINED).is_some();
    if is_called { HideOutcome::Admitted } else { HideOutcome::Gone }
}

/// Notes that a connection was admitted or let go: arms it again if its event is hidden. Returns
/// `false` if it is no such connection.
pub(crate) fn wake(id: Id) -> bool {
    let Some(arming) = get(id).filter(|arming| arming.epoll.load(Ordering::Acquire) != NONE) else {
        return false;
    };
    loop {
        let word = arming.word();
        match word & STATE_MASK {
            EXAMINED => {
                if arming.step(word, CALLED).is_some() {
                    return true;
                }
            }
            HIDDEN => {
                if let Some(word) = arming.step(word, ARMING) {
                    unmark(id);
                    let next = if arming.arm() { ARMED } else { SERVED };
                    // A thread may have the event already.
                    arming.step(word, next);
                    return true;
                }
            }
            _ => return true,
        }
    }
}

/// Adds a connection to the hidden ones, and wakes the thread that serves them.
fn mark(id: Id) {
    let bit = 1 << (id.index() % 64);
    if HIDDEN_SET[id.index() / 64].fetch_or(bit, Ordering::AcqRel) & bit != 0 {
        return;
    }
    if HIDDEN_COUNT.fetch_add(1, Ordering::AcqRel) == 0 {
        let at = HIDDEN_COUNT.as_ptr();
        // SAFETY: a static word; at most one thread is woken.
        unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE, 1) };
    }
}

fn unmark(id: Id) {
    let bit = 1 << (id.index() % 64);
    if HIDDEN_SET[id.index() / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
        HIDDEN_COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the connections whose events are hidden.
pub(crate) fn hidden() -> impl Iterator<Item = Id> {
    HIDDEN_SET.iter().enumerate().flat_map(|(at, word)| {
        let mut left = word.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            left &= left.checked_sub(1)?;
            Some(Id(at as u32 * 64 + bit))
        })
    })
}

/// Sleeps until the event of a connection is hidden. Returns at once if one is.
pub(crate) fn sleep_until_hidden() {
    let (at, none) = (HIDDEN_COUNT.as_ptr(), null::<libc::timespec>());
    // SAFETY: a static word; no time-out.
    unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAIT, 0, none) };
}

/// Forgets all connections in a child that `fork` made: its parent's threads serve them.
pub(crate) fn after_fork() {
    if !is_used() {
        return;
    }
    HIDDEN_SET.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    HIDDEN_COUNT.store(0, Ordering::Relaxed);
    for arming in &ARMINGS {
        arming.epoll.store(NONE, Ordering::Relaxed);
        arming.word.store(SERVED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
