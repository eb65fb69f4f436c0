//! The numbers of this process and thread, as the kernel gives them.

use crate::page;
use std::cell::Cell;
use std::sync::atomic::Ordering;

thread_local! {
    /// Has no destructor, so that an access costs no more than its offset.
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// Returns the number of this process.
#[inline]
pub(crate) fn pid() -> u32 {
    match page::pid_word().load(Ordering::Relaxed) {
        0 => look_up_pid(),
        pid => pid,
    }
}

#[cold]
fn look_up_pid() -> u32 {
    // SAFETY: `getpid` has no conditions.
    let pid = unsafe { libc::getpid() }.cast_unsigned();
    page::pid_word().store(pid, Ordering::Relaxed);
    pid
}

/// Whether this is the process whose number [`pid`] returns: a child of `vfork` is not.
pub(crate) fn is_own_memory() -> bool {
    let known = page::pid_word().load(Ordering::Relaxed);
    // SAFETY: `getpid` has no conditions.
    known == 0 || unsafe { libc::getpid() }.cast_unsigned() == known
}

/// Returns the number of this thread.
pub(crate) fn tid() -> u32 {
    TID.with(|known| {
        if known.get() == 0 {
            // SAFETY: `gettid` has no conditions.
            known.set(unsafe { libc::gettid() }.cast_unsigned());
        }
        known.get()
    })
}

/// Returns a number that no two threads of this process have at a time; 0 on processors where that
/// takes a call. A thread may have the number of one that has ended.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn thread_address() -> u64 {
    let address: u64;
    // SAFETY: the word at the thread pointer is its address (System V ABI for x86-64, and ELF's
    // thread-local storage, variant II). It is only read.
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    address
}

/// Returns 0: other processors' thread pointers are not read.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const fn thread_address() -> u64 {
    0
}

/// Forgets the parent's numbers in a child that `fork` made.
pub(crate) fn after_fork() {
    page::pid_word().store(0, Ordering::Relaxed);
    TID.with(|known| known.set(0));
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn threads_that_run_at_once_have_addresses_of_their_own() {
        let own = thread_address();
        assert_eq!(own, thread_address());
        let other = std::thread::spawn(thread_address).join().unwrap();
        assert!(own != 0 && other != 0 && own != other);
    }
}
