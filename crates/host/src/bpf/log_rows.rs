//! From events to a row for every interrupt: what it brought, and how the core
//! slept since the one before.
//!
//! Frames are those of the driver's polls on the core from an interrupt to the
//! next: with interrupts of several devices on a core, of whichever was last.
//! A sleep ends where its interrupt begins. Local timers and calls between
//! cores have no handler in the kernel's sense and so no row; the sleeps that
//! they end count all the same.

use super::interrupts::{Event, Kind};
use lull_measure::Nanos;

/// One interrupt of a core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// When its handler began, `CLOCK_MONOTONIC`.
    pub time: Nanos,
    /// Its number, as in `/proc/interrupts`.
    pub interrupt: u32,
    /// How long the handler took, once it has ended.
    pub handler: Option<Nanos>,
    /// Frames that were taken in until the next one.
    pub frames: u64,
    /// Polls that took them in.
    pub polls: u64,
    /// Polls that took in as many as they might.
    pub full_polls: u64,
    /// Sleep since the interrupt before, by idle state.
    pub idle: Vec<Nanos>,
}

/// Rows of all cores.
#[derive(Debug, Default)]
pub struct LogRows {
    cores: Vec<CoreRows>,
    most: usize,
    left_out: u64,
}

#[derive(Debug, Default)]
struct CoreRows {
    rows: Vec<Row>,
    /// The idle state that the core is in, and since when.
    asleep: Option<(usize, Nanos)>,
    /// Sleep since the last interrupt, by state.
    idle: Vec<Nanos>,
    /// The room is used up: the last row is not the last interrupt.
    is_full: bool,
}

impl LogRows {
    /// Rows of the cores `0..cores`, so many each at most.
    pub fn new(cores: usize, most: usize) -> Self {
        let cores = (0..cores).map(|_| CoreRows::default()).collect();
        Self { cores, most, left_out: 0 }
    }

    /// Takes in the next event of some core.
    pub fn add(&mut self, event: &Event) {
        let Some(core) = self.cores.get_mut(usize::from(event.core.0)) else { return };
        match event.kind {
            Kind::Begin { interrupt } => {
                core.wake(event.time);
                self.left_out += u64::from(!core.begin(event.time, interrupt, self.most));
            }
            Kind::End { interrupt, .. } => core.end(event.time, interrupt),
            Kind::Poll { work, budget } => core.poll(work, budget),
            Kind::Sleep { state } => {
                core.wake(event.time);
                core.asleep = Some((state as usize, event.time));
            }
            Kind::Wake => core.wake(event.time),
        }
    }

    /// The rows of a core.
    pub fn of(&self, core: usize) -> &[Row] {
        self.cores.get(core).map_or(&[], |core| &core.rows)
    }

    /// Interrupts beyond the rows that there is room for.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Idle states that were seen: one more than the highest index.
    pub fn states(&self) -> usize {
        let rows = self.cores.iter().flat_map(|core| &core.rows);
        rows.map(|row| row.idle.len()).max().unwrap_or_default()
    }
}

impl CoreRows {
    fn wake(&mut self, now: Nanos) {
        let Some((state, since)) = self.asleep.take() else { return };
        if self.idle.len() <= state {
            self.idle.resize(state + 1, Nanos::ZERO);
        }
        self.idle[state] += now.saturating_sub(since);
    }

    /// Whether there was room for the row.
    fn begin(&mut self, time: Nanos, interrupt: u32, most: usize) -> bool {
        let idle = std::mem::take(&mut self.idle);
        self.is_full = self.rows.len() >= most;
        if !self.is_full {
            self.rows.push(Row { time, interrupt, idle, ..Row::default() });
        }
        !self.is_full
    }

    fn end(&mut self, time: Nanos, interrupt: u32) {
        let last = self.rows.last_mut().filter(|_| !self.is_full);
        if let Some(row) = last.filter(|row| row.interrupt == interrupt) {
            // A shared interrupt has several handlers: all together.
            row.handler = Some(time.saturating_sub(row.time));
        }
    }

    fn poll(&mut self, work: u32, budget: u32) {
        let last = self.rows.last_mut().filter(|_| !self.is_full);
        let Some(row) = last else { return };
        row.frames += u64::from(work);
        row.polls += 1;
        row.full_polls += u64::from(work >= budget && budget > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::CoreId;

    fn rows(most: usize, events: &[(u64, u16, Kind)]) -> LogRows {
        let mut rows = LogRows::new(2, most);
        for (time_us, core, kind) in events {
            rows.add(&Event {
                time: Nanos::from_micros(*time_us),
                core: CoreId(*core),
                kind: *kind,
            });
        }
        rows
    }

    const BEGIN: Kind = Kind::Begin { interrupt: 9 };
    const END: Kind = Kind::End { interrupt: 9, handled: true };

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    #[test]
    fn an_interrupt_has_its_handler_its_frames_and_the_sleep_before_it() {
        let seen = rows(
            10,
            &[
                (0, 0, Kind::Sleep { state: 2 }),
                (100, 0, Kind::Wake),
                (110, 0, Kind::Sleep { state: 0 }),
                // Woken by the interrupt, which is told first here.
                (150, 0, BEGIN),
                (151, 0, Kind::Poll { work: 7, budget: 64 }),
                (152, 1, Kind::Poll { work: 9, budget: 64 }),
                (153, 0, END),
                (154, 0, Kind::Wake),
                (160, 0, Kind::Poll { work: 64, budget: 64 }),
                (200, 0, BEGIN),
            ],
        );
        let [first, second] = seen.of(0) else { panic!("{seen:?}") };
        assert_eq!((first.time, first.handler), (us(150), Some(us(3))));
        assert_eq!((first.frames, first.polls, first.full_polls), (71, 2, 1));
        assert_eq!(first.idle, [us(40), us(0), us(100)]);
        assert_eq!((&second.idle, second.handler), (&Vec::new(), None));
        assert_eq!((seen.of(1).len(), seen.states()), (0, 3));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_brings_nothing_to_older_rows() {
        let poll = Kind::Poll { work: 5, budget: 64 };
        let seen = rows(1, &[(1, 0, BEGIN), (2, 0, BEGIN), (3, 0, poll), (4, 0, END)]);
        assert_eq!((seen.of(0).len(), seen.left_out()), (1, 1));
        assert_eq!((seen.of(0)[0].frames, seen.of(0)[0].handler), (0, None));
    }
}
