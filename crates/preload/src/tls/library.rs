//! The functions of the TLS library that a session belongs to.
//!
//! A process may have several: a server with OpenSSL 3 and a plug-in with OpenSSL 1.1, each of
//! which calls its own `SSL_read`. The dynamic linker distinguishes them by the version of the
//! symbol; hooks have none, and all calls arrive here. So the session decides: among its first
//! words is a pointer to the methods of its protocol version, which are constants in its
//! library (`ssl_st` in OpenSSL 1.0 to 3.5 and LibreSSL). So no session is handed to a
//! library that did not make it, whether that was loaded at the start or by `dlopen`.

use crate::real::keeping_errno;
use libc::Dl_info;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The functions that are called, in the order of [`Names::functions`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    Read,
    Write,
    ReadEx,
    WriteEx,
    WriteEx2,
    Accept,
    DoHandshake,
    ReadDescriptor,
    ReadBio,
}

const FUNCTIONS: usize = Function::ReadBio as usize + 1;

/// The names of the functions of a kind of library, and the beginning of its file name.
struct Names {
    file: &'static [u8],
    /// Empty where it has none.
    functions: [&'static CStr; FUNCTIONS],
}

const OPENSSL: Names = Names {
    file: b"libssl.",
    functions: [
        c"SSL_read",
        c"SSL_write",
        c"SSL_read_ex",
        c"SSL_write_ex",
        c"SSL_write_ex2",
        c"SSL_accept",
        c"SSL_do_handshake",
        c"SSL_get_rfd",
        c"SSL_get_rbio",
    ],
};

const WOLFSSL: Names = Names {
    file: b"libwolfssl.",
    functions: [
        c"wolfSSL_read",
        c"wolfSSL_write",
        c"",
        c"",
        c"",
        c"wolfSSL_accept",
        c"",
        c"wolfSSL_get_fd",
        c"",
    ],
};

/// The addresses of a library's functions; null where it has none.
pub(super) struct Library {
    functions: [AtomicPtr<c_void>; FUNCTIONS],
    is_ready: AtomicBool,
}

/// A library, by a word that is found in its sessions.
struct Known {
    /// 0 while the entry is free.
    word: AtomicUsize,
    library: Library,
}

/// The words of a session that are read.
type Head = [usize; 4];

/// Twelve words or so for each library: one for each version of the protocol and each role.
static KNOWN: [Known; 64] =
    [const { Known { word: AtomicUsize::new(0), library: Library::new() } }; 64];
/// The library that is called for a session that no library is known to have made.
static USUAL: Library = Library::new();
static WOLF: Library = Library::new();

/// Returns the library that a session of OpenSSL belongs to. Returns `None` if that cannot be
/// seen, as in a library with other sessions (BoringSSL).
///
/// # Safety
/// `session` is null or a session, which has hundreds of bytes.
pub(super) unsafe fn of_session(session: *const c_void) -> Option<&'static Library> {
    // SAFETY: by the caller; null yields `None`.
    let head = unsafe { session.cast::<Head>().as_ref() }?;
    known(head).or_else(|| keeping_errno(|| learn(head)))
}

/// Returns the library that calls with other sessions are passed to: the one that the dynamic
/// linker would have chosen if this library were not there.
pub(super) fn usual() -> &'static Library {
    USUAL.ready_by_name(&OPENSSL)
}

/// Returns wolfSSL. Its functions have names of their own, and no process has two of it.
pub(super) fn wolf() -> &'static Library {
    WOLF.ready_by_name(&WOLFSSL)
}

fn known(head: &Head) -> Option<&'static Library> {
    let used = KNOWN.iter().take_while(|known| known.word.load(Ordering::Relaxed) != 0);
    let has_word = |known: &&Known| head.contains(&known.word.load(Ordering::Relaxed));
    used.filter(has_word).map(|known| &known.library).find(|library| library.is_ready())
}

/// Finds the library, and remembers it by the word that led to it.
#[cold]
fn learn(head: &Head) -> Option<&'static Library> {
    let (word, found) = head.iter().find_map(|word| Some((*word, owner(*word)?)))?;
    let is_taken = |known: &&Known| {
        let taken = known.word.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
        // Another thread that has taken the library for the same word stores the same addresses.
        taken.map_or_else(|now| now == word, |_| true)
    };
    let library = &KNOWN.iter().find(is_taken)?.library;
    library.set(found);
    Some(library)
}

type Addresses = [*mut c_void; FUNCTIONS];

/// Returns the functions of the TLS library that this word points into.
fn owner(word: usize) -> Option<Addresses> {
    let object = object_at(word as *const c_void)?;
    let handle = Handle::of_loaded(object.dli_fname)?;
    let found = handle.functions(&OPENSSL);
    let read = object_at(found[Function::Read as usize])?;
    (read.dli_fbase == object.dli_fbase).then_some(found)
}

/// Returns the loaded object that contains an address.
fn object_at(address: *const c_void) -> Option<Dl_info> {
    // SAFETY: all zeros are an answer without an object.
    let mut info: Dl_info = unsafe { zeroed() };
    // SAFETY: any address may be looked up, and the answer may be written.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    (found != 0 && !info.dli_fname.is_null()).then_some(info)
}

/// A loaded object in which symbols are looked up.
struct Handle(*mut c_void);

impl Handle {
    /// Returns the object of this name if it is loaded; it is not loaded otherwise.
    fn of_loaded(name: *const c_char) -> Option<Self> {
        // SAFETY: the name ends with a zero.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Self(handle))
    }

    fn functions(&self, names: &Names) -> Addresses {
        names.functions.map(|name| lookup(self.0, name))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle was opened and is closed once; the server still holds its own.
        unsafe { libc::dlclose(self.0) };
    }
}

fn lookup(handle: *mut c_void, name: &CStr) -> *mut c_void {
    if name.is_empty() {
        return null_mut();
    }
    // SAFETY: an open handle or a constant of libc's, and a name that ends with a zero.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

impl Library {
    const fn new() -> Self {
        Self {
            functions: [const { AtomicPtr::new(null_mut()) }; FUNCTIONS],
            is_ready: AtomicBool::new(false),
        }
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Stores its addresses; all callers have the same.
    fn set(&self, found: Addresses) {
        for (function, address) in self.functions.iter().zip(found) {
            function.store(address, Ordering::Relaxed);
        }
        self.is_ready.store(true, Ordering::Release);
    }

    /// Returns the address of a function; null if the library has none of that name.
    pub(super) fn address(&self, function: Function) -> *mut c_void {
        self.functions[function as usize].load(Ordering::Relaxed)
    }

    fn ready_by_name(&'static self, names: &Names) -> &'static Self {
        if !self.is_ready() {
            keeping_errno(|| self.find_by_name(names));
        }
        self
    }

    /// Looks it up where the dynamic linker does, and then among the objects that were loaded
    /// for a plug-in alone.
    #[cold]
    fn find_by_name(&self, names: &Names) {
        let next = names.functions.map(|name| lookup(libc::RTLD_NEXT, name));
        if !next[Function::Read as usize].is_null() {
            self.set(next);
        } else if let Some(handle) = Loaded::find(names.file) {
            self.set(handle.functions(names));
        }
    }

    /// Returns the descriptor from which a session reads; negative if it has none of its own.
    pub(super) fn descriptor(&self, session: *const c_void) -> c_int {
        type GetFd = unsafe extern "C" fn(*const c_void) -> c_int;
        let address = self.address(Function::ReadDescriptor);
        if address.is_null() || !self.has_bio(session) {
            return -1;
        }
        // SAFETY: the function of this name has this type, and the address is not null.
        let get = unsafe { std::mem::transmute::<*mut c_void, GetFd>(address) };
        // SAFETY: a session of this library, by the server's own call.
        unsafe { get(session) }
    }

    /// Whether a session has something to read from. Without it, OpenSSL's function for
    /// the descriptor adds an error to its queue.
    fn has_bio(&self, session: *const c_void) -> bool {
        type GetBio = unsafe extern "C" fn(*const c_void) -> *const c_void;
        let address = self.address(Function::ReadBio);
        if address.is_null() {
            // wolfSSL has descriptors only.
            return true;
        }
        // SAFETY: the function of this name has this type, and the address is not null.
        let get = unsafe { std::mem::transmute::<*mut c_void, GetBio>(address) };
        // SAFETY: a session of this library, by the server's own call.
        !unsafe { get(session) }.is_null()
    }
}

/// The search for a loaded object by the beginning of its file name.
struct Loaded<'n> {
    file: &'n [u8],
    /// Its path, with a zero at the end.
    path: [u8; 4096],
}

impl<'n> Loaded<'n> {
    fn find(file: &'n [u8]) -> Option<Handle> {
        let mut search = Self { file, path: [0; 4096] };
        let at: *mut Self = &raw mut search;
        // SAFETY: the function is called with this pointer while `search` lives.
        let found = unsafe { libc::dl_iterate_phdr(Some(Self::visit), at.cast()) };
        // Opened after the iteration, which holds a lock of the dynamic linker's.
        (found != 0).then(|| Handle::of_loaded(search.path.as_ptr().cast())).flatten()
    }

    /// Notes an object's path if its name fits; 1 ends the iteration.
    ///
    /// # Safety
    /// `object` is an object, as libc passes it, and `search` the pointer of [`Self::find`].
    unsafe extern "C" fn visit(
        object: *mut libc::dl_phdr_info,
        _bytes: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: by the caller.
        let search = unsafe { &mut *search.cast::<Self>() };
        // SAFETY: by the caller.
        let name = unsafe { (*object).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: the name of an object ends with a zero.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
        let file = path.rsplit(|byte| *byte == b'/').next();
        let fits = file.is_some_and(|file| file.starts_with(search.file));
        match search.path.get_mut(..path.len()) {
            Some(room) if fits => {
                room.copy_from_slice(path);
                1
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_no_tls_library_lead_to_none() {
        let on_stack = 7;
        let head = [0, 1, (&raw const on_stack).addr(), libc::getpid as *const () as usize];
        assert!(known(&head).is_none() && learn(&head).is_none());
        // SAFETY: null is allowed.
        assert!(unsafe { of_session(std::ptr::null()) }.is_none());
    }

    #[test]
    fn a_loaded_object_is_found_by_the_beginning_of_its_name() {
        let libc = Loaded::find(b"libc.").expect("the tests use libc");
        assert!(!lookup(libc.0, c"getpid").is_null());
        assert!(lookup(libc.0, c"SSL_read").is_null() && lookup(libc.0, c"").is_null());
        assert!(Loaded::find(b"libnosuch.").is_none());
    }

    #[test]
    fn a_library_is_ready_once_its_addresses_are_there() {
        let library = Library::new();
        assert!(!library.is_ready() && library.address(Function::Read).is_null());
        let mut found = [null_mut(); FUNCTIONS];
        found[Function::ReadBio as usize] = 8 as *mut c_void;
        library.set(found);
        assert!(library.is_ready());
        assert_eq!(library.address(Function::ReadBio).addr(), 8);
    }
}
