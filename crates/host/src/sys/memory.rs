//! Memory that the allocator keeps.

/// Gives the memory that is free back to the kernel, where the allocator is glibc's. It would
/// otherwise keep what is free below a block that is in use.
pub fn return_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes any padding and may be called on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
