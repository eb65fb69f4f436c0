//! Apps of a dead agent that cannot be ended.

use super::*;
use nix::sys::ptrace;
use nix::unistd::Pid;

fn restore(scene: &Scene) -> Option<Recovery> {
    restore_stale(&scene.dir(), &scene.roots).unwrap()
}

/// A tracer keeps a killed process from exiting, as a disk that does not answer does.
#[test]
fn a_started_process_that_cannot_be_ended_is_reported_until_it_has_ended() {
    let mut scene = Scene::new();
    let traced = Pid::from_raw(scene.victim.id().cast_signed());
    if ptrace::seize(traced, ptrace::Options::PTRACE_O_TRACEEXIT).is_err() {
        return lull_testing::skip("no process can be traced here");
    }
    let ProcessId { pid, start_ticks } = ProcessId::lookup(&scene.roots, traced.as_raw()).unwrap();
    let agent = ProcessId { pid: 100_000_000, start_ticks: 1 };
    let header = What::Header { format: entry::FORMAT, agent, version: "0.1.0".to_owned() };
    let started = What::Old(Original::Started { pid, start_time_ticks: start_ticks });
    let clock = Clock::read(&scene.roots).unwrap();
    LedgerFile::create(&scene.dir(), &[header, started].map(|what| clock.entry(what))).unwrap();
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
