//! Debian's kernels, unpacked.

use crate::debian::{self, Package, Source};
use anyhow::{Context, Result, bail};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCES: [Source; 4] = [
    Source {
        name: "kernel-6.1",
        suite: "bookworm",
        architecture: "amd64",
        packages: &[Package::Newest { begin: "linux-image-6.1.0-", end: "-amd64" }],
    },
    Source {
        name: "kernel-6.12",
        suite: "bookworm-backports",
        architecture: "amd64",
        packages: &[Package::Newest { begin: "linux-image-6.12.", end: "+deb12-amd64" }],
    },
    Source {
        name: "kernel-6.12-arm64",
        suite: "bookworm-backports",
        architecture: "arm64",
        packages: &[Package::Newest { begin: "linux-image-6.12.", end: "+deb12-arm64" }],
    },
    Source {
        name: "kernel-7.2",
        suite: "trixie-backports",
        architecture: "amd64",
        packages: &[
            Package::Newest { begin: "linux-binary-7.2.", end: "+deb13-amd64" },
            Package::Newest { begin: "linux-modules-7.2.", end: "+deb13-amd64" },
        ],
    },
];

/// An unpacked kernel.
pub(super) struct Kernel {
    /// The version that `uname -r` prints.
    pub(super) version: String,
    /// An image that QEMU starts without a boot loader.
    pub(super) image: PathBuf,
    modules: PathBuf,
    files: Vec<PathBuf>,
}

/// A kernel by its version, fetched if it is not there yet.
pub(super) fn provide(version: &str, place: &Path) -> Result<Kernel> {
    let is_it = |source: &&Source| source.name.strip_prefix("kernel-") == Some(version);
    let source = SOURCES.iter().find(is_it).context("unknown kernel")?;
    Kernel::unpacked(&debian::provide(source, place)?)
}

/// The offset at which an unpacked image for arm64 is marked as one
/// (Documentation/arch/arm64/booting.rst).
const ARM_MAGIC_AT: usize = 56;
const ARM_MAGIC: &[u8] = b"ARM\x64";

impl Kernel {
    fn unpacked(root: &Path) -> Result<Self> {
        let libs = ["lib/modules", "usr/lib/modules"].map(|dir| root.join(dir));
        let lib = libs.into_iter().find(|dir| dir.is_dir()).context("a kernel without modules")?;
        let entry = std::fs::read_dir(&lib)?.next().context("a kernel without a version")??;
        let (modules, version) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let image = root.join("vmlinux");
        if !image.exists() {
            let places = [
                root.join(format!("boot/vmlinuz-{version}")),
                modules.join("vmlinuz"),
                modules.join("boot/vmlinuz"),
            ];
            let found = places.iter().find(|path| path.exists()).context("no kernel image")?;
            let bytes = std::fs::read(found)?;
            let is_arm = bytes.get(ARM_MAGIC_AT..).is_some_and(|from| from.starts_with(ARM_MAGIC));
            std::fs::write(&image, if is_arm { bytes } else { decompress_image(&bytes)? })?;
        }
        let mut files = Vec::new();
        collect(&modules, &mut files)?;
        Ok(Self { version, image, modules, files })
    }

    /// The file of a module; `-` and `_` are one in names.
    pub(super) fn module(&self, name: &str) -> Option<PathBuf> {
        let same = |file: &&PathBuf| {
            let file = file.file_name().unwrap_or_default().to_string_lossy();
            file.split(".ko").next().unwrap_or_default().replace('-', "_") == name.replace('-', "_")
        };
        self.files.iter().find(same).cloned()
    }

    pub(super) fn has_built_in(&self, name: &str) -> bool {
        let list =
            std::fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        let end = format!("/{}.ko", name.replace('-', "_"));
        list.lines().any(|line| line.replace('-', "_").ends_with(&end))
    }

    pub(super) fn decompressed(&self, module: &Path) -> Result<Vec<u8>> {
        let bytes = std::fs::read(module)?;
        match module.extension().and_then(|end| end.to_str()) {
            Some("xz") => piped("xz", &["-dc"], &bytes),
            Some("zst") => piped("zstd", &["-dc"], &bytes),
            _ => Ok(bytes),
        }
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is_module = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".ko"));
        if path.is_dir() && !path.is_symlink() {
            collect(&path, files)?;
        } else if is_module {
            files.push(path);
        }
    }
    Ok(())
}

/// The ELF image in a bzImage (Documentation/arch/x86/boot.rst: `setup_sects`,
/// `payload_offset`, `payload_length`).
fn decompress_image(image: &[u8]) -> Result<Vec<u8>> {
    let word = |at: usize| {
        let bytes = image.get(at..).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize).context("no kernel image")
    };
    let setup = (usize::from(*image.get(0x1f1).context("no kernel image")?) + 1) * 512;
    let begin = setup + word(0x248)?;
    // The last four bytes are the length of the packed content.
    let payload = image.get(begin..begin + word(0x24c)? - 4).context("a short kernel image")?;
    let elf = match payload.get(..4) {
        Some([0xfd, b'7', b'z', b'X']) => piped("xz", &["-dc", "--single-stream"], payload),
        Some([0x28, 0xb5, 0x2f, 0xfd]) => piped("zstd", &["-dc"], payload),
        Some([0x1f, 0x8b, ..]) => piped("gzip", &["-dc"], payload),
        other => bail!("a kernel image packed in an unknown way: {other:02x?}"),
    }?;
    if !elf.starts_with(b"\x7fELF") {
        bail!("the kernel image is not an ELF file");
    }
    Ok(elf)
}

/// Returns the output of a program for an input.
fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().context("no input")?;
    let input = input.to_owned();
    // Written from a thread of its own, or both sides would wait for the other with full pipes.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output()?;
    // A reader that has all that it needs may end before the writer.
    let _ = writer.join();
    if !output.status.success() && output.stdout.is_empty() {
        bail!("{program} ended with {}", output.status);
    }
    Ok(output.stdout)
}
