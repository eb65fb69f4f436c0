//! How the tests on real databases start their programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the command of a program as the unprivileged user, which databases insist on.
pub(crate) fn unprivileged(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(program);
    command
}

/// Returns where Debian keeps a program of PostgreSQL.
pub(crate) fn postgres_program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten();
    let mut places = versions.map(|version| version.path().join("bin").join(name));
    places.find(|place| place.is_file()).expect("PostgreSQL is installed")
}
