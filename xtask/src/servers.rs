//! `cargo xtask servers`: servers and libraries for the tests that Debian 12 does not install.
//!
//! PostgreSQL 17 and 18 with OpenSSL 1.1 are fetched with npm, which runs none of their scripts,
//! and compared with checksums; wolfSSL is fetched with apt. All are unpacked into
//! [`xtask::cache`], once, and nothing is installed. `cargo xtask test` does the same, and leaves
//! out the tests that need what cannot be had.

use crate::command::read_output;
use crate::debian::{self, Package, Source};
use crate::packages::on_path;
use anyhow::{Context, Result, ensure};
use lull_testing::fetched::{
    PACKAGES, POSTGRESQL, POSTGRESQL_VERSIONS, WOLFSSL, postgresql_directory,
};
use serde::Deserialize;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const WOLFSSL_SOURCE: Source = Source {
    name: WOLFSSL,
    suite: "bookworm",
    architecture: "amd64",
    packages: &[Package::Named("libwolfssl35")],
};
/// The SHA-512 of the archive of each version: `dist.integrity` in `npm view --json`, as
/// hexadecimal digits.
const SUMS: [(&str, &str); POSTGRESQL_VERSIONS.len()] = [
    (
        POSTGRESQL_VERSIONS[0],
        "854e128276b5f62c433ff9773ffce41e143d074243577f6a03ded1373e7941c9\
         e07918c50b9ff51b7e8b663383549f3891524751340c9a5cbb9f358ef23b3c92",
    ),
    (
        POSTGRESQL_VERSIONS[1],
        "8d5c3f31d0ed217fef2021ff0ca21eebf987a620a081dc7a415cb36b8bedfcd6\
         dc645b0bd0a87082517a1752a8ab1de044167d5ed37ebe2eb712ca92caa392c4",
    ),
];
/// Files that no test needs: archives for the linker, and tools to build extensions.
const EXCLUDED: [&str; 4] = ["*.a", "*/pgxs", "*/bitcode", "*/scripts"];
/// The file of the npm package that lists its links, which npm cannot have.
const LINKS: &str = "package/native/pg-symlinks.json";

/// A link between two libraries of one directory.
#[derive(Debug, Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// Fetches missing servers, and prints where each is or why it cannot be had.
pub(crate) fn run() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for fetched in provide() {
        match fetched {
            Ok(place) => println!("{}", place.display()),
            Err(error) => {
                eprintln!("cargo xtask servers: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Fetches missing servers. Returns the directory of each, or why it cannot be had: no npm or no
/// Debian, no network, or another processor.
pub(crate) fn provide() -> Vec<Result<PathBuf>> {
    if std::env::consts::ARCH != "x86_64" {
        let why = "servers for tests are for x86_64 and this machine is";
        return vec![Err(anyhow::anyhow!("{why} {}", std::env::consts::ARCH))];
    }
    let cache = xtask::cache();
    let wolfssl = debian::provide(&WOLFSSL_SOURCE, &cache.join(PACKAGES)).context("no wolfSSL");
    let versions = POSTGRESQL_VERSIONS.map(|version| {
        postgresql(version, &cache).with_context(|| format!("no PostgreSQL {version}"))
    });
    versions.into_iter().chain([wolfssl]).collect()
}

fn postgresql(version: &str, cache: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(cache)?;
    // The runs of other clones fetch into the same directory.
    let lock = File::create(cache.join("postgresql.lock"))?;
    lock.lock().with_context(|| format!("cannot lock {}", cache.display()))?;
    let place = postgresql_directory(cache, version);
    if !place.exists() {
        fetch(version, cache, &place)?;
    }
    Ok(place)
}

/// Fetches a version and unpacks it beside its destination, where it appears whole or not at all.
fn fetch(version: &str, cache: &Path, place: &Path) -> Result<()> {
    let npm = on_path("npm").context("no npm to fetch it with: apt-get install npm")?;
    let scratch = tempfile::tempdir_in(cache)?;
    let mut pack = Command::new(npm);
    pack.args(["pack", "--silent", "--pack-destination"]).arg(scratch.path());
    // Without a network the tests are skipped soon.
    pack.args(["--fetch-retries=1", "--fetch-timeout=20000"]);
    let printed = read_output(pack.arg(format!("{POSTGRESQL}@{version}")))?;
    let archive = scratch.path().join(printed.trim());
    let sum = SUMS.iter().find(|(of, _)| *of == version);
    let (_, sum) = sum.with_context(|| format!("{POSTGRESQL} {version} has no checksum here"))?;
    verify(&archive, sum)?;
    let mut unpack = Command::new("tar");
    // The archive is of another user, and this may be root.
    unpack.arg("--no-same-owner").args(EXCLUDED.map(|pattern| format!("--exclude={pattern}")));
    read_output(unpack.arg("-xzf").arg(&archive).arg("-C").arg(scratch.path()))?;
    link(scratch.path()).with_context(|| format!("{POSTGRESQL} {version}: its links"))?;
    std::fs::rename(scratch.path().join("package/native"), place)
        .with_context(|| format!("{POSTGRESQL} {version}: it has other contents"))
}

/// Compares the SHA-512 of an archive with the one that it must have.
fn verify(archive: &Path, sum: &str) -> Result<()> {
    let printed = read_output(Command::new("sha512sum").arg(archive))?;
    let has = printed.split_whitespace().next().unwrap_or_default();
    let name = archive.display();
    ensure!(has == sum, "{name} has the SHA-512 {has} in place of {sum}, and was not unpacked");
    Ok(())
}

/// Makes the links between libraries that the unpacked package lists.
fn link(root: &Path) -> Result<()> {
    let list = std::fs::read_to_string(root.join(LINKS))?;
    let links: Vec<Link> = serde_json::from_str(&list)?;
    let is_library = |link: &&Link| link.source.parent() == Some(Path::new("native/lib"));
    for Link { source, target } in links.iter().filter(is_library) {
        let (source, name) = (source.file_name(), target.file_name());
        let (source, name) = source.zip(name).context("a link without a name")?;
        symlink(source, root.join("package/native/lib").join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_with_another_checksum_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        let sum = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                   2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        verify(file.path(), sum).unwrap();
        std::fs::write(file.path(), "abd").unwrap();
        let why = verify(file.path(), sum).unwrap_err().to_string();
        assert!(why.contains(sum) && why.contains("was not unpacked"), "{why}");
    }

    #[test]
    fn links_of_the_package_are_made_beside_its_libraries_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let library = root.path().join("package/native/lib");
        std::fs::create_dir_all(&library).unwrap();
        std::fs::write(library.join("libpq.so.5.18"), "code").unwrap();
        let list = r#"[{"source": "native/lib/libpq.so.5.18", "target": "native/lib/libpq.so.5"},
            {"source": "native/other/file", "target": "native/../../outside"}]"#;
        std::fs::write(root.path().join(LINKS), list).unwrap();
        link(root.path()).unwrap();
        assert_eq!(std::fs::read_to_string(library.join("libpq.so.5")).unwrap(), "code");
        assert_eq!(std::fs::read_dir(&library).unwrap().count(), 2);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
