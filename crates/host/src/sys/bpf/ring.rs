//! The reader's end of a ring buffer map (Documentation/bpf/ringbuf.rst).
//!
//! The first page holds how far we have read, the second how far programs have
//! written; behind them are the records, mapped twice in a row, so that one
//! that runs over the end is in one piece.

use super::words::{map_pages, unmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of every record that [`Ring`] is for.
pub const RECORD_BYTES: usize = 32;
const RECORD_WORDS: usize = RECORD_BYTES / 8;
/// Length and flags of a record stand before it.
const HEADER_BYTES: usize = 8;
/// A record that is being written, and one that was given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// Records of four words each, in the order in which they were begun.
#[derive(Debug)]
pub struct Ring {
    /// Where we have read to, which programs look at.
    read: NonNull<u8>,
    /// Where programs have written to, and the records from the next page on.
    written: NonNull<u8>,
    page: usize,
    bytes: usize,
}

// SAFETY: positions are atomics, records are read only and taken by `&mut self`;
// the mappings are no thread's own.
unsafe impl Send for Ring {}

impl Ring {
    /// The reader of a map of [`super::ring`] of so many bytes; it has one only.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(map: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let read = map_pages(map, (0, page), libc::PROT_READ | libc::PROT_WRITE)?;
        let written = map_pages(map, (page, page + 2 * bytes), libc::PROT_READ);
        let written = written.inspect_err(|_| unmap(read, page))?;
        Ok(Self { read, written, page, bytes })
    }

    /// Takes the next record, if one is complete.
    pub fn pop(&mut self) -> Option<[u64; RECORD_WORDS]> {
        loop {
            let at = self.position(self.read).load(Ordering::Relaxed);
            if at == self.position(self.written).load(Ordering::Acquire) {
                return None;
            }
            let begin = self.page + at as usize % self.bytes;
            let header = self.header(begin).load(Ordering::Acquire);
            if header & BUSY != 0 {
                return None;
            }
            let length = (header & !DISCARDED) as usize;
            let is_ours = header & DISCARDED == 0 && length == RECORD_BYTES;
            let record = is_ours.then(|| self.record(begin + HEADER_BYTES));
            let next = at + (HEADER_BYTES + length.next_multiple_of(8)) as u64;
            self.position(self.read).store(next, Ordering::Release);
            if record.is_some() {
                return record;
            }
        }
    }

    /// The position at the beginning of one of the two pages.
    fn position(&self, page: NonNull<u8>) -> &AtomicU64 {
        // SAFETY: mapped while `self` lives, aligned to a page; any bytes are
        // valid. The written one is mapped for reading and only read.
        unsafe { page.cast().as_ref() }
    }

    fn header(&self, begin: usize) -> &AtomicU32 {
        // SAFETY: `begin` is within the first of the two copies of the records.
        let at = unsafe { self.written.add(begin) };
        // SAFETY: records begin at multiples of eight bytes; only read here.
        unsafe { at.cast().as_ref() }
    }

    fn record(&self, begin: usize) -> [u64; RECORD_WORDS] {
        // SAFETY: a complete record of this length lies there, perhaps over the
        // end of the first copy, and then within the second.
        let at = unsafe { self.written.add(begin) };
        // SAFETY: aligned to eight bytes, and no program writes there before
        // the position that we have read to is moved past it.
        unsafe { at.cast().read() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        unmap(self.read, self.page);
        unmap(self.written, self.page + 2 * self.bytes);
    }
}
