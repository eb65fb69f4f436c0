//! References that a run has corrected, and the next match or pod of a template.

use crate::presence::{Cgroup, Sleeper, unique};
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::{LULL, skip, wait_for};
use lull_agent::Agent;
use lull_agent::config::Config;
use lull_agent::discovery::{Discovery, Finding, PodIdentity, Report, Workload};
use lull_measure::Nanos;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};

const SPIN: &str = "while :; do :; done";

/// A template of one app, whose solo progress is far below what `SPIN` reaches.
fn template(key: &str) -> String {
    format!(
        "[policy]\nname = \"unmanaged\"\n[[match]]\nname = \"w\"\nclass = \"best-effort\"\n\
         solo = 0.01\nmost = 1\n{key}\n"
    )
}

#[test]
fn a_match_that_takes_the_place_of_another_has_the_references_of_its_template() {
    let (scene, mark) = (Scene::new(), unique());
    let spin = format!("{SPIN} # {mark}");
    let config = scene.config("", &template(&format!("args = \"sh -c * # {mark}\"")));
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("`w-1` waits: processes with args");
    let first = Sleeper::shell(&spin);
    let corrected = "w-1: its progress beside other apps is above its solo progress 0.0100/s";
    agent.wait_until_printed(corrected);
    drop(first);
    agent.wait_until_printed("w-1 has exited");
    let _second = Sleeper::shell(&spin);
    agent.wait_until_printed("w-1 has the references of its template again");
    // The second one is judged by its own epochs, and then corrected from the same value.
    wait_for("a correction of the second one", || agent.err().matches(corrected).count() == 2);
    agent.interrupt().well();
    let corrections = Record::open(&scene.records()[0]).events("reference_corrected");
    let is_of_template = |event: &&Value| event["correction"]["solo"]["was"] == 0.01;
    assert_eq!(corrections.iter().filter(is_of_template).count(), 2, "{corrections:?}");
}

/// A discovery that finds what the test sends.
struct Sent(Receiver<Finding>);

impl Discovery for Sent {
    fn poll(&mut self) -> Vec<Finding> {
        self.0.try_iter().collect()
    }

    fn report(&mut self, _: Vec<Report>) {}

    fn silence(&self) -> Nanos {
        Nanos::ZERO
    }

    fn wakes(&self) -> Option<OwnedFd> {
        None
    }
}

#[test]
fn a_pod_that_takes_the_place_of_another_has_the_references_of_its_template() {
    let Some(cgroup) = Cgroup::named(&format!("lull-{}", unique())) else {
        return skip("no cgroup can be made here");
    };
    let (scene, spinner) = (Scene::new(), Sleeper::shell(SPIN));
    cgroup.add(&spinner);
    let pod = |name: &str| {
        Finding::Present(Workload {
            id: 1,
            name: name.to_owned(),
            template: 0,
            cgroup: cgroup.0.clone(),
            cores: None,
            objectives: None,
            pod: Some(Box::new(PodIdentity { name: name.to_owned(), ..PodIdentity::default() })),
        })
    };
    let config = scene.config("discover = \"kubernetes\"", &template("pods = \"\""));
    let (finds, found) = channel();
    finds.send(pod("one")).unwrap();
    let agent = Agent::new(Config::load(&config).unwrap()).program(LULL).dry_run(true);
    let mut session = agent.discovery(Box::new(Sent(found))).start().unwrap();
    let mut solo_after_turn = || {
        session.turn("on").unwrap();
        session.apps()[0].solo_per_s
    };
    let is_corrected = (0..100).any(|_| solo_after_turn() > Some(0.01));
    assert!(is_corrected, "100 epochs have not refuted it");
    finds.send(pod("two")).unwrap();
    assert_eq!(solo_after_turn(), Some(0.01), "the reference of the former pod");
    session.close().unwrap();
    let specs = Record::open(&scene.records()[0]).text("SELECT spec FROM apps");
    let spec: Value = serde_json::from_str(&specs[0]).unwrap();
    assert_eq!(spec["solo_per_s"], 0.01);
}
