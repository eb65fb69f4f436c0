//! The static program where there is nothing else: neither libc nor a shell, as in an image.

use crate::command::done;
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What the program must be able to do there. The demo starts a server, a load and a second
/// app, each from the program itself.
const COMMANDS: [&[&str]; 4] = [
    &["--version"],
    &["check"],
    &["policies"],
    &["demo", "--pairs", "2", "--block", "2s", "--record", "/tmp/runs", "--state", "/tmp/state"],
];

/// Gives a directory the file systems of the kernel, as a container has them, and makes it the
/// root. They end with the mount namespace.
const SCRIPT: &str = "
    set -e
    root=$1
    shift
    mount -t proc proc \"$root/proc\"
    mount --rbind /sys \"$root/sys\"
    mount --rbind /dev \"$root/dev\"
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    exec env --ignore-environment PATH=\"$PATH\" chroot \"$root\" /lull \"$@\"
";

/// Starts a program in a directory that holds nothing else.
///
/// # Errors
/// If a command fails there.
pub(super) fn try_program(program: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("not tried in an empty root: that takes root");
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let root = place.path();
    for folder in ["proc", "sys", "dev", "tmp"] {
        std::fs::create_dir(root.join(folder))?;
    }
    let copy = root.join("lull");
    std::fs::copy(program, &copy)?;
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
    for arguments in COMMANDS {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh"]);
        done(command.arg(root).args(arguments))
            .with_context(|| format!("`lull {}` in an empty root", arguments.join(" ")))?;
    }
    Ok(())
}
