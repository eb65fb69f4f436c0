//! Booting a guest, and what came of its tests.

use super::kernel::Kernel;
use super::machine::Machine;
use super::{Programs, acpi, initramfs};
use anyhow::{Context, Result};
use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);
/// Boots before a guest that says nothing counts as failed: emulators crash too.
const TRIES: usize = 2;

/// A machine with everything to boot it.
pub(super) struct Guest<'a> {
    pub(super) machine: &'a Machine,
    pub(super) kernel: &'a Kernel,
    pub(super) place: &'a Path,
    pub(super) programs: &'a Programs,
}

/// What came of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// It ended without an answer, every time.
    Silent,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Silent => "gave no answer",
        })
    }
}

impl Guest<'_> {
    /// Boots it, and again if it ends without an answer.
    pub(super) fn run(&self, filter: Option<&str>) -> Result<Outcome> {
        let dir = self.place.join(self.machine.name);
        std::fs::create_dir_all(&dir)?;
        let initrd = dir.join("initramfs.cpio");
        initramfs::write(&initrd, self.programs, self.kernel, self.machine)?;
        let tables = acpi::compile(self.machine.tables, &dir)?;
        let log = dir.join("kernel.log");
        for attempt in 1..=TRIES {
            let mut qemu = self.command(&initrd, &log, filter);
            for table in &tables {
                qemu.arg("-acpitable").arg(format!("file={}", table.display()));
            }
            let mut child = qemu.spawn().context("cannot start qemu-system-x86_64")?;
            // isa-debug-exit ends QEMU with twice the guest's word and one.
            match wait(&mut child, self.machine.time_max)? {
                Some(code) if code % 2 == 1 => {
                    return Ok(if code == 1 { Outcome::Passed } else { Outcome::Failed });
                }
                ended => {
                    let ended = ended.map_or("out of time, or killed".to_owned(), |code| {
                        format!("the emulator ended with {code}")
                    });
                    let next = if attempt < TRIES { "; booting once more" } else { "" };
                    println!("== rig {}: no answer: {ended}{next}", self.machine.name);
                    show_end(&log);
                }
            }
        }
        Ok(Outcome::Silent)
    }

    fn command(&self, initrd: &Path, log: &Path, filter: Option<&str>) -> Command {
        let machine = self.machine;
        let filter = filter.map_or_else(String::new, |filter| format!(" lull_filter={filter}"));
        // A busy machine may not give the guest its first timer interrupts in
        // time, and then the kernel gives up without no_timer_check.
        let append = format!(
            "console=ttyS0 panic=-1 quiet no_timer_check lull_rig={} {}{filter}",
            machine.suite, machine.append
        );
        let mut qemu = Command::new("qemu-system-x86_64");
        // One thread for all CPUs: several have crashed guests, and cost more.
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-machine", "q35", "-accel", "tcg,thread=single", "-m", "1G"])
            .args(["-cpu", machine.cpu, "-smp", machine.smp])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", &append])
            .args(["-serial", &format!("file:{}", log.display()), "-serial", "stdio"])
            .args(["-device", "isa-debug-exit,iobase=0x501,iosize=1"])
            .args(machine.devices.concat())
            .stdin(Stdio::null());
        qemu
    }
}

/// The exit status, or `None` if it took too long or was killed.
fn wait(child: &mut Child, time_max: Duration) -> Result<Option<i32>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if begun.elapsed() > time_max {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

fn show_end(log: &Path) {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(12)..] {
        println!("   {line}");
    }
}
