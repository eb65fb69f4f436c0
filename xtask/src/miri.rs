//! `cargo xtask miri`: tests under Miri, the interpreter that reports undefined behaviour, data
//! races and uses of memory that weak hardware may reorder.
//!
//! The tests run isolated: they see no file, no clock and no other process. Properties are
//! checked on a few cases, and tests with threads under several schedules. What Miri cannot run
//! is in [`LEFT_OUT`]. It takes nightly Rust and minutes, so that it is no part of
//! `cargo xtask test`.

use crate::{nightly, release};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::ExitCode;

/// The arguments of `cargo xtask miri`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Schedules of each test with threads
    #[arg(long, default_value_t = 16)]
    pub(crate) seeds: u32,
    /// Cases of each property
    #[arg(long, default_value_t = 8)]
    pub(crate) cases: u32,
    /// Print the tests that are left out, and why, and run nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// Tests that run together.
struct Suite {
    /// The package and the target.
    cargo: &'static [&'static str],
    /// The prefix of its tests' names.
    prefix: &'static str,
    has_threads: bool,
}

const SUITES: [Suite; 3] = [
    Suite { cargo: &["--package", "lull-oncall", "--lib"], prefix: "", has_threads: false },
    Suite {
        cargo: &["--package", "lull-oncall", "--test", "threads"],
        prefix: "",
        has_threads: true,
    },
    Suite { cargo: &["--package", "lull-host", "--lib"], prefix: "sys::", has_threads: false },
];

const WHOLE_PAGE: &str = "it builds a whole page of 13 MB word by word, which takes Miri minutes";
const SHARED: &str = "Miri has no `memfd_create`, nor files while it is isolated";
const PEERS: &str = "Miri's sockets do not know their peers";
const SCHEDULING: &str = "Miri has no scheduling classes";
const PROCESS: &str = "it starts a process";

/// Tests that Miri does not run, by the ends of their names, and why.
const LEFT_OUT: [(&str, &str); 17] = [
    ("page::tests::only_a_page_of_this_layout_passes", WHOLE_PAGE),
    ("page::tests::a_record_is_claimed_once_and_starts_from_nothing", WHOLE_PAGE),
    ("page::tests::a_reader_of_all_records_sees_only_those_that_were_offered", WHOLE_PAGE),
    ("page::tests::a_transaction_lasts_from_its_first_query_to_its_end", WHOLE_PAGE),
    ("page::tests::settings_are_read_back", WHOLE_PAGE),
    ("page::tests::ports_are_exempt_by_rule_and_port_0_never_is", WHOLE_PAGE),
    ("sys::page::tests::what_one_writes_the_other_reads", SHARED),
    ("sys::page::tests::a_page_cannot_be_cut_short", SHARED),
    ("sys::page::tests::a_file_that_is_no_page_is_refused", SHARED),
    ("sys::clock::tests::exited_threads_stay_in_the_sum", "Miri has no clock of a process"),
    ("sys::clock::tests::a_process_that_is_gone_is_an_error", PROCESS),
    (
        "sys::netlink::tests::what_becomes_of_a_process_is_reported_where_the_kernel_allows_it",
        PROCESS,
    ),
    ("sys::peer::tests::a_peer_is_known_by_number_and_user", PEERS),
    ("sys::peer::tests::a_peer_has_a_handle_of_its_own_or_the_kernel_has_none", PEERS),
    ("sys::sched::tests::a_class_", SCHEDULING),
    ("sys::sched::tests::a_nice_value_survives_a_real_time_policy", SCHEDULING),
    ("sys::sched::tests::a_thread_that_is_gone_is_no_such_process", "it reads /proc"),
];

/// Whole programs that are left out, and why.
const PROGRAMS_LEFT_OUT: [(&str, &str); 2] = [
    ("lull-oncall test model", "it runs under loom, which explores the schedules itself"),
    ("lull-preload", "it takes the place of libc's functions, which Miri provides itself"),
];

/// Prints the tests that are left out, and why.
pub(crate) fn list() -> ExitCode {
    for (name, why) in PROGRAMS_LEFT_OUT.iter().chain(&LEFT_OUT) {
        println!("{name}: {why}");
    }
    ExitCode::SUCCESS
}

/// Runs all suites and reports those that failed.
///
/// # Errors
/// If there is no nightly Rust with Miri.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for suite in &SUITES {
        println!("== {} {}", suite.cargo.join(" "), suite.prefix);
        if !run_suite(root, suite, options)? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Runs a suite; returns whether Miri found nothing.
fn run_suite(root: &Path, suite: &Suite, options: &Options) -> Result<bool> {
    let mut cargo = nightly::cargo(root, &release::target(root).join("miri"))?;
    cargo.args(["miri", "test", "--quiet"]).args(suite.cargo).arg("--").arg(suite.prefix);
    cargo.args(LEFT_OUT.iter().flat_map(|(name, _)| ["--skip", name]));
    // A case that failed is printed: isolated tests can write no file.
    let cases = options.cases.to_string();
    let variables =
        [("PROPTEST_CASES", cases.as_str()), ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")];
    let mut flags = String::new();
    for (name, value) in variables {
        cargo.env(name, value);
        flags.push_str(&format!("-Zmiri-env-forward={name} "));
    }
    if suite.has_threads {
        // Ten times as many preemptions as usual: the tests are short.
        let seeds = options.seeds;
        flags.push_str(&format!("-Zmiri-preemption-rate=0.1 -Zmiri-many-seeds=0..{seeds}"));
    }
    let status = cargo.env("MIRIFLAGS", flags.trim()).status().context("cannot start rustup")?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without this, a renamed test would be interpreted for minutes, or a reason would outlive
    /// its test.
    #[test]
    fn each_test_that_is_left_out_is_there() {
        for (name, _) in LEFT_OUT {
            let (module, test) = name.split_once("::tests::").unwrap();
            let package = if module.starts_with("sys::") { "host" } else { "oncall" };
            let file = format!("crates/{package}/src/{}.rs", module.replace("::", "/"));
            let text = std::fs::read_to_string(xtask::root().join(file)).unwrap();
            assert!(text.contains(&format!("    fn {test}")), "{name}");
        }
    }
}
