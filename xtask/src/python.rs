//! `cargo xtask python`: the Python package, built and tested.
//!
//! The tests need packages from an index, which are kept in a virtual environment outside of
//! the clone. In `cargo xtask test` the native part is built as the other tests are, with all
//! their artifacts, and put beside the Python part; by itself the task builds the wheel, with
//! maturin, and tests it as a user would install it.

use crate::command::{done, read_output};
use crate::packages::on_path;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use xtask::release;

/// The crate with the package, its tests, and their requirements.
const CRATE: &str = "crates/python";
const REQUIREMENTS: &str = "crates/python/tests/requirements.txt";
/// The packages for the tests on a Ray cluster, which is as large as all the others together.
const RAY_REQUIREMENTS: &str = "crates/python/tests/requirements-ray.txt";

/// The configuration of the reference, and what builds it.
const DOCS: &str = "crates/python/docs";

/// The targets built with the tests: the native part, and the program whose results it has. Because
/// a test is among them, cargo selects the features of tests, and with them their artifacts.
const BUILD: [&str; 8] =
    ["build", "--workspace", "--all-features", "--lib", "--bin", "lull", "--test", "kinds"];

/// The arguments of `cargo xtask python`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Test what `cargo xtask test` has built, without a wheel
    #[arg(long)]
    pub(crate) staged: bool,
    /// Build as a release is built
    #[arg(long)]
    pub(crate) release: bool,
    /// Build the reference, with the notebooks, into target/python-docs instead
    #[arg(long, conflicts_with = "staged")]
    pub(crate) docs: bool,
    /// Test sweeps on a Ray cluster of this machine instead; `LULL_SWEEP_CELLS` is the size of
    /// the one that loses a worker, a raylet and its driver
    #[arg(long, conflicts_with_all = ["staged", "docs"])]
    pub(crate) ray: bool,
}

/// Makes the virtual environment of the tests, unless it is there and up to date.
///
/// # Errors
/// If there is no Python with `venv`, or no package index to install from.
pub(crate) fn ready(root: &Path) -> Result<PathBuf> {
    install("python-venv", &root.join(REQUIREMENTS))
}

/// Makes a virtual environment with what a file requires, unless it is there and up to date.
fn install(name: &str, requirements: &Path) -> Result<PathBuf> {
    let wanted = std::fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let environment = xtask::cache().join(name);
    let stamp = environment.join("requirements.txt");
    let interpreter = environment.join("bin/python");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(interpreter);
    }
    let mut make = Command::new("python3");
    done(make.args(["-m", "venv", "--clear"]).arg(&environment))
        .context("no virtual environment; apt-get install python3-venv")?;
    let mut install = Command::new(&interpreter);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    // Without a network the tests are skipped soon.
    install.args(["--retries", "2", "--timeout", "20"]);
    done(install.arg("--requirement").arg(requirements))
        .with_context(|| format!("cannot install what {} lists", requirements.display()))?;
    std::fs::write(stamp, wanted)?;
    Ok(interpreter)
}

/// Number of the tests, for a run that leaves them out.
pub(crate) fn count(root: &Path) -> usize {
    let files = std::fs::read_dir(root.join(CRATE).join("tests")).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts.map(|text| text.lines().filter(|line| line.starts_with("def test_")).count()).sum()
}

/// Builds the package and runs its tests.
///
/// # Errors
/// If a requirement is missing, or it does not build.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    if options.docs {
        return build_docs(root, options.release);
    }
    let python = match options.ray {
        true => install("python-ray-venv", &root.join(RAY_REQUIREMENTS))?,
        false => ready(root)?,
    };
    let folder = if options.release { "release" } else { "debug" };
    let program = release::target(root).join(folder).join("lull");
    let mut tests = if options.staged || options.ray {
        let place = stage(root, options.release)?;
        let mut tests = Command::new(&python);
        tests.env("PYTHONPATH", place);
        tests
    } else {
        Command::new(install_wheel(root, &python, options.release)?)
    };
    tests.current_dir(root.join(CRATE)).env("LULL_PROGRAM", program);
    // The tests build a service in Go once.
    tests.envs(on_path("go").map(|_| ("LULL_OTLP_GO", "1")));
    // Bytecode would be written into the clone.
    tests.env("PYTHONDONTWRITEBYTECODE", "1").args(["-m", "pytest", "-q", "--durations=5"]);
    if options.ray {
        tests.args(["-rP", "-m", "ray", "tests/test_sweep_ray.py"]);
    }
    let output = tests.output().context("cannot start pytest")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    print!("{printed}{}", String::from_utf8_lossy(&output.stderr));
    let verdict = if output.status.success() { "ok" } else { "FAILED" };
    let Some(counts) = printed.lines().rev().find_map(Counts::parse) else {
        bail!("pytest ended with {} and no summary", output.status);
    };
    println!("test result: {verdict}. {counts}");
    Ok(if output.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the reference, with the page and the notebooks, into `target/python-docs`; a name
/// without a docstring or a broken link is a failure.
fn build_docs(root: &Path, optimised: bool) -> Result<ExitCode> {
    let folder = root.join(DOCS);
    let python = install("python-docs-venv", &folder.join("requirements.txt"))?;
    let package = stage(root, optimised)?;
    let site = release::target(root).join("python-docs");
    let mut build = Command::new(python);
    build.current_dir(folder).env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    // The notice concerns a later version than the one that is pinned.
    build.env("NO_MKDOCS_2_WARNING", "1");
    build.args(["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]).arg(&site);
    done(&mut build).context("the reference has warnings or errors, which are printed above")?;
    println!("the reference is {}", site.join("python.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the native part as tests are built, and puts it beside the Python part.
fn stage(root: &Path, optimised: bool) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build.current_dir(root).args(BUILD).args(optimised.then_some("--release"));
    done(&mut build)?;
    let target = release::target(root);
    let place = target.join("python");
    let package = place.join("lull");
    // Files of an earlier build that this one lacks must not be tested.
    if package.exists() {
        std::fs::remove_dir_all(&package)?;
    }
    std::fs::create_dir_all(&package)?;
    for file in std::fs::read_dir(root.join(CRATE).join("python/lull"))? {
        let file = file?;
        if file.file_type()?.is_file() {
            std::fs::copy(file.path(), package.join(file.file_name()))?;
        }
    }
    let folder = if optimised { "release" } else { "debug" };
    let native = target.join(folder).join("lib_lull.so");
    std::fs::copy(&native, package.join("_lull.abi3.so"))
        .with_context(|| format!("cannot copy {}", native.display()))?;
    Ok(place)
}

/// Builds the wheel into `target/package`, and installs it into an environment of its own,
/// which sees the packages of the tests; returns the interpreter of that.
fn install_wheel(root: &Path, python: &Path, optimised: bool) -> Result<PathBuf> {
    let profile: &[&str] = if optimised { &["--release"] } else { &["--profile", "dev"] };
    let mut program = Command::new("cargo");
    program.current_dir(root).args(["build", "--package", "lull-cli", "--bin", "lull"]);
    done(program.args(optimised.then_some("--release")))?;
    let target = release::target(root);
    let wheels = target.join("package");
    let mut build = Command::new(python);
    build.current_dir(root.join(CRATE)).args(["-m", "maturin", "build", "--quiet"]).args(profile);
    // An extension module's build of pyo3 depends on the variables of maturin: in the directory of
    // the tests it would be built repeatedly.
    build.arg("--target-dir").arg(target.join("wheel")).arg("--out").arg(&wheels);
    done(build.args(["--interpreter"]).arg(python))?;
    let environment = target.join("wheel/venv");
    let mut make = Command::new(python);
    done(make.args(["-m", "venv", "--clear", "--without-pip"]).arg(&environment))?;
    let interpreter = environment.join("bin/python");
    let site = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    let sites = |python: &Path| read_output(Command::new(python).args(["-c", site]));
    let (tests, own) = (sites(python)?, sites(&interpreter)?);
    std::fs::write(Path::new(own.trim()).join("tests.pth"), tests)?;
    let mut install = Command::new(&interpreter);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]);
    install.arg(own.trim()).args(["--find-links"]).arg(&wheels).arg("lull");
    done(&mut install)?;
    println!("the wheel is in {}", wheels.display());
    Ok(interpreter)
}

/// The last line of pytest, in the words of Rust's tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Left out by their marks, such as those that need Ray.
    filtered: usize,
}

impl Counts {
    /// Reads a line such as `2 failed, 57 passed, 1 skipped in 12.34s`.
    fn parse(line: &str) -> Option<Self> {
        let (parts, _) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
        let mut counts = Self::default();
        for part in parts.split(", ") {
            let (number, what) = part.split_once(' ')?;
            let number: usize = number.parse().ok()?;
            match what {
                "passed" => counts.passed = number,
                "failed" | "error" | "errors" => counts.failed += number,
                "skipped" => counts.ignored = number,
                "deselected" => counts.filtered = number,
                "warning" | "warnings" => {}
                _ => return None,
            }
        }
        Some(counts)
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, ignored, filtered } = self;
        write!(f, "{passed} passed; {failed} failed; {ignored} ignored; 0 measured; ")?;
        write!(f, "{filtered} filtered out")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_pytest_is_read_and_other_lines_are_not() {
        let line = "2 failed, 57 passed, 1 skipped, 3 warnings, 1 error in 12.34s (0:00:12)";
        let wanted = Counts { passed: 57, failed: 3, ignored: 1, filtered: 0 };
        assert_eq!(Counts::parse(line), Some(wanted));
        let counts = Counts::parse("109 passed, 2 deselected in 71.82s (0:01:11)").unwrap();
        assert_eq!((counts.passed, counts.filtered), (109, 2));
        assert!(counts.to_string().ends_with("0 measured; 2 filtered out"));
        assert_eq!(
            Counts::parse("= 7 passed in 0.1s ="),
            Some(Counts { passed: 7, ..Counts::default() })
        );
        for line in ["", "no tests ran in 0.01s", "1.20s call tests/test_a.py::test_b", "a in b"] {
            assert_eq!(Counts::parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_tests_of_the_package_are_counted() {
        assert!(count(&xtask::root()) > 30);
    }

    #[test]
    fn every_requirement_is_pinned() {
        for file in [REQUIREMENTS, RAY_REQUIREMENTS, &format!("{DOCS}/requirements.txt")] {
            let text = std::fs::read_to_string(xtask::root().join(file)).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            assert!(
                lines.clone().count() > 2 && lines.clone().all(|line| line.contains("==")),
                "{text}"
            );
        }
    }
}
