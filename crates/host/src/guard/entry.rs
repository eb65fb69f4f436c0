//! The lines of a ledger: a checksum, a blank, and JSON.
//!
//! ```text
//! 1f0e3c77 {"boot":"5b6…","at_ticks":81230,"what":{"old":{"thread":{"tid":4711,…}}}}
//! ```
//!
//! The checksum is the CRC-32 of the JSON in eight hexadecimal digits. A line
//! without its newline was torn by a crash or a full disk; a line whose
//! checksum differs was damaged later. Neither costs more than itself. Each
//! line says of which boot it is, so that no value is restored after a reboot,
//! whatever line is lost.

use super::field::FieldValue;
use super::original::{Key, Original};
use super::restoration::Restoration;
use crate::apps::ProcessId;
use serde::{Deserialize, Serialize};

/// The format that this version writes.
pub(super) const FORMAT: u32 = 4;
/// The oldest format that this version reads, which lacks [`EntryContent::Dismissed`].
pub(super) const FORMAT_MIN: u32 = 3;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The kernel's `boot_id`.
    pub(super) boot: String,
    /// When it was written, in clock ticks since boot.
    pub(super) at_ticks: u64,
    /// The content of the entry.
    pub(super) what: EntryContent,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EntryContent {
    /// The first line.
    Header { format: u32, agent: ProcessId, version: String },
    /// A value before its first change.
    Old(Original),
    /// Values that Lull is about to write to threads. A kill may happen between this entry and the
    /// write, so a thread may still have its former value.
    Write {
        /// The threads, each with its start time.
        threads: Vec<(i32, u64)>,
        /// The values that each of them gets.
        values: Vec<FieldValue>,
    },
    /// A value that is no longer Lull's to restore.
    Released(Key),
    /// Threads, each with its start time, that were restored and belong to no app any more.
    Dismissed(Vec<(i32, u64)>),
    /// Values were restored by the guard or a later start.
    Restored(Restoration),
    /// No value is left to restore.
    Closed,
}

/// The readable part of a ledger.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The entries, in order.
    pub(super) entries: Vec<Entry>,
    /// The faults of lines that could not be used.
    pub(super) damaged: Vec<String>,
    /// Whether the last line has no end.
    pub(super) torn: bool,
}

impl Entry {
    /// Appends the line to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let json = serde_json::to_vec(self).expect("entries have string keys only");
        out.extend(checksum(&json).into_bytes());
        out.extend(json);
        out.push(b'\n');
    }

    /// The process whose main thread it describes, if it does.
    pub(super) fn main_process(&self) -> Option<ProcessId> {
        match self.what {
            EntryContent::Old(Original::Thread {
                tid, pid, start_time_ticks: start_ticks, ..
            }) if tid == pid => Some(ProcessId { pid, start_ticks }),
            _ => None,
        }
    }

    /// The first process of the app that Lull has started, if the line is about one.
    pub(super) fn started(&self) -> Option<ProcessId> {
        match self.what {
            EntryContent::Old(Original::Started { pid, start_time_ticks: start_ticks }) => {
                Some(ProcessId { pid, start_ticks })
            }
            _ => None,
        }
    }

    fn decode(line: &[u8]) -> Result<Self, String> {
        let (sum, json) = line.split_at_checked(9).ok_or("too short")?;
        if sum != checksum(json).as_bytes() {
            return Err("its checksum is wrong".to_owned());
        }
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

fn checksum(json: &[u8]) -> String {
    format!("{:08x} ", crc32fast::hash(json))
}

impl Lines {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut found = Self::default();
        let mut rest = bytes;
        for number in 1.. {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { break };
            match Entry::decode(&rest[..end]) {
                Ok(entry) => found.entries.push(entry),
                Err(why) => found.damaged.push(format!("line {number}: {why}")),
            }
            rest = &rest[end + 1..];
        }
        found.torn = !rest.is_empty();
        found
    }

    /// Whether nothing is left to restore. A file that was emptied for lack of space counts.
    pub(super) fn is_closed(&self) -> bool {
        let is_empty = self.entries.is_empty() && self.damaged.is_empty();
        is_empty || self.entries.iter().any(|entry| entry.what == EntryContent::Closed)
    }

    /// The agent that wrote it.
    pub(super) fn agent(&self) -> Option<ProcessId> {
        self.entries.iter().find_map(|entry| match entry.what {
            EntryContent::Header { agent, .. } => Some(agent),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(pid: i32) -> Entry {
        let old = Original::Stopped { pid, start_time_ticks: 7 };
        Entry { boot: "b".to_owned(), at_ticks: 9, what: EntryContent::Old(old) }
    }

    fn written(count: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for pid in 1..=count {
            entry(pid).encode(&mut bytes);
        }
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = Lines::read(&written(3));
        assert_eq!(lines.entries, [entry(1), entry(2), entry(3)]);
        assert!(lines.damaged.is_empty() && !lines.torn);
    }

    proptest! {
        #[test]
        fn a_torn_file_keeps_all_whole_lines(cut in 0usize..400) {
            let bytes = written(4);
            let kept = &bytes[..cut.min(bytes.len())];
            let whole = kept.iter().filter(|byte| **byte == b'\n').count();
            let lines = Lines::read(kept);
            prop_assert_eq!(lines.entries.len(), whole);
            prop_assert_eq!(lines.torn, kept.last().is_some_and(|last| *last != b'\n'));
            prop_assert!(lines.damaged.is_empty());
        }

        #[test]
        fn one_flipped_bit_never_makes_a_wrong_entry(at in 0usize..400, bit in 0u8..8) {
            let mut bytes = written(4);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let good: Vec<Entry> = (1..=4).map(entry).collect();
            let lines = Lines::read(&bytes);
            prop_assert!(lines.entries.iter().all(|entry| good.contains(entry)));
            prop_assert!(lines.entries.len() >= 2);
            prop_assert!(lines.torn || !lines.damaged.is_empty());
        }
    }
}
