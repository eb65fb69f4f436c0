//! The cores of a thread that an agent dispatches.
//!
//! The agent moves only threads that have read a request. Before a thread shows its first one, it
//! notes the cores that it may use. It takes them back when the agent is silent, and a thread that
//! it starts begins with them ([`crate::creation`]).

use crate::page;
use crate::real::keeping_errno;
use lull_oncall::Page;
use std::cell::Cell;
use std::mem::zeroed;

/// Age of the heartbeat from which on the agent counts as dead; with an open gate it beats once a
/// second.
const SILENCE_NS: u64 = 3_000_000_000;

thread_local! {
    /// Whether the thread has its cores back. Has no destructor, so that an access costs no more
    /// than its offset.
    static IS_FREE: Cell<bool> = const { Cell::new(false) };
    /// The cores that the thread could use before an agent moved it; `None` before its first
    /// request.
    static OWN: Cell<Option<libc::cpu_set_t>> = const { Cell::new(None) };
}

/// Notes which cores this thread may use, before an agent can have seen a request of it.
#[inline]
pub(crate) fn note() {
    if own().is_none() {
        note_present();
    }
}

#[cold]
fn note_present() {
    OWN.set(Some(keeping_errno(present)));
}

/// The cores that this thread has noted.
#[inline]
pub(crate) fn own() -> Option<libc::cpu_set_t> {
    OWN.get()
}

/// Gives this thread its cores back, once, if the agent that dispatches it is silent.
#[inline]
pub(crate) fn leave_dead_dispatcher(page: &Page, now_ns: u64) {
    if page.header().is_dispatched() {
        let beat_ns = page.control().heartbeat_ns();
        let is_silent = now_ns.abs_diff(beat_ns) > SILENCE_NS;
        if IS_FREE.replace(is_silent) != is_silent && is_silent {
            take_back();
        }
    }
}

/// Gives the only thread of a child that `fork` made the cores of the thread that forked.
pub(crate) fn after_fork() {
    if page::get().is_some_and(|page| page.header().is_dispatched()) {
        take_back();
    }
}

#[cold]
fn take_back() {
    if let Some(own) = own() {
        keeping_errno(|| give(&own));
    }
}

/// The cores that this thread may use. None, which the kernel refuses to set, where it has more
/// than a set can hold: such a thread keeps the cores that it is given.
pub(crate) fn present() -> libc::cpu_set_t {
    // SAFETY: all zeros are a set of cores.
    let mut cores: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the set may be written, and this is its size.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut cores) };
    cores
}

/// Sets these cores unless the thread has them: one whose cores were never set follows its cpuset.
pub(crate) fn give(cores: &libc::cpu_set_t) {
    // SAFETY: two sets of cores.
    if !unsafe { libc::CPU_EQUAL(&present(), cores) } {
        set(cores);
    }
}

pub(crate) fn set(cores: &libc::cpu_set_t) {
    // SAFETY: a set of cores, and its size. A cgroup that has lost them all keeps its own.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cores) };
}

#[cfg(test)]
pub(crate) mod tests;
