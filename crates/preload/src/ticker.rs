//! The thread that looks after connections of pools whose events are hidden.
//!
//! Threads of a pool do not park, so that none of them checks the gate at a deadline, as parked
//! workers do. While any event is hidden, this thread pumps the gate instead: it ends leases
//! and pauses, lets all connections go when the agent is silent, and arms those again that
//! another process has admitted. The first hidden event starts it; without hidden events it
//! sleeps.

use crate::parking::{self, WAKER};
use crate::{clock, page, pool, thread};
use lull_oncall::Page;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const NONE: u32 = 0;
const RUNNING: u32 = 1;
/// The thread could not be started: no event is hidden.
const FAILED: u32 = 2;
/// A thread starts it now: until it runs, no event is hidden.
const STARTING: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(NONE);

/// The time between two looks: a fifth of the shortest pause after which anybody would notice.
const TICK_NS: u64 = 5_000_000;
/// The same where the gate pauses between rounds for less.
const TICK_MIN_NS: u64 = 500_000;
/// The ticks in which each hidden connection is checked once for its client's end.
const HANG_UP_TICKS: u32 = 16;

/// Whether the thread runs; the first call starts it.
#[inline]
pub(crate) fn is_running() -> bool {
    match STATE.load(Ordering::Acquire) {
        RUNNING => true,
        NONE => start(),
        _ => false,
    }
}

#[cold]
fn start() -> bool {
    let mine = STATE.compare_exchange(NONE, STARTING, Ordering::AcqRel, Ordering::Relaxed);
    if mine.is_err() {
        return STATE.load(Ordering::Acquire) == RUNNING;
    }
    let has_started = thread::spawn(serve);
    STATE.store(if has_started { RUNNING } else { FAILED }, Ordering::Release);
    has_started
}

/// Forgets the thread in a child that `fork` made, which has none.
pub(crate) fn after_fork() {
    STATE.store(NONE, Ordering::Relaxed);
}

extern "C" fn serve(_: *mut c_void) -> *mut c_void {
    thread::set_name(c"lull-ticks");
    let Some(page) = page::get() else { return null_mut() };
    for round in (0..HANG_UP_TICKS).cycle() {
        pool::sleep_until_hidden();
        sleep(tick_ns(page));
        tick(page, round);
    }
    null_mut()
}

fn tick_ns(page: &Page) -> u64 {
    match page.control().settings().pause_ns() {
        0 => TICK_NS,
        pause_ns => pause_ns.clamp(TICK_MIN_NS, TICK_NS),
    }
}

fn tick(page: &Page, round: u32) {
    let gate = page.gate();
    // A process that died while it chose from the waiting connections may have lost one.
    pool::hidden().for_each(|id| gate.requeue(id));
    gate.release_expired(clock::now_ns(), &WAKER);
    for id in pool::hidden() {
        if gate.seat(id).is_none_or(|seat| !seat.is_waiting()) {
            // Admitted by another process, or hidden after it had been admitted.
            pool::wake(id);
        } else if id.0 % HANG_UP_TICKS == round
            && pool::descriptor(id).is_some_and(parking::is_hung_up)
        {
            // A disarmed connection does not report that its client has gone.
            gate.expel(id, &WAKER);
        }
    }
}

fn sleep(pause_ns: u64) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: pause_ns.cast_signed() };
    let (clock, none) = (libc::CLOCK_MONOTONIC, null::<c_void>());
    // SAFETY: a time that is read; the remaining time is not requested.
    unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, 0, &raw const pause, none) };
}
