//! The connection of an event, by the data that the server gave with it.
//!
//! A hash table of connection numbers. The words that it is searched for stand with the
//! connections, where the caller compares them, so that an entry that is out of date does no
//! harm. A connection that finds no place near its own is not found, and never hidden.

use lull_oncall::{CONNECTIONS, Id};
use std::sync::atomic::{AtomicU32, Ordering};

const BITS: u32 = 15;
const ENTRIES: usize = 1 << BITS;
/// Entries that are searched, from the one that the data yield.
const NEAR: usize = 8;

const _: () = assert!(ENTRIES >= 3 * CONNECTIONS, "few connections find no place");

/// Numbers of connections plus one; 0 is empty.
static TABLE: [AtomicU32; ENTRIES] = [const { AtomicU32::new(0) }; ENTRIES];

/// Returns the entries for these data; none for 0, which names no connection.
fn entries(data: u64) -> impl Iterator<Item = &'static AtomicU32> {
    // Multiples of the golden ratio spread evenly, also pointers with equal low bits.
    let first = (data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize;
    let near = if data == 0 { 0 } else { NEAR };
    (0..near).map(move |step| &TABLE[(first + step) % ENTRIES])
}

/// Adds a connection with these data.
pub(super) fn insert(id: Id, data: u64) {
    let free = |entry: &&AtomicU32| {
        entry.compare_exchange(0, id.0 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    entries(data).find(free);
}

/// Removes a connection that was added with these data.
pub(super) fn remove(id: Id, data: u64) {
    for entry in entries(data) {
        let _ = entry.compare_exchange(id.0 + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Returns the connection with these data for which `is_it` holds.
pub(super) fn find(data: u64, is_it: impl Fn(Id) -> bool) -> Option<Id> {
    let ids = entries(data).map(|entry| entry.load(Ordering::Acquire));
    ids.filter_map(|id| id.checked_sub(1)).map(Id).find(|id| is_it(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_found_by_its_data_until_it_is_removed() {
        let data = |id: u32| 0x5555_0000_0000 + 64 * u64::from(id);
        let ids = 5_000..5_900;
        ids.clone().for_each(|id| insert(Id(id), data(id)));
        for id in ids.clone() {
            assert_eq!(find(data(id), |found| found == Id(id)), Some(Id(id)));
        }
        ids.clone().for_each(|id| remove(Id(id), data(id)));
        assert!(ids.clone().all(|id| find(data(id), |found| found == Id(id)).is_none()));
    }

    #[test]
    fn data_that_are_zero_name_no_connection() {
        insert(Id(7), 0);
        assert_eq!(find(0, |_| true), None);
    }
}
