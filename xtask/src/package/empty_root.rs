//! The static program where there is nothing else: neither libc nor a shell, as in an image.

use crate::command::done;
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The commands that the program must be able to run there.
const COMMANDS: [&[&str]; 3] = [&["--version"], &["check"], &["policies"]];
/// The demo starts a server, a load and a second app, each from the program itself, which an
/// emulator does not start.
const DEMO: &[&str] =
    &["demo", "--pairs", "2", "--block", "2s", "--record", "/tmp/runs", "--state", "/tmp/state"];

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
    exec env --ignore-environment PATH=\"$PATH\" chroot \"$root\" \"$@\"
";

/// Starts a program in a directory that holds nothing else, or that and an emulator of its
/// processor.
///
/// # Errors
/// If a command fails there.
pub(super) fn try_program(program: &Path, emulator: Option<&Path>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("not tried in an empty root: that takes root");
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let root = place.path();
    for folder in ["proc", "sys", "dev", "tmp"] {
        std::fs::create_dir(root.join(folder))?;
    }
    copy(program, &root.join("lull"))?;
    if let Some(emulator) = emulator {
        copy(emulator, &root.join("emulator"))?;
    }
    let start: &[&str] = if emulator.is_some() { &["/emulator", "/lull"] } else { &["/lull"] };
    let demo = emulator.is_none().then_some(DEMO);
    for arguments in COMMANDS.into_iter().chain(demo) {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh"]);
        done(command.arg(root).args(start).args(arguments))
            .with_context(|| format!("`lull {}` in an empty root", arguments.join(" ")))?;
    }
    Ok(())
}

fn copy(program: &Path, to: &Path) -> Result<()> {
    std::fs::copy(program, to)?;
    Ok(std::fs::set_permissions(to, PermissionsExt::from_mode(0o755))?)
}
