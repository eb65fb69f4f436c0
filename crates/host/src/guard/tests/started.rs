//! Apps of a dead agent that cannot be ended.

use super::*;
use nix::sys::ptrace;
use nix::unistd::Pid;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

fn restore(scene: &Scene) -> Option<Recovery> {
    restore_stale(&scene.dir(), &scene.roots).unwrap()
}

/// Leaves a ledger in which an agent that is dead has started the victim, and these lines.
fn start_by_agent(scene: &Scene, more: &[EntryContent]) -> ProcessId {
    let victim = ProcessId::lookup(&scene.roots, scene.thread().pid).unwrap();
    start_one_by_agent(scene, victim, more);
    victim
}

fn start_one_by_agent(scene: &Scene, process: ProcessId, more: &[EntryContent]) {
    let ProcessId { pid, start_ticks: start_time_ticks } = process;
    let agent = ProcessId { pid: 100_000_000, start_ticks: 1 };
    let header = EntryContent::Header { format: entry::FORMAT, agent, version: "0.1.0".to_owned() };
    let started = EntryContent::Old(Original::Started { pid, start_time_ticks });
    let clock = Clock::read(&scene.roots).unwrap();
    let lines = [header, started].into_iter().chain(more.iter().cloned());
    let lines: Vec<Entry> = lines.map(|what| clock.entry(what)).collect();
    LedgerFile::create(&scene.dir(), &lines).unwrap();
}

/// A tracer keeps a killed process from exiting, as a disk that does not answer does.
#[test]
fn a_started_process_that_cannot_be_ended_is_reported_until_it_has_ended() {
    let mut scene = Scene::new();
    let traced = Pid::from_raw(scene.victim.id().cast_signed());
    if ptrace::seize(traced, ptrace::Options::PTRACE_O_TRACEEXIT).is_err() {
        return lull_testing::skip("no process can be traced here");
    }
    let ProcessId { pid, .. } = start_by_agent(&scene, &[]);
    for _ in 0..2 {
        let recovery = restore(&scene).unwrap();
        assert!(recovery.has_failed(), "{recovery}");
        let expected = format!("started process {pid} is not as before: it could not be ended");
        assert!(recovery.to_string().contains(&expected), "{recovery}");
    }
    ptrace::cont(traced, None).unwrap();
    scene.victim.wait().unwrap();
    let recovery = restore(&scene).unwrap();
    assert!(!recovery.has_failed(), "{recovery}");
    assert_eq!(restore(&scene), None, "it was reported before");
}

#[test]
fn a_started_process_that_could_not_be_ended_is_ended_by_the_next_restore() {
    let mut scene = Scene::new();
    let key = Key::Started(ProcessId::lookup(&scene.roots, scene.thread().pid).unwrap());
    let failed = vec![(key, "it could not be ended".to_owned())];
    let outcome = Restoration { failed, ..Restoration::default() };
    start_by_agent(&scene, &[EntryContent::Restored(outcome), EntryContent::Closed]);
    let recovery = restore(&scene).unwrap();
    assert!(matches!(&recovery.how, RecoveryAction::Now(done) if done.gone == 1), "{recovery}");
    assert!(!recovery.has_failed(), "{recovery}");
    let signal = scene.victim.wait().unwrap().signal();
    assert_eq!(signal, Some(libc::SIGTERM));
}

#[test]
fn a_started_process_of_an_agent_whose_line_is_damaged_is_ended() {
    let mut scene = Scene::new();
    start_by_agent(&scene, &[]);
    rewrite(&scene.file(), |text| text.replacen("header", "hEader", 1));
    let recovery = restore(&scene).unwrap();
    assert_eq!((recovery.agent, recovery.damaged.len()), (None, 1), "{recovery}");
    assert_eq!(scene.victim.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_later_process_group_with_the_number_of_an_app_that_has_ended_is_listed_and_not_ended() {
    let scene = Scene::new();
    let mut later = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    let mut ended = ProcessId::lookup(&scene.roots, later.id().cast_signed()).unwrap();
    ended.start_ticks -= 1;
    start_one_by_agent(&scene, ended, &[]);
    let recovery = restore(&scene).unwrap();
    assert_eq!(later.try_wait().unwrap(), None, "it is not of the app");
    later.kill().unwrap();
    later.wait().unwrap();
    let expected = format!("possibly missed: process {} (sleep) in a process group", ended.pid);
    assert!(recovery.to_string().contains(&expected), "{recovery}");
}
