//! A row for every interrupt, from the events of its core: the frames that it delivered, and
//! how the core slept since the interrupt before.
//!
//! Frames are those of the driver's polls on the core between an interrupt and the next. If
//! several devices interrupt a core, a poll counts for the latest interrupt. A sleep ends
//! when its interrupt begins. Local timers and calls between cores have no handler in the
//! kernel's sense and therefore no row; the sleeps that they end are counted.

use super::interrupts::{Event, Kind};
use lull_measure::Nanos;

/// One interrupt of a core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// When its handler began, by `CLOCK_MONOTONIC`.
    pub time: Nanos,
    /// The number in `/proc/interrupts`.
    pub interrupt: u32,
    /// The duration of the handler, once it has ended.
    pub handler: Option<Nanos>,
    /// Frames that were taken in until the next interrupt.
    pub frames: u64,
    /// Polls that took them in.
    pub polls: u64,
    /// Polls that used up their budget.
    pub full_polls: u64,
    /// Sleep since the interrupt before, by index of the idle state.
    pub idle: Vec<Nanos>,
}

/// Rows of all cores.
#[derive(Debug, Default)]
pub struct LogRows {
    cores: Vec<CoreRows>,
    capacity: usize,
    left_out: u64,
}

#[derive(Debug, Default)]
struct CoreRows {
    rows: Vec<Row>,
    /// The idle state that the core is in, and when it entered it.
    asleep: Option<(usize, Nanos)>,
    /// Sleep since the last interrupt, by state.
    idle: Vec<Nanos>,
    /// All rows are used: the last row is not the last interrupt.
    is_full: bool,
}

impl LogRows {
    /// Rows of the cores `0..cores`, at most `capacity` each.
    pub fn new(cores: usize, capacity: usize) -> Self {
        let cores = (0..cores).map(|_| CoreRows::default()).collect();
        Self { cores, capacity, left_out: 0 }
    }

    /// Adds the next event of any core.
    pub fn add(&mut self, event: &Event) {
        let Some(core) = self.cores.get_mut(usize::from(event.core.0)) else { return };
        match event.kind {
            Kind::Begin { interrupt } => {
                core.wake(event.time);
                self.left_out += u64::from(!core.begin(event.time, interrupt, self.capacity));
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
    pub fn rows(&self, core: usize) -> &[Row] {
        self.cores.get(core).map_or(&[], |core| &core.rows)
    }

    /// Interrupts that had no row left.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The number of idle states: one more than the highest index seen.
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

    /// Begins a row; `false` if none is left.
    fn begin(&mut self, time: Nanos, interrupt: u32, capacity: usize) -> bool {
        let idle = std::mem::take(&mut self.idle);
        self.is_full = self.rows.len() >= capacity;
        if !self.is_full {
            self.rows.push(Row { time, interrupt, idle, ..Row::default() });
        }
        !self.is_full
    }

    fn end(&mut self, time: Nanos, interrupt: u32) {
        let last = self.rows.last_mut().filter(|_| !self.is_full);
        if let Some(row) = last.filter(|row| row.interrupt == interrupt) {
            // A shared interrupt has several handlers: the row covers all of them.
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

    fn rows(capacity: usize, events: &[(u64, u16, Kind)]) -> LogRows {
        let mut rows = LogRows::new(2, capacity);
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
    fn a_row_has_the_handler_the_frames_and_the_sleep_before() {
        let seen = rows(
            10,
            &[
                (0, 0, Kind::Sleep { state: 2 }),
                (100, 0, Kind::Wake),
                (110, 0, Kind::Sleep { state: 0 }),
                // Woken by the interrupt, whose event precedes that of the wake-up.
                (150, 0, BEGIN),
                (151, 0, Kind::Poll { work: 7, budget: 64 }),
                (152, 1, Kind::Poll { work: 9, budget: 64 }),
                (153, 0, END),
                (154, 0, Kind::Wake),
                (160, 0, Kind::Poll { work: 64, budget: 64 }),
                (200, 0, BEGIN),
            ],
        );
        let [first, second] = seen.rows(0) else { panic!("{seen:?}") };
        assert_eq!((first.time, first.handler), (us(150), Some(us(3))));
        assert_eq!((first.frames, first.polls, first.full_polls), (71, 2, 1));
        assert_eq!(first.idle, [us(40), us(0), us(100)]);
        assert_eq!((&second.idle, second.handler), (&Vec::new(), None));
        assert_eq!((seen.rows(1).len(), seen.states()), (0, 3));
    }

    #[test]
    fn interrupts_without_a_row_are_counted_and_change_no_older_row() {
        let poll = Kind::Poll { work: 5, budget: 64 };
        let seen = rows(1, &[(1, 0, BEGIN), (2, 0, BEGIN), (3, 0, poll), (4, 0, END)]);
        assert_eq!((seen.rows(0).len(), seen.left_out()), (1, 1));
        assert_eq!((seen.rows(0)[0].frames, seen.rows(0)[0].handler), (0, None));
    }
}
