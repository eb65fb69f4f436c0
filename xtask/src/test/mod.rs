//! `cargo xtask test`: everything that must hold before a change lands.
//!
//! The phases run in order, cheapest first, and the first that fails ends the
//! run with the command that repeats it. The last line sums up every test.

mod needs;
mod phase;
mod room;
mod tally;

use anyhow::Result;
use phase::Phase;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tally::{Round, Tally};

pub(crate) use needs::{install_packages, on_path, provide_all};

/// The phase that boots the rig's machines.
const RIG: &str = "real kernels";
/// It takes some minutes, and CI has an hour: a machine that has needed so long for
/// all else leaves it out.
const RIG_BEGINS_UNTIL: Duration = Duration::from_mins(45);

/// What `cargo xtask test` was asked for.
pub(crate) struct Options {
    /// Leave out the slow tests.
    pub(crate) quick: bool,
    /// Boot the rig's machines, unless it is quick.
    pub(crate) rig: bool,
    /// Optimise as a release is.
    pub(crate) release: bool,
}

/// Runs all phases and ends with `N passed, N failed`.
///
/// # Errors
/// If a phase cannot be started at all.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    room::warn(root);
    let skipped = needs::provide();
    let rig = if options.rig && !options.quick { rig(root) } else { Rig::NotWanted };
    let phases = phases(root, options, &skipped, &rig);
    let mut tally = Tally::default();
    tally.leave_out(rig.left_out());
    for (phase, number) in phases.iter().zip(1..) {
        let at_s = started.elapsed().as_secs();
        if phase.name == RIG && started.elapsed() > RIG_BEGINS_UNTIL {
            println!("{}", without_rig(&format!("{at_s} s are over, of an hour")));
            tally.leave_out(crate::rig::names_in_ci().len());
            continue;
        }
        println!("== {number}/{} {} ({at_s} s): {}", phases.len(), phase.name, phase.command());
        if !phase.run(root, &mut tally)? {
            println!("== {} failed; again with: {}", phase.name, phase.command());
            break;
        }
    }
    println!("== {} s", started.elapsed().as_secs());
    if let Rig::Missing(why) = &rig {
        println!("{}", without_rig(why));
    }
    println!("{tally}");
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether real kernels can be booted here.
enum Rig {
    Ready,
    NotWanted,
    /// Why not.
    Missing(String),
}

impl Rig {
    /// How many machines are not booted although they were wanted.
    fn left_out(&self) -> usize {
        match self {
            Self::Missing(_) => crate::rig::names_in_ci().len(),
            Self::Ready | Self::NotWanted => 0,
        }
    }
}

/// Fetches what the rig needs before anything runs: a missing network is no
/// failed test.
fn rig(root: &Path) -> Rig {
    match crate::rig::ready(root) {
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

/// The gate under every interleaving; in a directory of its own, or all would be built anew.
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

fn phases(root: &Path, options: &Options, skipped: &[String], rig: &Rig) -> Vec<Phase> {
    let skips: Vec<&str> = skipped.iter().flat_map(|name| ["--skip", name]).collect();
    let profile: &[&str] = if options.release { &["--release"] } else { &[] };
    let test = [&["test", "--no-fail-fast"][..], &ALL, &KINDS, profile, &["--"]].concat();
    let clippy = [&["clippy", "--all-targets"][..], &ALL, &["--", "-D", "warnings"]].concat();
    let first = [&test[..], &skips].concat();
    let doc_tests = [&["test", "--no-fail-fast", "--doc"][..], &ALL, profile].concat();
    let doc = [&["doc", "--no-deps"][..], &ALL].concat();

    let mut phases = vec![
        Phase::cargo("format", &["fmt", "--all", "--check"]),
        Phase::here("tidy", "tidy", crate::tidy::run),
        Phase::cargo("clippy", &clippy),
        Phase::tests("tests", &first, Round::First),
    ];
    if crate::has_app(root) {
        phases.push(Phase::here("generated pages", "docs --check", check_pages(options.release)));
    }
    phases.push(Phase::tests("documentation's tests", &doc_tests, Round::First));
    phases.push(Phase::model("model check", &MODEL));
    phases.push(Phase::documentation("documentation", &doc));
    if !options.quick {
        // With the programs of the first round: another build takes longer than
        // what optimising them further would save.
        let slow = [&test[..], &["--ignored"], &skips].concat();
        phases.push(Phase::tests("slow tests", &slow, Round::Slow));
    }
    if matches!(rig, Rig::Ready) {
        phases.push(Phase::tests(RIG, &["xtask", "rig"], Round::First));
    }
    phases
}

/// Compares the pages with what the program says that the tests were run with.
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

    fn commands(options: &Options, skipped: &[String]) -> Vec<String> {
        let rig = if options.rig { Rig::Ready } else { Rig::NotWanted };
        let phases = phases(&crate::root(), options, skipped, &rig);
        phases.iter().map(Phase::command).collect()
    }

    #[test]
    fn a_quick_run_leaves_out_the_rig_and_the_slow_tests_and_nothing_else() {
        let full = commands(&Options { quick: false, rig: true, release: false }, &[]);
        let quick = commands(&Options { quick: true, rig: false, release: false }, &[]);
        assert_eq!(full[..quick.len()], quick);
        assert!(full[quick.len()].ends_with("-- --ignored"), "{full:?}");
        assert_eq!(full[quick.len() + 1], "cargo xtask rig");
        assert_eq!(full.len(), quick.len() + 2);
    }

    #[test]
    fn a_rig_that_cannot_be_had_is_no_phase_and_its_machines_count_as_skipped() {
        let options = Options { quick: false, rig: true, release: false };
        let rig = Rig::Missing("no kernel 6.1 from Debian".to_owned());
        let phases = phases(&crate::root(), &options, &[], &rig);
        assert!(phases.iter().all(|phase| phase.command() != "cargo xtask rig"));
        assert_eq!(rig.left_out(), crate::rig::names_in_ci().len());
        let told = without_rig("no kernel 6.1 from Debian");
        assert!(told.contains("knobs") && told.contains("no kernel 6.1 from Debian"), "{told}");
    }

    #[test]
    fn slow_tests_need_no_build_of_their_own() {
        for release in [false, true] {
            let all = commands(&Options { quick: false, rig: false, release }, &[]);
            let slow = all.last().unwrap().strip_suffix(" -- --ignored").unwrap();
            assert!(all.iter().any(|command| command == slow), "{all:?}");
        }
    }

    #[test]
    fn tests_that_need_what_is_missing_are_left_out_of_all_rounds() {
        let skipped = ["needs_memcached".to_owned()];
        let all = commands(&Options { quick: false, rig: false, release: true }, &skipped);
        let with_skip = all.iter().filter(|command| command.ends_with("--skip needs_memcached"));
        assert_eq!(with_skip.count(), 2, "{all:?}");
    }
}
