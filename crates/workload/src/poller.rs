//! epoll with time-outs in nanoseconds.
//!
//! `epoll_wait` takes milliseconds, and mio and rustix round up to them, while a
//! client that sends 20,000 requests/s has 50 us between two. `epoll_pwait2`
//! takes nanoseconds from Linux 5.11 on; sleeping in `ppoll` on the epoll
//! descriptor does so everywhere, for one system call more (0.2 us).

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, Result};
use std::num::NonZeroU64;
use std::time::Duration;

/// Events taken at once.
const BATCH: usize = 256;

/// The events for which a socket is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Bytes to read.
    Read,
    /// Room to write, or the end of connecting.
    Write,
    /// Either event.
    Both,
    /// Bytes to read, once; then nothing until `change` re-arms it.
    ReadOnce,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::Both => EventFlags::IN | EventFlags::OUT,
            Self::ReadOnce => EventFlags::IN | EventFlags::ONESHOT,
        }
    }
}

/// A set of sockets to wait for, each with a number that the caller chooses.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

/// The events of one wait; the buffer is reused.
pub(crate) struct Events {
    list: Vec<Event>,
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// The socket's number.
    pub(crate) number: u64,
    /// Room to write, or connected, or failed.
    pub(crate) write: bool,
    /// Bytes to read, or closed, or failed.
    pub(crate) read: bool,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self { list: Vec::with_capacity(BATCH) }
    }

    /// Returns the event at an index of the list.
    pub(crate) fn get(&self, index: usize) -> Option<Ready> {
        let Event { flags, data } = *self.list.get(index)?;
        let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        Some(Ready {
            number: data.u64(),
            write: failed || flags.contains(EventFlags::OUT),
            read: failed || flags.contains(EventFlags::IN),
        })
    }
}

impl Poller {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    pub(crate) fn add(&self, socket: impl AsFd, number: u64, interest: Interest) -> Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(number), interest.flags())
    }

    pub(crate) fn change(&self, socket: impl AsFd, number: u64, interest: Interest) -> Result<()> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(number), interest.flags())
    }

    /// Waits until something happens or the time is over; a signal ends it early.
    pub(crate) fn wait(&self, events: &mut Events, at_most: Duration) -> Result<()> {
        events.list.clear();
        match self.sleep(at_most) {
            Ok(()) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error),
        }
        let list = spare_capacity(&mut events.list);
        match epoll::wait(&self.epoll, list, Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// An epoll descriptor is itself ready when one of its sockets is.
    fn sleep(&self, at_most: Duration) -> Result<()> {
        if at_most > Duration::ZERO {
            let timeout = Timespec::try_from(at_most).map_err(|_| Errno::INVAL)?;
            poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout))?;
        }
        Ok(())
    }
}

/// Lets the kernel end this thread's waits in time rather than up to 50 us late.
pub(crate) fn wake_exactly() -> Result<()> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn it_waits_for_the_requested_time_and_wakes_for_bytes() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::new());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        poller.add(&ours, 7, Interest::ReadOnce).unwrap();
        let short = Duration::from_nanos(1_500_001);
        let before = std::time::Instant::now();
        poller.wait(&mut events, short).unwrap();
        assert!(events.get(0).is_none() && before.elapsed() >= short);
        theirs.write_all(b"x").unwrap();
        poller.wait(&mut events, Duration::from_secs(60)).unwrap();
        let ready = events.get(0).unwrap();
        assert!(ready.number == 7 && ready.read && !ready.write);
        poller.wait(&mut events, Duration::ZERO).unwrap();
        assert!(events.get(0).is_none(), "a one-shot event was reported twice");
        poller.change(&ours, 7, Interest::ReadOnce).unwrap();
        poller.wait(&mut events, Duration::ZERO).unwrap();
        assert!(events.get(0).is_some());
    }
}
