//! The request to stop, which ends a wait immediately.

use lull_measure::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A request to stop, once made never taken back. Clones share it.
///
/// A byte in a pipe, so that it wakes a plant that waits for its epoch to
/// pass, and so that a signal handler can make it.
#[derive(Debug, Clone)]
pub struct Stop {
    ends: Arc<(OwnedFd, OwnedFd)>,
    /// Like `ends`; ends the present epoch early without a stop.
    nudge: Arc<(OwnedFd, OwnedFd)>,
}

/// What has ended a wait; nothing if its time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitEnd<const N: usize> {
    /// Whether a stop was requested.
    pub(super) is_requested: bool,
    /// Which of the other descriptors had an event.
    pub(super) events: [bool; N],
}

impl Stop {
    /// Returns a stop that has not been requested.
    ///
    /// # Errors
    /// If no pipe can be had.
    pub fn new() -> io::Result<Self> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map(Arc::new);
        Ok(Self { ends: pipe()?, nudge: pipe()? })
    }

    /// Requests the stop.
    pub fn request(&self) {
        // A full pipe holds a request already.
        let _ = rustix::io::write(&self.ends.1, b"s");
    }

    /// A descriptor for a signal handler: any byte written to it is a request.
    ///
    /// # Errors
    /// If it cannot be duplicated.
    pub fn waker(&self) -> io::Result<OwnedFd> {
        self.ends.1.try_clone()
    }

    /// A descriptor for a signal handler: a byte written to it is a nudge, which ends the
    /// present epoch early, so that its owner can attend to something.
    ///
    /// # Errors
    /// If it cannot be duplicated.
    pub fn nudger(&self) -> io::Result<OwnedFd> {
        self.nudge.1.try_clone()
    }

    /// Whether there was a nudge since the last call.
    pub fn take_nudge(&self) -> bool {
        let mut bytes = [0; 64];
        let mut any = false;
        while rustix::io::read(&self.nudge.0, &mut bytes).is_ok_and(|count| count > 0) {
            any = true;
        }
        any
    }

    /// Becomes readable by a nudge.
    pub(super) fn nudged(&self) -> &OwnedFd {
        &self.nudge.0
    }

    /// Returns whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.wait(Nanos::ZERO).unwrap_or(false)
    }

    /// Waits until a stop is requested or `span` has passed; returns whether a stop was
    /// requested. May return early.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn wait(&self, span: Nanos) -> io::Result<bool> {
        Ok(self.wait_beside(span, [])?.is_requested)
    }

    /// As [`Stop::wait`]; ends also when one of the descriptors has an event.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub(super) fn wait_beside<const N: usize>(
        &self,
        span: Nanos,
        others: [Option<&OwnedFd>; N],
    ) -> io::Result<WaitEnd<N>> {
        let given = std::iter::once(&self.ends.0).chain(others.into_iter().flatten());
        let mut all: Vec<_> = given.map(|one| PollFd::new(one, PollFlags::IN)).collect();
        let seconds = i64::try_from(span.0 / 1_000_000_000).unwrap_or(i64::MAX);
        let nanos = (span.0 % 1_000_000_000).cast_signed();
        match poll(&mut all, Some(&Timespec { tv_sec: seconds, tv_nsec: nanos })) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(WaitEnd { is_requested: false, events: [false; N] }),
            Err(error) => return Err(error.into()),
        }
        let mut ends = all.iter().map(|one| !one.revents().is_empty());
        let mut next = || ends.next().unwrap_or(false);
        let is_requested = next();
        Ok(WaitEnd { is_requested, events: others.map(|other| other.is_some() && next()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_a_long_wait_and_stays() {
        let stop = Stop::new().unwrap();
        assert!(!stop.is_requested());
        let other = stop.clone();
        let requesting = std::thread::spawn(move || other.request());
        while !stop.wait(Nanos::from_secs(3600)).unwrap() {}
        requesting.join().unwrap();
        assert!(stop.is_requested());
    }

    #[test]
    fn a_byte_of_a_signal_handler_is_a_request() {
        let stop = Stop::new().unwrap();
        rustix::io::write(stop.waker().unwrap(), b"x").unwrap();
        assert!(stop.is_requested());
    }

    #[test]
    fn a_nudge_is_taken_once_and_is_no_stop() {
        let stop = Stop::new().unwrap();
        assert!(!stop.take_nudge());
        rustix::io::write(stop.nudger().unwrap(), b"xx").unwrap();
        let end = stop.wait_beside(Nanos::from_secs(3600), [Some(stop.nudged())]).unwrap();
        assert_eq!(end, WaitEnd { is_requested: false, events: [true] });
        assert!(stop.take_nudge() && !stop.take_nudge() && !stop.is_requested());
    }

    #[test]
    fn a_wait_ends_with_the_events_of_those_that_were_awaited() {
        let stop = Stop::new().unwrap();
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (quiet, quiets_writer) = pipe();
        let (closed, _) = pipe();
        let wait = |others| stop.wait_beside(Nanos::from_millis(1), others).unwrap();
        let nothing = WaitEnd { is_requested: false, events: [false; 3] };
        assert_eq!(wait([Some(&quiet), None, None]), nothing);
        // The end of a pipe is an event, and one that is not awaited is none.
        assert_eq!(wait([None, Some(&quiet), Some(&closed)]).events, [false, false, true]);
        assert_eq!(wait([Some(&closed), None, Some(&quiet)]).events, [true, false, false]);
        rustix::io::write(&quiets_writer, b"x").unwrap();
        stop.request();
        let both = WaitEnd { is_requested: true, events: [false, false, true] };
        assert_eq!(wait([None, None, Some(&quiet)]), both);
    }

    #[test]
    fn any_number_of_requests_is_one() {
        let stop = Stop::new().unwrap();
        (0..100_000).for_each(|_| stop.request());
        assert!(stop.is_requested());
    }
}
