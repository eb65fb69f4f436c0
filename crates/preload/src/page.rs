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
    Protocol::of_code(PROTOCOL.load(Ordering::Relaxed)).unwrap_or_default()
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
    // The path is of a descriptor of the agent's. Without the agent there is
    // nothing to watch for, which is no fault: it runs open.
    let Some(page) = open(path) else { return };
    clock::load();
    PAGE.store(page, Ordering::Release);
    let Some(page) = get() else { return };
    let told = Protocol::of_code(page.header().protocol_code());
    let protocol = told.unwrap_or_else(protocol_of_program);
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

/// Maps a page after its size is known to be right, and to stay so.
fn map(fd: c_int) -> Option<*mut Page> {
    // A file that could be cut short would take the server with it (SIGBUS).
    // SAFETY: any descriptor may be asked for its seals.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        complain(b"lull: LULL_PAGE is no sealed page; running without it\n");
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

fn protocol_of_program() -> Protocol {
    let mut path = [0u8; 256];
    let (name, to) = (c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast());
    // SAFETY: the name ends with a zero and the buffer is that long.
    let length = unsafe { libc::readlink(name, to, path.len()) };
    let path = usize::try_from(length).ok().and_then(|length| path.get(..length));
    let program = path.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    program.map_or(Protocol::Generic, Protocol::of_program)
}
