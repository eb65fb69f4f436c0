//! The first process of a guest: mounts, modules, tests, and the outcome.
//!
//! A guest with a disk boots the system on it instead: there the tests are a service that
//! is written to `/run`, and the service sends the outcome.

use rustix::fs::Mode;
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::{WaitOptions, chroot, wait};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Says in the environment of the tests which of them to run.
pub(crate) const SUITE: &str = "LULL_RIG";
/// The port at which QEMU waits for the outcome on a PC (isa-debug-exit).
const EXIT_PORT: u64 = 0x501;
/// A status that differs from QEMU's own, since QEMU ends with 1 of its own, too.
const WORD: u8 = 0x10;
/// The serial line that receives the exit status where the exit port is missing.
const EXIT_LINE: &str = "/dev/ttyS0";
/// The line for what tests print; the kernel has the first.
const TERMINAL: &str = if IS_PC { "/dev/ttyS1" } else { "/dev/ttyAMA1" };
const IS_PC: bool = cfg!(target_arch = "x86_64");

/// The disk with a system of its own.
const DISK: &str = "/dev/vda";
/// Where a system on a disk finds what this guest brought along.
pub(crate) const BROUGHT: &str = "/run/rig";
/// The role in which the service of such a system starts this binary.
pub(crate) const SERVICE: &str = "service";

/// Runs the tests and ends the guest; with a disk, starts its system, which does that.
pub(crate) fn run() -> ! {
    end(&prepare().and_then(|()| if Path::new(DISK).exists() { boot_disk() } else { tests() }))
}

/// Runs as the service: the tests, and the end of the guest.
pub(crate) fn run_as_service() -> ! {
    end(&tests())
}

fn end(outcome: &io::Result<bool>) -> ! {
    let code = match outcome {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("the rig's first process: {error}");
            2
        }
    };
    rustix::fs::sync();
    let _ = if IS_PC { end_at_port(code) } else { end_by_power(code) };
    panic!("QEMU did not end");
}

fn end_at_port(code: u8) -> io::Result<()> {
    let port = OpenOptions::new().write(true).open("/dev/port")?;
    port.write_all_at(&[WORD + code], EXIT_PORT)
}

fn end_by_power(code: u8) -> io::Result<()> {
    fs::write(EXIT_LINE, format!("{code}\n"))?;
    Ok(rustix::system::reboot(rustix::system::RebootCommand::PowerOff)?)
}

fn prepare() -> io::Result<()> {
    for (kind, to) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        mount(kind, to, kind, MountFlags::empty(), None)?;
    }
    for to in ["/tmp", "/run"] {
        mount("tmpfs", to, "tmpfs", MountFlags::empty(), None)?;
    }
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MountFlags::empty(), None)?;
    let resctrl = Path::new("/sys/fs/resctrl");
    if resctrl.exists() {
        mount("resctrl", resctrl, "resctrl", MountFlags::empty(), None)?;
    }
    let mut modules: Vec<_> = fs::read_dir("/mods")?.flatten().map(|file| file.path()).collect();
    modules.sort();
    for module in modules {
        if let Err(error) = load(&module) {
            eprintln!("cannot load {}: {error}", module.display());
        }
    }
    rest();
    Ok(())
}

fn load(module: &Path) -> io::Result<()> {
    Ok(rustix::system::finit_module(File::open(module)?, c"", 0)?)
}

/// Idle states by port return at once in an emulator: idle would be work.
fn rest() {
    for cpu in 0..16 {
        for state in [2, 3] {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable");
            let _ = fs::write(file, "1");
        }
    }
}

/// Replaces this process by the first process of the disk's system, with the tests as a
/// service and what this guest brought along below `/run`.
fn boot_disk() -> io::Result<bool> {
    mount(DISK, "/disk", "ext4", MountFlags::empty(), None)?;
    mount("tmpfs", "/disk/run", "tmpfs", MountFlags::empty(), Some(c"size=128M,mode=0755"))?;
    let (brought, units) = (format!("/disk{BROUGHT}"), "/disk/run/systemd/system");
    let wanted = format!("{units}/multi-user.target.wants");
    fs::create_dir_all(&brought)?;
    fs::create_dir_all(&wanted)?;
    fs::copy("/init", format!("{brought}/tests"))?;
    for file in fs::read_dir("/packages")?.flatten() {
        fs::copy(file.path(), Path::new(&brought).join(file.file_name()))?;
    }
    let unit = format!(
        "[Unit]\nAfter=multi-user.target\n[Service]\nType=exec\nTimeoutStartSec=infinity\n\
         ExecStart={BROUGHT}/tests {SERVICE}\n"
    );
    fs::write(format!("{units}/rig.service"), unit)?;
    symlink("../rig.service", format!("{wanted}/rig.service"))?;
    std::env::set_current_dir("/disk")?;
    mount_move("/disk", "/")?;
    chroot(".")?;
    std::env::set_current_dir("/")?;
    // Returns only if it fails.
    Err(Command::new("/sbin/init").exec())
}

/// Starts this binary as the tests, and waits as the parent of all orphans.
fn tests() -> io::Result<bool> {
    let line = fs::read_to_string("/proc/cmdline")?;
    let word = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    let suite = word("lull_rig=").unwrap_or_default().to_owned();
    let terminal = || OpenOptions::new().write(true).open(TERMINAL);
    let _ = rustix::process::umask(Mode::from_bits_truncate(0o022));
    let mut command = Command::new(std::env::current_exe()?);
    command.env(SUITE, suite).env("RUST_BACKTRACE", "0").args(word("lull_filter="));
    command.stdin(Stdio::null()).stdout(terminal()?).stderr(terminal()?).current_dir("/tmp");
    let child = command.spawn()?;
    loop {
        if let Some((pid, status)) = wait(WaitOptions::empty())?
            && pid == rustix::process::Pid::from_child(&child)
        {
            return Ok(status.exit_status() == Some(0));
        }
    }
}
