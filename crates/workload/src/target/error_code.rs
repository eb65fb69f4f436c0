//! The code of an error that a server reports.

use std::fmt;

/// A SQLSTATE of PostgreSQL (`40001`), an error number of MySQL and MariaDB (`1213`), a status of
/// HTTP (`503`), the code of a reset in HTTP/2 (`RST:7`) or the first word of an error of Redis
/// (`NOAUTH`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode([u8; Self::LENGTH]);

impl ErrorCode {
    /// The script ends while its transaction is open.
    pub(super) const OPEN: Self = Self(*b"OPEN        ");
    /// A stream of HTTP/2 was reset with a code that is too long to be shown.
    pub(super) const RESET: Self = Self(*b"RST:other   ");
    /// The largest number of bytes of a code.
    pub(super) const LENGTH: usize = 12;

    /// Returns a code of printable bytes, [`Self::LENGTH`] at most.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut code = [b' '; Self::LENGTH];
        code.get_mut(..bytes.len())?.copy_from_slice(bytes);
        bytes.iter().all(u8::is_ascii_graphic).then_some(Self(code))
    }

    pub(super) fn from_number(number: u16) -> Self {
        // A 16-bit number has at most five digits.
        let (text, mut code) = (number.to_string(), [b' '; Self::LENGTH]);
        code[..text.len()].copy_from_slice(text.as_bytes());
        Self(code)
    }

    /// Returns the kind of error that the code means: `deadlock`, `serialization failure`, `lock
    /// time-out`, `open transaction` or `other`.
    pub fn kind(self) -> &'static str {
        match self.0.trim_ascii_end() {
            b"40P01" | b"1213" => "deadlock",
            // 1020: a row has changed since the snapshot of the transaction (MariaDB).
            b"40001" | b"1020" => "serialization failure",
            b"55P03" | b"1205" => "lock time-out",
            b"OPEN" => "open transaction",
            _ => "other",
        }
    }

    /// Returns whether the same transaction may succeed if it is tried again at once.
    pub(super) fn is_transient(self) -> bool {
        matches!(self.kind(), "deadlock" | "serialization failure")
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_slice().escape_ascii().to_string().trim_end())
    }
}
