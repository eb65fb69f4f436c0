//! The C interface, which `include/lull.h` describes.
//!
//! A process has one dispatcher. A thread's requests end when the thread ends, since they are
//! in a thread-local value that is dropped then.

use crate::{Config, Dispatch, Mark};
use lull_measure::Nanos;
use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// The open dispatcher, and its process: a child made by fork has no timer thread.
static OPEN: RwLock<Option<(u32, Arc<Dispatch>)>> = RwLock::new(None);

thread_local! {
    /// The running requests of this thread.
    static MARKS: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
}

/// Reads a file and dispatches requests from now on. Returns 0, or -1 with the reason in `why`.
///
/// # Safety
/// `file` points to a string that ends with 0; `why` is null or points to `why_size` bytes
/// that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lull_dispatch_open(
    file: *const c_char,
    why: *mut c_char,
    why_size: usize,
) -> c_int {
    if file.is_null() {
        // SAFETY: the caller passes `why_size` bytes at `why`.
        unsafe { write_reason("the file's name is NULL", why, why_size) };
        return -1;
    }
    // SAFETY: the caller passes a string that ends with 0.
    let file = unsafe { CStr::from_ptr(file) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes()));
    // A panic must not unwind into C.
    let opened = std::panic::catch_unwind(|| open(file));
    let Err(text) = opened.unwrap_or_else(|_| Err("the dispatcher failed".to_owned())) else {
        return 0;
    };
    // SAFETY: the caller passes `why_size` bytes at `why`.
    unsafe { write_reason(&text, why, why_size) };
    -1
}

fn open(file: &Path) -> Result<(), String> {
    let config = Config::read(file).map_err(|error| error.to_string())?;
    let dispatch = config.open(file).map_err(|error| error.to_string())?;
    // Drop the former one after the lock is released, since that waits for its timer.
    let before = replace(Some((std::process::id(), Arc::new(dispatch))));
    drop(before);
    Ok(())
}

fn replace(next: Option<(u32, Arc<Dispatch>)>) -> Option<(u32, Arc<Dispatch>)> {
    std::mem::replace(&mut *OPEN.write().unwrap_or_else(PoisonError::into_inner), next)
}

/// Writes a reason as a C string, cut to size.
///
/// # Safety
/// `to` is null or points to `size` bytes that may be written.
unsafe fn write_reason(text: &str, to: *mut c_char, size: usize) {
    if to.is_null() || size == 0 {
        return;
    }
    let length = text.len().min(size - 1);
    // SAFETY: `length` bytes are in `text`, and `size > length` bytes at `to`.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), length) };
    // SAFETY: `length < size`, so that this is one of the caller's bytes.
    let end = unsafe { to.add(length) };
    // SAFETY: the caller's bytes may be written.
    unsafe { end.write(0) };
}

/// Begins a request on this thread. Returns its number, or 0 if it runs undispatched.
#[unsafe(no_mangle)]
pub extern "C" fn lull_request_begin(age_ns: u64) -> u64 {
    let open = OPEN.read().unwrap_or_else(PoisonError::into_inner).clone();
    let Some((process, dispatch)) = open else { return 0 };
    if process != std::process::id() {
        return 0;
    }
    let begun = std::panic::AssertUnwindSafe(|| dispatch.begin(Nanos(age_ns)));
    let Ok(mark) = std::panic::catch_unwind(begun) else { return 0 };
    let id = mark.id();
    // A thread that is being destroyed stores no requests: this one ends here.
    let is_stored = MARKS.try_with(|marks| marks.borrow_mut().push(mark)).is_ok();
    if is_stored { id } else { 0 }
}

/// Ends a request.
#[unsafe(no_mangle)]
pub extern "C" fn lull_request_end(request: u64) {
    let take = |marks: &RefCell<Vec<Mark>>| {
        let mut marks = marks.borrow_mut();
        let index = marks.iter().position(|mark| mark.id() == request)?;
        Some(marks.swap_remove(index))
    };
    let mark = MARKS.try_with(take).ok().flatten();
    // A dispatcher's panic must not unwind into C.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(mark)));
}

/// Closes the dispatcher.
#[unsafe(no_mangle)]
pub extern "C" fn lull_dispatch_close() {
    drop(replace(None));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn opened(file: &CStr) -> Result<(), String> {
        let mut why = [1; 40];
        // SAFETY: a string that ends with 0, and an array with its length.
        let done = unsafe { lull_dispatch_open(file.as_ptr(), why.as_mut_ptr(), why.len()) };
        let text = || {
            let bytes = why.map(|one: c_char| one as u8);
            CStr::from_bytes_until_nul(&bytes).unwrap().to_string_lossy().into_owned()
        };
        if done == 0 { Ok(()) } else { Err(text()) }
    }

    /// A file that dispatches to the first core that this process may use.
    fn file() -> (tempfile::TempDir, CString) {
        let me = std::process::id().cast_signed();
        let core = lull_host::sys::sched::affinity_of(me).unwrap().iter().next().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dispatch.toml");
        let text = format!(
            "percentile = 'p99'\ntarget = '100ms'\ndispatcher = {{ name = 'ee' }}\n\
             core = [{{ name = 'only', speed = 1.0, watts = 1.0, cores = '{core}' }}]"
        );
        std::fs::write(&path, text).unwrap();
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        (directory, path)
    }

    // One test, since a process has one dispatcher.
    #[test]
    fn c_servers_open_begin_end_and_close() {
        assert_eq!(lull_request_begin(0), 0, "nothing is open");
        lull_request_end(0);
        let why = opened(c"/no/such/file.toml").unwrap_err();
        assert!(why.starts_with("/no/such/file.toml") && why.len() == 39, "cut to size: {why}");
        // SAFETY: null is allowed for both.
        assert_eq!(unsafe { lull_dispatch_open(std::ptr::null(), std::ptr::null_mut(), 0) }, -1);

        let (_directory, file) = file();
        opened(&file).unwrap();
        let first = lull_request_begin(5);
        assert_ne!(first, 0);
        lull_request_end(first + 1000);
        lull_request_end(first);
        // A thread that ends within its request ends the request; else the next one waits
        // without end.
        std::thread::spawn(|| assert_ne!(lull_request_begin(0), 0)).join().unwrap();
        let second = lull_request_begin(0);
        assert!(second > first);
        lull_request_end(second);
        lull_dispatch_close();
        assert_eq!(lull_request_begin(0), 0, "closed");
    }
}
