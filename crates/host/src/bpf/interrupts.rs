//! A record of every interrupt, poll and sleep, as they come.
//!
//! Programs write 32 bytes an event into a ring buffer that we read now and
//! then, without being woken for it. Where it is full an event is lost and
//! counted: what is recorded costs no more than the buffer, and says what it
//! lacks.

use super::assembler::{Assembler, Do, Helper, If, R0, R1, R2, R3, R4, R6, R7, R8, R10, Register};
use super::{Attached, BpfError, map};
use crate::sys::bpf::{self, Instruction, RECORD_BYTES, Ring, Words};
use lull_control::CoreId;
use lull_measure::Nanos;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of the buffer: about 100,000 events.
const RING_BYTES: usize = 4 << 20;
/// `BPF_RB_NO_WAKEUP`: the reader looks by itself.
const NO_WAKE_UP: i32 = 1;
/// `cpu_idle` with this state is the end of a sleep (`PWR_EVENT_EXIT`).
const LEAVES: u32 = u32::MAX;
/// An argument that an event does not have.
const NOTHING: Option<i16> = None;

/// One event of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When, `CLOCK_MONOTONIC`.
    pub time: Nanos,
    /// Where.
    pub core: CoreId,
    /// What.
    pub kind: Kind,
}

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A handler of an interrupt of this number begins.
    Begin {
        /// As in `/proc/interrupts`.
        interrupt: u32,
    },
    /// It ends.
    End {
        /// As in `/proc/interrupts`.
        interrupt: u32,
        /// Whether its device had asked for it.
        handled: bool,
    },
    /// A network driver was polled.
    Poll {
        /// Frames that it took in.
        work: u32,
        /// Frames that it might have.
        budget: u32,
    },
    /// The core goes to sleep.
    Sleep {
        /// Index of the idle state.
        state: u32,
    },
    /// It wakes up.
    Wake,
}

/// A tracepoint, the number of its events in records, and the arguments kept.
struct Source {
    tracepoint: &'static CStr,
    name: &'static str,
    number: i32,
    arguments: [Option<i16>; 2],
}

const SOURCES: [Source; 4] = [
    Source {
        tracepoint: c"irq_handler_entry",
        name: "lull_irq_begin",
        number: 0,
        arguments: [Some(0), NOTHING],
    },
    Source {
        tracepoint: c"irq_handler_exit",
        name: "lull_irq_end",
        number: 1,
        arguments: [Some(0), Some(2)],
    },
    Source {
        tracepoint: c"napi_poll",
        name: "lull_poll",
        number: 2,
        arguments: [Some(1), Some(2)],
    },
    Source { tracepoint: c"cpu_idle", name: "lull_idle", number: 3, arguments: [Some(0), NOTHING] },
];

/// Events of a machine or of one core, from here until it is dropped.
#[derive(Debug)]
pub struct InterruptLog {
    ring: Ring,
    lost: Words,
    pub(super) programs: Vec<Attached>,
    _maps: [OwnedFd; 2],
}

impl InterruptLog {
    /// Begins to record, on one core or on all.
    ///
    /// # Errors
    /// What the kernel refuses, and what is needed.
    pub fn begin(only: Option<CoreId>) -> Result<Self, BpfError> {
        let (records, lost) = (map(bpf::ring(RING_BYTES as u32))?, map(bpf::memory(8))?);
        let unmapped = |error| BpfError::new("the ring buffer cannot be mapped", error);
        let ring = Ring::of(&records, RING_BYTES).map_err(unmapped)?;
        let words = Words::of(&lost, 8).map_err(unmapped)?;
        let attached = SOURCES.iter().map(|source| {
            let code = source.program((&records, &lost), only);
            Attached::new(source.name, &code, source.tracepoint)
        });
        let programs = attached.collect::<Result<_, _>>()?;
        Ok(Self { ring, lost: words, programs, _maps: [records, lost] })
    }

    /// The next event, in the order in which they were written.
    pub fn pop(&mut self) -> Option<Event> {
        let record = self.ring.pop()?;
        let [time, what, first, second] = record;
        let core = CoreId(what as u16);
        // Arguments of 32 bits come with their sign above.
        let (first, second) = (first as u32, second as u32);
        let kind = match what >> 32 {
            0 => Kind::Begin { interrupt: first },
            1 => Kind::End { interrupt: first, handled: second != 0 },
            2 => Kind::Poll { work: first, budget: second },
            _ if first == LEAVES => Kind::Wake,
            _ => Kind::Sleep { state: first },
        };
        Some(Event { time: Nanos(time), core, kind })
    }

    /// The numbers that the kernel knows the programs by.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn program_ids(&self) -> io::Result<Vec<u32>> {
        self.programs.iter().map(Attached::id).collect()
    }

    /// Events that found the buffer full, up to now.
    pub fn lost(&self) -> u64 {
        self.lost.get(0)
    }
}

impl Source {
    fn program(
        &self,
        (records, lost): (&OwnedFd, &OwnedFd),
        only: Option<CoreId>,
    ) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let out = asm.label();
        for (register, argument) in [R6, R7].into_iter().zip(self.arguments) {
            match argument {
                Some(index) => asm.load(register, R1, 8 * index),
                None => asm.set(register, 0),
            }
        }
        asm.call(Helper::Core);
        asm.set(R8, R0);
        if let Some(core) = only {
            asm.jump_if(R8, If::NotEqual, i32::from(core.0), out);
        }
        asm.call(Helper::Now);
        self.record(&mut asm, [R0, R8, R6, R7]);
        asm.set_map(R1, records);
        asm.call(Helper::WriteRecord);
        asm.jump_if(R0, If::Equal, 0, out);
        asm.set_value(R1, lost);
        asm.set(R2, 1);
        asm.increase_shared(R1, 0, R2);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// The record on the stack, and all arguments of the helper but the map.
    fn record(&self, asm: &mut Assembler, [now, core, first, second]: [Register; 4]) {
        const BEGIN: i16 = -(RECORD_BYTES as i16);
        asm.store(R10, BEGIN, now);
        asm.set(R2, self.number);
        asm.compute(R2, Do::ShiftLeft, 32);
        asm.compute(R2, Do::Add, core);
        asm.store(R10, BEGIN + 8, R2);
        asm.store(R10, BEGIN + 16, first);
        asm.store(R10, BEGIN + 24, second);
        asm.set(R2, R10);
        asm.compute(R2, Do::Add, i32::from(BEGIN));
        asm.set(R3, RECORD_BYTES as i32);
        asm.set(R4, NO_WAKE_UP);
    }
}
