//! The thread that looks after connections of pools whose events are hidden.
//!
//! Threads of a pool do not park, so that none of them checks the gate at a deadline, as parked
//! workers do. While any event is hidden, this thread pumps the gate instead: it ends leases
//! and pauses, lets all connections go when the agent is silent, and arms those again that
//! another process has admitted. The first hidden event starts it; without hidden events it
//! sleeps.

use crate::parking::{self, WAKER};
use crate::thread::{self, OnceThread};
use crate::{clock, page, pool};
use lull_oncall::Page;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

static THREAD: OnceThread = OnceThread::new();

/// The time between two looks: a fifth of the shortest pause that a worker would notice.
const TICK_NS: u64 = 5_000_000;
/// The same where the gate pauses between rounds for less.
const TICK_MIN_NS: u64 = 500_000;
/// The ticks in which each hidden connection is checked once for its client's end.
const HANG_UP_TICKS: u32 = 16;

/// Whether the thread runs; the first call starts it. No event is hidden until it runs.
#[inline]
pub(crate) fn is_running() -> bool {
    THREAD.is_running(|| thread::spawn(serve))
}

/// Forgets the thread in a child that `fork` made, which has none.
pub(crate) fn after_fork() {
    THREAD.after_fork();
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
        if gate.entry(id).is_none_or(|entry| !entry.is_waiting()) {
            // Admitted by another process, or hidden after it had been admitted.
            pool::wake(id);
        } else if id.0 % HANG_UP_TICKS == round
            && pool::descriptor(id).is_some_and(parking::is_hung_up)
        {
            // A disarmed connection does not report that its client has gone.
            gate.evict(id, &WAKER);
        }
    }
}

fn sleep(pause_ns: u64) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: pause_ns.cast_signed() };
    let (clock, none) = (libc::CLOCK_MONOTONIC, null::<c_void>());
    // SAFETY: a time that is read; the remaining time is not requested.
    unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, 0, &raw const pause, none) };
}
