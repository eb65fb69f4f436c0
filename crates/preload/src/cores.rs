//! The cores of a thread that an agent dispatches: when the agent is silent, the thread takes back
//! those that its process had when it began.

use crate::connection::Connection;
use crate::real::keeping_errno;
use lull_oncall::Page;
use std::cell::Cell;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{addr_of, addr_of_mut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Age of the heartbeat from which on the agent is taken for dead; with an open gate it beats
/// once a second.
const SILENCE_NS: u64 = 3_000_000_000;

/// The cores of this process when the library was loaded. Written once, before other threads run.
static mut WHOLE: MaybeUninit<libc::cpu_set_t> = MaybeUninit::uninit();
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the thread has its cores back. Has no destructor, so that an access costs no more
    /// than its offset.
    static IS_FREE: Cell<bool> = const { Cell::new(false) };
}

/// Notes the cores of this process, before it has other threads.
pub(crate) fn load() {
    // SAFETY: all zeros are a set of cores.
    let mut whole: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the set may be written, and this is its size.
    let failed =
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut whole) };
    if failed == 0 {
        let place = addr_of_mut!(WHOLE);
        // SAFETY: no other thread runs yet.
        unsafe { place.write(MaybeUninit::new(whole)) };
        IS_KNOWN.store(true, Ordering::Release);
    }
}

impl Connection {
    /// Gives its thread its cores back, once, if the agent that dispatches it is silent.
    #[inline]
    pub(crate) fn leave_dead_dispatcher(&self, now_ns: u64) {
        if self.page.header().is_dispatched() {
            let beat_ns = self.page.control().heartbeat_ns();
            let is_silent = now_ns.abs_diff(beat_ns) > SILENCE_NS;
            if IS_FREE.with(|is_free| is_free.replace(is_silent)) != is_silent && is_silent {
                keeping_errno(take_back);
            }
        }
    }
}

/// Gives a thread of this library the cores of its process where workers are dispatched: it
/// inherits the single core of the worker that has started it, and no agent knows it.
pub(crate) fn free_own_thread(page: &Page) {
    if page.header().is_dispatched() {
        take_back();
    }
}

#[cold]
fn take_back() {
    if IS_KNOWN.load(Ordering::Acquire) {
        let whole = addr_of!(WHOLE).cast::<libc::cpu_set_t>();
        // SAFETY: the set was written before `IS_KNOWN`, and is never written again.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), whole) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores() -> libc::cpu_set_t {
        // SAFETY: all zeros are a set of cores.
        let mut set: libc::cpu_set_t = unsafe { zeroed() };
        // SAFETY: the set may be written, and this is its size.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        set
    }

    #[test]
    fn a_thread_takes_back_the_cores_that_its_process_had() {
        load();
        let before = cores();
        let count = std::thread::spawn(move || {
            // SAFETY: all zeros are a set of cores.
            let mut one: libc::cpu_set_t = unsafe { zeroed() };
            // SAFETY: `before` is a set of cores.
            let has = |core: &usize| unsafe { libc::CPU_ISSET(*core, &before) };
            let first = (0..1024).find(has).unwrap();
            // SAFETY: the core is within the set.
            unsafe { libc::CPU_SET(first, &mut one) };
            // SAFETY: a set of cores, and its size.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one) };
            take_back();
            // SAFETY: a set of cores.
            unsafe { libc::CPU_COUNT(&cores()) }
        });
        // SAFETY: a set of cores.
        assert_eq!(count.join().unwrap(), unsafe { libc::CPU_COUNT(&before) });
    }
}
