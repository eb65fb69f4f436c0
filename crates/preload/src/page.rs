//! The page shared with the agent: mapped once, when the library is loaded.
//!
//! The library maps a page only if no user who could not kill the server anyway can cut the
//! file short: a server that reads beyond the end of a file dies of SIGBUS.

use lull_oncall::protocol::Protocol;
use lull_oncall::{PAGE_BYTES, Page};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The fields that every call of a server reads, in one cache line.
#[repr(align(64))]
struct Root {
    page: AtomicPtr<Page>,
    protocol: AtomicU32,
    pid: AtomicU32,
}

static ROOT: Root =
    Root { page: AtomicPtr::new(null_mut()), protocol: AtomicU32::new(0), pid: AtomicU32::new(0) };

/// Returns the page, if one is mapped.
#[inline]
pub(crate) fn get() -> Option<&'static Page> {
    // SAFETY: it is null, or a mapping of a whole page that is never removed;
    // a page is made of atomics, of which any bytes are valid.
    unsafe { ROOT.page.load(Ordering::Acquire).as_ref() }
}

/// Returns the protocol of this program's connections.
#[inline]
pub(crate) fn protocol() -> Protocol {
    Protocol::from_code(ROOT.protocol.load(Ordering::Relaxed)).unwrap_or_default()
}

/// Returns the word of this process's number, which is 0 until it is looked up.
#[inline]
pub(crate) fn pid_word() -> &'static AtomicU32 {
    &ROOT.pid
}

/// Maps the page at this path, which connections find from then on. Returns it, or `None`
/// if it cannot be used: then the server runs ungated.
pub(crate) fn load(path: &CStr) -> Option<&'static Page> {
    ROOT.page.store(open(path)?, Ordering::Release);
    let page = get()?;
    page.header().set_pid_namespace(pid_namespace());
    let named = Protocol::from_code(page.header().protocol_code());
    let protocol = named.unwrap_or_else(protocol_from_program);
    ROOT.protocol.store(protocol.code(), Ordering::Relaxed);
    Some(page)
}

fn open(path: &CStr) -> Option<*mut Page> {
    // SAFETY: the path ends with a zero.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let page = map(fd);
    // A direct system call, since `close` is a hook of this library.
    // SAFETY: the descriptor is ours; a mapping outlives it.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    page
}

/// Whether no user who could not kill the server anyway can truncate the file.
///
/// The kernel refuses to shrink memory that is sealed. A file in a directory cannot be sealed,
/// since seals exist for anonymous memory only; there it is enough that only its owner may write to
/// it, and that the owner is root or the user this process runs as.
fn stays_whole(fd: c_int) -> bool {
    // SAFETY: the call reads the seals of any descriptor.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals >= 0 && seals & libc::F_SEAL_SHRINK != 0 {
        return true;
    }
    // SAFETY: all zeros are a valid stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `found` may be written.
    let failed = unsafe { libc::fstat(fd, &raw mut found) };
    // SAFETY: `geteuid` has no conditions.
    let user = unsafe { libc::geteuid() };
    failed == 0 && is_private_file(found.st_mode, found.st_uid, user)
}

/// Whether this is a plain file of root's or of the user's to which no other user may
/// write. The group's bits show what an access list grants, too.
const fn is_private_file(mode: libc::mode_t, owner: libc::uid_t, user: libc::uid_t) -> bool {
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    let others_write = mode & (libc::S_IWGRP | libc::S_IWOTH) != 0;
    is_file && !others_write && (owner == 0 || owner == user)
}

/// Maps a page if its size is right and stays so, and its layout is this version's.
fn map(fd: c_int) -> Option<*mut Page> {
    if !stays_whole(fd) {
        warn(
            b"lull: LULL_PAGE is neither sealed memory nor a file of root or this user to which \
              no other user may write; running without it\n",
        );
        return None;
    }
    // SAFETY: the call returns a number.
    let bytes = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    if usize::try_from(bytes) != Ok(PAGE_BYTES) {
        warn(b"lull: LULL_PAGE has the wrong size (another version?); running without it\n");
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; nothing is replaced.
    let at = unsafe { libc::mmap(null_mut(), PAGE_BYTES, access, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let page: *mut Page = at.cast();
    // SAFETY: the mapping has the size of a page, is aligned to 4096, and any
    // bytes are a page.
    if unsafe { &*page }.check(PAGE_BYTES).is_err() {
        warn(b"lull: LULL_PAGE is not a page of this version; running without it\n");
        // SAFETY: the mapping was just made and nothing refers to it.
        unsafe { libc::munmap(at, PAGE_BYTES) };
        return None;
    }
    Some(page)
}

/// Writes a line to standard error.
fn warn(text: &[u8]) {
    let from: *const c_void = text.as_ptr().cast();
    // SAFETY: the text is that long; a failed write changes nothing.
    unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, from, text.len()) };
}

/// Returns the inode number of this process's PID namespace; 0 where `/proc` does not show it.
fn pid_namespace() -> u32 {
    // SAFETY: all zeros are a valid stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero, and `found` may be written.
    let failed = unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), &raw mut found) };
    // The kernel's numbers are below 2^32.
    if failed == 0 { found.st_ino as u32 } else { 0 }
}

fn protocol_from_program() -> Protocol {
    let mut path = [0u8; 256];
    let (name, to) = (c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast());
    // SAFETY: the name ends with a zero and the buffer is that long.
    let length = unsafe { libc::readlink(name, to, path.len()) };
    let path = usize::try_from(length).ok().and_then(|length| path.get(..length));
    let program = path.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    program.map_or(Protocol::default(), Protocol::from_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_file_of_root_or_the_user_to_which_no_other_user_may_write() {
        let file = libc::S_IFREG;
        for (mode, owner, is_fit) in [
            (file | 0o600, 7, true),
            (file | 0o644, 0, true),
            (file | 0o600, 8, false),
            (file | 0o660, 7, false),
            (file | 0o602, 0, false),
            (libc::S_IFDIR | 0o600, 7, false),
            (libc::S_IFIFO | 0o600, 7, false),
            (libc::S_IFLNK | 0o600, 0, false),
        ] {
            assert_eq!(is_private_file(mode, owner, 7), is_fit, "{mode:o} of {owner}");
        }
        assert!(!is_private_file(file | 0o600, 7, 0), "root's server on another's page");
    }

    /// Whether a file of this mode counts as one that stays whole.
    fn counts_as_whole(mode: libc::c_uint) -> bool {
        let path = std::env::temp_dir().join(format!("lull-page-{mode:o}-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fchmod(fd, mode) }, 0);
        std::fs::remove_file(&path).unwrap();
        stays_whole(fd)
    }

    #[test]
    fn the_namespace_is_that_of_this_process() {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(format!("/proc/{}/ns/pid", std::process::id())).unwrap();
        assert_eq!(u64::from(pid_namespace()), found.ino());
    }

    #[test]
    fn the_mode_of_the_file_itself_decides() {
        assert!(counts_as_whole(0o600) && !counts_as_whole(0o620) && !counts_as_whole(0o666));
        // SAFETY: a name that ends with a zero; the descriptor is closed with the process.
        let memory = unsafe { libc::memfd_create(c"page".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(!stays_whole(memory), "any user may truncate it");
        // SAFETY: an open descriptor of memory.
        unsafe { libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert!(stays_whole(memory));
    }
}
