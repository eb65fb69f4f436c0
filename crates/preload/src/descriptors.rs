//! The table of this process's descriptors: which of them are connections.

use crate::pool::ServedBy;
use lull_oncall::{CONNECTIONS, Id};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors from this number on are not watched.
const DESCRIPTORS: usize = 1 << 16;

/// A descriptor, packed into a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descriptor {
    /// The descriptor is not a watched connection.
    Foreign,
    /// Returned by `accept`; nothing was read from it yet.
    Accepted,
    /// A connection for which the page had no room.
    Unwatched,
    /// A connection.
    Connection {
        /// Its number in the page.
        id: Id,
        /// Whether a rule exempts it from the gate.
        is_exempt: bool,
        /// Whether its decrypted bytes are read, and those of its socket are not.
        is_decrypted: bool,
        /// The kind of thread that serves it.
        served_by: ServedBy,
    },
}

/// The word of a descriptor that is a connection, which is unpacked in parts.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionWord(u32);

impl ConnectionWord {
    /// Its number in the page.
    #[inline]
    pub(crate) const fn id(self) -> Id {
        Id((self.0 & !FLAGS).wrapping_sub(FIRST))
    }

    /// As in [`Descriptor::Connection`].
    #[inline]
    pub(crate) const fn is_exempt(self) -> bool {
        self.0 & EXEMPT != 0
    }

    /// As in [`Descriptor::Connection`].
    #[inline]
    pub(crate) const fn is_decrypted(self) -> bool {
        self.0 & DECRYPTED != 0
    }

    /// The kind of thread that serves it.
    #[inline]
    pub(crate) const fn served_by(self) -> ServedBy {
        match self.0 & (BY_POOL | BY_LOOP) {
            0 => ServedBy::Alone,
            BY_POOL => ServedBy::Pool,
            _ => ServedBy::Loop,
        }
    }
}

const ACCEPTED: u32 = 1;
const UNWATCHED: u32 = 2;
const FIRST: u32 = 16;
const EXEMPT: u32 = 1 << 31;
const DECRYPTED: u32 = 1 << 30;
const BY_POOL: u32 = 1 << 29;
const BY_LOOP: u32 = 1 << 28;
const FLAGS: u32 = EXEMPT | DECRYPTED | BY_POOL | BY_LOOP;

impl Descriptor {
    const fn to_word(self) -> u32 {
        match self {
            Self::Foreign => 0,
            Self::Accepted => ACCEPTED,
            Self::Unwatched => UNWATCHED,
            Self::Connection { id, is_exempt, is_decrypted, served_by } => {
                debug_assert!(id.index() < CONNECTIONS, "the number overlaps the flags");
                let exempt = if is_exempt { EXEMPT } else { 0 };
                let decrypted = if is_decrypted { DECRYPTED } else { 0 };
                let served_by = match served_by {
                    ServedBy::Alone => 0,
                    ServedBy::Pool => BY_POOL,
                    ServedBy::Loop => BY_LOOP,
                };
                (FIRST + id.0) | exempt | decrypted | served_by
            }
        }
    }

    const fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Foreign,
            ACCEPTED => Self::Accepted,
            UNWATCHED => Self::Unwatched,
            _ => {
                let word = ConnectionWord(word);
                Self::Connection {
                    id: word.id(),
                    is_exempt: word.is_exempt(),
                    is_decrypted: word.is_decrypted(),
                    served_by: word.served_by(),
                }
            }
        }
    }
}

const _: () = assert!(CONNECTIONS < (BY_LOOP - FIRST) as usize);

static TABLE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

#[inline]
fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

#[inline]
fn word(fd: c_int) -> u32 {
    entry(fd).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Returns the word of a descriptor that is a connection.
#[inline]
pub(crate) fn connection(fd: c_int) -> Option<ConnectionWord> {
    let word = word(fd);
    (word >= FIRST).then_some(ConnectionWord(word))
}

/// Whether `accept` has returned a descriptor from which nothing was read yet.
#[inline]
pub(crate) fn is_accepted(fd: c_int) -> bool {
    word(fd) == ACCEPTED
}

/// Returns what a descriptor is.
pub(crate) fn get(fd: c_int) -> Descriptor {
    Descriptor::from_word(word(fd))
}

/// Sets the kind of a descriptor. Returns the former one.
pub(crate) fn set(fd: c_int, what: Descriptor) -> Descriptor {
    let swap =
        |word: &AtomicU32| Descriptor::from_word(word.swap(what.to_word(), Ordering::AcqRel));
    entry(fd).map_or(Descriptor::Foreign, swap)
}

/// Replaces what a descriptor is. Returns `false` if another thread has changed it.
pub(crate) fn replace(fd: c_int, from: Descriptor, to: Descriptor) -> bool {
    let (from, to) = (from.to_word(), to.to_word());
    entry(fd).is_some_and(|word| {
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

/// Takes every connection of this process out of the table.
pub(crate) fn take_all() -> impl Iterator<Item = Id> {
    let taken = TABLE.iter().map(|word| match word.load(Ordering::Relaxed) {
        0 => Descriptor::Foreign,
        _ => Descriptor::from_word(word.swap(0, Ordering::AcqRel)),
    });
    taken.filter_map(|what| match what {
        Descriptor::Connection { id, .. } => Some(id),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_packing_into_a_word() {
        for what in [Descriptor::Foreign, Descriptor::Accepted, Descriptor::Unwatched] {
            assert_eq!(Descriptor::from_word(what.to_word()), what);
        }
        for bits in 0..8 {
            let (id, is_exempt) = if bits & 1 == 0 { (Id(0), false) } else { (Id(9_999), true) };
            for served_by in [ServedBy::Alone, ServedBy::Pool, ServedBy::Loop] {
                let is_decrypted = bits & 2 == 0;
                let what = Descriptor::Connection { id, is_exempt, is_decrypted, served_by };
                assert!(what.to_word() >= FIRST);
                assert_eq!(Descriptor::from_word(what.to_word()), what);
            }
        }
    }

    #[test]
    fn a_descriptor_is_replaced_only_if_it_is_still_the_same() {
        let fd = DESCRIPTORS as c_int - 1;
        assert!(replace(fd, Descriptor::Foreign, Descriptor::Accepted));
        assert!(!replace(fd, Descriptor::Foreign, Descriptor::Unwatched));
        assert_eq!(set(fd, Descriptor::Foreign), Descriptor::Accepted);
        assert!(!replace(-1, Descriptor::Foreign, Descriptor::Accepted));
    }

    #[test]
    fn a_number_beyond_the_table_is_foreign() {
        for fd in [-1, c_int::MIN, DESCRIPTORS as c_int, c_int::MAX] {
            assert_eq!(set(fd, Descriptor::Accepted), Descriptor::Foreign);
            assert_eq!(get(fd), Descriptor::Foreign);
        }
    }
}
