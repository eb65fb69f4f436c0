//! The code that runs when the library is loaded, when the process forks and when it ends.

use crate::{clock, connection, cores, page, pool, process, service, signals, ticker};
use std::ffi::CStr;

/// The environment variable with the path of the page: a descriptor of the agent's, or a
/// file in a page directory.
const PAGE_VARIABLE: &CStr = c"LULL_PAGE";

/// Runs when the library is loaded, before the program but after other libraries'
/// constructors.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Runs when the process ends by `exit`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

#[cfg_attr(test, expect(dead_code, reason = "tests load no page"))]
extern "C" fn load() {
    // SAFETY: the name ends with a zero; no other thread changes the environment yet.
    let path = unsafe { libc::getenv(PAGE_VARIABLE.as_ptr()) };
    if path.is_null() {
        return;
    }
    // The page comes last: once it is there, connections use the clock.
    clock::load();
    // SAFETY: `getenv` returns a string that ends with a zero.
    let Some(page) = page::load(unsafe { CStr::from_ptr(path) }) else { return };
    connection::release_former(page);
    // SAFETY: the functions only store numbers and signal threads that wait for that, the
    // second in a child that is a copy.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
}

#[cfg_attr(test, expect(dead_code, reason = "tests load no page"))]
extern "C" fn unload() {
    connection::close_all();
}

/// Runs before `fork`, in the parent.
///
/// # Safety
/// None: only the type of the registration is unsafe.
unsafe extern "C" fn before_fork() {
    signals::before_fork();
}

/// Runs after `fork`, in the child.
///
/// # Safety
/// None: only the type of the registration is unsafe.
unsafe extern "C" fn after_fork() {
    process::after_fork();
    clock::after_fork();
    cores::after_fork();
    service::after_fork();
    pool::after_fork();
    ticker::after_fork();
    signals::after_fork();
}
