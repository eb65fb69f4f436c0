//! The guest's file system: the test binary as `/init`, modules, and `/bin/lull`
//! where tests start the program itself. A machine that boots Debian has Lull's packages
//! there, and changes to its disk as soon as that is mounted.
//!
//! The "newc" cpio archive of Documentation/driver-api/early-userspace/buffer-format.rst.

use super::Programs;
use super::kernel::Kernel;
use super::machine::{Machine, UserSpace};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

const DIRECTORIES: [&str; 9] =
    ["bin", "dev", "proc", "sys", "tmp", "run", "mods", "packages", "disk"];
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const ALIGN: usize = 4;

/// Writes the archive.
pub(super) fn write(
    to: &Path,
    programs: &Programs,
    kernel: &Kernel,
    machine: &Machine,
) -> Result<()> {
    let mut archive = Vec::new();
    for name in DIRECTORIES {
        entry(&mut archive, name, DIRECTORY, &[]);
    }
    entry(&mut archive, "init", PROGRAM, &std::fs::read(&programs.tests)?);
    let has_lull = machine.user_space == UserSpace::TestsAndLull;
    if let Some(lull) = programs.lull.as_ref().filter(|_| has_lull) {
        entry(&mut archive, "bin/lull", PROGRAM, &std::fs::read(lull)?);
    }
    let has_packages = machine.user_space == UserSpace::Debian;
    for package in programs.packages.iter().filter(|_| has_packages) {
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        let bytes = std::fs::read(package)?;
        entry(&mut archive, &format!("packages/{name}"), FILE, &bytes);
    }
    for (number, module) in in_order(kernel, machine.modules)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split(".ko").next().unwrap_or_default();
        let bytes = kernel.decompressed(module)?;
        entry(&mut archive, &format!("mods/{number:02}-{name}.ko"), PROGRAM, &bytes);
    }
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    std::fs::write(to, archive).with_context(|| format!("cannot write {}", to.display()))
}

fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let number = archive.len() as u32;
    let fields =
        [number, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").into_bytes());
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(ALIGN), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(ALIGN), 0);
}

/// The files of modules, each after those that it depends on.
fn in_order(kernel: &Kernel, modules: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for module in modules {
        add(kernel, module, &mut files)?;
    }
    Ok(files)
}

fn add(kernel: &Kernel, module: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    let Some(file) = kernel.module(module) else {
        if kernel.has_built_in(module) {
            return Ok(());
        }
        bail!("kernel {} has no module {module}", kernel.version);
    };
    if files.contains(&file) {
        return Ok(());
    }
    for dependency in dependencies(&kernel.decompressed(&file)?) {
        add(kernel, &dependency, files)?;
    }
    files.push(file);
    Ok(())
}

/// The names after `depends=` in the module's own description.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return Vec::new();
    };
    let value = module[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_carry_their_sizes() {
        let mut archive = Vec::new();
        entry(&mut archive, "a", PROGRAM, b"12345");
        assert_eq!(archive.len() % ALIGN, 0);
        assert_eq!(&archive[54..62], b"00000005");
        assert_eq!(&archive[110..112], b"a\0");
        assert_eq!(&archive[112..117], b"12345");
    }

    #[test]
    fn a_module_names_what_it_depends_on() {
        let module = b"x\0license=GPL\0depends=intel_rapl_common,rapl\0name=y\0";
        assert_eq!(dependencies(module), ["intel_rapl_common", "rapl"]);
        assert!(dependencies(b"x\0depends=\0").is_empty());
    }
}
