//! QEMU: the one of this machine, or a newer one that is unpacked beside it.

use crate::debian::{self, Package, Source};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has the igb network card, and several CPUs where instructions are the clock.
const NEWER: Source = Source {
    name: "qemu-10",
    suite: "bookworm-backports",
    architecture: "amd64",
    packages: &[
        Package::Named("qemu-system-x86"),
        Package::Named("qemu-system-arm"),
        Package::Named("qemu-system-common"),
        Package::Named("qemu-system-data"),
        Package::Named("seabios"),
    ],
};

/// The emulator that a machine runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emulator {
    /// A PC in the QEMU that is installed.
    Pc,
    /// A PC in QEMU 10.
    NewerPc,
    /// A board with an Arm processor in QEMU 10.
    Arm,
}

impl Emulator {
    /// Rust's name of the system that its guests' programs are built for. For a PC
    /// it is this machine's own, and still given: without it build scripts would be static, too.
    pub(super) fn target(self) -> &'static str {
        match self {
            Self::Pc | Self::NewerPc => "x86_64-unknown-linux-gnu",
            Self::Arm => "aarch64-unknown-linux-musl",
        }
    }

    /// QEMU without any device, fetched if it is not there yet.
    pub(super) fn command(self, place: &Path) -> Result<Command> {
        let program = match self {
            Self::Pc | Self::NewerPc => "qemu-system-x86_64",
            Self::Arm => "qemu-system-aarch64",
        };
        let mut qemu = match self {
            Self::Pc => Command::new(program),
            Self::NewerPc | Self::Arm => unpacked(&debian::provide(&NEWER, place)?, program),
        };
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        let board = match self {
            Self::Pc | Self::NewerPc => "q35",
            Self::Arm => "virt",
        };
        // One thread for all CPUs: several threads have crashed guests, and cost more.
        qemu.args(["-machine", board, "-accel", "tcg,thread=single", "-m", "1G"]);
        Ok(qemu)
    }
}

/// A program of the unpacked QEMU, which is given the directory of its files.
fn unpacked(root: &Path, program: &str) -> Command {
    let usr = root.join("usr");
    let modules: PathBuf = usr.join("lib/x86_64-linux-gnu/qemu");
    let mut qemu = Command::new(usr.join("bin").join(program));
    qemu.env("QEMU_MODULE_DIR", modules);
    for files in ["share/qemu", "share/seabios"] {
        qemu.arg("-L").arg(usr.join(files));
    }
    qemu
}
