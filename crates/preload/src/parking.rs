//! How a worker sleeps until its gate entry changes, and how it is woken.

use crate::real::errno;
use crate::signals::{self, SleepEnd};
use crate::{clock, page, pool};
use lull_oncall::sync::AtomicU32 as Word;
use lull_oncall::{GateEntry, Id, Park, Verdict, Wake};
use std::ffi::{c_int, c_short};
use std::ptr::null;

/// Sleeping and waking over words that processes share.
pub(crate) struct Parking {
    /// The worker's own socket, watched for a hang-up.
    pub(crate) fd: c_int,
    /// The connection of the worker that sleeps, if a signal wakes it.
    pub(crate) by_signal: Option<Id>,
    /// When the worker stops waiting by itself ([`crate::timer`]).
    pub(crate) leaves_ns: u64,
}

/// A `Parking` for callers that only wake workers.
pub(crate) const WAKER: Parking = Parking { fd: -1, by_signal: None, leaves_ns: u64::MAX };

impl Wake for Parking {
    fn wake(&self, id: Id, entry: &GateEntry) {
        if pool::wake(id) {
            return;
        }
        if signals::wake(id) {
            if let Some(page) = page::get() {
                page.control().count_signal();
            }
            return;
        }
        let (word, _) = entry.word();
        // SAFETY: the word is in the page, which stays mapped; at most one is woken.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

impl Park for Parking {
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn wait(&self, word: &Word, value: u32, until_ns: u64) -> Verdict {
        let until_ns = until_ns.min(self.leaves_ns);
        let by_signal = self.by_signal.and_then(|id| signals::wait(id, word, value, until_ns));
        match by_signal.unwrap_or_else(|| wait_for_change(word, value, until_ns)) {
            SleepEnd::Woken => Verdict::Stay,
            SleepEnd::TimedOut if self.is_hung_up() || self.is_due() => Verdict::Leave,
            SleepEnd::TimedOut => Verdict::Stay,
            // A signal's sender requires this worker to act; and where the kernel lacks the call, a
            // worker must not wait.
            SleepEnd::Interrupted => Verdict::Leave,
        }
    }
}

/// Sleeps by futex while the word holds this value.
fn wait_for_change(word: &Word, value: u32, until_ns: u64) -> SleepEnd {
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
        return SleepEnd::Woken;
    }
    match errno() {
        libc::ETIMEDOUT => SleepEnd::TimedOut,
        libc::EAGAIN => SleepEnd::Woken,
        _ => SleepEnd::Interrupted,
    }
}

impl Parking {
    fn is_due(&self) -> bool {
        self.leaves_ns != u64::MAX && clock::now_ns() >= self.leaves_ns
    }

    /// Whether the client has closed the connection.
    fn is_hung_up(&self) -> bool {
        is_hung_up(self.fd)
    }
}

/// Whether the client at the other end of a descriptor has closed it.
pub(crate) fn is_hung_up(fd: c_int) -> bool {
    const GONE: c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
    let mut what = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (at, now) = (&raw mut what, &raw const now);
    let none: *const libc::sigset_t = null();
    // A direct system call, since another library may have replaced `poll`, too.
    // SAFETY: one pollfd that may be written, a time that is read, no signals.
    let ready = unsafe { libc::syscall(libc::SYS_ppoll, at, 1, now, none, 0) };
    ready > 0 && what.revents & GONE != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_client_that_has_closed_is_found_and_one_that_waits_is_not() {
        let (client, server) = UnixStream::pair().unwrap();
        assert!(!is_hung_up(server.as_raw_fd()));
        drop(client);
        assert!(is_hung_up(server.as_raw_fd()));
    }
}
