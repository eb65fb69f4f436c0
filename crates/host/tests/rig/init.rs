//! The first process of a guest: mounts, modules, tests, and the outcome.

use rustix::fs::Mode;
use rustix::mount::{MountFlags, mount};
use rustix::process::{WaitOptions, wait};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Says in the environment of the tests which of them to run.
pub(crate) const SUITE: &str = "LULL_RIG";
/// The port at which QEMU waits for the outcome on a PC (isa-debug-exit).
const EXIT_PORT: u64 = 0x501;
/// A status that differs from QEMU's own, since QEMU ends with 1 of its own, too.
const WORD: u8 = 0x10;
/// The line that takes the outcome where there is no such port.
const EXIT_LINE: &str = "/dev/ttyS0";
/// The line for what tests print; the kernel has the first.
const TERMINAL: &str = if IS_PC { "/dev/ttyS1" } else { "/dev/ttyAMA1" };
const IS_PC: bool = cfg!(target_arch = "x86_64");

/// Runs the tests and ends the guest.
pub(crate) fn run() -> ! {
    let outcome = prepare().and_then(|()| tests());
    let code = match &outcome {
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

/// Starts this binary as the tests, and waits as the parent of all orphans.
fn tests() -> io::Result<bool> {
    let line = fs::read_to_string("/proc/cmdline")?;
    let word = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    let suite = word("lull_rig=").unwrap_or_default().to_owned();
    let terminal = || OpenOptions::new().write(true).open(TERMINAL);
    let _ = rustix::process::umask(Mode::from_bits_truncate(0o022));
    let mut command = Command::new("/init");
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
