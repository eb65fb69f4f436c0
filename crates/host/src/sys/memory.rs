//! Memory that a process holds and no longer needs: free memory of its allocator, and mapped pages
//! of its program.

use std::collections::BTreeSet;
use std::ops::Range;

/// Returns free memory to the kernel, where the allocator is glibc's. It would otherwise keep free
/// memory below a block that is in use.
pub fn return_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes any padding and may be called on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The addresses of code and constants of the program and of its libraries.
///
/// The kernel maps such pages as they are used, sixteen at a time, and they count as resident from
/// then on. Most are used by the start alone.
#[derive(Debug)]
pub struct ProgramPages(Vec<Range<usize>>);

impl ProgramPages {
    /// Finds them; none where `/proc` cannot be read.
    pub fn find() -> Self {
        Self(unchanged(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()))
    }

    /// Unmaps them. The kernel maps those that are used again from its page cache.
    pub fn release(&self) {
        for range in &self.0 {
            let address = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the pages are those of a file, privately mapped and not writable, and none of
            // them differs from the file, so that each access finds the same bytes as before. They
            // stay mapped as long as the process runs, since the program's own files and its
            // libraries are not unloaded.
            unsafe {
                libc::madvise(address, range.len(), libc::MADV_DONTNEED);
            }
        }
    }
}

/// One mapping of a process.
struct Mapping<'a> {
    range: Range<usize>,
    /// The permissions, such as `r-xp`.
    rights: &'a str,
    /// The file; empty for none.
    file: &'a str,
    /// Whether pages differ from the file, in memory or in swap.
    is_changed: bool,
}

/// The mappings of `/proc/PID/smaps`.
fn mappings(smaps: &str) -> Vec<Mapping<'_>> {
    let mut all: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(range) = range_of(first) {
            let rights = words.next().unwrap_or_default();
            let file = line.find('/').map_or("", |at| &line[at..]);
            all.push(Mapping { range, rights, file, is_changed: true });
        } else if let Some(last) = all.last_mut().filter(|_| first == "Anonymous:") {
            last.is_changed = words.next() != Some("0");
        } else if let Some(last) = all.last_mut().filter(|_| first == "Swap:") {
            // Changed pages that are swapped out are no longer counted as anonymous.
            last.is_changed |= words.next() != Some("0");
        }
    }
    all
}

/// The addresses of `55d0c0000000-55d0c0021000`.
fn range_of(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some(number(start)?..number(end)?)
}

/// The mappings of files with code that cannot be written to, and of which no page was changed.
/// Tables of addresses, which the loader fills in before they become read-only, are changed.
fn unchanged(smaps: &str) -> Vec<Range<usize>> {
    let all = mappings(smaps);
    let with_code: BTreeSet<&str> =
        all.iter().filter(|one| one.rights == "r-xp").map(|one| one.file).collect();
    let is_unchanged = |one: &Mapping<'_>| {
        matches!(one.rights, "r--p" | "r-xp")
            && !one.is_changed
            && !one.file.is_empty()
            && with_code.contains(one.file)
    };
    all.into_iter().filter(is_unchanged).map(|one| one.range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_file_with_code_holds_unchanged_is_released() {
        let smaps = "\
1000-3000 r--p 00000000 fe:00 12                         /usr/bin/a program
Size:                  8 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
3000-7000 r-xp 00002000 fe:00 12                         /usr/bin/a program
Anonymous:             0 kB
Swap:                  0 kB
SwapPss:               0 kB
VmFlags: rd ex mr mw me sd
7000-8000 r--p 00006000 fe:00 12                         /usr/bin/a program
Anonymous:             4 kB
8000-9000 rw-p 00007000 fe:00 12                         /usr/bin/a program
Anonymous:             0 kB
9000-a000 rw-p 00000000 00:00 0                          [heap]
Anonymous:             4 kB
b000-c000 r--p 00000000 fe:00 13                         /usr/share/data
Anonymous:             0 kB
c000-d000 r--s 00000000 fe:00 14                         /dev/shm/page
Anonymous:             0 kB
d000-e000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
e000-f000 r--p 00006000 fe:00 12                         /usr/bin/a program
Anonymous:             0 kB
Swap:                  4 kB
f000-11000 r--p 00006000 fe:00 12                        /usr/bin/a program
Anonymous:             4 kB
Swap:                  0 kB
";
        assert_eq!(unchanged(smaps), [0x1000..0x3000, 0x3000..0x7000]);
        assert!(unchanged("").is_empty() && unchanged("nonsense\n-\n").is_empty());
    }

    #[test]
    fn a_released_program_goes_on() {
        static NAMES: [&str; 3] = ["one", "two", "three"];
        let pages = ProgramPages::find();
        assert!(!pages.0.is_empty(), "this program has code");
        pages.release();
        let joined = std::hint::black_box(&NAMES).join(" ");
        assert_eq!(format!("{joined}: {}", NAMES.len()), "one two three: 3");
        pages.release();
        let fails = || -> u8 { panic!("a test: tables of unwinding are read") };
        assert!(std::panic::catch_unwind(fails).is_err());
    }
}
