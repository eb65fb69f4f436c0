//! What the kernel says of its own types: where a field stands in a struct.
//!
//! A kernel that was built with `CONFIG_DEBUG_INFO_BTF` describes itself in
//! `/sys/kernel/btf/vmlinux` (Documentation/bpf/btf.rst): a list of types, numbered
//! from 1, and a list of names. Programs whose arguments have these types
//! may follow pointers among them, and the kernel checks each step.

use std::io;
use std::path::Path;

/// Where the running kernel describes itself.
pub(super) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// `BTF_KIND_*`.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

const MAGIC: u16 = 0xeb9f;
/// Bytes of a type before what its kind adds, and of a member of a struct.
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
/// Structs within structs that are looked through; the kernel's are fewer.
const NESTING_MAX: u32 = 16;
/// Other names of a type that are followed.
const ALIASES_MAX: u32 = 16;

/// The types of a kernel.
#[derive(Debug)]
pub(super) struct KernelTypes {
    bytes: Vec<u8>,
    /// Where each type stands; the first is number 1.
    places: Vec<usize>,
    /// Where names begin and end.
    names: (usize, usize),
}

/// One type, and what it says of itself.
#[derive(Debug, Clone, Copy)]
struct Type {
    at: usize,
    kind: u32,
    /// Members, parameters or values.
    count: usize,
    /// Whether offsets of members have a number of bits in their upper byte.
    has_bit_fields: bool,
    /// Its size, or the type that it is of.
    of: u32,
}

impl KernelTypes {
    /// The running kernel's.
    ///
    /// # Errors
    /// If it does not describe itself, or in a way that is not known here.
    pub(super) fn of_running_kernel() -> io::Result<Self> {
        Self::read(Path::new(VMLINUX))
    }

    fn read(path: &Path) -> io::Result<Self> {
        Self::parse(std::fs::read(path)?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "is no list of types"))
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let word = |at: usize| u32_at(&bytes, at);
        if u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(4)? as usize;
        let (types_at, types_bytes) = (header + word(8)? as usize, word(12)? as usize);
        let (names_at, names_bytes) = (header + word(16)? as usize, word(20)? as usize);
        let names = (names_at, (names_at + names_bytes).min(bytes.len()));
        let end = (types_at + types_bytes).min(bytes.len());
        let mut all = Self { bytes, places: Vec::new(), names };
        all.list(types_at, end)?;
        Some(all)
    }

    fn list(&mut self, mut at: usize, end: usize) -> Option<()> {
        while at < end {
            let one = self.type_at(at)?;
            self.places.push(at);
            at += TYPE_BYTES + one.more_bytes();
        }
        Some(())
    }

    /// The number of the type that a typedef is, by its name.
    pub(super) fn typedef(&self, name: &str) -> Option<u32> {
        let index = self.first(kind::TYPEDEF, name)?;
        u32::try_from(index + 1).ok()
    }

    /// Where in the list the first type of a kind and name stands.
    fn first(&self, kind: u32, name: &str) -> Option<usize> {
        self.places.iter().position(|at| {
            let is_of_kind = self.type_at(*at).is_some_and(|one| one.kind == kind);
            let called = || u32_at(&self.bytes, *at).map(|offset| self.name(offset));
            is_of_kind && called() == Some(name.as_bytes())
        })
    }

    /// How many bytes behind the beginning of a struct a field stands; `path` names
    /// the fields that it is in and itself. Structs and unions without a name are
    /// looked through, as C does.
    pub(super) fn offset(&self, of: &str, path: &[&str]) -> Option<i16> {
        let mut at = self.type_at(self.places[self.first(kind::STRUCT, of)?])?;
        let mut bits = 0;
        for name in path {
            let (offset, field) = self.member(at, name.as_bytes(), NESTING_MAX)?;
            bits += offset;
            at = self.bare(field)?;
        }
        (bits % 8 == 0).then_some(())?;
        i16::try_from(bits / 8).ok()
    }

    /// A member of a struct: how many bits in, and its type's number.
    fn member(&self, within: Type, name: &[u8], nesting: u32) -> Option<(u32, u32)> {
        if ![kind::STRUCT, kind::UNION].contains(&within.kind) || nesting == 0 {
            return None;
        }
        (0..within.count).find_map(|index| {
            let at = within.at + TYPE_BYTES + index * MEMBER_BYTES;
            let word = |index: usize| u32_at(&self.bytes, at + 4 * index);
            let (called, of, offset) = (self.name(word(0)?), word(1)?, word(2)?);
            let offset = if within.has_bit_fields { offset & 0x00ff_ffff } else { offset };
            if called == name {
                return Some((offset, of));
            }
            let inner = self.bare(of).filter(|_| called.is_empty())?;
            let (more, of) = self.member(inner, name, nesting - 1)?;
            Some((offset + more, of))
        })
    }

    /// A type without its other names and qualifiers.
    fn bare(&self, number: u32) -> Option<Type> {
        let mut one = self.numbered(number)?;
        for _ in 0..ALIASES_MAX {
            match one.kind {
                kind::TYPEDEF | kind::CONST | kind::VOLATILE | kind::TYPE_TAG => {
                    one = self.numbered(one.of)?;
                }
                _ => return Some(one),
            }
        }
        None
    }

    fn numbered(&self, number: u32) -> Option<Type> {
        self.type_at(*self.places.get((number as usize).checked_sub(1)?)?)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let (info, of) = (u32_at(&self.bytes, at + 4)?, u32_at(&self.bytes, at + 8)?);
        Some(Type {
            at,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            has_bit_fields: info >> 31 != 0,
            of,
        })
    }

    fn name(&self, offset: u32) -> &[u8] {
        let (begin, end) = self.names;
        let rest = self.bytes.get(begin + offset as usize..end).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl Type {
    /// What the kind adds to a type.
    const fn more_bytes(self) -> usize {
        match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * self.count,
            kind::ENUM | kind::FUNC_PROTO => 8 * self.count,
            _ => 0,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    word.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `typedef struct s { int a; struct { int b; const struct { int c; } d; }; } t;`
    fn small() -> Vec<u8> {
        let names = b"\0int\0s\0a\0b\0c\0d\0t\0";
        let (int, s, a, b, c, d, t) = (1, 5, 7, 9, 11, 13, 15);
        let info = |kind: u32, count: u32| kind << 24 | count;
        let types: Vec<u32> = [
            vec![int, info(kind::INT, 0), 4, 32],
            vec![0, info(kind::STRUCT, 1), 4, c, 1, 0],
            vec![0, info(kind::CONST, 0), 2],
            vec![0, info(kind::STRUCT, 2), 8, b, 1, 0, d, 3, 32],
            vec![s, info(kind::STRUCT, 2), 12, a, 1, 0, 0, 4, 32],
            vec![t, info(kind::TYPEDEF, 0), 5],
        ]
        .concat();
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
        let (types_bytes, names_bytes) = (types.len() as u32, names.len() as u32);
        let mut all = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        for word in [24, 0, types_bytes, types_bytes, names_bytes] {
            all.extend(u32::to_ne_bytes(word));
        }
        [all, types, names.to_vec()].concat()
    }

    #[test]
    fn fields_are_found_through_structs_without_a_name_and_along_a_path() {
        let types = KernelTypes::parse(small()).unwrap();
        assert_eq!(types.offset("s", &["a"]), Some(0));
        assert_eq!(types.offset("s", &["b"]), Some(4));
        assert_eq!(types.offset("s", &["d", "c"]), Some(8));
        assert_eq!(types.offset("s", &["c"]), None, "it is within one that has a name");
        assert_eq!(types.offset("x", &["a"]), None);
        assert_eq!(types.typedef("t"), Some(6));
        assert_eq!(types.typedef("s"), None);
    }

    #[test]
    fn the_running_kernel_says_where_a_sockets_port_stands() {
        let Ok(types) = KernelTypes::of_running_kernel() else {
            return lull_testing::skip("this kernel does not describe its types (BTF)");
        };
        let port = types.offset("sock", &["__sk_common", "skc_num"]).unwrap();
        let peers = types.offset("sock", &["__sk_common", "skc_dport"]).unwrap();
        // Both are in one word, whichever way round (include/net/sock.h).
        assert_eq!((port - peers).abs(), 2);
        assert!(types.typedef("btf_trace_sched_switch").is_some());
    }

    proptest! {
        #[test]
        fn whatever_stands_there_it_ends(
            at in 0usize..300,
            byte in any::<u8>(),
            length in 0usize..300,
        ) {
            let mut bytes = small();
            if let Some(one) = bytes.get_mut(at) {
                *one = byte;
            }
            bytes.truncate(length);
            if let Some(types) = KernelTypes::parse(bytes) {
                let _ = types.offset("s", &["d", "c"]);
            }
        }
    }
}
