//! Which descriptor is which connection, in this process.

use lull_oncall::{CONNECTIONS, Id};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Descriptors that are watched are below this; others pass unseen.
const DESCRIPTORS: usize = 1 << 16;

/// A descriptor, packed into a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descriptor {
    /// Nothing of ours.
    Foreign,
    /// Accepted, and nothing was read from it yet.
    Accepted,
    /// A connection for which there was no room.
    Unwatched,
    /// A connection.
    Connection {
        /// Its number in the page.
        id: Id,
        /// Whether a rule lets it pass.
        is_exempt: bool,
    },
}

const ACCEPTED: u32 = 1;
const UNWATCHED: u32 = 2;
const FIRST: u32 = 16;
const EXEMPT: u32 = 1 << 31;

impl Descriptor {
    const fn word(self) -> u32 {
        match self {
            Self::Foreign => 0,
            Self::Accepted => ACCEPTED,
            Self::Unwatched => UNWATCHED,
            Self::Connection { id, is_exempt } => {
                (FIRST + id.0) | if is_exempt { EXEMPT } else { 0 }
            }
        }
    }

    const fn of_word(word: u32) -> Self {
        match word {
            0 => Self::Foreign,
            ACCEPTED => Self::Accepted,
            UNWATCHED => Self::Unwatched,
            _ => Self::Connection {
                id: Id((word & !EXEMPT).wrapping_sub(FIRST)),
                is_exempt: word & EXEMPT != 0,
            },
        }
    }
}

const _: () = assert!(CONNECTIONS < (EXEMPT - FIRST) as usize);

static TABLE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];

fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// What a descriptor is.
pub(crate) fn get(fd: c_int) -> Descriptor {
    entry(fd).map_or(Descriptor::Foreign, |word| Descriptor::of_word(word.load(Ordering::Relaxed)))
}

/// Says what a descriptor is; what it was.
pub(crate) fn set(fd: c_int, what: Descriptor) -> Descriptor {
    let swap = |word: &AtomicU32| Descriptor::of_word(word.swap(what.word(), Ordering::AcqRel));
    entry(fd).map_or(Descriptor::Foreign, swap)
}

/// Every connection of this process, taken out of the table.
pub(crate) fn take_all() -> impl Iterator<Item = Id> {
    let taken = TABLE.iter().map(|word| match word.load(Ordering::Relaxed) {
        0 => Descriptor::Foreign,
        _ => Descriptor::of_word(word.swap(0, Ordering::AcqRel)),
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
    fn a_descriptor_is_what_it_was_said_to_be() {
        let all = [
            Descriptor::Foreign,
            Descriptor::Accepted,
            Descriptor::Unwatched,
            Descriptor::Connection { id: Id(0), is_exempt: false },
            Descriptor::Connection { id: Id(9_999), is_exempt: true },
        ];
        for what in all {
            assert_eq!(Descriptor::of_word(what.word()), what);
        }
    }

    #[test]
    fn a_number_that_no_table_has_is_foreign() {
        for fd in [-1, c_int::MIN, DESCRIPTORS as c_int, c_int::MAX] {
            assert_eq!(set(fd, Descriptor::Accepted), Descriptor::Foreign);
            assert_eq!(get(fd), Descriptor::Foreign);
        }
    }
}
