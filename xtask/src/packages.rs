//! Programs and packages of the system: where they are, and installing them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a program is, looking where servers are installed too.
pub fn on_path(program: &str) -> Option<PathBuf> {
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

/// Installs Debian packages where this is root on a Debian; whether it could.
pub fn install_packages(packages: &[&str]) -> bool {
    may_install() && (install(packages) || (apt(&["update"]) && install(packages)))
}

/// Whether this is root on a Debian.
pub fn may_install() -> bool {
    let is_root = Path::new("/proc/self").metadata().is_ok_and(|own| own.uid() == 0);
    is_root && Path::new("/usr/bin/apt-get").exists()
}

/// Installs Debian packages; whether apt could.
pub fn install(packages: &[&str]) -> bool {
    let options = ["install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"];
    apt(&[&options[..], packages].concat())
}

/// Runs `apt-get`; whether it succeeded.
pub fn apt(arguments: &[&str]) -> bool {
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
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program").is_none());
    }
}
