//! Lines of bounded length from a stream that may not block.

use std::io::{ErrorKind, Read, Result};

/// A line exceeded the limit and was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {limit} bytes was skipped: send less at a time")]
pub struct LineTooLong {
    /// The longest line allowed, newline included.
    pub limit: usize,
}

/// The result of one [`LineReader::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// This many bytes were read; there may be more.
    Read(usize),
    /// There is nothing to read for now.
    WouldBlock,
    /// The other end has closed.
    End,
}

/// Splits a byte stream into lines and never holds more than one limit of bytes.
///
/// ```
/// # use lull_measure::push::{Fill, LineReader};
/// let mut lines = LineReader::new(16);
/// let mut stream: &[u8] = b"one\ntwo\nthr";
/// while let Fill::Read(_) = lines.fill(&mut stream).unwrap() {
///     while let Some(line) = lines.next_line() {
///         assert!(matches!(line, Ok(b"one" | b"two")));
///     }
/// }
/// ```
#[derive(Debug)]
pub struct LineReader {
    limit: usize,
    buffer: Vec<u8>,
    /// `buffer[start..end]` has been read and not handed out.
    start: usize,
    end: usize,
    /// `buffer[start..searched]` holds no newline.
    searched: usize,
    /// Inside an overlong line whose rest is being dropped.
    skipping: bool,
}

/// Bytes the buffer starts with; it grows to the limit only if a line needs it.
const FIRST_BYTES: usize = 4096;

impl LineReader {
    /// A reader of lines of at most `limit` bytes, newline included.
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(1);
        let buffer = vec![0; limit.min(FIRST_BYTES)];
        Self { limit, buffer, start: 0, end: 0, searched: 0, skipping: false }
    }

    /// Reads once from `source`. Take all lines before the next call.
    ///
    /// # Errors
    /// What `source` reports, but for `WouldBlock` and `Interrupted`.
    pub fn fill(&mut self, source: &mut impl Read) -> Result<Fill> {
        self.make_room();
        match source.read(&mut self.buffer[self.end..]) {
            Ok(0) => Ok(Fill::End),
            Ok(count) => {
                self.end += count;
                Ok(Fill::Read(count))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Fill::WouldBlock),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Fill::Read(0)),
            Err(error) => Err(error),
        }
    }

    /// Returns the next whole line without its newline; `None` until more is read.
    ///
    /// An overlong line is reported once, as soon as it exceeds the limit, and bytes after its
    /// newline are read as usual.
    pub fn next_line(&mut self) -> Option<std::result::Result<&[u8], LineTooLong>> {
        loop {
            let Some(at) = self.find_newline() else { return self.note_overlong() };
            let (line, skipped) = (self.start..at, self.skipping);
            (self.start, self.searched, self.skipping) = (at + 1, at + 1, false);
            if !skipped {
                return Some(Ok(&self.buffer[line]));
            }
        }
    }

    fn find_newline(&mut self) -> Option<usize> {
        let found = self.buffer[self.searched..self.end].iter().position(|byte| *byte == b'\n');
        let at = found.map(|offset| self.searched + offset);
        self.searched = at.unwrap_or(self.end);
        at
    }

    /// Drops the bytes of an overlong line; returns an error the first time.
    fn note_overlong(&mut self) -> Option<std::result::Result<&[u8], LineTooLong>> {
        if !self.skipping && self.end - self.start < self.limit {
            return None;
        }
        (self.start, self.searched) = (self.end, self.end);
        let first = !std::mem::replace(&mut self.skipping, true);
        first.then_some(Err(LineTooLong { limit: self.limit }))
    }

    /// Moves the held bytes to the front and grows the buffer if that was not enough.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.searched -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            let doubled = (self.buffer.len() * 2).min(self.limit);
            self.buffer.resize(doubled, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everything a reader makes of chunks that arrive one at a time.
    fn read_all(
        limit: usize,
        chunks: &[Vec<u8>],
    ) -> Vec<std::result::Result<Vec<u8>, LineTooLong>> {
        let mut lines = LineReader::new(limit);
        let mut out = Vec::new();
        for chunk in chunks {
            let mut rest = chunk.as_slice();
            while !rest.is_empty() {
                lines.fill(&mut rest).unwrap();
                while let Some(line) = lines.next_line() {
                    out.push(line.map(<[u8]>::to_vec));
                }
            }
        }
        out
    }

    #[test]
    fn an_overlong_line_is_reported_once_and_the_next_one_read() {
        let got = read_all(8, &[b"12345678901234567890".to_vec(), b"12\nshort\n".to_vec()]);
        assert_eq!(got, [Err(LineTooLong { limit: 8 }), Ok(b"short".to_vec())]);
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_read() {
        assert_eq!(read_all(8, &[b"1234567\n".to_vec()]), [Ok(b"1234567".to_vec())]);
    }

    #[test]
    fn the_buffer_never_exceeds_the_limit() {
        let mut lines = LineReader::new(10_000);
        let mut endless = std::io::repeat(b'x');
        for _ in 0..100 {
            lines.fill(&mut endless).unwrap();
            let _ = lines.next_line();
        }
        assert!(lines.buffer.len() <= 10_000);
    }

    #[test]
    fn a_stream_that_would_block_is_no_end() {
        let (mut ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert_eq!(LineReader::new(9).fill(&mut ours).unwrap(), Fill::WouldBlock);
    }

    proptest! {
        #[test]
        fn cutting_the_stream_anywhere_gives_the_same_lines(
            text in prop::collection::vec(prop::sample::select(b"ab\n".to_vec()), 0..200),
            cuts in prop::collection::vec(1usize..40, 1..40),
        ) {
            let mut chunks = Vec::new();
            let mut rest = text.as_slice();
            for cut in cuts.iter().cycle().take(200) {
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                chunks.push(head.to_vec());
                rest = tail;
            }
            let lines: Vec<_> =
                read_all(1000, &chunks).into_iter().map(std::result::Result::unwrap).collect();
            let mut wanted: Vec<_> =
                text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            wanted.pop();
            prop_assert_eq!(lines, wanted);
        }
    }
}
