//! A map's memory, as this process reads or writes it while programs write or read it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The value of a map of [`super::memory`], mapped.
#[derive(Debug)]
pub struct Words {
    at: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the memory is used as atomics only; the mapping is no thread's own.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The first `bytes` of a map's value.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` if the map has less.
    pub fn of(map: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let at = map_pages(map, (0, bytes), libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Self { at: at.cast(), bytes })
    }

    /// One word of eight bytes; a later call sees what was written no earlier
    /// than what this one has seen.
    ///
    /// # Panics
    /// If the value is shorter.
    pub fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Writes one word.
    ///
    /// # Panics
    /// If the value is shorter.
    pub fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bytes / 8, "word {index} of {} bytes", self.bytes);
        // SAFETY: within the mapping, as was just checked.
        let word = unsafe { self.at.add(index) };
        // SAFETY: mapped while `self` lives, aligned, and any bytes are valid.
        unsafe { word.as_ref() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        unmap(self.at.cast(), self.bytes);
    }
}

/// Maps a range of a map's memory, which begins at a page.
pub(super) fn map_pages(
    map: &OwnedFd,
    (from, bytes): (usize, usize),
    access: libc::c_int,
) -> io::Result<NonNull<u8>> {
    let (hint, fd, from) = (std::ptr::null_mut(), map.as_raw_fd(), from as libc::off_t);
    // SAFETY: a new mapping at an address that the kernel chooses; nothing is replaced.
    let at = unsafe { libc::mmap(hint, bytes, access, libc::MAP_SHARED, fd, from) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))
}

/// Takes back a mapping of [`map_pages`], which must not be used any more.
pub(super) fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: a mapping that `map_pages` made, whose owner is being dropped.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}
