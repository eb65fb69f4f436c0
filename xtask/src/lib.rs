//! Code that the tasks share with the benchmarks (`crates/bench`): facts about this machine,
//! packages of the system, and the directories of builds and downloads.

pub mod here;
pub mod packages;
pub mod release;

use std::path::{Path, PathBuf};

/// The repository's root: where cargo runs this program, or, run by hand, where it was
/// built. A program moved with its target directory must not check the old place.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let is_root = |directory: &&Path| directory.join("Cargo.lock").is_file();
    package.ancestors().find(is_root).unwrap_or(&package).to_path_buf()
}

/// Returns the directory for downloads, outside of the clone, so that the next clone has them:
/// `LULL_CACHE`, or `lull` in the user's cache directory.
pub fn cache() -> PathBuf {
    lull_testing::cache().unwrap_or_else(|| release::target(&root()).join("lull"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_this_crate() {
        assert!(root().join("xtask/src/lib.rs").is_file());
    }

    #[test]
    fn the_cache_lies_in_no_clone() {
        assert!(!cache().starts_with(root()), "{}", cache().display());
    }
}
