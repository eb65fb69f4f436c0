//! The page shared with the agent: mapped once, when the library is loaded.

use crate::{clock, process};
use lull_oncall::protocol::Protocol;
use lull_oncall::{PAGE_BYTES, Page};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The environment's name for the page: a path.
const VARIABLE: &CStr = c"LULL_PAGE";

static PAGE: AtomicPtr<Page> = AtomicPtr::new(null_mut());
static PROTOCOL: AtomicU32 = AtomicU32::new(0);

/// The page, if there is one.
pub(crate) fn get() -> Option<&'static Page> {
    // SAFETY: it is null, or a mapping of a whole page that is never removed;
    // a page is made of atomics, of which any bytes are valid.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The protocol that this program's connections speak.
pub(crate) fn protocol() -> Protocol {
    Protocol::from_code(PROTOCOL.load(Ordering::Relaxed)).unwrap_or_default()
}

/// Runs when the library is loaded, before the program but after other
/// libraries' constructors.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Runs when the process ends by `exit`: its connections are no more.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = crate::watch::close_all;

#[cfg_attr(test, expect(dead_code, reason = "tests load no page"))]
extern "C" fn load() {
    // SAFETY: the name ends with a zero; nobody changes the environment yet.
    let path = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if path.is_null() {
        return;
    }
    // SAFETY: `getenv` gives a string that ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    // Of a descriptor of the agent's, or of a file in a page directory. Where there
    // is none nobody watches, which is no fault: it runs open.
    let Some(page) = open(path) else { return };
    clock::load();
    PAGE.store(page, Ordering::Release);
    let Some(page) = get() else { return };
    let told = Protocol::from_code(page.header().protocol_code());
    let protocol = told.unwrap_or_else(protocol_from_program);
    PROTOCOL.store(protocol.code(), Ordering::Relaxed);
    // SAFETY: the functions only store numbers and send signals to threads that wait
    // for them; the second in a child that is a copy.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
}

/// As the registration wants it.
///
/// # Safety
/// None: it is unsafe only by the type that is asked for.
unsafe extern "C" fn before_fork() {
    crate::signals::before_fork();
}

/// As the registration wants it.
///
/// # Safety
/// None: it is unsafe only by the type that is asked for.
unsafe extern "C" fn after_fork() {
    process::after_fork();
}

fn open(path: &CStr) -> Option<*mut Page> {
    // SAFETY: the path ends with a zero.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let page = map(fd);
    // Not through our own hook, which knows nothing of it.
    // SAFETY: the descriptor is ours; a mapping outlives it.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    page
}

/// Whether nobody can cut the file short who could not end the server anyway: a
/// server that reads beyond the end of a file dies of SIGBUS.
///
/// The kernel keeps memory that is sealed from everybody. A file in a directory
/// cannot be sealed (its name would outlive the seals' maker); there it is enough
/// that only its owner may write to it, and that the owner is root or who this
/// process acts for, since either could as well kill it.
fn stays_whole(fd: c_int) -> bool {
    // SAFETY: any descriptor may be asked for its seals.
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
    failed == 0 && is_only_of(found.st_mode, found.st_uid, user)
}

/// Whether this is a plain file of root's or of the user's that nobody else may
/// write to. What an access list allows others stands in the group's bits, too.
const fn is_only_of(mode: libc::mode_t, owner: libc::uid_t, user: libc::uid_t) -> bool {
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    let others_write = mode & (libc::S_IWGRP | libc::S_IWOTH) != 0;
    is_file && !others_write && (owner == 0 || owner == user)
}

/// Maps a page after its size is known to be right, and to stay so.
fn map(fd: c_int) -> Option<*mut Page> {
    if !stays_whole(fd) {
        complain(
            b"lull: LULL_PAGE is neither sealed nor a file of root's or this user's that nobody \
              else may write to; running without it\n",
        );
        return None;
    }
    // SAFETY: only a number is asked for.
    let bytes = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    if usize::try_from(bytes) != Ok(PAGE_BYTES) {
        complain(b"lull: LULL_PAGE has the wrong size (another version?); running without it\n");
        return None;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel likes; nothing is replaced.
    let at = unsafe { libc::mmap(null_mut(), PAGE_BYTES, access, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let page: *mut Page = at.cast();
    // SAFETY: the mapping has the size of a page, is aligned to 4096, and any
    // bytes are a page.
    if unsafe { &*page }.check(PAGE_BYTES).is_err() {
        complain(b"lull: LULL_PAGE is no page of this version; running without it\n");
        // SAFETY: the mapping just made, used by nobody.
        unsafe { libc::munmap(at, PAGE_BYTES) };
        return None;
    }
    Some(page)
}

/// Says something on standard error.
fn complain(text: &[u8]) {
    let from: *const c_void = text.as_ptr().cast();
    // SAFETY: the text is that long; a failure to write it changes nothing.
    unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, from, text.len()) };
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
    fn a_page_is_a_file_of_roots_or_the_users_own_that_nobody_else_may_write_to() {
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
            assert_eq!(is_only_of(mode, owner, 7), is_fit, "{mode:o} of {owner}");
        }
        assert!(!is_only_of(file | 0o600, 7, 0), "root's server on another's page");
    }

    /// Whether a file of this mode is thought to stay whole.
    fn is_believed(mode: libc::c_uint) -> bool {
        let path = std::env::temp_dir().join(format!("lull-page-{mode:o}-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fchmod(fd, mode) }, 0);
        std::fs::remove_file(&path).unwrap();
        stays_whole(fd)
    }

    #[test]
    fn what_is_asked_is_the_file_itself() {
        assert!(is_believed(0o600) && !is_believed(0o620) && !is_believed(0o666));
        // SAFETY: a name that ends with a zero; the descriptor is closed with the process.
        let memory = unsafe { libc::memfd_create(c"page".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(!stays_whole(memory), "anybody may write to it, and cut it short");
        // SAFETY: an open descriptor of memory.
        unsafe { libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert!(stays_whole(memory));
    }
}
