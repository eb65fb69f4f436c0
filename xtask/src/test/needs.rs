//! Programs of the system that tests need: installed where that is allowed.
//!
//! A test that needs a program is in a module `needs_<program>`, so that it
//! can be left out, and is counted as skipped, on a machine without it.

use crate::packages::{apt, install, install_packages, may_install, on_path};
use anyhow::{Result, bail};

/// One program that some tests start.
struct Need {
    program: &'static str,
    /// The Debian package that has it, and further packages that it needs.
    package: &'static str,
}

/// One line for each program.
const NEEDS: &[Need] = &[
    Need { program: "cc", package: "gcc" },
    // Brings Chromium with it.
    Need { program: "chromedriver", package: "chromium-driver" },
    // Compiles the eBPF programs, for the phase that compares them with the committed objects.
    Need { program: crate::bpf::CLANG, package: crate::bpf::PACKAGES },
    Need { program: "mariadb-client-test", package: "mariadb-test" },
    Need { program: "mariadbd", package: "mariadb-server" },
    Need { program: "memcached", package: "memcached" },
    Need { program: "nginx", package: "nginx-light" },
    // With the libraries that servers over TLS are linked with.
    Need { program: "openssl", package: "openssl" },
    Need { program: "postgres", package: "postgresql" },
    Need { program: "prometheus", package: "prometheus" },
    Need { program: "promtool", package: "prometheus" },
    Need { program: "python3", package: "python3" },
    Need { program: "redis-server", package: "redis-server" },
    Need { program: "sysbench", package: "sysbench" },
    Need { program: "tmux", package: "tmux" },
    Need { program: "valgrind", package: "valgrind libc6-dbg" },
];

impl Need {
    /// Returns the part that names of tests with this need contain.
    fn tests(&self) -> String {
        format!("needs_{}", self.program.replace('-', "_"))
    }

    fn is_there(&self) -> bool {
        on_path(self.program).is_some()
    }
}

/// Installs missing programs if it can, and returns the tests to leave out.
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

fn missing_needs() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !need.is_there()).collect()
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
