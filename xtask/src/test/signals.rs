//! Test programs start with default signal dispositions.
//!
//! A script's background jobs ignore SIGINT and SIGQUIT, and `nohup` ignores SIGHUP. A
//! process inherits ignored signals across `exec`, so tests of a program's end by a signal
//! would fail there. A signal with a handler is reset to its default by `exec`, so this
//! program handles the ignored ones.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set if SIGHUP was ignored at the start, as `nohup` does.
static IGNORES_HANGUP: AtomicBool = AtomicBool::new(false);

/// Gives programs that are started from now on the default for ignored signals. This
/// program still ignores them.
///
/// # Errors
/// If the kernel refuses a handler.
pub(super) fn reset_for_children() -> Result<()> {
    let ignored = ignored()?;
    for signal in [SIGHUP, SIGINT, SIGQUIT] {
        if is_in(ignored, signal) {
            // The handler sets a flag that is never read.
            signal_hook::flag::register(signal, Arc::default()).context("no signal handler")?;
        }
    }
    IGNORES_HANGUP.store(is_in(ignored, SIGHUP), Ordering::Relaxed);
    Ok(())
}

/// Keeps a program that is about to start alive when the terminal goes, under `nohup`: a
/// shell signals the process group of each of its jobs, so the program gets its own.
pub(super) fn survive_hangup(command: &mut Command) {
    if IGNORES_HANGUP.load(Ordering::Relaxed) {
        command.process_group(0);
    }
}

/// The mask of the signals that this process ignores, bit 0 for signal 1 (proc(5)).
fn ignored() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.context("no SigIgn")?.trim(), 16).context("SigIgn is not a number")
}

const fn is_in(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process that plays `cargo xtask test`.
    const IS_RUNNER: &str = "XTASK_TEST_IS_RUNNER";

    /// Not a test on its own: starts a child as the runner starts tests, which prints what
    /// it ignores.
    #[test]
    fn be_a_runner() {
        if std::env::var_os(IS_RUNNER).is_some() {
            reset_for_children().unwrap();
            let mut child = Command::new("grep");
            survive_hangup(child.args(["^SigIgn", "/proc/self/status"]));
            assert!(child.status().unwrap().success());
        }
    }

    #[test]
    fn a_child_ignores_nothing_under_nohup_in_the_background_and_in_front() {
        for trap in ["", "trap '' INT QUIT;", "trap '' HUP;", "trap '' HUP INT QUIT;"] {
            let mut shell = Command::new("sh");
            let program = std::env::current_exe().unwrap();
            shell.arg("-c").arg(format!("{trap} exec \"$0\" be_a_runner --nocapture"));
            let output = shell.arg(program).env(IS_RUNNER, "1").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
            for signal in [SIGHUP, SIGINT, SIGQUIT] {
                assert!(!is_in(mask, signal), "{trap} {signal}: {text}");
            }
        }
    }
}
