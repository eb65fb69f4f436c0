//! Debian's kernels: fetched as packages, unpacked, never installed.

use super::done;
use anyhow::{Context, Result, bail};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Which packages a kernel is in.
struct Source {
    name: &'static str,
    suite: &'static str,
    /// What the names of its packages begin with, the version behind it.
    packages: &'static [&'static str],
    /// What its version begins and ends with.
    version: (&'static str, &'static str),
}

const SOURCES: [Source; 3] = [
    Source {
        name: "6.1",
        suite: "bookworm",
        packages: &["linux-image-"],
        version: ("6.1.0-", "-amd64"),
    },
    Source {
        name: "6.12",
        suite: "bookworm-backports",
        packages: &["linux-image-"],
        version: ("6.12.", "+deb12-amd64"),
    },
    Source {
        name: "7.2",
        suite: "trixie-backports",
        packages: &["linux-binary-", "linux-modules-"],
        version: ("7.2.", "+deb13-amd64"),
    },
];

/// An unpacked kernel.
pub(super) struct Kernel {
    /// As `uname -r` says.
    pub(super) version: String,
    /// The uncompressed image, which QEMU starts without a boot loader.
    pub(super) image: PathBuf,
    modules: PathBuf,
    files: Vec<PathBuf>,
}

/// A kernel by the name of its [`Source`], fetched if it is not there yet.
pub(super) fn provide(name: &str, place: &Path) -> Result<Kernel> {
    let source = SOURCES.iter().find(|source| source.name == name).context("unknown kernel")?;
    let root = place.join(format!("kernel-{name}"));
    if !root.join("done").exists() {
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root)?;
        for package in source.fetch(place)? {
            done(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
        }
        std::fs::write(root.join("done"), "")?;
    }
    Kernel::unpacked(&root)
}

impl Source {
    /// The packages' files, fetched with lists of their own, so that this
    /// machine's sources stay as they are.
    fn fetch(&self, place: &Path) -> Result<Vec<PathBuf>> {
        let debs = place.join("debs");
        std::fs::create_dir_all(&debs)?;
        let kept: Vec<_> =
            self.packages.iter().filter_map(|start| self.kept(&debs, start)).collect();
        if kept.len() == self.packages.len() {
            return Ok(kept);
        }
        let options = self.options(place)?;
        done(Command::new("apt-get").args(&options).args(["-q", "update"]))?;
        let mut files = Vec::new();
        for start in self.packages {
            let package = self.newest(&options, start)?;
            let mut download = Command::new("apt-get");
            done(download.current_dir(&debs).args(&options).args(["-q", "download", &package]))?;
            files.extend(self.kept(&debs, start));
        }
        Ok(files)
    }

    fn kept(&self, debs: &Path, start: &str) -> Option<PathBuf> {
        let (begin, end) = self.version;
        let files = std::fs::read_dir(debs).into_iter().flatten().flatten();
        let mut found: Vec<_> = files
            .map(|file| file.path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let package = name.split('_').next().unwrap_or_default();
                package.starts_with(&format!("{start}{begin}")) && package.ends_with(end)
            })
            .collect();
        found.sort();
        found.pop()
    }

    fn newest(&self, options: &[String], start: &str) -> Result<String> {
        let (begin, end) = self.version;
        let quoted = |text: &str| text.replace('.', "\\.").replace('+', "\\+");
        let pattern = format!("^{start}{}[0-9]+{}$", quoted(begin), quoted(end));
        let output = Command::new("apt-cache")
            .args(options)
            .args(["search", "--names-only", &pattern])
            .output()
            .context("cannot start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.split(' ').next());
        let number = |name: &&str| {
            let middle = name.strip_prefix(start)?.strip_prefix(begin)?.strip_suffix(end)?;
            middle.parse::<u32>().ok()
        };
        let newest = names.max_by_key(number);
        newest.map(str::to_owned).with_context(|| format!("no package {pattern} in {}", self.suite))
    }

    fn options(&self, place: &Path) -> Result<Vec<String>> {
        let apt = place.join(format!("apt-{}", self.name));
        for dir in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(apt.join(dir))?;
        }
        let list = apt.join("sources.list");
        let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let line = format!("deb [signed-by={key}] {} {} main\n", mirror()?, self.suite);
        std::fs::write(&list, line)?;
        let option =
            |key: &str, value: &Path| ["-o".to_owned(), format!("{key}={}", value.display())];
        Ok([
            option("Dir::Etc::SourceList", &list),
            option("Dir::Etc::SourceParts", Path::new("/dev/null")),
            option("Dir::State::Lists", &apt.join("lists")),
            option("Dir::Cache", &apt.join("cache")),
            option("APT::Sandbox::User", Path::new("root")),
        ]
        .concat())
    }
}

/// The mirror that this machine gets its Debian from.
fn mirror() -> Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"])
        .output()
        .context("cannot start apt-get: the rig's kernels are Debian's")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let debian = text.lines().find_map(|line| line.strip_suffix(" Debian"));
    debian.map(str::to_owned).context("apt has no Debian mirror among its sources")
}

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
            let packed = places.iter().find(|path| path.exists()).context("no kernel image")?;
            std::fs::write(&image, decompress_image(&std::fs::read(packed)?)?)?;
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
    // The last four bytes are the length of what is packed.
    let payload = image.get(begin..begin + word(0x24c)? - 4).context("a short kernel image")?;
    let elf = match payload.get(..4) {
        Some([0xfd, b'7', b'z', b'X']) => piped("xz", &["-dc", "--single-stream"], payload),
        Some([0x28, 0xb5, 0x2f, 0xfd]) => piped("zstd", &["-dc"], payload),
        Some([0x1f, 0x8b, ..]) => piped("gzip", &["-dc"], payload),
        other => bail!("a kernel image packed in an unknown way: {other:02x?}"),
    }?;
    if !elf.starts_with(b"\x7fELF") {
        bail!("the kernel image is no ELF file");
    }
    Ok(elf)
}

/// What a program makes of bytes.
fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().context("no input")?;
    let input = input.to_owned();
    // From a thread of its own, or both would wait for the other with full pipes.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output()?;
    // A reader that has all it wants may leave before the end.
    let _ = writer.join();
    if !output.status.success() && output.stdout.is_empty() {
        bail!("{program} ended with {}", output.status);
    }
    Ok(output.stdout)
}
