//! The guard and the apps, tested with real processes.
//!
//! The test binary plays all of them: with a role as its first argument it is
//! an agent, a guard, or an app; without one it runs the tests.

mod apps;
mod bpf;
mod guard;
mod roles;
mod sandbox;
mod scene;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = roles::play() {
        return code;
    }
    let mut trials: Vec<Trial> = Vec::new();
    let tests = guard::TESTS.iter().chain(apps::TESTS).chain(bpf::TESTS).chain(sandbox::TESTS);
    for (name, test) in tests {
        trials.push(trial(name, *test));
    }
    for (name, test) in guard::SLOW_TESTS {
        trials.push(trial(name, *test).with_ignored_flag(true));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
