//! Threads that the server creates: one that a dispatched thread starts is not bound to its core.
//!
//! A thread begins with the cores of its creator, and no agent knows it. A server's background
//! threads, which a worker may start, would stay for ever on the core that the worker had.

use crate::cores;
use crate::page;
use crate::real::real;
use std::alloc::{Layout, alloc};
use std::ffi::{c_int, c_void};
use std::mem::zeroed;

/// The start routine of a thread. It may end by `pthread_exit`, which unwinds its stack: for
/// that it is not `extern "C-unwind"`, as the rules in `lib.rs` say.
pub type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// A thread that is about to begin.
struct ThreadStart {
    cores: libc::cpu_set_t,
    start: Start,
    argument: *mut c_void,
}

/// `pthread_create(3)`: a thread that a dispatched one starts is not bound to its core.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        Start,
        *mut c_void,
    ) -> c_int;
    let real = real!(c"pthread_create" as Create);
    let create = |start, argument| {
        // SAFETY: the caller's own call, passed on.
        unsafe { real(thread, attributes, start, argument) }
    };
    // SAFETY: as the manual page requires.
    match unsafe { cores_for(attributes) } {
        Some(cores) => create_on(cores, start, argument, create),
        None => create(start, argument),
    }
}

/// Creates a thread that begins with these cores, by `create`.
fn create_on(
    cores: libc::cpu_set_t,
    start: Start,
    argument: *mut c_void,
    create: impl FnOnce(Start, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: a `ThreadStart` has a size.
    let birth = unsafe { alloc(Layout::new::<ThreadStart>()) }.cast::<ThreadStart>();
    if birth.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: it was allocated for a `ThreadStart`.
    unsafe { birth.write(ThreadStart { cores, start, argument }) };
    let failed = create(begin, birth.cast());
    if failed != 0 {
        // SAFETY: no thread began that would have taken it.
        drop(unsafe { Box::from_raw(birth) });
    }
    failed
}

/// The cores with which a thread has to begin that this one creates, if it may be dispatched: those
/// that this one had before it was, unless the attributes name others.
///
/// # Safety
/// `attributes` is null or valid.
unsafe fn cores_for(attributes: *const libc::pthread_attr_t) -> Option<libc::cpu_set_t> {
    page::get().filter(|page| page.header().is_dispatched())?;
    // SAFETY: as the caller promises.
    cores::own().filter(|_| unsafe { !names_cores(attributes) })
}

/// Whether attributes of a thread name its cores. Without any, libc answers with all ones.
///
/// # Safety
/// `attributes` is null or valid.
unsafe fn names_cores(attributes: *const libc::pthread_attr_t) -> bool {
    if attributes.is_null() {
        return false;
    }
    // SAFETY: all zeros are a set of cores.
    let mut cores: libc::cpu_set_t = unsafe { zeroed() };
    let length = size_of::<libc::cpu_set_t>();
    // SAFETY: the attributes are valid, and the set may be written.
    let failed = unsafe { libc::pthread_attr_getaffinity_np(attributes, length, &raw mut cores) };
    // SAFETY: a set of cores.
    let is_part = || unsafe { libc::CPU_COUNT(&cores) } < libc::CPU_SETSIZE;
    // The call fails for a core that the set cannot hold.
    failed != 0 || is_part()
}

/// The first function of a thread that a dispatched one has started.
///
/// # Safety
/// `birth` is a [`ThreadStart`] that its creator has given away to this thread.
unsafe extern "C" fn begin(birth: *mut c_void) -> *mut c_void {
    // SAFETY: `create_on` has given it away to this thread alone.
    let ThreadStart { cores, start, argument } =
        *unsafe { Box::from_raw(birth.cast::<ThreadStart>()) };
    cores::give(&cores);
    // SAFETY: the creator's own function and argument. Nothing here has a destructor, so that
    // `start` may unwind through this.
    unsafe { start(argument) }
}

#[cfg(test)]
mod tests;
