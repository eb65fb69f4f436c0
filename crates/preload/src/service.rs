//! Mode epoll: one thread that waits on the sockets of all workers that rest.
//!
//! A worker that would wait for its client parks instead, and its socket is
//! armed here for one event. All whose query has come when the thread looks at
//! the sockets are a round, and the gate admits them, C at a time; D after the
//! round's end it looks again. So the cores are left alone for D at a time, and
//! no arrival wakes a worker (REEF, SoCC'25, section 3.2).
//!
//! The thread is made by the first worker that rests, of each process anew. All
//! signals are blocked in it: they are the server's. It looks after those that
//! it has called: when the agent is silent it lets them go.

use crate::parking::WAKER;
use crate::real::errno;
use crate::{clock, page, process, watch};
use lull_oncall::{Id, Page};
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Nobody has rested yet.
const NONE: u32 = 0;
/// Somebody makes the thread just now.
const STARTING: u32 = 1;
const RUNS: u32 = 2;
/// It could not be made, or its descriptor was taken from it: nobody rests.
const FAILED: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(NONE);
static EPOLL: AtomicI32 = AtomicI32::new(NO_EPOLL);
/// When a worker began to rest last.
static RESTED_NS: AtomicU64 = AtomicU64::new(0);

/// There is no descriptor of the thread's.
const NO_EPOLL: c_int = -1;
/// Events that are taken at a time.
const EVENTS: usize = 256;
/// Time between two looks while somebody waits for a slot, in milliseconds.
const TICK_MS: c_int = 25;
const FOR_EVER: c_int = -1;
/// Shares of the difference by which the foreseen length of a round follows.
const RISES: u64 = 4;
const FALLS: u64 = 16;
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

/// Asks for one event of the socket of a worker that rests from now on; `false`
/// if none can be had.
pub(crate) fn arm(fd: c_int, id: Id, now_ns: u64) -> bool {
    RESTED_NS.store(now_ns, Ordering::Relaxed);
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
    let mut pauses = Pauses { round_ns: 0 };
    let mut looks = Looks { last_ns: clock::now_ns() };
    while let Some(came) = round(page, &mut looks) {
        let settings = page.control().settings();
        if came > 0 && page.control().is_closed(clock::now_ns()) {
            page.control().called();
            pauses.pause(settings.isr_delay_ns);
        }
    }
    STATE.store(FAILED, Ordering::Release);
    send_away(page);
    null_mut()
}

/// The rests between two looks.
struct Pauses {
    /// How long rounds take, from the look to the last worker's rest: more than
    /// most of them do, since a rest that is cut short of D is lost.
    round_ns: u64,
}

impl Pauses {
    /// Lets the round that was called come to its end, and D pass after it. The
    /// end is foreseen: to be told of it would take another wake-up. Rounds
    /// longer than D are not waited for; such a server has no idle times to save.
    fn pause(&mut self, isr_delay_ns: u64) {
        let called_ns = clock::now_ns();
        sleep(isr_delay_ns + self.round_ns.min(isr_delay_ns));
        self.ended(RESTED_NS.load(Ordering::Relaxed).saturating_sub(called_ns));
    }

    /// A round took so long. What is foreseen rises faster than it falls: one in
    /// four or five is longer.
    fn ended(&mut self, took_ns: u64) {
        if took_ns > self.round_ns {
            self.round_ns += (took_ns - self.round_ns) / RISES;
        } else {
            self.round_ns -= (self.round_ns - took_ns) / FALLS;
        }
    }
}

/// When the thread looked last.
struct Looks {
    last_ns: u64,
}

impl Looks {
    /// The thread is awake, after it slept or waited; when it was so before.
    fn awake(&mut self, page: &Page) -> u64 {
        let now_ns = clock::now_ns();
        let before_ns = std::mem::replace(&mut self.last_ns, now_ns);
        if page.gate().active(now_ns) == 0 {
            let since_ns = RESTED_NS.load(Ordering::Relaxed).max(before_ns);
            page.control().rested(now_ns.saturating_sub(since_ns));
        }
        before_ns
    }
}

/// One look at the sockets: how many queries have come; `None` if there are no
/// more looks to be had.
fn round(page: &Page, looks: &mut Looks) -> Option<usize> {
    let mut room = [const { MaybeUninit::uninit() }; EVENTS];
    // What is there already came while the thread slept.
    let mut since_ns = looks.awake(page);
    let mut count = wait(&mut room, 0)?;
    if count == 0 {
        let has_waiters = page.control().waiters() > 0;
        count = wait(&mut room, if has_waiters { TICK_MS } else { FOR_EVER })?;
        looks.awake(page);
        since_ns = looks.last_ns;
    }
    let mut all = 0;
    loop {
        let now_ns = clock::now_ns();
        taken(&room, count).iter().for_each(|event| came(page, event, since_ns, now_ns));
        all += count;
        if count < EVENTS {
            page.gate().relieve(now_ns, &WAKER);
            return Some(all);
        }
        count = wait(&mut room, 0)?;
    }
}

/// Something has come for a worker, not before this time.
fn came(page: &Page, event: &libc::epoll_event, since_ns: u64, now_ns: u64) {
    let id = Id(event.u64 as u32);
    // Before it may be called: it reads the time when it has read its query.
    watch::came(id, since_ns);
    page.gate().came(id, now_ns, &WAKER);
}

type Room = [MaybeUninit<libc::epoll_event>; EVENTS];

/// Waits for events: how many there are now; `None` if that cannot be done any more.
fn wait(room: &mut Room, patience_ms: c_int) -> Option<usize> {
    let (epoll, at) = (EPOLL.load(Ordering::Acquire), room.as_mut_ptr().cast());
    // SAFETY: there is room for that many events.
    let count = unsafe { libc::epoll_wait(epoll, at, EVENTS as c_int, patience_ms) };
    match usize::try_from(count) {
        Ok(count) => Some(count.min(EVENTS)),
        Err(_) if errno() == libc::EINTR => Some(0),
        Err(_) => None,
    }
}

/// The events that a wait has filled in: `count` is what it said of this room.
fn taken(room: &Room, count: usize) -> &[libc::epoll_event] {
    // SAFETY: the kernel has filled that many.
    unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), count.min(EVENTS)) }
}

/// Sleeps for a while.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_rounds_are_over_when_their_end_was_foreseen_and_long_ones_are_forgotten() {
        let mut pauses = Pauses { round_ns: 0 };
        let mut state = 1_u64;
        let mut longer = 0;
        for round in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let took_ns = 100_000 + (state >> 33) % 400_000;
            longer += u32::from(round >= 1000 && took_ns > pauses.round_ns);
            pauses.ended(took_ns);
        }
        assert!((100..400).contains(&longer), "{longer} of 1000");
        (0..100).for_each(|_| pauses.ended(50_000));
        assert!(pauses.round_ns < 60_000, "{} ns", pauses.round_ns);
    }
}
