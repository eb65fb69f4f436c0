//! Reads a ledger without restoring it: the entry of the fuzz target `ledger`.

use super::entry::Lines;
use super::held::Held;

/// The boot of the entries of a fuzz input.
const BOOT: &str = "b";

/// Reads lines and returns those that are entries as they are written again.
#[doc(hidden)]
pub fn reread_lines(bytes: &[u8]) -> Vec<u8> {
    let lines = Lines::read(bytes);
    let held = Held::from_lines(&lines, BOOT);
    assert!(held.values() + held.other_boot <= lines.entries.len());
    assert!(lines.is_closed() || !held.closed);
    let mut written = Vec::new();
    lines.entries.iter().for_each(|entry| entry.encode(&mut written));
    written
}
