//! Faults during a run: a silent latency source, and another program that changes a knob.

use crate::runs::{Two, attached};
use crate::support::agent::Agent;
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::threads::threads;
use crate::support::victim::Victim;
use crate::support::{cores, skip};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Starts `lull load` for a victim, independently of the agent.
fn load(scene: &Scene, server: &Victim) -> Agent {
    let target = format!("options://{}", server.address());
    let socket = scene.path("state/push.sock").display().to_string();
    let common = ["load", &target, "--rate", "50/s", "--push", &socket, "--app", "server"];
    scene.start(scene.lull(&common))
}

#[test]
fn a_silent_latency_source_begins_the_safe_state_and_its_return_ends_it() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let mut agent = scene.agent(&scene.config("", &attached("even", &server, &batch)));
    agent.wait_until_printed("recording to");
    let mut client = load(&scene, &server);
    let followed = || server.is_changed() && batch.is_changed();
    agent.wait_for("the policy's plan", followed);
    client.signal(Signal::KILL);
    client.wait();
    agent.wait_until_printed("SLO-safe state: no latency of server");
    agent.wait_for("all cores for all", || !server.is_changed() && !batch.is_changed());

    client = load(&scene, &server);
    agent.wait_until_printed("the policy is followed again");
    agent.wait_for("the policy's plan again", followed);
    client.signal(Signal::KILL);
    agent.interrupt().well();
    let record = Record::open(&scene.records()[0]);
    let begins = record.events("safe_begins");
    assert!(begins[0]["cause"].as_str().unwrap().contains("server"), "{begins:?}");
    assert!(!record.events("safe_ends").is_empty());
    assert!(record.number("SELECT count(*) FROM epochs WHERE safe") > 0);
    server.assert_as_before();
    batch.assert_as_before();
}

#[test]
fn a_change_by_another_program_is_reported_and_left_alone() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let mut agent = scene.agent(&config);
    agent.wait_for("a change", || server.is_changed() && batch.is_changed());

    let tid = server.other_thread();
    let whole = sched_getaffinity(None).unwrap();
    sched_setaffinity(Pid::from_raw(tid), &last_core(&whole)).unwrap();
    let theirs = threads(server.pid())[&tid].cores.clone();
    agent.wait_until_printed("was changed by another program");
    let then = crate::support::record::epochs_so_far(scene.records().last());
    agent.wait_for("more epochs", || {
        assert_eq!(threads(server.pid())[&tid].cores, theirs, "the knob was taken back");
        crate::support::record::epochs_so_far(scene.records().last()) > then + 3
    });
    agent.interrupt().well();
    assert_eq!(threads(server.pid())[&tid].cores, theirs, "the foreign value was put back");
    sched_setaffinity(Pid::from_raw(tid), &whole).unwrap();
    server.assert_as_before();
    batch.assert_as_before();
    let record = Record::open(&scene.records()[0]);
    let foreign = record.events("foreign");
    assert_eq!(foreign.len(), 1, "{foreign:?}");
    assert_eq!(foreign[0]["yielded"], true);
    let whom = foreign[0]["change"]["whom"].as_str().unwrap();
    assert!(whom.contains(&tid.to_string()), "{whom}");
}

/// `even` gives the first app the first cores, so that the last is not among them.
fn last_core(whole: &CpuSet) -> CpuSet {
    let last = (0..CpuSet::MAX_CPU).rev().find(|core| whole.is_set(*core)).unwrap();
    let mut one = CpuSet::new();
    one.set(last);
    one
}

#[test]
fn a_victim_that_ends_in_mid_run_is_reported_and_the_other_continues() {
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("unmanaged", &server, &batch));
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("recording to");
    drop(batch);
    agent.wait_until_printed("batch has exited");
    agent.interrupt().well();
    server.assert_as_before();
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("app_exited")[0]["app"], "batch");
}

/// A notice quotes the name that a client pushes.
#[test]
fn a_pushed_name_with_a_line_feed_adds_no_line_to_the_journal() {
    let (scene, two) = (Scene::new(), Two::new());
    let mut agent = scene.agent(&two.config(&scene, ""));
    agent.wait_until_printed("recording to");
    let mut client = UnixStream::connect(scene.path("state/push.sock")).unwrap();
    let (app, unit) = ("x\nall is well", "steps");
    let line = serde_json::json!({
        "v": 1, "kind": "progress", "app": app, "unit": unit, "total": 1, "time_ns": 9,
    });
    writeln!(client, "{line}").unwrap();
    agent.wait_until_printed(r"no app is called `x\u{a}all is well`");
    let ended = agent.interrupt().well();
    assert!(!ended.err.lines().any(|line| line.starts_with("all is well")), "{}", ended.err);
    scene.wait_until_quiet();
}
