//! Whether the disk has room for what the tests build.

use std::path::Path;

/// The size of a fresh target directory, debug and release together: 2.9 and 2.8 GB when this was
/// written.
const NEEDED_BYTES: u64 = 6_000_000_000;

/// Warns if the disk may fill up: the linker then dies of a bus error, which does not
/// name the cause.
pub(super) fn warn(root: &Path) {
    let target = crate::release::target(root);
    // The directory may still have to be made.
    let place = target.ancestors().find(|directory| directory.exists()).unwrap_or(root);
    let Ok(disk) = rustix::fs::statvfs(place) else { return };
    let words = shortage(disk.f_bavail * disk.f_frsize, target.exists());
    if let Some(words) = words {
        println!("== {}: {words}", place.display());
    }
}

/// Returns the warning for this much free space; nothing if it is enough or if an earlier run has
/// built already.
fn shortage(free_bytes: u64, built: bool) -> Option<String> {
    let short = free_bytes < NEEDED_BYTES && !built;
    short.then(|| {
        format!(
            "{:.1} GB are free and a first run builds about {:.0}; if a linker ends with a bus \
             error, make room and run again",
            free_bytes as f64 / 1e9,
            NEEDED_BYTES as f64 / 1e9
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_is_reported_before_the_linker_fails_and_a_large_one_is_not() {
        let words = shortage(1_500_000_000, false).unwrap();
        assert!(words.contains("1.5 GB are free") && words.contains("bus error"), "{words}");
        assert_eq!(shortage(NEEDED_BYTES, false), None);
        assert_eq!(shortage(1_500_000_000, true), None);
    }
}
