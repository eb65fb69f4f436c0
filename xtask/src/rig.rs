//! `cargo xtask rig`: the host's tests that need a kernel with knobs.
//!
//! Unmodified Debian kernels boot in QEMU under software emulation, on PCs with
//! ACPI tables that give them P-states, idle states and power domains. The test
//! binary `rig` of crates/host, linked statically, is all of user space: it
//! mounts what it needs, loads the modules, runs the tests for its machine,
//! and hands the outcome to QEMU. Some machines have the program `lull` beside
//! it, built in the same way, which tests start as a user would. One boots Debian with
//! systemd from a disk; there the tests are a service, and install Lull's package. Another one
//! boots the same with a kubelet and containerd. Kernels, a QEMU newer than this machine's, and
//! that disk are in [`xtask::cache`] and never installed.

mod acpi;
mod boot;
mod emulator;
mod image;
mod initramfs;
mod kernel;
mod machine;
mod node;

use crate::command::done;
use crate::packages::{install_packages, on_path};
use anyhow::{Context, Result, bail};
use emulator::Emulator;
use machine::{MACHINES, Machine, UserSpace};
use node::NodePrograms;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The programs that the rig starts, and their Debian packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("iasl", "acpica-tools"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("dpkg-deb", "dpkg"),
];

/// The arguments of `cargo xtask rig`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The machines; without a name those of CI
    pub(crate) names: Vec<String>,
    /// All machines
    #[arg(long)]
    pub(crate) all: bool,
    /// Only tests whose name contains this
    #[arg(long)]
    pub(crate) filter: Option<String>,
    /// A Debian package of Lull, in place of one of this tree
    #[arg(long, value_name = "FILE")]
    pub(crate) package: Option<PathBuf>,
    /// Print the machines and boot none
    #[arg(long)]
    pub(crate) list: bool,
}

/// Prints the machines.
pub(crate) fn list() -> ExitCode {
    for machine in MACHINES {
        let in_ci = if machine.in_ci { " (in cargo xtask test)" } else { "" };
        println!("{:<14} {}{in_ci}", machine.name, machine.about);
    }
    ExitCode::SUCCESS
}

/// Provides programs and kernels for the machines that CI boots.
///
/// # Errors
/// The reason why they cannot be had here: another processor, no package, no network.
pub(crate) fn ready() -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("its guests are x86_64 and this machine is {}", std::env::consts::ARCH);
    }
    provide()?;
    let fetched = fetched();
    for machine in in_ci() {
        kernel::provide(machine.kernel, &fetched)
            .with_context(|| format!("no kernel {} from Debian", machine.kernel))?;
    }
    Ok(())
}

/// Where kernels and emulators lie, for all clones of this user.
fn fetched() -> PathBuf {
    xtask::cache().join("rig")
}

/// The machines that CI boots, by name.
pub(crate) fn names_in_ci() -> Vec<&'static str> {
    in_ci().map(|machine| machine.name).collect()
}

fn in_ci() -> impl Iterator<Item = &'static Machine> {
    MACHINES.iter().filter(|machine| machine.in_ci)
}

/// Boots the machines one after the other.
///
/// # Errors
/// If something that the rig needs is missing, or does not build.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let machines = chosen(options)?;
    provide()?;
    let (fetched, place) = (fetched(), xtask::release::target(root).join("rig"));
    let programs = Programs::all(root, &machines, options.package.as_deref())?;
    let mut failed = Vec::new();
    for machine in machines {
        let started = Instant::now();
        println!("== rig {}: {}", machine.name, machine.about);
        let kernel = kernel::provide(machine.kernel, &fetched)?;
        let programs = &programs[machine.emulator.target()];
        let guest =
            boot::Guest { machine, kernel: &kernel, fetched: &fetched, place: &place, programs };
        let outcome = guest.run(options.filter.as_deref())?;
        println!("== rig {}: {outcome} in {} s", machine.name, started.elapsed().as_secs());
        if outcome != boot::Outcome::Passed {
            failed.push(machine.name);
        }
    }
    match failed.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        names => {
            println!("== rig: failed on {}; again with: cargo xtask rig {0}", names.join(" "));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn chosen(options: &Options) -> Result<Vec<&'static Machine>> {
    if options.names.is_empty() {
        return Ok(MACHINES.iter().filter(|machine| options.all || machine.in_ci).collect());
    }
    let find = |name: &String| {
        let found = MACHINES.iter().find(|machine| machine.name == name);
        found.with_context(|| format!("no machine {name}; see cargo xtask rig --list"))
    };
    options.names.iter().map(find).collect()
}

fn provide() -> Result<()> {
    let missing: Vec<_> =
        PROGRAMS.iter().filter(|(program, _)| on_path(program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    if !install_packages(&packages) {
        bail!("the rig needs: apt-get install {}", packages.join(" "));
    }
    Ok(())
}

/// The programs for guests, linked statically: most guests have no other file.
struct Programs {
    tests: PathBuf,
    /// The program itself, if a selected machine has it.
    lull: Option<PathBuf>,
    /// Packages, if a selected machine boots Debian: those of this tree, and the same under a
    /// lower version.
    packages: Vec<PathBuf>,
    /// The programs that a kubelet needs, if a selected machine has one.
    node: Option<NodePrograms>,
}

impl Programs {
    /// Returns the programs that the machines need, by target.
    fn all(
        root: &Path,
        machines: &[&Machine],
        package: Option<&Path>,
    ) -> Result<BTreeMap<&'static str, Self>> {
        let mut all = BTreeMap::new();
        for emulator in [Emulator::Pc, Emulator::Arm] {
            let target = emulator.target();
            let on_it = machines.iter().filter(|one| one.emulator.target() == target);
            let kinds: Vec<UserSpace> = on_it.map(|machine| machine.user_space).collect();
            if !kinds.is_empty() {
                all.insert(target, Self::build(root, target, &kinds, package)?);
            }
        }
        Ok(all)
    }

    fn build(
        root: &Path,
        target: &str,
        kinds: &[UserSpace],
        package: Option<&Path>,
    ) -> Result<Self> {
        let tests = ["test", "--package", "lull-host", "--test", "rig", "--features", "rig"];
        let tests = build(root, target, &[&tests[..], &["--no-run"]].concat())?;
        let place = xtask::release::target(root).join("rig/kubelet");
        let with_node = kinds.contains(&UserSpace::Node).then_some(place);
        let of_node = |place: PathBuf| {
            NodePrograms::build(root, &place, |arguments| build(root, target, arguments))
        };
        let node = with_node.map(of_node).transpose()?;
        // Built like the tests, and not for release: shared parts are built once.
        let lull = ["build", "--package", "lull-cli", "--bin", "lull"];
        let with_lull = kinds.contains(&UserSpace::TestsAndLull);
        let lull = with_lull.then(|| build(root, target, &lull)).transpose()?;
        let with_packages = kinds.contains(&UserSpace::Debian);
        let packages = if with_packages { packages(root, package)? } else { Vec::new() };
        Ok(Self { tests, lull, packages, node })
    }
}

/// The version under which guests have the package first.
const FORMER_VERSION: &str = "0.0.1";

/// Builds the packages of this tree, and the same under [`FORMER_VERSION`], for upgrades. The RPM
/// has the Debian package's program here, which the guest can run. Another Debian package is taken
/// as it is, and the RPMs are made of earlier builds.
fn packages(root: &Path, package: Option<&Path>) -> Result<Vec<PathBuf>> {
    let package = package.map_or_else(|| crate::package::debian(root), |it| Ok(it.to_owned()))?;
    let former = crate::package::relabel(&package, FORMER_VERSION)?;
    let program = crate::package::native_program(root);
    let rpm = crate::package::rpm(root, &program, None)?;
    let former_rpm = crate::package::rpm(root, &program, Some(FORMER_VERSION))?;
    Ok(vec![package, former, rpm, former_rpm])
}

/// Builds one static program, without debug information: that would be most of it,
/// and all of it would be in the guest's memory.
fn build(root: &Path, target: &str, arguments: &[&str]) -> Result<PathBuf> {
    let is_foreign = !target.starts_with(std::env::consts::ARCH);
    if is_foreign {
        let added = done(Command::new("rustup").args(["target", "add", target]));
        added.context("guests of another processor need Rust's library for it, from rustup")?;
    }
    // Rust's own linker and C library know other processors; a system's know its own.
    let linker = if is_foreign { " -C linker=rust-lld -C link-self-contained=yes" } else { "" };
    let output = Command::new("cargo")
        .current_dir(root)
        .args(arguments)
        .args(["--target", target])
        .args(["--message-format", "json-render-diagnostics"])
        .env("RUSTFLAGS", format!("-C target-feature=+crt-static -C strip=symbols{linker}"))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cannot build the programs that run in guests: cargo {} failed", arguments.join(" "));
    }
    // The one line with an executable; a JSON parser for one string is too much.
    let text = String::from_utf8_lossy(&output.stdout);
    let executable = text.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        Some(PathBuf::from(rest.split_once('"')?.0))
    });
    executable.with_context(|| format!("cargo names no program: cargo {}", arguments.join(" ")))
}
