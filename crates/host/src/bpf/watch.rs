//! The programs of the gauges, attached, and what they have counted.

use super::buckets::Histogram;
use super::core_time::CoreTime;
use super::programs::{Maps, Record, Waiting};
use super::{Attached, BpfError, map};
use crate::monotonic;
use crate::sys::bpf::{self, Words};
use lull_measure::Nanos;
use std::io;
use std::os::fd::OwnedFd;

/// Sleeps of cores and waits of threads, counted from here until it is dropped.
#[derive(Debug)]
pub struct Watch {
    pub(super) programs: Vec<Attached>,
    records: Words,
    waiting: Words,
    cores: usize,
    /// The maps belong to the programs too; these are for whoever asks.
    _maps: [OwnedFd; 2],
}

/// What was counted by an instant, since the watch began.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// By core.
    pub cores: Vec<CoreSeen>,
    /// Waits that were begun and not kept, of all cores.
    pub lost: u64,
}

/// The same of one core.
#[derive(Debug, Clone, Default)]
pub struct CoreSeen {
    /// Its sleeps and time awake.
    pub time: CoreTime,
    /// Waits of threads that ended by running on it.
    pub waits: Histogram,
}

impl Watch {
    /// Begins to count on the cores `0..cores`.
    ///
    /// # Errors
    /// What the kernel refuses, and what is needed.
    pub fn begin(cores: usize) -> Result<Self, BpfError> {
        let (record_bytes, waiting_bytes) = (8 * Record::WORDS * cores, 8 * Waiting::WORDS);
        let records = map(bpf::memory(record_bytes as u32))?;
        let waiting = map(bpf::memory(waiting_bytes as u32))?;
        let mapped = |map: &OwnedFd, bytes: usize| {
            let what = "the memory of programs cannot be mapped";
            Words::of(map, bytes).map_err(|error| BpfError::new(what, error))
        };
        let (seen, waits) = (mapped(&records, record_bytes)?, mapped(&waiting, waiting_bytes)?);
        let maps = Maps { records: &records, waiting: &waiting, cores };
        let programs = vec![
            Attached::new("lull_sleep", &maps.sleep(), c"cpu_idle")?,
            Attached::new("lull_switch", &maps.switch(), c"sched_switch")?,
            Attached::new("lull_wake", &maps.wake(), c"sched_wakeup")?,
            Attached::new("lull_wake_new", &maps.wake(), c"sched_wakeup_new")?,
        ];
        Ok(Self { programs, records: seen, waiting: waits, cores, _maps: [records, waiting] })
    }

    /// All that was counted up to now.
    pub fn read(&self) -> Seen {
        let cores = (0..self.cores).map(|core| self.core(core)).collect();
        Seen { cores, lost: self.waiting.get(Waiting::LOST) }
    }

    /// The numbers that the kernel knows the programs by.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn program_ids(&self) -> io::Result<Vec<u32>> {
        self.programs.iter().map(Attached::id).collect()
    }

    /// From a record's first word to its last, as [`Record`] wants it, and the
    /// clock after them: nothing in it has happened later.
    fn core(&self, core: usize) -> CoreSeen {
        let word = |index: usize| self.records.get(core * Record::WORDS + index);
        let sleeps = Histogram::read(|index| word(Record::SLEEPS + index));
        let waits = Histogram::read(|index| word(Record::WAITS + index));
        let awake = Nanos(word(Record::AWAKE_NS));
        let since = |index| Some(Nanos(word(index))).filter(|since| *since > Nanos::ZERO);
        let awake_since = since(Record::AWAKE_SINCE);
        let asleep_since = since(Record::ASLEEP_SINCE);
        let time = CoreTime { sleeps, awake, awake_since, asleep_since, now: monotonic() };
        CoreSeen { time, waits }
    }
}
