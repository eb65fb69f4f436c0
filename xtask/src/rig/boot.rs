//! Booting a guest, and the result of its tests.

use super::emulator::Emulator;
use super::kernel::Kernel;
use super::machine::{Machine, UserSpace};
use super::node::Node;
use super::{Programs, acpi, image, initramfs};
use anyhow::{Context, Result};
use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);
/// Boots before a guest whose emulator ended without an answer counts as failed: emulators
/// crash too. A guest that ran out of time is not booted again: it would as slowly.
const TRIES: usize = 2;
/// Added to a guest's answer in QEMU's exit status: without it a QEMU that
/// refuses its arguments would say what a guest says whose tests passed.
const WORD: i32 = 0x10;

/// A machine with everything to boot it.
pub(super) struct Guest<'a> {
    pub(super) machine: &'a Machine,
    pub(super) kernel: &'a Kernel,
    /// Where emulators are unpacked.
    pub(super) fetched: &'a Path,
    /// Where the guests' own files are written.
    pub(super) place: &'a Path,
    pub(super) programs: &'a Programs,
}

/// The result of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// The guest ended without an answer, every time.
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
        let has_disk = matches!(self.machine.user_space, UserSpace::Debian | UserSpace::Node);
        let disk = has_disk.then(|| image::provide(self.fetched)).transpose()?;
        let (log, answer) = (dir.join("kernel.log"), dir.join("answer"));
        for attempt in 1..=TRIES {
            // The answer of an earlier guest.
            let _ = std::fs::remove_file(&answer);
            let mut qemu = self.command(&initrd, filter)?;
            self.connect(&mut qemu, &log, &answer);
            for table in &tables {
                qemu.arg("-acpitable").arg(format!("file={}", table.display()));
            }
            // Each guest has an API server of its own, which knows no node and no pod.
            let node = self.node(&dir)?;
            let node_disk = node.as_ref().map(|node| node.disk.as_path());
            // The first one is `/dev/vda`.
            for (name, disk) in [("disk", disk.as_deref()), ("node", node_disk)] {
                let Some(disk) = disk else { continue };
                let drive = format!("if=none,id={name},format=raw,snapshot=on");
                qemu.arg("-drive").arg(format!("{drive},file={}", disk.display()));
                qemu.args(["-device", &format!("virtio-blk-pci,drive={name}")]);
            }
            let mut child = qemu.spawn().context("cannot start QEMU")?;
            let ended = wait(&mut child, self.machine.time_max)?;
            match self.word(ended, &answer) {
                Some(0) => return Ok(Outcome::Passed),
                Some(_) => return Ok(Outcome::Failed),
                None => self.complain(ended, attempt, &log),
            }
            if ended == Ended::OutOfTime {
                break;
            }
        }
        Ok(Outcome::Silent)
    }

    /// Prepares the additional files of a machine with a kubelet.
    fn node(&self, dir: &Path) -> Result<Option<Node>> {
        let has_node = self.machine.user_space == UserSpace::Node;
        let programs = self.programs.node.as_ref().filter(|_| has_node);
        programs.map(|programs| programs.start(dir)).transpose()
    }

    /// The answer of the guest, if it gave one.
    fn word(&self, ended: Ended, answer: &Path) -> Option<i32> {
        match self.machine.emulator {
            // isa-debug-exit ends QEMU with twice the guest's word and one.
            Emulator::Pc | Emulator::NewerPc => {
                let Ended::With(code) = ended else { return None };
                (code % 2 == 1).then_some(code / 2 - WORD).filter(|word| *word >= 0)
            }
            Emulator::Arm => std::fs::read_to_string(answer).ok()?.trim().parse().ok(),
        }
    }

    fn complain(&self, ended: Ended, attempt: usize, log: &Path) {
        let is_last = attempt == TRIES || ended == Ended::OutOfTime;
        let next = if is_last { "" } else { "; booting once more" };
        println!("== rig {}: no answer: {ended}{next}", self.machine.name);
        show_end(log);
    }

    fn command(&self, initrd: &Path, filter: Option<&str>) -> Result<Command> {
        let machine = self.machine;
        let filter = filter.map_or_else(String::new, |filter| format!(" lull_filter={filter}"));
        // A busy machine may not give the guest its first timer interrupts in
        // time, and then the kernel gives up without no_timer_check.
        let own = match machine.emulator {
            Emulator::Pc | Emulator::NewerPc => "console=ttyS0 no_timer_check",
            Emulator::Arm => "console=ttyAMA0",
        };
        let append =
            format!("{own} panic=-1 quiet lull_rig={} {}{filter}", machine.suite, machine.append);
        let mut qemu = machine.emulator.command(self.fetched)?;
        qemu.args(["-cpu", machine.cpu, "-smp", machine.smp])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", &append])
            .args(machine.devices.concat())
            .stdin(Stdio::null());
        Ok(qemu)
    }

    /// Where the kernel and the tests write, and how the guest gives its answer.
    fn connect(&self, qemu: &mut Command, log: &Path, answer: &Path) {
        qemu.args(["-serial", &format!("file:{}", log.display()), "-serial", "stdio"]);
        match self.machine.emulator {
            Emulator::Pc | Emulator::NewerPc => {
                qemu.args(["-device", "isa-debug-exit,iobase=0x501,iosize=1"]);
            }
            Emulator::Arm => {
                qemu.args(["-chardev", &format!("file,id=answer,path={}", answer.display())]);
                qemu.args(["-device", "pci-serial,chardev=answer"]);
            }
        }
    }
}

/// How an emulator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The guest ended by itself, with this exit status.
    With(i32),
    /// The guest was ended by a signal that was not ours.
    Killed,
    /// We ended the guest, after [`Machine::time_max`].
    OutOfTime,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::With(code) => write!(f, "the emulator ended with {code}"),
            Self::Killed => f.write_str("the emulator was killed"),
            Self::OutOfTime => f.write_str("out of time"),
        }
    }
}

/// Waits until the emulator ends, and ends it after `time_max`.
fn wait(child: &mut Child, time_max: Duration) -> Result<Ended> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().map_or(Ended::Killed, Ended::With));
        }
        if begun.elapsed() > time_max {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::OutOfTime);
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
