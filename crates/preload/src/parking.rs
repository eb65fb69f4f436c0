//! How a worker sleeps until its seat changes, and how it is woken.

use crate::real::errno;
use crate::{clock, page, signals};
use lull_oncall::sync::AtomicU32 as Word;
use lull_oncall::{Id, Park, Seat, Verdict, Wake};
use std::ffi::c_short;
use std::ptr::null;

/// Sleeping and waking over words that processes share.
pub(crate) struct Parking {
    /// The worker's own socket, watched for a hang-up.
    pub(crate) fd: libc::c_int,
    /// Whose worker sleeps, if a signal is to wake it.
    pub(crate) by_signal: Option<Id>,
}

/// For those who only wake others.
pub(crate) const WAKER: Parking = Parking { fd: -1, by_signal: None };

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Somebody woke it, or there was nothing to sleep for.
    Woken,
    /// Its time was up.
    Late,
    /// A signal came that somebody else sent, or the kernel does not know the call.
    Interrupted,
}

impl Wake for Parking {
    fn wake(&self, id: Id, seat: &Seat) {
        if signals::wake(id) {
            if let Some(page) = page::get() {
                page.control().signalled();
            }
            return;
        }
        let (word, _) = seat.word();
        // SAFETY: the word is in the page, which stays mapped; at most one is woken.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

impl Park for Parking {
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn wait(&self, word: &Word, value: u32, until_ns: u64) -> Verdict {
        let by_signal = self.by_signal.and_then(|id| signals::wait(id, word, value, until_ns));
        match by_signal.unwrap_or_else(|| wait_for_change(word, value, until_ns)) {
            Ended::Woken => Verdict::Stay,
            Ended::Late if self.is_hung_up() => Verdict::Leave,
            Ended::Late => Verdict::Stay,
            // Whoever sent the signal wants something of this worker; and without
            // such a call nobody may wait.
            Ended::Interrupted => Verdict::Leave,
        }
    }
}

/// Sleeps by futex while the word holds this value.
fn wait_for_change(word: &Word, value: u32, until_ns: u64) -> Ended {
    let until = libc::timespec {
        tv_sec: (until_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (until_ns % 1_000_000_000).cast_signed(),
    };
    let (at, operation) = (word.as_ptr(), libc::FUTEX_WAIT_BITSET);
    let (until, any) = (&raw const until, libc::FUTEX_BITSET_MATCH_ANY);
    let none: *const u32 = null();
    // SAFETY: the word stays mapped, and the time, absolute, is read only.
    let done = unsafe { libc::syscall(libc::SYS_futex, at, operation, value, until, none, any) };
    if done == 0 {
        return Ended::Woken;
    }
    match errno() {
        libc::ETIMEDOUT => Ended::Late,
        libc::EAGAIN => Ended::Woken,
        _ => Ended::Interrupted,
    }
}

impl Parking {
    fn is_hung_up(&self) -> bool {
        const GONE: c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        let mut what = libc::pollfd { fd: self.fd, events: libc::POLLRDHUP, revents: 0 };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (at, now) = (&raw mut what, &raw const now);
        let none: *const libc::sigset_t = null();
        // Not `poll`, in case somebody stands in its way too.
        // SAFETY: one pollfd that may be written, a time that is read, no signals.
        let ready = unsafe { libc::syscall(libc::SYS_ppoll, at, 1, now, none, 0) };
        ready > 0 && what.revents & GONE != 0
    }
}
