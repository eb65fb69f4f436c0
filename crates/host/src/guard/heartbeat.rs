//! The heartbeat of an agent, by which its guard finds out that it is stuck or stopped.
//!
//! A beat is one byte on the pipe that is the guard's standard input: the number of wake-ups of
//! the guard for which the beat is good. The pipe exists already, needs no file, and ends with
//! either process. The guard wakes once a second and counts its own wake-ups, not the time: on
//! a machine that was suspended, agent and guard stand still alike, and no beat is missed.
//!
//! An agent that has never beaten is not judged. So a command that holds knobs and has no loop
//! (`lull hold`) is restored by its guard when it dies, and not when it is stopped.
//!
//! Work that was announced as long is waited for, unless the agent is stopped: a stopped process
//! waits for no disk, whatever it did when the signal arrived.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// The time between two wake-ups of the guard.
pub(super) const WAKE: Duration = Duration::from_secs(1);

/// How long an agent may take until its next beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Five wake-ups of the guard: while the loop waits, reads and decides.
    Usual,
    /// Sixty: for work that may wait for a disk or a program, such as writing the record, and
    /// for the caller's time between two epochs.
    Long,
    /// No limit until the next beat: the caller leaves the knobs as they are and measures for
    /// minutes. The guard acts on the agent's death alone.
    Unlimited,
}

impl Patience {
    /// The wake-ups of the guard for which a beat is good.
    pub(super) const fn wake_ups(self) -> u8 {
        match self {
            Self::Usual => 5,
            Self::Long => 60,
            Self::Unlimited => 0,
        }
    }
}

/// The guard's count of wake-ups since the last beat.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The wake-ups until the agent is regarded as stuck; `None` before the first beat.
    left: Option<u8>,
    /// The last wake-ups at which the agent was stopped.
    stopped: u8,
}

impl Pulse {
    /// Counts one wake-up, at which these beats had come. Returns whether the agent is stuck.
    pub(super) fn is_stuck_at_wake_up(&mut self, beats: &[u8], is_stopped: bool) -> bool {
        self.left = match beats.last() {
            Some(0) => None,
            Some(wake_ups) => Some(*wake_ups),
            None => self.left.map(|left| left.saturating_sub(1)),
        };
        let is_still = is_stopped && beats.is_empty();
        self.stopped = if is_still { self.stopped.saturating_add(1) } else { 0 };
        let is_stopped_long = self.stopped >= Patience::Usual.wake_ups();
        self.left.is_some_and(|left| left == 0 || is_stopped_long)
    }
}

/// Makes one end of the pipe return immediately where it would block.
pub(super) fn never_block(end: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&end)?;
    Ok(fcntl_setfl(&end, flags | OFlags::NONBLOCK)?)
}

/// Sends a beat. A full pipe holds beats already, and the guard of a closed one has ended,
/// which its exit status shows.
pub(super) fn send(pipe: impl AsFd, patience: Patience) {
    let _ = rustix::io::write(pipe, &[patience.wake_ups()]);
}

/// Returns the beats since the last call, the last ones if there are many.
pub(super) fn take(pipe: impl AsFd) -> Vec<u8> {
    let mut all = Vec::new();
    let mut bytes = [0; 256];
    loop {
        match rustix::io::read(&pipe, &mut bytes) {
            Ok(0) => return all,
            Ok(count) => all = bytes[..count].to_vec(),
            Err(Errno::INTR) => {}
            Err(_) => return all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    #[test]
    fn five_wake_ups_without_a_beat_are_stuck_and_any_beat_starts_again() {
        let mut pulse = Pulse::default();
        let usual = [Patience::Usual.wake_ups()];
        assert!((0..100).all(|_| !pulse.is_stuck_at_wake_up(&[], false)), "it has never beaten");
        for _ in 0..3 {
            assert!(!pulse.is_stuck_at_wake_up(&usual, false));
            assert!((0..4).all(|_| !pulse.is_stuck_at_wake_up(&[], false)));
        }
        assert!(pulse.is_stuck_at_wake_up(&[], false));
    }

    #[test]
    fn long_work_is_announced_and_the_last_beat_counts() {
        let mut pulse = Pulse::default();
        assert!(!pulse.is_stuck_at_wake_up(&[5, 60], false));
        assert!((0..59).all(|_| !pulse.is_stuck_at_wake_up(&[], false)));
        assert!(!pulse.is_stuck_at_wake_up(&[60, 5], false));
        assert!((0..4).all(|_| !pulse.is_stuck_at_wake_up(&[], false)));
        assert!(pulse.is_stuck_at_wake_up(&[], false));
        let mut pulse = Pulse::default();
        assert!(!pulse.is_stuck_at_wake_up(&[5, Patience::Unlimited.wake_ups()], false));
        assert!((0..1_000).all(|_| !pulse.is_stuck_at_wake_up(&[], false)));
    }

    #[test]
    fn an_agent_that_is_stopped_in_long_work_is_not_waited_for() {
        let mut pulse = Pulse::default();
        assert!(!pulse.is_stuck_at_wake_up(&[60], true));
        assert!((0..4).all(|_| !pulse.is_stuck_at_wake_up(&[], true)));
        assert!(!pulse.is_stuck_at_wake_up(&[], false), "it goes on");
        assert!((0..4).all(|_| !pulse.is_stuck_at_wake_up(&[], true)));
        assert!(pulse.is_stuck_at_wake_up(&[], true));
        let mut pulse = Pulse::default();
        assert!(!pulse.is_stuck_at_wake_up(&[Patience::Unlimited.wake_ups()], true));
        assert!((0..1_000).all(|_| !pulse.is_stuck_at_wake_up(&[], true)));
    }

    #[test]
    fn beats_cross_a_pipe_and_neither_end_ever_blocks() {
        let (reader, writer) = pipe().unwrap();
        never_block(&reader).unwrap();
        never_block(&writer).unwrap();
        assert_eq!(take(&reader), [0; 0]);
        (0..100_000).for_each(|_| send(&writer, Patience::Long));
        send(&writer, Patience::Usual);
        assert_eq!(take(&reader).last(), Some(&60), "the pipe was full before the last");
        send(&writer, Patience::Usual);
        assert_eq!(take(&reader), [5]);
        drop(writer);
        assert_eq!(take(&reader), [0; 0]);
    }
}
