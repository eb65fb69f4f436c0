//! The calls of TLS libraries that the library replaces, with their names and meanings.
//!
//! A server under TLS gets its queries from `SSL_read` and sends its replies by `SSL_write`.
//! Here the bytes are plain, so that they take the same way as those of `recv` and `send`: to
//! the reader of the protocol, to the gate, to the statistics. What the TLS library reads and
//! writes meanwhile on the socket is not read a second time (`Connection::decrypt`).
//!
//! Results, `errno` and the error queue of the TLS library are left as its call set them: of
//! its functions only those are called that return what a session reads from.
//!
//! A library that is linked statically, one with other functions (GnuTLS), or a session whose
//! bytes the server itself carries to the socket (memory BIOs) is not seen here: then the
//! connection stays opaque.

#![cfg_attr(test, expect(non_snake_case, reason = "the names of the replaced functions"))]

mod library;

use crate::connection::Connection;
use crate::pool::ServedBy;
use crate::{page, session, traffic};
use library::{Function, Library};
use std::ffi::{c_int, c_void};

/// The return value of a call, and the bytes that it moved.
struct Outcome {
    result: c_int,
    bytes: usize,
}

impl Outcome {
    /// The result of a call is the number of bytes if it is positive.
    fn of_count(result: c_int) -> Self {
        Self { result, bytes: usize::try_from(result).unwrap_or(0) }
    }

    /// The call has stored the number of bytes if its result is positive.
    ///
    /// # Safety
    /// `count` is valid for reading if `result` is positive.
    unsafe fn of_stored(result: c_int, count: *const usize) -> Self {
        let is_stored = result > 0 && !count.is_null();
        // SAFETY: by the caller.
        Self { result, bytes: if is_stored { unsafe { *count } } else { 0 } }
    }
}

/// A call of the server's that may concern a connection.
struct Call {
    session: *const c_void,
    /// The descriptor of the session; negative if it is not known.
    fd: c_int,
    /// The connection, if decrypted bytes of it were seen before.
    connection: Option<Connection>,
}

impl Call {
    /// Begins a call. Returns `None` if it concerns no connection whose protocol is read.
    #[inline]
    fn begin(library: Option<&Library>, session: *const c_void) -> Option<Self> {
        let library = library?;
        if !is_watched() || !session::begin() {
            return None;
        }
        if let Some(connection) = recalled(session) {
            return Some(Self { session, fd: connection.fd, connection: Some(connection) });
        }
        let fd = library.descriptor(session);
        Some(Self { session, fd, connection: Connection::get_decrypted(fd) })
    }

    /// Ends a call that has moved bytes. Returns the connection that they belong to.
    #[inline]
    fn end_with_bytes(&self) -> Option<Connection> {
        let used = session::end();
        self.connection.or_else(|| self.first_connection(used))
    }

    /// Returns the connection whose first decrypted bytes the call has moved. `used` is the
    /// descriptor that the library has used meanwhile.
    #[cold]
    fn first_connection(&self, used: Option<c_int>) -> Option<Connection> {
        let fd = if self.fd >= 0 { self.fd } else { used? };
        Connection::decrypt(fd)
    }

    /// Remembers the connection for this thread's next call.
    fn remember(&self, connection: &Connection) {
        session::remember(self.session.addr(), connection.fd, connection.id);
    }
}

/// Whether queries of this process are read at all.
fn is_watched() -> bool {
    page::get().is_some() && traffic::is_readable()
}

/// Returns the connection of a session if it was this thread's last, and still is the same.
#[inline]
fn recalled(session: *const c_void) -> Option<Connection> {
    let (fd, id) = session::recall(session.addr())?;
    Connection::get_decrypted(fd).filter(|connection| connection.id == id)
}

/// Makes a call that reads, and tracks its connection before and after it.
///
/// # Safety
/// `to` is valid for reading the bytes that the call moves.
unsafe fn reading(call: Option<&Call>, to: *const c_void, read: impl FnOnce() -> Outcome) -> c_int {
    let Some(call) = call else { return read().result };
    if let Some(connection) = &call.connection {
        connection.receives();
    }
    let done = read();
    session::set_drained(call.fd, done.bytes == 0);
    if done.bytes == 0 {
        session::end();
        // In a pool the turn ends when the server arms the connection.
        let connection = call.connection.as_ref();
        if let Some(connection) = connection.filter(|one| one.served_by != ServedBy::Pool) {
            connection.found_nothing();
        }
    } else if let Some(connection) = call.end_with_bytes() {
        call.remember(&connection);
        // SAFETY: by the caller.
        connection.received(unsafe { std::slice::from_raw_parts(to.cast(), done.bytes) });
    }
    done.result
}

/// Makes a call that writes, and tracks its connection after it. A call that has to be
/// repeated has moved no bytes.
///
/// # Safety
/// `from` is valid for reading the bytes that the call moves.
unsafe fn writing(
    call: Option<&Call>,
    from: *const c_void,
    write: impl FnOnce() -> Outcome,
) -> c_int {
    let done = write();
    let Some(call) = call else { return done.result };
    if done.bytes == 0 {
        session::end();
    } else if let Some(connection) = call.end_with_bytes() {
        call.remember(&connection);
        // SAFETY: by the caller.
        connection.sent(unsafe { std::slice::from_raw_parts(from.cast(), done.bytes) });
    }
    done.result
}

/// Makes a call that shakes hands: its bytes are not a query.
fn shaking_hands(shake: impl FnOnce() -> c_int) -> c_int {
    let is_outer = is_watched() && session::begin();
    let result = shake();
    if is_outer {
        session::end();
    }
    result
}

/// A library's function. If there is none, the process is aborted: the server itself called
/// it.
macro_rules! theirs {
    ($library:expr, $function:ident as $kind:ty) => {{
        let address = $library.address(Function::$function);
        if address.is_null() {
            // SAFETY: `abort` may be called at any time.
            unsafe { libc::abort() };
        }
        // SAFETY: the library's function of this name has this type (its manual page), and the
        // address is not null.
        unsafe { std::mem::transmute::<*mut c_void, $kind>(address) }
    }};
}

type Read = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> c_int;
type ReadEx = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> c_int;
type Write = unsafe extern "C" fn(*mut c_void, *const c_void, c_int) -> c_int;
type WriteEx = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut usize) -> c_int;
type WriteEx2 = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u64, *mut usize) -> c_int;
type HandshakeFn = unsafe extern "C" fn(*mut c_void) -> c_int;

/// OpenSSL's `SSL_read`.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_read(ssl: *mut c_void, to: *mut c_void, length: c_int) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) };
    let real = theirs!(library.unwrap_or_else(library::usual), Read as Read);
    let call = Call::begin(library, ssl);
    // SAFETY: the caller's own call, passed on.
    let read = || Outcome::of_count(unsafe { real(ssl, to, length) });
    // SAFETY: the library fills that much of the caller's buffer.
    unsafe { reading(call.as_ref(), to, read) }
}

/// OpenSSL's `SSL_read_ex`.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_read_ex(
    ssl: *mut c_void,
    to: *mut c_void,
    length: usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) };
    let real = theirs!(library.unwrap_or_else(library::usual), ReadEx as ReadEx);
    let call = Call::begin(library, ssl);
    let read = || {
        // SAFETY: the caller's own call, passed on.
        let result = unsafe { real(ssl, to, length, count) };
        // SAFETY: the library has stored the number of bytes.
        unsafe { Outcome::of_stored(result, count) }
    };
    // SAFETY: the library fills that much of the caller's buffer.
    unsafe { reading(call.as_ref(), to, read) }
}

/// OpenSSL's `SSL_write`.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_write(ssl: *mut c_void, from: *const c_void, length: c_int) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) };
    let real = theirs!(library.unwrap_or_else(library::usual), Write as Write);
    let call = Call::begin(library, ssl);
    // SAFETY: the caller's own call, passed on.
    let write = || Outcome::of_count(unsafe { real(ssl, from, length) });
    // SAFETY: the library reads that much of the caller's buffer.
    unsafe { writing(call.as_ref(), from, write) }
}

/// OpenSSL's `SSL_write_ex`.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_write_ex(
    ssl: *mut c_void,
    from: *const c_void,
    length: usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) };
    let real = theirs!(library.unwrap_or_else(library::usual), WriteEx as WriteEx);
    let call = Call::begin(library, ssl);
    let write = || {
        // SAFETY: the caller's own call, passed on.
        let result = unsafe { real(ssl, from, length, count) };
        // SAFETY: the library has stored the number of bytes.
        unsafe { Outcome::of_stored(result, count) }
    };
    // SAFETY: the library reads that much of the caller's buffer.
    unsafe { writing(call.as_ref(), from, write) }
}

/// `SSL_write_ex2`, which OpenSSL has since 3.3.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_write_ex2(
    ssl: *mut c_void,
    from: *const c_void,
    length: usize,
    flags: u64,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) };
    let real = theirs!(library.unwrap_or_else(library::usual), WriteEx2 as WriteEx2);
    let call = Call::begin(library, ssl);
    let write = || {
        // SAFETY: the caller's own call, passed on.
        let result = unsafe { real(ssl, from, length, flags, count) };
        // SAFETY: the library has stored the number of bytes.
        unsafe { Outcome::of_stored(result, count) }
    };
    // SAFETY: the library reads that much of the caller's buffer.
    unsafe { writing(call.as_ref(), from, write) }
}

/// OpenSSL's `SSL_accept`.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_accept(ssl: *mut c_void) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) }.unwrap_or_else(library::usual);
    let real = theirs!(library, Accept as HandshakeFn);
    // SAFETY: the caller's own call, passed on.
    shaking_hands(|| unsafe { real(ssl) })
}

/// OpenSSL's `SSL_do_handshake`.
///
/// # Safety
/// As its manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn SSL_do_handshake(ssl: *mut c_void) -> c_int {
    // SAFETY: the caller's own session.
    let library = unsafe { library::of_session(ssl) }.unwrap_or_else(library::usual);
    let real = theirs!(library, DoHandshake as HandshakeFn);
    // SAFETY: the caller's own call, passed on.
    shaking_hands(|| unsafe { real(ssl) })
}

/// wolfSSL's `wolfSSL_read`.
///
/// # Safety
/// As its manual requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wolfSSL_read(ssl: *mut c_void, to: *mut c_void, length: c_int) -> c_int {
    let library = library::wolf();
    let real = theirs!(library, Read as Read);
    let call = Call::begin(Some(library), ssl);
    // SAFETY: the caller's own call, passed on.
    let read = || Outcome::of_count(unsafe { real(ssl, to, length) });
    // SAFETY: the library fills that much of the caller's buffer.
    unsafe { reading(call.as_ref(), to, read) }
}

/// wolfSSL's `wolfSSL_write`.
///
/// # Safety
/// As its manual requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wolfSSL_write(
    ssl: *mut c_void,
    from: *const c_void,
    length: c_int,
) -> c_int {
    let library = library::wolf();
    let real = theirs!(library, Write as Write);
    let call = Call::begin(Some(library), ssl);
    // SAFETY: the caller's own call, passed on.
    let write = || Outcome::of_count(unsafe { real(ssl, from, length) });
    // SAFETY: the library reads that much of the caller's buffer.
    unsafe { writing(call.as_ref(), from, write) }
}

/// wolfSSL's `wolfSSL_accept`.
///
/// # Safety
/// As its manual requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn wolfSSL_accept(ssl: *mut c_void) -> c_int {
    let real = theirs!(library::wolf(), Accept as HandshakeFn);
    // SAFETY: the caller's own call, passed on.
    shaking_hands(|| unsafe { real(ssl) })
}
