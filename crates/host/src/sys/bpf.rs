//! The memory of eBPF array maps, mapped into this process: programs write it, and reading
//! it takes no system call. `aya` reads array maps by system calls only.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The values of an array map with `BPF_F_MMAPABLE`, as 64-bit words, read only.
#[derive(Debug)]
pub struct MappedWords {
    begin: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is read as atomics only; the mapping belongs to no single thread.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps the first words of a map.
    ///
    /// # Errors
    /// What the kernel reports: `EINVAL` if the map is smaller, `ENOTSUPP` without
    /// `BPF_F_MMAPABLE`.
    pub fn new(map: &impl AsFd, words: usize) -> io::Result<Self> {
        let (bytes, fd) = (8 * words, map.as_fd().as_raw_fd());
        let (hint, access) = (std::ptr::null_mut(), libc::PROT_READ);
        // SAFETY: a new mapping at an address that the kernel chooses; nothing is replaced.
        let begin = unsafe { libc::mmap(hint, bytes, access, libc::MAP_SHARED, fd, 0) };
        if begin == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let begin = NonNull::new(begin.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { begin, words })
    }

    /// Reads one word. A later call returns a value written no earlier than that of this one.
    ///
    /// # Panics
    /// If the mapping is shorter.
    pub fn get(&self, index: usize) -> u64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: within the mapping, as was just checked.
        let word = unsafe { self.begin.add(index) };
        // SAFETY: mapped while `self` lives, aligned, and any bytes are valid.
        unsafe { word.as_ref() }.load(Ordering::Acquire)
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nothing borrows from it any more.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), 8 * self.words) };
    }
}
