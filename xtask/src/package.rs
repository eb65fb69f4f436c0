//! `cargo xtask package`: packages for other machines, under `target/package`.
//!
//! A static program for any Linux (and for an image that has nothing else), by
//! musl; a Debian package by cargo-deb with the program as this machine
//! links it; and, on request, an RPM by cargo-generate-rpm with the static program, because
//! that machine's C library may be older, an image (`image.rs`), and the static program for
//! arm64 (`cross.rs`). None carries debug information. Beside them are the
//! notices of all crates that they contain, manual pages, completions of shells and the schema
//! of configs, which both packages carry, too. The static program is started in a directory
//! that holds nothing else.

mod cross;
mod empty_root;
mod image;

use crate::command::{done, read_output};
use crate::packages::{install_packages, on_path};
use crate::release;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const ARCHITECTURE: &str = std::env::consts::ARCH;
/// The features of `lull` in packages, which a build from the tree leaves out.
const FEATURES: [&str; 2] = ["--features", "fleet,parquet,s3,tls"];
/// The profile of `Cargo.toml` by which the program in packages is built.
const PROFILE: &str = "packaged";

/// The arguments of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Make the static program only
    #[arg(long = "static", conflicts_with = "rpm")]
    pub(crate) only_static: bool,
    /// Make an RPM of the static program as well
    #[arg(long)]
    pub(crate) rpm: bool,
    /// Make an image of the static program as well
    #[arg(long)]
    pub(crate) image: bool,
    /// Make the static program for arm64, and nothing else
    #[arg(long, conflicts_with_all = ["only_static", "rpm", "image"])]
    pub(crate) arm64: bool,
}

/// Makes the static program and the Debian package, and an RPM and an image if they are
/// requested.
///
/// # Errors
/// If something that this takes is missing, does not build, is not static, or does not run where
/// there is nothing else.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    if !options.only_static && !options.arm64 {
        println!("{}", debian(root)?.display());
    }
    let place = place(root)?;
    if options.arm64 {
        println!("{}", arm64_program(root, &place)?.display());
        return Ok(ExitCode::SUCCESS);
    }
    let program = static_program(root, &place)?;
    println!("{}", program.display());
    if options.rpm {
        println!("{}", rpm(root, &program, None)?.display());
    }
    if options.image {
        crate::supply::write(root, &place)?;
        let version = version_of(&program)?;
        println!("{}", image::make(root, &place, &program, &version)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the Debian package of this tree, with the program of [`native_program`].
///
/// # Errors
/// If cargo-deb is missing, or something does not build.
pub(crate) fn debian(root: &Path) -> Result<PathBuf> {
    if on_path("cargo-deb").is_none() {
        bail!("a Debian package takes cargo-deb: cargo install cargo-deb --locked");
    }
    let place = place(root)?;
    // The package contains them.
    crate::supply::write(root, &place)?;
    done(&mut cargo_build(root))?;
    accompany(&native_program(root), &place)?;
    let mut deb = Command::new("cargo");
    deb.current_dir(root).args(["deb", "--package", "lull-cli", "--no-build", "--strip"]);
    deb.args(["--profile", PROFILE]);
    // Its last line is the file.
    let output = read_output(deb.arg("--output").arg(&place))?;
    output.lines().last().map(PathBuf::from).context("cargo-deb names no file")
}

/// The program as this machine links it.
pub(crate) fn native_program(root: &Path) -> PathBuf {
    release::target(root).join(PROFILE).join("lull")
}

/// Writes a Debian package again with another version, beside the first.
///
/// # Errors
/// If dpkg-deb cannot unpack or pack it.
pub(crate) fn relabel(package: &Path, version: &str) -> Result<PathBuf> {
    let unpacked = package.with_extension("unpacked");
    if unpacked.exists() {
        std::fs::remove_dir_all(&unpacked)?;
    }
    done(Command::new("dpkg-deb").arg("--raw-extract").args([package, &unpacked]))?;
    let control = unpacked.join("DEBIAN/control");
    let fields = std::fs::read_to_string(&control)?;
    std::fs::write(&control, with_version(&fields, version))?;
    let relabelled = package.with_file_name(format!("lull_{version}.deb"));
    // Fast to pack and to unpack: it goes to a guest only.
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]);
    done(pack.args([&unpacked, &relabelled]))?;
    std::fs::remove_dir_all(&unpacked)?;
    Ok(relabelled)
}

/// The fields of a package with another version.
fn with_version(fields: &str, version: &str) -> String {
    let field = |line: &str| match line.starts_with("Version:") {
        true => format!("Version: {version}\n"),
        false => format!("{line}\n"),
    };
    fields.lines().map(field).collect()
}

/// Where everything is written.
fn place(root: &Path) -> Result<PathBuf> {
    let place = release::target(root).join("package");
    std::fs::create_dir_all(&place)?;
    Ok(place)
}

/// The static program for this machine's processor, started where there is nothing else.
fn static_program(root: &Path, place: &Path) -> Result<PathBuf> {
    // SQLite is C, and its compiler must know musl's headers.
    if on_path("musl-gcc").is_none() && !install_packages(&["musl-tools"]) {
        bail!("a static program takes musl-gcc: apt-get install musl-tools");
    }
    let target = format!("{ARCHITECTURE}-unknown-linux-musl");
    let mut add = Command::new("rustup");
    done(add.args(["target", "add", &target]))?;
    let built = build_static(root, &target, cargo_build(root))?;
    empty_root::try_program(&built, None)?;
    let version = version_of(&built)?;
    let program = place.join(format!("lull-{version}-linux-{ARCHITECTURE}"));
    std::fs::copy(&built, &program)?;
    Ok(program)
}

/// The same for arm64, started under an emulator.
fn arm64_program(root: &Path, place: &Path) -> Result<PathBuf> {
    let mut build = cargo_build(root);
    let target = cross::prepare(&mut build)?;
    let built = build_static(root, target, build)?;
    let emulator = on_path(cross::EMULATOR);
    let emulator = emulator.with_context(|| format!("there is no {}", cross::EMULATOR))?;
    empty_root::try_program(&built, Some(&emulator))?;
    let version = version_printed(Command::new(&emulator).arg(&built))?;
    let program = place.join(format!("lull-{version}-linux-{}", cross::ARCHITECTURE));
    std::fs::copy(&built, &program)?;
    Ok(program)
}

fn cargo_build(root: &Path) -> Command {
    let mut build = Command::new("cargo");
    build.current_dir(root).args(["build", "--profile", PROFILE]);
    build.args(["--package", "lull-cli", "--bin", "lull"]).args(FEATURES);
    build
}

/// Builds the program for a target, without debug information, and refuses one that is not
/// static.
fn build_static(root: &Path, target: &str, mut build: Command) -> Result<PathBuf> {
    build.env("CARGO_PROFILE_PACKAGED_STRIP", "symbols");
    done(build.args(["--target", target]))?;
    let built = release::target(root).join(target).join(PROFILE).join("lull");
    refuse_dynamic(&built)?;
    Ok(built)
}

/// Lets the program write its accompanying files: manual pages, completions, the schema of configs.
fn accompany(program: &Path, place: &Path) -> Result<()> {
    let (man, completions) = (place.join("man"), place.join("completions"));
    for directory in [&man, &completions] {
        // A command that is gone must not leave its page in the package.
        if directory.exists() {
            std::fs::remove_dir_all(directory)?;
        }
        std::fs::create_dir_all(directory)?;
    }
    done(Command::new(program).arg("man").arg(&man))?;
    for shell in ["bash", "zsh", "fish"] {
        let script = read_output(Command::new(program).args(["completions", shell]))?;
        std::fs::write(completions.join(format!("lull.{shell}")), script)?;
    }
    write_changelog(program, place)?;
    let schema = read_output(Command::new(program).args(["keys", "--schema"]))?;
    std::fs::write(place.join("config.schema.json"), schema)?;
    Ok(())
}

/// Writes the changelog in Debian's form, which a package must have: the version, and where to
/// read on.
fn write_changelog(program: &Path, place: &Path) -> Result<()> {
    let version = version_of(program)?;
    let date = read_output(Command::new("date").arg("--rfc-email"))?;
    let text = format!(
        "lull ({version}) unstable; urgency=medium\n\n  * What has changed is in CHANGELOG.md of \
         the sources.\n\n -- The Lull developers <developers@lull.invalid>  {}\n",
        date.trim()
    );
    let file = place.join("changelog");
    std::fs::write(&file, text)?;
    done(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(file))
}

fn version_of(program: &Path) -> Result<String> {
    version_printed(&mut Command::new(program))
}

fn version_printed(program: &mut Command) -> Result<String> {
    let version = read_output(program.arg("--version"))?;
    version.split_whitespace().nth(1).map(str::to_owned).context("the program has no version")
}

/// A program that names an interpreter is started by that, and needs libraries.
fn refuse_dynamic(program: &Path) -> Result<()> {
    let headers =
        read_output(Command::new("readelf").args(["--program-headers", "--wide"]).arg(program))?;
    if headers.lines().any(|line| line.trim_start().starts_with("INTERP")) {
        bail!("{} needs libraries of this machine", program.display());
    }
    Ok(())
}

/// Makes an RPM of a program and what comes with it, of this version or another.
///
/// # Errors
/// If cargo-generate-rpm is missing, or a file of the package.
pub(crate) fn rpm(root: &Path, program: &Path, other: Option<&str>) -> Result<PathBuf> {
    if on_path("cargo-generate-rpm").is_none() {
        bail!("an RPM takes cargo-generate-rpm: cargo install cargo-generate-rpm --locked");
    }
    let place = place(root)?;
    // At the path that `crates/cli/Cargo.toml` states.
    done(Command::new("strip").arg("-o").arg(place.join("lull")).arg(program))?;
    let version = other.map_or_else(|| version_of(program), |other| Ok(other.to_owned()))?;
    let file = place.join(format!("lull-{version}-1.{ARCHITECTURE}.rpm"));
    let mut rpm = Command::new("cargo");
    rpm.current_dir(root).args(["generate-rpm", "--package", "crates/cli", "--output"]).arg(&file);
    done(rpm.arg("--set-metadata").arg(format!("version = \"{version}\"")))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_leaves_the_other_fields_of_a_package() {
        let fields = "Package: lull\nVersion: 0.1.0\nDescription: a\n Version: of what\n";
        let other = "Package: lull\nVersion: 0.0.1\nDescription: a\n Version: of what\n";
        assert_eq!(with_version(fields, "0.0.1"), other);
    }

    #[test]
    fn scripts_of_both_packages_restore_before_the_program_is_gone() {
        let packaging = xtask::root().join("packaging");
        for script in ["debian/prerm", "rpm/preun.sh"] {
            let text = std::fs::read_to_string(packaging.join(script)).unwrap();
            assert!(text.contains("lull restore --state /run/lull"), "{script}");
        }
    }
}
