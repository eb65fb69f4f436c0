//! Whether a program can be preloaded into: it must be linked dynamically.

use std::io::{self, Read};
use std::path::Path;

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// A loader brings its libraries, and with them ours.
    Dynamic,
    /// Nothing can be preloaded into it.
    Static,
    /// A script, or no program of this kind: what it executes decides.
    Other,
}

const PT_INTERP: u32 = 3;

/// How the program at `path` is linked: an ELF program names its loader in a
/// program header of type `PT_INTERP` (`man 5 elf`).
///
/// # Errors
/// If it cannot be read.
pub fn linkage(path: &Path) -> io::Result<Linkage> {
    let mut head = Vec::new();
    std::fs::File::open(path)?.take(1 << 16).read_to_end(&mut head)?;
    Ok(of_head(&head))
}

/// A 64-bit program of the machine's own byte order; others are `Other`.
fn of_head(head: &[u8]) -> Linkage {
    let is_native = head.starts_with(b"\x7fELF\x02") && head.get(5) == Some(&1);
    let number = |at: usize, bytes: usize| {
        let bytes = head.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte)))
    };
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    match headers().filter(|_| is_native && cfg!(target_endian = "little")) {
        None => Linkage::Other,
        Some((first, bytes, count)) => {
            let kinds = (0..count).filter_map(|at| number(first.checked_add(at * bytes)?, 4));
            let names_loader = kinds.into_iter().any(|kind| kind == PT_INTERP as usize);
            if names_loader { Linkage::Dynamic } else { Linkage::Static }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one program header.
    fn program(kind: u32) -> Vec<u8> {
        let mut head = vec![0; 128];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64;
        head[54] = 56;
        head[56] = 1;
        head[64..68].copy_from_slice(&kind.to_le_bytes());
        head
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        assert_eq!(of_head(&program(PT_INTERP)), Linkage::Dynamic);
        assert_eq!(of_head(&program(1)), Linkage::Static);
        assert_eq!(of_head(b"#!/bin/sh\n"), Linkage::Other);
        assert_eq!(of_head(b""), Linkage::Other);
    }

    #[test]
    fn a_header_that_points_outside_breaks_nothing() {
        let mut head = program(PT_INTERP);
        head[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of_head(&head), Linkage::Static);
    }

    #[test]
    fn the_shell_of_this_machine_is_dynamic() {
        assert_eq!(linkage(Path::new("/bin/sh")).unwrap(), Linkage::Dynamic);
    }
}
