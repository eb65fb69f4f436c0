//! Sleeps of cores and waits of threads, as the programs of `crates/host/bpf/cores.bpf.c`
//! count them.

use super::BpfError;
use super::buckets::{self, Histogram};
use super::core_time::CoreTime;
use super::object::{FreesTypes, Object};
use crate::monotonic;
use crate::sys::bpf::MappedWords;
use aya::EbpfLoader;
use lull_measure::Nanos;
use std::io;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/cores.bpf.o");

/// Indices of the 64-bit words of `struct core_record` in `cores.bpf.c`, where the fields
/// are explained: change both together.
struct Record;

impl Record {
    const SLEEPS: usize = 0;
    const WAITS: usize = buckets::WORDS;
    const AWAKE_NS: usize = 2 * buckets::WORDS;
    const AWAKE_SINCE: usize = Self::AWAKE_NS + 1;
    const ASLEEP_SINCE: usize = Self::AWAKE_NS + 2;
    const LOST: usize = Self::AWAKE_NS + 3;
    const WORDS: usize = 2 * buckets::WORDS + 8;
}

/// Sleeps of cores and waits of threads, counted from its creation until it is dropped.
#[derive(Debug)]
pub struct Watch {
    pub(super) object: Object,
    records: MappedWords,
    cores: usize,
}

/// The counts since the watch began.
#[derive(Debug, Clone, Default)]
pub struct WatchCounts {
    /// Counts of each core.
    pub cores: Vec<CoreCounts>,
    /// Waits of all cores that began and were dropped.
    pub lost: u64,
}

/// The counts of one core.
#[derive(Debug, Clone, Default)]
pub struct CoreCounts {
    /// Its sleeps and time awake.
    pub time: CoreTime,
    /// Waits of threads that ended by running on it.
    pub waits: Histogram,
}

impl Watch {
    /// Begins to count on the cores `0..cores`.
    ///
    /// # Errors
    /// The kernel's refusal, with the remedy.
    pub fn begin(cores: usize) -> Result<Self, BpfError> {
        let _freed = FreesTypes;
        let mut loader = EbpfLoader::new();
        let mut object =
            Object::load(loader.btf(None).map_max_entries("records", cores as u32), PROGRAMS)?;
        let records = object.mapped("records", Record::WORDS, cores)?;
        object.attach("lull_sleep", "cpu_idle")?;
        object.attach("lull_switch", "sched_switch")?;
        object.attach("lull_wake", "sched_wakeup")?;
        object.attach("lull_wake_new", "sched_wakeup_new")?;
        Ok(Self { object, records, cores })
    }

    /// Reads all that was counted up to now.
    pub fn read(&self) -> WatchCounts {
        let lost = |core: usize| self.records.get(core * Record::WORDS + Record::LOST);
        WatchCounts {
            cores: (0..self.cores).map(|core| self.core(core)).collect(),
            lost: (0..self.cores).map(lost).sum(),
        }
    }

    /// The kernel's identifiers of the programs.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn program_ids(&self) -> io::Result<Vec<u32>> {
        self.object.program_ids()
    }

    /// Reads a record from its first word to its last, as programs expect it, and the clock
    /// after them: nothing in the record happened later.
    fn core(&self, core: usize) -> CoreCounts {
        let word = |index: usize| self.records.get(core * Record::WORDS + index);
        let sleeps = Histogram::read(|index| word(Record::SLEEPS + index));
        let waits = Histogram::read(|index| word(Record::WAITS + index));
        let awake = Nanos(word(Record::AWAKE_NS));
        let since = |index| Some(Nanos(word(index))).filter(|since| *since > Nanos::ZERO);
        let awake_since = since(Record::AWAKE_SINCE);
        let asleep_since = since(Record::ASLEEP_SINCE);
        let time = CoreTime { sleeps, awake, awake_since, asleep_since, now: monotonic() };
        CoreCounts { time, waits }
    }
}
