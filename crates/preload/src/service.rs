//! Mode epoll: one service thread that polls the sockets of all workers that rest.
//!
//! A worker that would wait for its client parks instead, and its socket is armed here for
//! one event. All workers whose query has arrived when the thread polls form a round, which
//! the gate admits, C at a time; D after the end of the round the thread polls again. So the
//! cores are idle for D at a time, and no arrival wakes a worker (REEF, SoCC'25, section
//! 3.2).
//!
//! The first worker of a process that rests starts the thread. All signals are blocked in
//! it, since they are the server's. While workers that it called wait for a slot, it pumps
//! the gate, and so lets them go when the agent is silent.

use crate::parking::WAKER;
use crate::real::errno;
use crate::thread::{self, OnceThread};
use crate::{clock, connection, page, process};
use lull_oncall::{Id, Page};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

static THREAD: OnceThread = OnceThread::new();
static EPOLL: AtomicI32 = AtomicI32::new(NO_EPOLL);
/// The last time at which a worker began to rest.
static RESTED_NS: AtomicU64 = AtomicU64::new(0);

/// `EPOLL`: there is no descriptor.
const NO_EPOLL: c_int = -1;
/// Events that one call returns at most.
const EVENTS: usize = 256;
/// The time between two polls while a worker waits for a slot, in milliseconds.
const TICK_MS: c_int = 25;
const NO_TIMEOUT: c_int = -1;
/// The predicted length of a round rises by this share of the difference to a longer round,
const RISES: u64 = 4;
/// and falls by this share of the difference to a shorter one.
const FALLS: u64 = 16;
/// One event: a query, or the end of the connection.
const ONCE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT).cast_unsigned();

/// Whether the thread runs; the first call starts it.
pub(crate) fn is_running() -> bool {
    THREAD.is_running(start)
}

fn start() -> bool {
    // SAFETY: the call only makes a descriptor.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    EPOLL.store(epoll, Ordering::Release);
    epoll >= 0 && thread::spawn(serve)
}

/// Forgets the thread in a child that `fork` made, which has none.
pub(crate) fn after_fork() {
    THREAD.after_fork();
    let epoll = EPOLL.swap(NO_EPOLL, Ordering::Relaxed);
    if epoll >= 0 {
        // A direct system call, since `close` is a hook of this library.
        // SAFETY: the descriptor is this library's; the parent keeps its own.
        unsafe { libc::syscall(libc::SYS_close, epoll) };
    }
}

/// Arms the socket of a worker that rests from now on for one event. Returns `false` if that
/// fails.
pub(crate) fn arm(fd: c_int, id: Id, now_ns: u64) -> bool {
    RESTED_NS.store(now_ns, Ordering::Relaxed);
    let epoll = EPOLL.load(Ordering::Acquire);
    let set = |operation: c_int| {
        let mut event = libc::epoll_event { events: ONCE, u64: u64::from(id.0) };
        // A direct system call, since `epoll_ctl` is a hook of this library.
        // SAFETY: one event, read only.
        unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) == 0 }
    };
    // The socket is registered unless this is the connection's first rest.
    set(libc::EPOLL_CTL_MOD) || (errno() == libc::ENOENT && set(libc::EPOLL_CTL_ADD))
}

extern "C" fn serve(_: *mut c_void) -> *mut c_void {
    thread::set_name(c"lull-calls");
    let Some(page) = page::get() else { return null_mut() };
    let mut pauses = Pauses { round_ns: 0 };
    let mut polls = Polls { last_ns: clock::now_ns() };
    while let Some(arrived) = poll_round(page, &mut polls) {
        let settings = page.control().settings();
        if arrived > 0 && page.control().is_closed(clock::now_ns()) {
            page.control().count_called_round();
            pauses.pause(settings.isr_delay_ns);
        }
    }
    THREAD.fail();
    evict_all(page);
    null_mut()
}

/// The pauses between two polls.
struct Pauses {
    /// The predicted length of a round, from the poll to the last worker's rest. It is
    /// longer than most rounds, since a pause that a worker cuts short is lost.
    round_ns: u64,
}

impl Pauses {
    /// Sleeps until the round has ended and D has passed after it. The end is predicted,
    /// since a notification would cost another wake-up. At most D is waited for it: a
    /// server with longer rounds has no idle time to save.
    fn pause(&mut self, isr_delay_ns: u64) {
        let called_ns = clock::now_ns();
        sleep(isr_delay_ns + self.round_ns.min(isr_delay_ns));
        self.update(RESTED_NS.load(Ordering::Relaxed).saturating_sub(called_ns));
    }

    /// Updates the prediction by a round that took this long. It rises faster than it
    /// falls, so that one round in four or five is longer.
    fn update(&mut self, took_ns: u64) {
        if took_ns > self.round_ns {
            self.round_ns += (took_ns - self.round_ns) / RISES;
        } else {
            self.round_ns -= (self.round_ns - took_ns) / FALLS;
        }
    }
}

/// When the thread polled last.
struct Polls {
    last_ns: u64,
}

impl Polls {
    /// Notes that the thread is awake after a sleep or a wait. Returns when it last was.
    fn wake(&mut self, page: &Page) -> u64 {
        let now_ns = clock::now_ns();
        let before_ns = std::mem::replace(&mut self.last_ns, now_ns);
        if page.gate().active(now_ns) == 0 {
            let since_ns = RESTED_NS.load(Ordering::Relaxed).max(before_ns);
            page.control().add_idle_time(now_ns.saturating_sub(since_ns));
        }
        before_ns
    }
}

/// Polls the sockets and admits a round. Returns how many queries have arrived; `None` if
/// the sockets can no longer be polled.
fn poll_round(page: &Page, polls: &mut Polls) -> Option<usize> {
    let mut room = [const { MaybeUninit::uninit() }; EVENTS];
    // An event that is there at once occurred while the thread slept.
    let mut since_ns = polls.wake(page);
    let mut count = wait(&mut room, 0)?;
    if count == 0 {
        let has_waiters = page.gate().count_waiters() > 0;
        count = wait(&mut room, if has_waiters { TICK_MS } else { NO_TIMEOUT })?;
        polls.wake(page);
        since_ns = polls.last_ns;
    }
    let mut all = 0;
    loop {
        let now_ns = clock::now_ns();
        let arrivals = Arrivals { since_ns, now_ns };
        events(&room, count).iter().for_each(|event| arrivals.call_worker(page, event));
        all += count;
        if count < EVENTS {
            page.gate().release_expired(now_ns, &WAKER);
            return Some(all);
        }
        count = wait(&mut room, 0)?;
    }
}

/// The interval in which queries arrived.
struct Arrivals {
    since_ns: u64,
    now_ns: u64,
}

impl Arrivals {
    /// Makes the worker of a socket wait for a slot.
    fn call_worker(&self, page: &Page, event: &libc::epoll_event) {
        let id = Id(event.u64 as u32);
        // First, since the worker reads the time once it has read its query.
        connection::arrived(id, self.since_ns);
        page.gate().query_arrived(id, self.now_ns, &WAKER);
    }
}

type Room = [MaybeUninit<libc::epoll_event>; EVENTS];

/// Waits for events. Returns how many there are; `None` if the sockets can no longer be
/// polled.
fn wait(room: &mut Room, timeout_ms: c_int) -> Option<usize> {
    let (epoll, at) = (EPOLL.load(Ordering::Acquire), room.as_mut_ptr());
    let (most, mask) = (EVENTS as c_int, null::<c_void>());
    // A direct system call, since `epoll_wait` is a hook of this library.
    // SAFETY: there is room for that many events; the signal mask stays.
    let count =
        unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, at, most, timeout_ms, mask, 0_usize) };
    match usize::try_from(count) {
        Ok(count) => Some(count.min(EVENTS)),
        Err(_) if errno() == libc::EINTR => Some(0),
        Err(_) => None,
    }
}

/// Returns the events that a wait has filled in; `count` is its result for this room.
fn events(room: &Room, count: usize) -> &[libc::epoll_event] {
    // SAFETY: the kernel has filled that many.
    unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), count.min(EVENTS)) }
}

fn sleep(pause_ns: u64) {
    let pause = libc::timespec {
        tv_sec: (pause_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (pause_ns % 1_000_000_000).cast_signed(),
    };
    // SAFETY: a time that is read; the remaining time is not requested.
    unsafe {
        libc::syscall(
            libc::SYS_clock_nanosleep,
            libc::CLOCK_MONOTONIC,
            0,
            &raw const pause,
            null::<c_void>(),
        )
    };
}

/// Makes all workers of this process that rest wait on their sockets again.
fn evict_all(page: &Page) {
    let mine = page.records().filter(|(_, record)| record.pid() == process::pid());
    mine.for_each(|(id, _)| page.gate().evict(id, &WAKER));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_rounds_end_by_their_predicted_end_and_long_ones_are_forgotten() {
        let mut pauses = Pauses { round_ns: 0 };
        let mut state = 1_u64;
        let mut longer = 0;
        for round in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let took_ns = 100_000 + (state >> 33) % 400_000;
            longer += u32::from(round >= 1000 && took_ns > pauses.round_ns);
            pauses.update(took_ns);
        }
        assert!((100..400).contains(&longer), "{longer} of 1000");
        (0..100).for_each(|_| pauses.update(50_000));
        assert!(pauses.round_ns < 60_000, "{} ns", pauses.round_ns);
    }
}
