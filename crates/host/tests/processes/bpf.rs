//! eBPF programs end with the process that loaded them.

use crate::roles::{argv, say};
use crate::scene::{Ends, wait_for};
use lull_host::bpf::{InterruptLog, Watch, is_loaded};
use lull_testing::skip;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

pub(crate) const TESTS: &[(&str, fn())] =
    &[("programs_end_with_the_process_that_is_killed_and_not_before", killed)];

/// Loads all programs, prints their identifiers, and sleeps until it is killed. Its child
/// holds none of them.
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
    let mut line = String::new();
    BufReader::new(watcher.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if let Some(why) = line.strip_prefix("refused ") {
        assert!(!rustix::process::geteuid().is_root() || why.contains("forbids"), "{why}");
        return skip(why);
    }
    let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().unwrap());
    let child = numbers.next().unwrap();
    let ids: Vec<u32> = numbers.collect();
    assert_eq!(ids.len(), 8);
    assert!(
        ids.iter().all(|id| is_loaded(*id).unwrap()),
        "the programs exist while the process lives"
    );
    watcher.0.kill().unwrap();
    wait_for("the end of all programs", || ids.iter().all(|id| !is_loaded(*id).unwrap()));
    let child = rustix::process::Pid::from_raw(child.cast_signed()).unwrap();
    let is_alive = rustix::process::test_kill_process(child).is_ok();
    let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    assert!(is_alive, "the child has ended, too; it must outlive the programs");
}
