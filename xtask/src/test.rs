//! `cargo xtask test`: everything that must hold before a change lands.
//!
//! The cheapest phases run first, one after the other. Then those that run tests and those that
//! lint, build documentation and boot kernels run beside each other. If a first phase fails, the
//! run ends; of the others all run, so that one run shows every failure. A phase that fails
//! prints the command that repeats it. The last line sums up every test.

mod clock;
mod failures;
mod follow;
mod needs;
mod phase;
mod programs;
mod room;
mod run;
mod signals;
mod tally;

use anyhow::Result;
use phase::{Phase, Step};
use run::Runner;
use std::path::Path;
use std::process::ExitCode;
use tally::Round;

pub(crate) use needs::provide_all;

/// The phase that tests the Python package.
const PYTHON: &str = "Python package";
/// The phase that boots the rig's machines.
const RIG: &str = "real kernels";

/// The arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the slow tests
    #[arg(long)]
    pub(crate) quick: bool,
    /// Leave out the rig, whose machines take some minutes
    #[arg(long)]
    pub(crate) no_rig: bool,
    /// Build as a release is built
    #[arg(long)]
    pub(crate) release: bool,
}

/// Runs all phases and ends with `N passed, N failed`.
///
/// # Errors
/// If a phase cannot be started at all.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    signals::reset_for_children()?;
    room::warn(root);
    let front = front(options);
    let mut runner = Runner::new(root, profile(options))?;
    // Downloads run while the first phases compile.
    let (is_good, fetched) = std::thread::scope(|scope| {
        let fetched = scope.spawn(|| Fetched::provide(root, options));
        let is_good = runner.run_until_failure(&front);
        (is_good, fetched.join().expect("fetching returns its errors"))
    });
    if is_good? {
        let phases = Phases::new(options, &fetched);
        runner.leave_out(&fetched.skips());
        runner.run_beside(&phases.programs, &phases.aside)?;
    }
    let mut tally = runner.close()?;
    if let Rig::Missing(why) = &fetched.rig {
        println!("{}", without_rig(why));
        tally.leave_out(why, crate::rig::names_in_ci().len());
    }
    if let Some(why) = &fetched.no_python {
        tally.leave_out(why, crate::python::count(root));
    }
    let lists = [
        ("slowest tests", tally.slowest()),
        ("skipped", tally.reasons()),
        ("failed", tally.failures().to_owned()),
    ];
    for (title, list) in lists {
        if !list.is_empty() {
            print!("== {title}:\n{list}");
        }
    }
    println!("== {} s", runner.started.elapsed().as_secs());
    println!("{tally}");
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The downloads that the tests need besides cargo's.
struct Fetched {
    /// The tests to leave out: their program of the system is missing.
    missing: Vec<String>,
    rig: Rig,
    /// Why the Python package cannot be tested, if so.
    no_python: Option<String>,
}

impl Fetched {
    /// Installs and fetches the requirements, and reports those that cannot be had.
    fn provide(root: &Path, options: &Options) -> Self {
        let missing = needs::provide();
        for error in crate::servers::provide().into_iter().filter_map(Result::err) {
            println!("== {error:#}: skipping its tests\n   to run them: cargo xtask servers");
        }
        let rig = if !options.no_rig && !options.quick { rig() } else { Rig::NotWanted };
        let no_python = crate::python::ready(root).err().map(|error| format!("{error:#}"));
        if let Some(why) = &no_python {
            println!("== no Python package: {why}\n   to run its tests: cargo xtask python");
        }
        Self { missing, rig, no_python }
    }

    /// The arguments of test programs that leave out the missing ones.
    fn skips(&self) -> Vec<&str> {
        self.missing.iter().flat_map(|name| ["--skip", name]).collect()
    }
}

/// Whether real kernels can be booted here.
enum Rig {
    Ready,
    NotWanted,
    /// Why not.
    Missing(String),
}

/// Fetches what the rig needs before anything runs: a missing network is no
/// failed test.
fn rig() -> Rig {
    match crate::rig::ready() {
        Ok(()) => Rig::Ready,
        Err(error) => {
            let why = format!("{error:#}");
            println!("{}", without_rig(&why));
            Rig::Missing(why)
        }
    }
}

fn without_rig(why: &str) -> String {
    let names = crate::rig::names_in_ci().join(", ");
    format!("== no rig: skipping its machines {names}: {why}\n   to run them: cargo xtask rig")
}

const ALL: [&str; 2] = ["--workspace", "--all-features"];
/// All tests but the documentation's, which have a phase of their own.
const KINDS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// The gate under every interleaving, in a target directory of its own: its flags would make
/// cargo build everything again.
const MODEL: [&str; 8] = [
    "test",
    "--release",
    "--package",
    "lull-oncall",
    "--test",
    "model",
    "--target-dir",
    "target/loom",
];

const fn profile(options: &Options) -> &'static [&'static str] {
    if options.release { &["--release"] } else { &[] }
}

/// Builds all test programs.
fn test(options: &Options) -> Vec<&'static str> {
    [&["test", "--no-fail-fast"][..], &ALL, &KINDS, profile(options)].concat()
}

/// The phases that run one after the other, before all others.
fn front(options: &Options) -> Vec<Phase> {
    vec![
        Phase::new("format", &["fmt", "--all", "--check"], Step::Cargo),
        Phase::new("tidy", &["xtask", "tidy"], Step::Here(crate::tidy::run)),
        Phase::new("dependencies", &["xtask", "supply"], Step::Here(crate::supply::run)),
        Phase::new("build", &test(options), Step::Build),
    ]
}

/// The phases of a run after the first ones.
struct Phases {
    /// The test programs.
    programs: Vec<Phase>,
    /// Beside the test programs.
    aside: Vec<Phase>,
}

impl Phases {
    fn new(options: &Options, fetched: &Fetched) -> Self {
        let (profile, test, skips) = (profile(options), test(options), fetched.skips());
        let first = [&test[..], &["--"], &skips].concat();
        let slow = [&test[..], &["--", "--ignored"], &skips].concat();
        let doc_tests = [&["test", "--no-fail-fast", "--doc"][..], &ALL, profile].concat();
        let doc = [&["doc", "--no-deps"][..], &ALL].concat();
        let clippy = [&["clippy", "--all-targets"][..], &ALL, &["--", "-D", "warnings"]].concat();
        let warnings = Step::Aside(Some(("RUSTDOCFLAGS", "-D warnings")));
        let loom = Step::Aside(Some(("RUSTFLAGS", "--cfg loom")));

        let pages = Step::Here(check_pages(options.release));
        let mut programs = vec![
            Phase::new("tests", &first, Step::Programs(Round::First)),
            Phase::new("generated pages", &["xtask", "docs", "--check"], pages),
        ];
        if crate::bpf::is_ready() {
            let objects = Step::Here(crate::bpf::check);
            programs.push(Phase::new("eBPF objects", &["xtask", "bpf", "--check"], objects));
        }
        let mut aside = vec![
            Phase::new("clippy", &clippy, Step::Aside(None)),
            Phase::new("documentation's tests", &doc_tests, Step::Aside(None)),
            Phase::new("model check", &MODEL, loom),
            Phase::new("documentation", &doc, warnings),
        ];
        if !options.quick {
            programs.push(Phase::new("slow tests", &slow, Step::Programs(Round::Slow)));
        }
        if fetched.no_python.is_none() {
            let python = [&["xtask", "python", "--staged"][..], profile].concat();
            aside.push(Phase::new(PYTHON, &python, Step::Aside(None)));
        }
        if matches!(fetched.rig, Rig::Ready) {
            aside.push(Phase::new(RIG, &["xtask", "rig"], Step::Aside(None)));
        }
        Self { programs, aside }
    }
}

/// Compares the pages with what the program prints that the tests were run with.
fn check_pages(release: bool) -> fn(&Path) -> Result<ExitCode> {
    if release {
        |root| crate::docs::check_built(root, "release")
    } else {
        |root| crate::docs::check_built(root, "debug")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(options: &Options, missing: &[&str]) -> Vec<String> {
        let rig = if options.no_rig { Rig::NotWanted } else { Rig::Ready };
        let missing = missing.iter().map(|name| (*name).to_owned()).collect();
        let fetched = Fetched { missing, rig, no_python: None };
        let Phases { programs, aside } = Phases::new(options, &fetched);
        [front(options), programs, aside].iter().flatten().map(Phase::repeat).collect()
    }

    #[test]
    fn a_quick_run_leaves_out_the_rig_and_the_slow_tests_and_nothing_else() {
        let full = commands(&Options { quick: false, no_rig: false, release: false }, &[]);
        let quick = commands(&Options { quick: true, no_rig: true, release: false }, &[]);
        let left_out: Vec<_> = full.iter().filter(|command| !quick.contains(command)).collect();
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].ends_with("-- --ignored"), "{left_out:?}");
        assert_eq!(left_out[1], "cargo xtask rig");
        assert_eq!(full.len(), quick.len() + 2);
    }

    #[test]
    fn a_rig_or_a_python_that_cannot_be_had_is_no_phase_and_the_reason_is_shown() {
        let options = Options { quick: false, no_rig: false, release: false };
        let rig = Rig::Missing("no kernel 6.1 from Debian".to_owned());
        let no_python = Some("no venv".to_owned());
        let phases = Phases::new(&options, &Fetched { missing: Vec::new(), rig, no_python });
        assert!(phases.aside.iter().all(|phase| ![RIG, PYTHON].contains(&phase.name)));
        let shown = without_rig("no kernel 6.1 from Debian");
        assert!(shown.contains("knobs") && shown.contains("no kernel 6.1 from Debian"), "{shown}");
    }

    #[test]
    fn both_rounds_run_what_one_build_has_built() {
        for release in [false, true] {
            let all = commands(&Options { quick: false, no_rig: true, release }, &[]);
            let slow = all.iter().find_map(|command| command.strip_suffix(" -- --ignored"));
            let same = all.iter().filter(|command| Some(command.as_str()) == slow);
            assert_eq!(same.count(), 2, "{all:?}");
        }
    }

    #[test]
    fn tests_that_need_what_is_missing_are_left_out_of_both_rounds() {
        let options = Options { quick: false, no_rig: true, release: true };
        let all = commands(&options, &["needs_memcached"]);
        let with_skip = all.iter().filter(|command| command.ends_with("--skip needs_memcached"));
        assert_eq!(with_skip.count(), 2, "{all:?}");
    }
}
