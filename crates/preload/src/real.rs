//! libc's own functions, looked up when they are first called, and `errno`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that defines it.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Returns its address; null if no library defines it.
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: `name` ends with a zero; RTLD_NEXT is relative to this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The next library's function of that name and type. If no library defines it, the
/// process is aborted: the server itself called it.
macro_rules! real {
    ($name:literal as $kind:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new($name);
        let address = REAL.address();
        if address.is_null() {
            // SAFETY: `abort` may be called at any time.
            unsafe { libc::abort() };
        }
        // SAFETY: libc's function of this name has this type (its manual page),
        // and the address is not null.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $kind>(address) }
    }};
}
pub(crate) use real;

/// Runs something without changing `errno`.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: it has no conditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address of this thread's errno is valid while the thread lives.
    let before = unsafe { *at };
    let value = work();
    // SAFETY: as above.
    unsafe { *at = before };
    value
}

/// Sets this thread's `errno`.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: it has no conditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address of this thread's errno is valid while the thread lives.
    unsafe { *at = code };
}

/// Returns this thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: it has no conditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address of this thread's errno is valid while the thread lives.
    unsafe { *at }
}
