//! Whether a library can be preloaded into a program: the program must be linked
//! dynamically, and make its system calls through its C library.

use std::io::{self, Read};
use std::path::Path;

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// A loader loads its libraries, and a preloaded one.
    Dynamic,
    /// No library can be preloaded into it.
    Static,
    /// A Go program, which makes system calls itself.
    Go,
    /// A script, or a file of another kind: the program that it executes decides.
    Other,
}

const PT_INTERP: usize = 3;
const PT_NOTE: usize = 4;
/// The kind and the owner of the note that Go's linker writes (cmd/link: `.note.go.buildid`).
const GO: &[u8] = b"\x04\0\0\0Go\0\0";

/// Returns how the program at `path` is linked. An ELF program names its loader in a program
/// header of type `PT_INTERP` (`man 5 elf`).
///
/// # Errors
/// If it cannot be read.
pub fn linkage(path: &Path) -> io::Result<Linkage> {
    let mut head = Vec::new();
    std::fs::File::open(path)?.take(1 << 16).read_to_end(&mut head)?;
    Ok(linkage_from_head(&head))
}

/// Returns the linkage of a 64-bit program of the machine's byte order; others are `Other`.
fn linkage_from_head(head: &[u8]) -> Linkage {
    let is_native = head.starts_with(b"\x7fELF\x02") && head.get(5) == Some(&1);
    if !is_native || cfg!(target_endian = "big") {
        return Linkage::Other;
    }
    let Some(segments) = segments(head) else { return Linkage::Other };
    let has = |kind| segments.iter().any(|segment| segment.0 == kind);
    if segments.iter().any(|(kind, notes)| *kind == PT_NOTE && has_go_note(notes)) {
        return Linkage::Go;
    }
    if has(PT_INTERP) { Linkage::Dynamic } else { Linkage::Static }
}

/// Returns the kind of each program header, and its content as far as that was read.
fn segments(head: &[u8]) -> Option<Vec<(usize, &[u8])>> {
    let number = |at: usize, bytes: usize| {
        let bytes = head.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte)))
    };
    let (first, each, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let segment = |index: usize| {
        let at = first.checked_add(index * each)?;
        let (kind, begin) = (number(at, 4)?, number(at.checked_add(8)?, 8)?);
        let end = begin.saturating_add(number(at.checked_add(32)?, 8)?).min(head.len());
        Some((kind, head.get(begin..end).unwrap_or_default()))
    };
    Some((0..count).filter_map(segment).collect())
}

/// A note is the lengths of its owner and content, its kind, its owner and its content.
fn has_go_note(notes: &[u8]) -> bool {
    notes.windows(GO.len()).any(|window| window == GO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one program header.
    fn program(kind: usize) -> Vec<u8> {
        let mut head = vec![0; 128];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64;
        head[54] = 56;
        head[56] = 1;
        head[64..72].copy_from_slice(&kind.to_le_bytes());
        head
    }

    #[test]
    fn a_program_with_a_note_of_gos_linker_is_a_go_program() {
        let mut head = program(PT_NOTE);
        head[72..80].copy_from_slice(&128_u64.to_le_bytes());
        head[96..104].copy_from_slice(&24_u64.to_le_bytes());
        head.extend(b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd");
        assert_eq!(linkage_from_head(&head), Linkage::Go);
        head.truncate(140);
        assert_eq!(linkage_from_head(&head), Linkage::Static, "cut off");
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        assert_eq!(linkage_from_head(&program(PT_INTERP)), Linkage::Dynamic);
        assert_eq!(linkage_from_head(&program(1)), Linkage::Static);
        assert_eq!(linkage_from_head(b"#!/bin/sh\n"), Linkage::Other);
        assert_eq!(linkage_from_head(b""), Linkage::Other);
    }

    #[test]
    fn a_header_that_points_outside_breaks_nothing() {
        let mut head = program(PT_INTERP);
        head[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(linkage_from_head(&head), Linkage::Static);
    }

    #[test]
    fn the_shell_of_this_machine_is_dynamic() {
        assert_eq!(linkage(Path::new("/bin/sh")).unwrap(), Linkage::Dynamic);
    }
}
