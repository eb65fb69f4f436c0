//! Tests that need a kernel with knobs, run by `cargo xtask rig` in a guest.
//!
//! In the guest this binary is all of user space: the first process, the
//! tests, and the apps, agents and guards that they start; on some machines the
//! program `lull` is there, too. One guest has Debian on a disk, whose systemd starts this
//! binary as a service. On an ordinary machine it has no tests, since it
//! would turn that machine's knobs.

mod agent;
mod background;
mod bpf;
mod calibrate;
mod counters;
mod dispatch;
mod frequency;
mod hold;
mod igb;
mod init;
mod kills;
mod kubelet;
mod performance;
mod plant;
mod power;
mod resctrl;
mod roles;
mod scene;
mod systemd;
mod traffic;
mod tune;
mod workload;

use libtest_mimic::{Arguments, ColorSetting, Trial};
use std::process::ExitCode;

/// A test and the first part of its name, which says where it runs.
type Tests = &'static [(&'static str, fn())];

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::run();
    }
    if let Some(code) = roles::play() {
        return code;
    }
    let mut args = Arguments::from_args();
    let suite = std::env::var(init::SUITE).ok();
    args.test_threads = Some(1);
    // The serial line is a terminal, and what comes over it is read by a program.
    args.color = Some(ColorSetting::Never);
    libtest_mimic::run(&args, suite.map_or_else(Vec::new, |suite| trials(&suite))).exit_code()
}

fn trials(suite: &str) -> Vec<Trial> {
    let all: &[Tests] = match suite {
        "knobs" => &[
            frequency::TESTS,
            dispatch::TESTS,
            hold::TESTS,
            power::TESTS,
            plant::TESTS,
            bpf::TESTS,
            kills::TESTS,
        ],
        "kills" => &[kills::MANY],
        "performance" => &[performance::TESTS, plant::TESTS],
        "resctrl" => &[resctrl::TESTS, resctrl::RUNS_ONLY, plant::TESTS],
        "resctrl-2" => &[resctrl::TESTS, resctrl::RUNS_ONLY, resctrl::TWO_CACHES, plant::TESTS],
        "resctrl-amd" => &[resctrl::TESTS, resctrl::AMD, plant::TESTS],
        "igb" => &[igb::TESTS],
        "counters" => &[counters::TESTS],
        "calibrate" => &[calibrate::TESTS],
        "traffic" => &[traffic::TESTS],
        "agent" => &[agent::TESTS],
        "tune" => &[tune::TESTS],
        "systemd" => &[systemd::TESTS],
        "selinux" => &[systemd::SELINUX],
        "kubelet" => &[kubelet::TESTS],
        other => panic!("no suite {other}"),
    };
    let trial = |(name, test): &(&'static str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    all.iter().flat_map(|tests| tests.iter()).map(trial).collect()
}
