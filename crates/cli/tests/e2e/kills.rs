//! SIGKILL of agent, guard and both at any moment: all knobs are restored.

use crate::runs::attached;
use crate::support::agent::Agent;
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{PATIENCE, cores, send, skip};
use lull_workload::Generator;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;
use std::time::Duration;

/// The process that is killed.
#[derive(Debug, Clone, Copy)]
enum Whom {
    Agent,
    Guard,
    Both,
}

/// Delays of the kill, from before the first write to well into the run.
const MOMENTS_MS: std::ops::Range<u64> = 0..2_000;

/// A run with two attached victims and a started app, under a policy that
/// writes at its first epoch.
struct Stage {
    scene: Scene,
    server: Victim,
    batch: Victim,
}

impl Stage {
    fn new() -> Self {
        Self { scene: Scene::new(), server: Victim::server(), batch: Victim::sleeper() }
    }

    fn start(&self) -> Agent {
        let two = attached("even", &self.server, &self.batch);
        let app =
            "[[app]]\nname = \"own\"\nclass = \"best-effort\"\nstart = [\"sleep\", \"3000\"]\n";
        // Three apps cannot each have a core on a machine of two.
        let app = if cores() > 2 { app } else { "" };
        let config = self.scene.config("silence = \"1h\"", &format!("{two}{app}"));
        self.scene.agent(&config)
    }

    fn guard(&self) -> Option<i32> {
        self.scene.process_with(&["guard"])
    }

    fn kill(&self, agent: &Agent, whom: Whom) {
        let guard = self.guard();
        match whom {
            Whom::Agent => agent.signal(Signal::KILL),
            Whom::Guard => guard.into_iter().for_each(|guard| send(guard, Signal::KILL)),
            Whom::Both => {
                guard.into_iter().for_each(|guard| send(guard, Signal::KILL));
                agent.signal(Signal::KILL);
            }
        }
    }

    /// Asserts that `lull restore` finds the knobs restored by the guard.
    fn assert_guard_restored(&self) {
        let state = self.scene.path("state");
        let restore = ["restore".as_ref(), "--state".as_ref(), state.as_os_str()];
        let ended = self.scene.run(&restore).well();
        assert!(ended.out.contains("restored by its guard"), "{}", ended.out);
    }

    fn assert_put_back(&self) {
        self.server.wait_until_as_before();
        self.batch.wait_until_as_before();
        self.scene.wait_until_quiet();
        for record in self.scene.records() {
            // A kill while the record is made may leave an empty one.
            let record = Record::open(&record);
            if !record.text("SELECT name FROM sqlite_master").is_empty() {
                let _ = record.number("SELECT count(*) FROM epochs");
            }
        }
    }

    fn restore_by_hand(&self) {
        let state = self.scene.path("state");
        let restore =
            ["restore".as_ref(), "--json".as_ref(), "--state".as_ref(), state.as_os_str()];
        self.scene.run(&restore).well().json();
    }
}

fn kill_at(whom: Whom, moment: Duration) {
    let stage = Stage::new();
    let agent = stage.start();
    sleep(moment);
    stage.kill(&agent, whom);
    match whom {
        Whom::Agent => drop(agent.wait()),
        Whom::Both => {
            drop(agent.wait());
            stage.restore_by_hand();
        }
        Whom::Guard => {
            // The agent may be waiting until that guard is ready.
            agent.signal(Signal::INT);
            agent.wait();
        }
    }
    stage.assert_put_back();
}

fn kill_at_random(rounds: u32, seed: u64) {
    let mut random = Generator::seed_from_u64(seed);
    for round in 0..rounds {
        for whom in [Whom::Agent, Whom::Guard, Whom::Both] {
            let moment = Duration::from_millis(random.random_range(MOMENTS_MS));
            eprintln!("seed {seed}, round {round}: kill of {whom:?} after {moment:?}");
            kill_at(whom, moment);
        }
    }
}

#[test]
fn kills_at_random_moments_leave_all_as_before() {
    kill_at_random(2, 2);
}

#[test]
#[ignore = "slow: sixty runs of up to two seconds each"]
fn many_kills_at_random_moments_leave_all_as_before() {
    kill_at_random(20, 1);
}

#[test]
fn an_agent_killed_at_work_is_undone_by_its_guard() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let stage = Stage::new();
    let mut agent = stage.start();
    agent.wait_for("a change", || stage.server.is_changed() && stage.batch.is_changed());
    // An epoch is recorded after its changes are made.
    let recorded = || epochs_so_far(stage.scene.records().last()) > 0;
    agent.wait_for("an epoch in the record", recorded);
    agent.signal(Signal::KILL);
    agent.wait();
    stage.assert_put_back();
    let record = Record::open(&stage.scene.records()[0]);
    assert!(record.epochs() > 0);
    assert_eq!(record.fact("ended"), None);
    stage.assert_guard_restored();
}

/// The guard kills the agent after five seconds without a beat, and restores the knobs.
#[test]
fn a_stopped_agent_is_ended_and_undone_by_its_guard() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let stage = Stage::new();
    let mut agent = stage.start();
    agent.wait_for("a change", || stage.server.is_changed() && stage.batch.is_changed());
    agent.signal(Signal::STOP);
    let ended = agent.wait();
    assert_eq!(ended.status.signal(), Some(9), "{}", ended.err);
    stage.assert_put_back();
    stage.assert_guard_restored();
}

/// A guard is replaced while the agent waits for its epoch to end.
#[test]
fn a_killed_guard_is_replaced_within_a_long_epoch() {
    let scene = Scene::new();
    let app = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"own\"\nclass = \"best-effort\"\n\
               start = [\"sleep\", \"3000\"]\n";
    let config = scene.config("", app);
    let text = std::fs::read_to_string(&config).unwrap().replace("200ms", "60s");
    std::fs::write(&config, text).unwrap();
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("recording to");
    let first = scene.process_with(&["guard"]).unwrap();
    send(first, Signal::KILL);
    let guard = || scene.process_with(&["guard"]);
    agent.wait_for("another guard", || guard().is_some_and(|guard| guard != first));
    assert_eq!(epochs_so_far(scene.records().last()), 0, "the epoch has not ended");
    agent.interrupt().well();
    scene.wait_until_quiet();
}

/// Reads reports as systemd does.
#[test]
fn a_service_manager_is_notified_of_readiness_life_and_end() {
    let scene = Scene::new();
    let manager = UnixDatagram::bind(scene.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let app = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"own\"\nclass = \"best-effort\"\n\
               start = [\"sh\", \"-c\", \"exec sleep 300$NOTIFY_SOCKET\"]\n";
    let config = scene.config("", app);
    let mut command = scene.lull(&["run".as_ref(), config.as_os_str()]);
    command.env("NOTIFY_SOCKET", scene.path("notify")).env("WATCHDOG_USEC", "90000000");
    let agent = scene.start(command);
    let mut seen = String::new();
    let mut read_until = |words: &str| {
        while !seen.contains(words) {
            let mut bytes = [0; 256];
            let count = manager.recv(&mut bytes).unwrap();
            seen.push_str(&format!("{}\n", String::from_utf8_lossy(&bytes[..count])));
        }
        std::mem::take(&mut seen)
    };
    let status = read_until("READY=1");
    assert!(status.contains("STATUS=policy unmanaged"), "{status}");
    read_until("WATCHDOG=1");
    assert!(scene.process_with(&["sleep", "300"]).is_some(), "the socket is the agent's own");
    agent.signal(Signal::INT);
    read_until("STOPPING=1");
    agent.wait().well();
}

#[test]
fn a_killed_guard_is_replaced_and_the_run_goes_on() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let stage = Stage::new();
    let mut agent = stage.start();
    agent.wait_for("a change", || stage.server.is_changed());
    let first = stage.guard().unwrap();
    send(first, Signal::KILL);
    agent.wait_for("another guard", || stage.guard().is_some_and(|guard| guard != first));
    // The agent starts the new guard first and records it afterwards; a kill in between
    // would lose the entry.
    let is_recorded = || Record::open(&stage.scene.records()[0]).fact("guard_respawned").is_some();
    agent.wait_for("word of it in the record", is_recorded);
    agent.signal(Signal::KILL);
    agent.wait();
    stage.assert_put_back();
    let record = Record::open(&stage.scene.records()[0]);
    assert!(record.fact("guard_respawned").unwrap().contains("signal: 9"));
}

#[test]
fn what_agent_and_guard_left_is_put_back_by_the_next_agent() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let stage = Stage::new();
    let mut agent = stage.start();
    agent.wait_for("a change", || stage.server.is_changed() && stage.batch.is_changed());
    stage.kill(&agent, Whom::Both);
    agent.wait();
    assert!(stage.server.is_changed(), "nothing is left to be put back");
    let unmanaged = attached("unmanaged", &stage.server, &stage.batch);
    let ended = stage.scene.run_for(&stage.scene.config("", &unmanaged), "400ms").well();
    assert!(ended.err.contains("left changes"), "{}", ended.err);
    stage.assert_put_back();
}

#[test]
fn started_apps_end_with_a_killed_agent() {
    let scene = Scene::new();
    let app = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"own\"\nclass = \"best-effort\"\n\
               start = [\"sh\", \"-c\", \"sleep 3000 & sleep 3000\"]\n";
    let mut agent = scene.agent(&scene.config("", app));
    agent.wait_until_printed("recording to");
    assert!(scene.process_with(&["sleep", "3000"]).is_some());
    agent.signal(Signal::KILL);
    agent.wait();
    scene.wait_until_quiet();
}
