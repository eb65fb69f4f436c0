//! Programs in the kernel end with the process that has loaded them.

use crate::roles::{argv, say};
use crate::scene::{Ends, wait_for};
use lull_host::bpf::{InterruptLog, Watch};
use lull_host::sys::bpf::exists;
use lull_testing::skip;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

pub(crate) const TESTS: &[(&str, fn())] =
    &[("programs_end_with_the_process_that_is_killed_and_not_before", killed)];

/// Loads all programs, prints their numbers, and sleeps until it is killed; a
/// child of it that was started meanwhile holds none of them.
pub(crate) fn be_watcher() -> ExitCode {
    let opened = Watch::begin(1).and_then(|watch| Ok((watch, InterruptLog::begin(None)?)));
    let (watch, log) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            say(&format!("refused {error}"));
            return ExitCode::SUCCESS;
        }
    };
    let child = Ends(Command::new("sleep").arg("3000").spawn().unwrap());
    let ids = [watch.program_ids().unwrap(), log.program_ids().unwrap()].concat();
    let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
    say(&format!("{} {}", child.0.id(), ids.join(" ")));
    std::thread::sleep(Duration::from_secs(3000));
    ExitCode::SUCCESS
}

fn killed() {
    let argv = argv("watcher", &[]);
    let mut watcher = Command::new(&argv[0]);
    watcher.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut watcher = Ends(watcher.spawn().unwrap());
    let mut told = String::new();
    BufReader::new(watcher.0.stdout.take().unwrap()).read_line(&mut told).unwrap();
    if let Some(why) = told.strip_prefix("refused ") {
        assert!(!rustix::process::geteuid().is_root() || why.contains("forbids"), "{why}");
        return skip(why);
    }
    let mut numbers = told.split_whitespace().map(|number| number.parse::<u32>().unwrap());
    let child = numbers.next().unwrap();
    let ids: Vec<u32> = numbers.collect();
    assert_eq!(ids.len(), 8);
    assert!(ids.iter().all(|id| exists(*id).unwrap()), "they are there while it lives");
    watcher.0.kill().unwrap();
    wait_for("the end of all programs", || ids.iter().all(|id| !exists(*id).unwrap()));
    let child = rustix::process::Pid::from_raw(child.cast_signed()).unwrap();
    let is_alive = rustix::process::test_kill_process(child).is_ok();
    let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    assert!(is_alive, "the child, which outlived it, held none of them open");
}
