//! Threads that the library starts in a server's process.

use std::ffi::c_void;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Enough for a loop, its events, and the thread-local data of libc and the server.
const STACK_BYTES: usize = 1 << 20;

/// Starts a thread with all signals blocked, since they are the server's: it inherits the
/// mask. Returns `false` if it could not be started.
pub(crate) fn spawn(serve: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    // SAFETY: all zeros are a set of signals.
    let mut all: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: the set may be written.
    unsafe { libc::sigfillset(&raw mut all) };
    let before = set_mask(&all);
    let has_started = spawn_detached(serve);
    set_mask(&before);
    has_started
}

/// Sets this thread's signal mask. Returns the mask before.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: all zeros are a set of signals.
    let mut before: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: one set is read and the other may be written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before) };
    before
}

fn spawn_detached(serve: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
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
    // SAFETY: the attributes were made, and the function takes no argument and uses only
    // statics.
    let failed = unsafe { libc::pthread_create(&raw mut thread, at, serve, null_mut()) };
    // SAFETY: the attributes were made and are not used again.
    unsafe { libc::pthread_attr_destroy(at) };
    failed == 0
}

/// Names the calling thread for tools that list threads.
pub(crate) fn set_name(name: &std::ffi::CStr) {
    // SAFETY: the name ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// No thread has been needed yet.
const NONE: u32 = 0;
/// A thread of the server starts it now.
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
/// The thread could not be started, or cannot do its work.
const FAILED: u32 = 3;

/// A thread that the first need starts, once in a process.
pub(crate) struct OnceThread(AtomicU32);

impl OnceThread {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(NONE))
    }

    /// Whether the thread runs; the first call starts it. `false` while another thread does.
    #[inline]
    pub(crate) fn is_running(&self, start: fn() -> bool) -> bool {
        match self.0.load(Ordering::Acquire) {
            RUNNING => true,
            NONE => self.start(start),
            _ => false,
        }
    }

    #[cold]
    fn start(&self, start: fn() -> bool) -> bool {
        let mine = self.0.compare_exchange(NONE, STARTING, Ordering::AcqRel, Ordering::Relaxed);
        if mine.is_err() {
            return self.0.load(Ordering::Acquire) == RUNNING;
        }
        let has_started = start();
        self.0.store(if has_started { RUNNING } else { FAILED }, Ordering::Release);
        has_started
    }

    /// Notes that the thread cannot do its work any more.
    pub(crate) fn fail(&self) {
        self.0.store(FAILED, Ordering::Release);
    }

    /// Forgets the thread in a child that `fork` made, which has none.
    pub(crate) fn after_fork(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_could_not_be_started_is_not_tried_again_but_after_a_fork() {
        let thread = OnceThread::new();
        assert!(!thread.is_running(|| false));
        assert!(!thread.is_running(|| panic!("it was tried again")));
        thread.after_fork();
        assert!(thread.is_running(|| true));
        thread.fail();
        assert!(!thread.is_running(|| true));
    }
}
