//! Running a test again without any privilege.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOBODY: u32 = 65534;

/// If this is root, runs the named test as the user `nobody` and demands that it passes;
/// says whether it did.
pub(crate) fn as_nobody(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    // The user `nobody` may read neither the build directory nor what root made in it.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [dir.path(), &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(&program);
    command.args([test, "--exact"]).env("TMPDIR", "/tmp").current_dir("/").uid(NOBODY).gid(NOBODY);
    let run = loop {
        // A child of another test holds the copy open for writing until it
        // executes its own program.
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
            run => break run.unwrap(),
        }
    };
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && printed.contains("1 passed"), "{printed}");
    true
}
