//! Ways to end a run from outside: it ends in order and restores all knobs.

use crate::runs::attached;
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{arguments, cores, free_port, has_forks, send, skip, wait_for};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Stdio;

#[test]
fn every_stop_signal_ends_a_run_orderly() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    for signal in [Signal::INT, Signal::TERM] {
        let scene = Scene::new();
        let (server, batch) = (Victim::server(), Victim::sleeper());
        let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
        let mut agent = scene.agent(&config);
        agent.wait_for("a change", || server.is_changed() && batch.is_changed());
        agent.signal(signal);
        let ended = agent.wait().well();
        assert!(ended.err.contains("knobs are as they were"), "{}", ended.err);
        server.assert_as_before();
        batch.assert_as_before();
        let record = Record::open(&scene.records()[0]);
        assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
        assert!(record.epochs() > 0);
        scene.wait_until_quiet();
    }
}

#[test]
fn a_run_without_an_epoch_names_no_record() {
    let scene = Scene::new();
    let (batch, state, record) = (Victim::sleeper(), scene.path("state"), scene.records_dir());
    let text = format!(
        "[agent]\nepoch = \"1h\"\nstate = {state:?}\nrecord = {record:?}\n\
         [policy]\nname = \"unmanaged\"\n\
         [[app]]\nname = \"batch\"\nclass = \"best-effort\"\nsolo = 1.0\npid = {}\n",
        batch.pid()
    );
    let mut agent = scene.agent(&scene.write("lull.toml", &text));
    agent.wait_until_printed("recording to");
    let ended = agent.interrupt().well();
    assert!(ended.err.contains("no epoch has ended, so that there is no record"), "{}", ended.err);
    assert!(scene.records().is_empty());
    scene.wait_until_quiet();
}

#[test]
fn an_interrupt_while_references_are_measured_lets_go_of_what_was_paused() {
    let scene = Scene::new();
    let port = free_port();
    let apps = format!(
        r#"
[policy]
name = "arq"
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "1s" }}]
ideal = "measure"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "1"]
ready = "127.0.0.1:{port}"
[[app]]
name = "batch"
class = "best-effort"
start = ["sleep", "3000"]
"#
    );
    let mut agent = scene.agent(&scene.config("", &apps));
    agent.wait_until_printed("measuring tail latency");
    let ended = agent.interrupt();
    assert_eq!(ended.code(), 1, "{}", ended.err);
    assert!(ended.err.contains("stopped"), "{}", ended.err);
    scene.wait_until_quiet();
    assert!(scene.records().is_empty(), "a run without an epoch left a record");
}

#[test]
fn a_reader_that_goes_away_does_not_keep_knobs_from_being_put_back() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let mut command = scene.lull(&["run".as_ref(), config.as_os_str(), "--json".as_ref()]);
    let mut agent = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("a change", || server.is_changed() && batch.is_changed());
    drop((agent.stdout.take(), agent.stderr.take()));
    let status = agent.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{status}");
    server.assert_as_before();
    batch.assert_as_before();
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
    scene.wait_until_quiet();
}

#[test]
fn a_terminal_that_goes_away_does_not_end_a_run() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let mut command = scene.lull(&["run".as_ref(), config.as_os_str()]);
    let mut agent = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(agent.stderr.take());
    wait_for("a change", || server.is_changed() && batch.is_changed());
    send(agent.id().cast_signed(), Signal::INT);
    let status = agent.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{status}");
    server.assert_as_before();
    batch.assert_as_before();
}

/// The processes of `sleep` for this many seconds.
fn sleepers(seconds: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|one| one.file_name().to_str()?.parse().ok());
    all.filter(|pid| arguments(*pid) == ["sleep", seconds]).collect()
}

/// A config of an app that starts a process outside its process group and without its environment,
/// which sleeps for this many seconds and has lost its parent; the app then runs `then`.
fn detaching(scene: &Scene, seconds: &str, then: &str) -> PathBuf {
    let script = format!("(env -i setsid sleep {seconds} &); {then}");
    let app = format!(
        "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"own\"\n\
         class = \"best-effort\"\nsolo = 1.0\nstart = [\"sh\", \"-c\", {script:?}]\n"
    );
    scene.config("", &app)
}

fn assert_none_sleeps(seconds: &str) {
    let left = sleepers(seconds);
    left.iter().for_each(|pid| send(*pid, Signal::KILL));
    assert!(left.is_empty(), "{left:?} sleep for {seconds} s");
}

#[test]
fn what_a_started_app_has_made_ends_with_it_also_without_its_group_and_environment() {
    if !has_forks() {
        return skip("needs root so that the kernel reports forks");
    }
    for signal in [Signal::TERM, Signal::KILL] {
        let scene = Scene::new();
        let seconds = format!("900.{}{}", std::process::id(), signal.as_raw());
        let mut agent = scene.agent(&detaching(&scene, &seconds, "exec sleep 3000"));
        agent.wait_until_printed("recording to");
        wait_for("the detached process", || !sleepers(&seconds).is_empty());
        agent.signal(signal);
        agent.wait();
        scene.wait_until_quiet();
        assert_none_sleeps(&seconds);
    }
}

#[test]
fn what_an_app_has_made_that_exits_at_once_ends_with_it() {
    if !has_forks() {
        return skip("needs root so that the kernel reports forks");
    }
    let scene = Scene::new();
    let seconds = format!("900.{}0", std::process::id());
    let config = detaching(&scene, &seconds, "sleep 0.1; exit 3");
    scene.run_for(&config, "1s").refused(1, "app `own` exited immediately");
    scene.wait_until_quiet();
    assert_none_sleeps(&seconds);
}
