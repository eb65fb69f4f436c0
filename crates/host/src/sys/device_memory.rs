//! The memory of a PCI device, mapped: how the rig plays hardware.
//!
//! Only with the feature `rig`, for its tests: Lull itself never touches a
//! device but through its driver.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;

/// A mapped region of registers.
#[derive(Debug)]
pub struct DeviceMemory {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the region is not a thread's own; every access is one volatile word.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above, and hardware registers may change at any time anyway.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Maps the first `bytes` of a region (`/sys/bus/pci/devices/D/resource0`).
    ///
    /// # Errors
    /// The kernel's error: `EPERM` if a driver claims it and the kernel was
    /// not started with `iomem=relaxed`.
    pub fn open(path: &Path, bytes: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_SYNC).open(path)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (hint, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses; nothing is replaced.
        let at = unsafe { libc::mmap(hint, bytes, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { first, bytes })
    }

    /// The word at an offset.
    ///
    /// # Panics
    /// If it is not within the region, or not aligned.
    pub fn get(&self, at: usize) -> u64 {
        let word = self.word::<u64>(at);
        // SAFETY: `word` checks that it is within the mapping and aligned.
        unsafe { word.read_volatile() }
    }

    /// Writes the word at an offset.
    ///
    /// # Panics
    /// If it is not within the region, or not aligned.
    pub fn set(&self, at: usize, value: u64) {
        let word = self.word::<u64>(at);
        // SAFETY: `word` checks that it is within the mapping and aligned.
        unsafe { word.write_volatile(value) }
    }

    /// Writes the half word at an offset.
    ///
    /// # Panics
    /// If it is not within the region, or not aligned.
    pub fn set_half(&self, at: usize, value: u32) {
        let word = self.word::<u32>(at);
        // SAFETY: `word` checks that it is within the mapping and aligned.
        unsafe { word.write_volatile(value) }
    }

    fn word<T>(&self, at: usize) -> *mut T {
        let is_within = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes);
        assert!(is_within && at.is_multiple_of(align_of::<T>()), "no register at {at:#x}");
        self.first.as_ptr().wrapping_add(at).cast()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made, of that length, used no more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}
