//! A line of text in the page: the agent's last decision, for commands that read the page.
//!
//! The agent is the only writer. A reader that finds the version odd, or another one after its
//! copy, has a torn text and tries again.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

const WORDS: usize = 31;
/// The most bytes of a note; the rest of a longer text is left out.
pub const NOTE_BYTES: usize = 8 * WORDS;
/// Attempts of a reader. The writer needs less than a microsecond, a few times a minute.
const ATTEMPTS: u32 = 8;

/// The text. Any bytes are a valid note, since another program may have written them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Note {
    /// Odd while the text is written.
    version: AtomicU32,
    length: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Note {
    /// Replaces the text; only one program may do so at a time.
    pub fn write(&self, text: &str) {
        let text = text.as_bytes().get(..NOTE_BYTES).unwrap_or(text.as_bytes());
        // Begin from an even number, whatever a writer that was killed left behind.
        let version = self.version.load(Ordering::Relaxed) & !1;
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.length.store(text.len() as u32, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(text.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Copies the text to `room` and returns it, up to the first byte that is not UTF-8; empty if
    /// it could not be read whole.
    pub fn read<'a>(&self, room: &'a mut [u8; NOTE_BYTES]) -> &'a str {
        let length = (0..ATTEMPTS).find_map(|_| self.copy_to(room)).unwrap_or(0);
        let bytes = &room[..length.min(NOTE_BYTES)];
        bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }

    /// Copies all words and returns the length, which belongs to them; `None` if they are torn.
    fn copy_to(&self, room: &mut [u8; NOTE_BYTES]) -> Option<usize> {
        let before = self.version.load(Ordering::Acquire);
        let length = self.length.load(Ordering::Relaxed) as usize;
        for (word, bytes) in self.words.iter().zip(room.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        fence(Ordering::Acquire);
        let is_whole = before & 1 == 0 && self.version.load(Ordering::Relaxed) == before;
        is_whole.then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(note: &Note) -> std::string::String {
        note.read(&mut [0; NOTE_BYTES]).into()
    }

    #[test]
    fn a_text_is_read_as_it_was_written_last() {
        let note = Note::default();
        assert_eq!(read(&note), "");
        note.write("15 transactions at a time");
        assert_eq!(read(&note), "15 transactions at a time");
        note.write("p99 < 9\u{a0}ms");
        assert_eq!(read(&note), "p99 < 9\u{a0}ms");
    }

    #[test]
    fn a_long_text_is_cut_and_no_letter_with_it() {
        let note = Note::default();
        note.write(&"\u{e4}".repeat(NOTE_BYTES));
        assert_eq!(read(&note), "\u{e4}".repeat(NOTE_BYTES / 2));
        note.write(&std::format!("x{}", "\u{e4}".repeat(NOTE_BYTES)));
        assert_eq!(read(&note).len(), NOTE_BYTES - 1);
    }

    #[test]
    fn a_text_that_was_never_finished_or_is_none_is_empty() {
        let note = Note::default();
        note.write("whole");
        note.version.fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&note), "", "its writer was killed");
        note.write("the next");
        assert_eq!(read(&note), "the next");
        note.length.store(u32::MAX, Ordering::Relaxed);
        note.words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(read(&note), "");
    }
}
