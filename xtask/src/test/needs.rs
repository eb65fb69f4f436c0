//! Programs of the system that tests need: installed where that is allowed.
//!
//! A test that needs a program stands in a module `needs_<program>`, so that it
//! can be left out, and is counted as skipped, on a machine without it.

use anyhow::{Result, bail};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One program that some tests start.
struct Need {
    program: &'static str,
    /// The Debian package that has it, and what it needs besides.
    package: &'static str,
}

/// One line for each program.
const NEEDS: &[Need] = &[
    Need { program: "cc", package: "gcc" },
    // Brings Chromium with it.
    Need { program: "chromedriver", package: "chromium-driver" },
    Need { program: "mariadb-client-test", package: "mariadb-test" },
    Need { program: "mariadbd", package: "mariadb-server" },
    Need { program: "memcached", package: "memcached" },
    Need { program: "nginx", package: "nginx-light" },
    Need { program: "postgres", package: "postgresql" },
    Need { program: "prometheus", package: "prometheus" },
    Need { program: "redis-server", package: "redis-server" },
    Need { program: "sysbench", package: "sysbench" },
    Need { program: "tmux", package: "tmux" },
    Need { program: "valgrind", package: "valgrind libc6-dbg" },
];

impl Need {
    /// What the names of the tests that need it contain.
    fn tests(&self) -> String {
        format!("needs_{}", self.program.replace('-', "_"))
    }

    fn is_there(&self) -> bool {
        on_path(self.program).is_some()
    }
}

/// Where a program is, looking where servers are installed too.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system).chain(postgresql());
    places.find_map(|place| Some(place.join(program)).filter(|path| path.is_file()))
}

/// Where Debian keeps PostgreSQL's programs: by version, and on no path.
fn postgresql() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin"))
}

/// Installs what is missing if it can, and returns the tests to leave out.
pub(super) fn provide() -> Vec<String> {
    let mut missing = missing_needs();
    if missing.is_empty() {
        return Vec::new();
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.package.split(' ')).collect();
    if may_install() {
        println!("== installing {}", packages.join(" "));
        // The list of packages may be missing or old: fetch it only when it is needed.
        // Then each on its own, so that one unknown package costs only its tests.
        if !install(&packages) && apt(&["update"]) {
            for package in packages {
                install(&[package]);
            }
        }
        missing = missing_needs();
    }
    for need in &missing {
        println!("== no {}: skipping the tests in {}", need.program, need.tests());
        println!("   to run them: apt-get install {}", need.package);
    }
    missing.iter().map(|need| need.tests()).collect()
}

/// Installs all of them where that is allowed.
///
/// # Errors
/// If one is still missing, with how to get it.
pub(crate) fn provide_all() -> Result<()> {
    let packages: Vec<&str> =
        missing_needs().iter().flat_map(|need| need.package.split(' ')).collect();
    if packages.is_empty() || install_packages(&packages) {
        return Ok(());
    }
    bail!("this needs real servers: apt-get install {}", packages.join(" "))
}

/// Installs Debian packages where this is root on a Debian; whether it could.
pub(crate) fn install_packages(packages: &[&str]) -> bool {
    may_install() && (install(packages) || (apt(&["update"]) && install(packages)))
}

fn missing_needs() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !need.is_there()).collect()
}

/// Whether this is root on a Debian.
fn may_install() -> bool {
    let is_root = Path::new("/proc/self").metadata().is_ok_and(|own| own.uid() == 0);
    is_root && Path::new("/usr/bin/apt-get").exists()
}

fn install(packages: &[&str]) -> bool {
    let options = ["install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"];
    apt(&[&options[..], packages].concat())
}

fn apt(arguments: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    // RUNLEVEL=1 keeps Debian from starting the services that it installs.
    command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    command.args(arguments).stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_shells_look() {
        let shell = Need { program: "sh", package: "dash" };
        let nothing = Need { program: "no-such-program", package: "none" };
        assert!(shell.is_there());
        assert!(!nothing.is_there());
    }

    #[test]
    fn no_program_is_part_of_another_or_a_skip_would_hit_both() {
        for one in NEEDS {
            let others = NEEDS.iter().filter(|need| need.tests().contains(&one.tests()));
            assert_eq!(others.count(), 1, "{}", one.program);
        }
    }
}
