//! Every interrupt, network poll and sleep, one by one, as the programs of
//! `crates/host/bpf/interrupts.bpf.c` record them.
//!
//! The programs write each event to a ring buffer, which we read from time to time without
//! being woken for it. If the buffer is full the event is lost and counted: recording takes
//! no more memory than the buffer, and reports what it lacks.

use super::BpfError;
use super::object::{FreesTypes, Object};
use crate::sys::bpf::MappedWords;
use aya::EbpfLoader;
use aya::maps::{MapData, RingBuf};
use lull_control::CoreId;
use lull_measure::Nanos;
use std::io;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/interrupts.bpf.o");

/// `cpu_idle` with this state is the end of a sleep (`PWR_EVENT_EXIT`).
const STATE_EXIT: u32 = u32::MAX;

/// One event of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When it happened, by `CLOCK_MONOTONIC`.
    pub time: Nanos,
    /// The core.
    pub core: CoreId,
    /// The event.
    pub kind: Kind,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A handler of an interrupt begins.
    Begin {
        /// The number in `/proc/interrupts`.
        interrupt: u32,
    },
    /// A handler of an interrupt ends.
    End {
        /// The number in `/proc/interrupts`.
        interrupt: u32,
        /// Whether its device had requested it.
        handled: bool,
    },
    /// A network driver was polled.
    Poll {
        /// Frames that it took in.
        work: u32,
        /// Frames that it was allowed to take in.
        budget: u32,
    },
    /// The core goes to sleep.
    Sleep {
        /// Index of the idle state.
        state: u32,
    },
    /// The core wakes up.
    Wake,
}

impl Event {
    /// Decodes `struct event` of `interrupts.bpf.c`.
    fn decode(record: &[u8]) -> Option<Self> {
        let (time, rest) = record.split_first_chunk()?;
        let ([core, kind, first, second], []) = rest.as_chunks() else { return None };
        let [core, kind, first, second] =
            [core, kind, first, second].map(|word| u32::from_ne_bytes(*word));
        let kind = match kind {
            0 => Kind::Begin { interrupt: first },
            1 => Kind::End { interrupt: first, handled: second != 0 },
            2 => Kind::Poll { work: first, budget: second },
            3 if first == STATE_EXIT => Kind::Wake,
            3 => Kind::Sleep { state: first },
            _ => return None,
        };
        Some(Self { time: Nanos(u64::from_ne_bytes(*time)), core: CoreId(core as u16), kind })
    }
}

/// Events of a machine or of one core, from its creation until it is dropped.
pub struct InterruptLog {
    events: RingBuf<MapData>,
    lost: MappedWords,
    pub(super) object: Object,
}

impl InterruptLog {
    /// Begins to record, on one core or on all.
    ///
    /// # Errors
    /// The kernel's refusal, with the remedy.
    pub fn begin(only: Option<CoreId>) -> Result<Self, BpfError> {
        let only = only.map_or(-1, |core| i32::from(core.0));
        let _freed = FreesTypes;
        let mut loader = EbpfLoader::new();
        loader.btf(None).override_global("only_core", &only, true);
        let mut object = Object::load(&mut loader, PROGRAMS)?;
        let lost = object.mapped("lost", 1, 1)?;
        let events = RingBuf::try_from(object.take_map("events")?);
        let events = events
            .map_err(|error| BpfError::from_aya("the ring buffer cannot be mapped", &error))?;
        object.attach("lull_irq_begin", "irq_handler_entry")?;
        object.attach("lull_irq_end", "irq_handler_exit")?;
        object.attach("lull_poll", "napi_poll")?;
        object.attach("lull_idle", "cpu_idle")?;
        Ok(Self { events, lost, object })
    }

    /// Takes the next event, in the order in which they were written.
    pub fn pop(&mut self) -> Option<Event> {
        let record = self.events.next()?;
        let event = Event::decode(&record);
        debug_assert!(event.is_some(), "a record that no program writes: {:?}", &*record);
        event
    }

    /// The kernel's identifiers of the programs.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn program_ids(&self) -> io::Result<Vec<u32>> {
        self.object.program_ids()
    }

    /// Events that found the buffer full, up to now.
    pub fn lost(&self) -> u64 {
        self.lost.get(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_layout_of_the_programs() {
        let record = |kind: u32, first: u32, second: u32| {
            let words = [7, kind, first, second].map(u32::to_ne_bytes);
            [&900_u64.to_ne_bytes()[..], words.as_flattened()].concat()
        };
        let event = |kind| Some(Event { time: Nanos(900), core: CoreId(7), kind });
        let decode = |kind, first, second| Event::decode(&record(kind, first, second));
        assert_eq!(decode(1, 33, 1), event(Kind::End { interrupt: 33, handled: true }));
        assert_eq!(decode(3, 2, 0), event(Kind::Sleep { state: 2 }));
        assert_eq!(decode(3, u32::MAX, 0), event(Kind::Wake));
        assert_eq!(decode(4, 0, 0), None);
        assert_eq!(Event::decode(&record(0, 1, 0)[1..]), None);
    }
}
