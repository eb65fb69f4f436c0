//! Mode epoll: one thread that waits on the sockets of all workers that rest.
//!
//! A worker that would wait for its client parks instead, and its socket is
//! armed here for one event. The thread looks at the sockets at most once every
//! D: all whose query has come by then are a round, and the gate admits them, C
//! at a time. So the cores are left alone for D at a time, and no arrival wakes
//! a worker (REEF, SoCC'25, section 3.2).
//!
//! The thread is made by the first worker that rests, of each process anew. All
//! signals are blocked in it: they are the server's. It looks after those that
//! it has called: when the agent is silent it lets them go.

use crate::parking::WAKER;
use crate::real::errno;
use crate::{page, process};
use lull_oncall::{Id, Page};
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Nobody has rested yet.
const NONE: u32 = 0;
/// Somebody makes the thread just now.
const STARTING: u32 = 1;
const RUNS: u32 = 2;
/// It could not be made, or its descriptor was taken from it: nobody rests.
const FAILED: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(NONE);
static EPOLL: AtomicI32 = AtomicI32::new(NO_EPOLL);

/// There is no descriptor of the thread's.
const NO_EPOLL: c_int = -1;
/// Events that are taken at a time.
const EVENTS: usize = 256;
/// Time between two looks while somebody waits for a slot, in milliseconds.
const TICK_MS: c_int = 25;
/// Enough for a loop, its events, and what libc and the server keep a thread.
const STACK_BYTES: usize = 1 << 20;
/// One event: a query, or the client's end.
const ONCE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT).cast_unsigned();

/// Whether there is a thread that calls; the first who asks makes it.
pub(crate) fn is_there() -> bool {
    match STATE.load(Ordering::Acquire) {
        RUNS => true,
        NONE => start(),
        _ => false,
    }
}

#[cold]
fn start() -> bool {
    let mine = STATE.compare_exchange(NONE, STARTING, Ordering::AcqRel, Ordering::Relaxed);
    if mine.is_err() {
        return false;
    }
    // SAFETY: it only makes a descriptor.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    EPOLL.store(epoll, Ordering::Release);
    let has_started = epoll >= 0 && spawn();
    STATE.store(if has_started { RUNS } else { FAILED }, Ordering::Release);
    has_started
}

/// Starts the thread, with all signals blocked: it inherits the mask.
fn spawn() -> bool {
    // SAFETY: all zeros are a set of signals.
    let mut all: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: the set may be written.
    unsafe { libc::sigfillset(&raw mut all) };
    let before = set_mask(&all);
    let has_started = spawn_detached();
    set_mask(&before);
    has_started
}

/// Sets this thread's mask of signals; what it was.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: all zeros are a set of signals.
    let mut before: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: one set is read and the other may be written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before) };
    before
}

fn spawn_detached() -> bool {
    let mut attributes = MaybeUninit::uninit();
    let at = attributes.as_mut_ptr();
    // SAFETY: the attributes may be written.
    if unsafe { libc::pthread_attr_init(at) } != 0 {
        return false;
    }
    // SAFETY: the attributes were made.
    unsafe { libc::pthread_attr_setdetachstate(at, libc::PTHREAD_CREATE_DETACHED) };
    // SAFETY: as above.
    unsafe { libc::pthread_attr_setstacksize(at, STACK_BYTES) };
    let mut thread = 0;
    // SAFETY: the attributes were made, and the function takes no argument and
    // touches only what is static.
    let failed = unsafe { libc::pthread_create(&raw mut thread, at, serve, null_mut()) };
    // SAFETY: the attributes were made, and are used no more.
    unsafe { libc::pthread_attr_destroy(at) };
    failed == 0
}

/// In a child that `fork` made: it has no such thread.
pub(crate) fn after_fork() {
    STATE.store(NONE, Ordering::Relaxed);
    let epoll = EPOLL.swap(NO_EPOLL, Ordering::Relaxed);
    if epoll >= 0 {
        // Not through our own hook.
        // SAFETY: the descriptor is this library's; the parent keeps its own.
        unsafe { libc::syscall(libc::SYS_close, epoll) };
    }
}

/// Asks for one event of a socket; `false` if none can be had.
pub(crate) fn arm(fd: c_int, id: Id) -> bool {
    let epoll = EPOLL.load(Ordering::Acquire);
    let set = |operation| {
        let mut event = libc::epoll_event { events: ONCE, u64: u64::from(id.0) };
        // SAFETY: one event, read only.
        unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) == 0 }
    };
    // It is there unless this is the connection's first rest.
    set(libc::EPOLL_CTL_MOD) || (errno() == libc::ENOENT && set(libc::EPOLL_CTL_ADD))
}

extern "C" fn serve(_: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"lull-calls".as_ptr()) };
    let Some(page) = page::get() else { return null_mut() };
    while let Some(came) = round(page) {
        let settings = page.control().settings();
        if came > 0 && page.control().is_closed(process::now_ns()) {
            sleep(settings.isr_delay_ns);
        }
    }
    STATE.store(FAILED, Ordering::Release);
    send_away(page);
    null_mut()
}

/// One look at the sockets: how many queries have come; `None` if there are no
/// more looks to be had.
fn round(page: &Page) -> Option<usize> {
    let gate = page.gate();
    let has_waiters = page.control().waiters() > 0;
    let mut all = 0;
    let mut patience_ms = if has_waiters { TICK_MS } else { -1 };
    loop {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let came = wait(&mut events, patience_ms)?;
        let now_ns = process::now_ns();
        for event in came {
            gate.came(Id(event.u64 as u32), now_ns, &WAKER);
        }
        all += came.len();
        if came.len() < EVENTS {
            gate.relieve(now_ns, &WAKER);
            return Some(all);
        }
        patience_ms = 0;
    }
}

type Room = [MaybeUninit<libc::epoll_event>; EVENTS];

/// Waits for events; `None` if that cannot be done any more.
fn wait(room: &mut Room, patience_ms: c_int) -> Option<&[libc::epoll_event]> {
    let (epoll, at) = (EPOLL.load(Ordering::Acquire), room.as_mut_ptr().cast());
    // SAFETY: there is room for that many events.
    let count = unsafe { libc::epoll_wait(epoll, at, EVENTS as c_int, patience_ms) };
    match usize::try_from(count) {
        // SAFETY: the kernel has filled that many.
        Ok(count) => Some(unsafe { std::slice::from_raw_parts(at, count.min(EVENTS)) }),
        Err(_) if errno() == libc::EINTR => Some(&[]),
        Err(_) => None,
    }
}

/// The rest between two looks.
fn sleep(pause_ns: u64) {
    let pause = libc::timespec {
        tv_sec: (pause_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (pause_ns % 1_000_000_000).cast_signed(),
    };
    // SAFETY: a time that is read; what is left of it is not asked for.
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

/// Nobody of this process is called any more: all wait on their sockets again.
fn send_away(page: &Page) {
    let mine = page.records().filter(|(_, record)| record.pid() == process::pid());
    mine.for_each(|(id, _)| page.gate().expel(id, &WAKER));
}
