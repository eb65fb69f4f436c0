//! A whole node: a kubelet, containerd and runc, with the agent as a plug-in of containerd.
//!
//! `LULL_FLEET_KUBELET=1 cargo xtask kubernetes` builds containerd and the kubelet, which takes
//! some minutes the first time, and runs this. Without the variable, them, runc or root it is
//! skipped. `cargo xtask rig kubelet` runs it in a guest, where cgroups are those of version 2
//! alone and systemd makes them; the API server is outside, because it is too slow under emulation.

#[allow(dead_code, reason = "the test of the cluster uses the rest")]
#[path = "cluster"]
mod cluster {
    pub(crate) mod server;
}
#[path = "kubelet"]
mod kubelet {
    pub(crate) mod agent;
    pub(crate) mod control;
    pub(crate) mod image;
    pub(crate) mod node;
}

use cluster::server::Programs;
use kubelet::agent::SteeringAgent;
use kubelet::control::{ControlPlane, is_guest, serve};
use kubelet::node::{Node, NodePrograms, age};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pods that the policy gives what the others leave.
const BATCH: [&str; 3] = ["batch-a", "batch-b", "batch-c"];
/// The scheduling classes of Linux, as `/proc/PID/stat` has them.
const NORMAL: &str = "0";
const IDLE: &str = "5";

#[test]
fn pods_of_a_kubelet_are_steered_from_their_start_to_their_end() {
    if std::env::var_os("LULL_FLEET_KUBELET").is_none() {
        return lull_testing::skip("it changes settings of the kernel: set LULL_FLEET_KUBELET=1");
    }
    let found = NodePrograms::find().and_then(|programs| Ok((programs, ControlPlane::find()?)));
    let (programs, server) = match found {
        Ok(found) => found,
        Err(why) => {
            assert!(!is_guest(), "{why}");
            return lull_testing::skip(&why);
        }
    };
    let node = Node::start(&server, programs);
    let agent = SteeringAgent::start(&server, &node);
    agent.wait_until_printed("the container runtime reports its containers");

    node.create(&server, "critical-a", None);
    agent.wait_until_printed("pod default/critical-a is critical-");
    for name in BATCH {
        let begun = Instant::now();
        node.create(&server, name, None);
        agent.wait_until_printed(&format!("pod default/{name} is batch-"));
        let what = "from the creation of a pod until it is managed";
        lull_testing::figure(what, begun.elapsed().as_secs_f64(), "s");
        wait_until(&format!("{name} runs when nothing else does"), || {
            node.class(&server, name).as_deref() == Some(IDLE)
        });
        let age = age(node.process(&server, name).unwrap());
        let what = "from the start of a pod's process until it is steered";
        lull_testing::figure(what, age.as_secs_f64(), "s");
    }
    assert_eq!(node.class(&server, "critical-a").as_deref(), Some(NORMAL));

    for name in BATCH {
        let before = node.process(&server, name).unwrap();
        node.kill(before);
        wait_until(&format!("the kubelet has started {name} again, and it is steered"), || {
            node.process(&server, name).is_some_and(|now| now != before)
                && node.class(&server, name).as_deref() == Some(IDLE)
        });
    }

    // Values that another program sets stay, and the pod has an Event.
    node.create(&server, "batch-changed", None);
    wait_until("a fourth pod runs when nothing else does", || {
        node.class(&server, "batch-changed").as_deref() == Some(IDLE)
    });
    node.set_normal(&server, "batch-changed");
    wait_until("an Event reports another writer", || {
        server.has_event("LullForeignWriter", "batch-changed")
    });
    assert_eq!(node.class(&server, "batch-changed").as_deref(), Some(NORMAL));

    // Its CPU manager gives a pod a core of its own, and takes it from the others, which share
    // those that are left.
    node.create(&server, "batch-exclusive", Some("1"));
    agent.wait_until_printed("pod default/batch-exclusive is left alone: its cpuset has the cores");
    agent.wait_until_printed("pods may use the cores ");
    node.create(&server, "batch-late", None);
    for name in BATCH.into_iter().chain(["batch-late"]) {
        wait_until(&format!("{name} is steered on the cores that are left"), || {
            node.class(&server, name).as_deref() == Some(IDLE)
        });
        assert!(!agent.has_printed(&format!("pod default/{name} is left alone")), "{name}");
    }
    agent.stop();
    for name in BATCH {
        assert_eq!(node.class(&server, name).as_deref(), Some(NORMAL), "{name} is as it was");
    }
}

/// The API server of a guest, which `cargo xtask rig kubelet` starts by the name of this test.
#[test]
fn an_api_server_serves_a_guest_until_standard_input_ends() {
    let Some(place) = std::env::var_os("LULL_FLEET_SERVE") else {
        return lull_testing::skip("it is a part of `cargo xtask rig kubelet`");
    };
    serve(Programs::find().unwrap(), Path::new(&place));
}

/// Waits until something holds; more time than any step takes on a loaded machine or in an
/// emulated one.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(900);
    // The kubelet of a guest needs the processor more.
    let pause = Duration::from_millis(if is_guest() { 1_000 } else { 50 });
    while !holds() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        std::thread::sleep(pause);
    }
}
