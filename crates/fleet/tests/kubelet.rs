//! A whole node: a kubelet, containerd and runc, with the agent as a plug-in of containerd.
//!
//! `LULL_FLEET_KUBELET=1 cargo xtask kubernetes` builds containerd and the kubelet, which takes
//! some minutes the first time, and runs this. Without the variable, them, runc or root it is
//! skipped.

#[allow(dead_code, reason = "the test of the cluster uses the rest")]
#[path = "cluster"]
mod cluster {
    pub(crate) mod server;
}
#[path = "kubelet"]
mod kubelet {
    pub(crate) mod agent;
    pub(crate) mod image;
    pub(crate) mod node;
}

use cluster::server::{Programs, Server};
use kubelet::agent::SteeringAgent;
use kubelet::node::{Node, NodePrograms};
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
    let found = Programs::find().and_then(|all| Ok((all, NodePrograms::find()?)));
    let (programs, of_node) = match found {
        Ok(found) => found,
        Err(why) => return lull_testing::skip(&why),
    };
    let server = Server::start(programs);
    let node = Node::start(&server, of_node);
    let agent = SteeringAgent::start(&server, &node);
    agent.wait_until_said("the container runtime reports its containers");

    node.create(&server, "critical-a", None);
    agent.wait_until_said("pod default/critical-a is critical-");
    for name in BATCH {
        let begun = Instant::now();
        node.create(&server, name, None);
        agent.wait_until_said(&format!("pod default/{name} is batch-"));
        eprintln!("{name} is managed {:.2?} after it was created", begun.elapsed());
    }
    for name in BATCH {
        wait_until(&format!("{name} runs when nothing else does"), || {
            node.class(&server, name).as_deref() == Some(IDLE)
        });
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

    // Its CPU manager gives a pod a core of its own, and takes it from the others.
    node.create(&server, "batch-exclusive", Some("1"));
    agent.wait_until_said(
        "pod default/batch-exclusive is left alone: its container runtime has set",
    );
    for name in BATCH {
        agent.wait_until_said(&format!("pod default/{name} is left alone: its container runtime"));
        wait_until(&format!("{name} has the class that it had"), || {
            node.class(&server, name).as_deref() == Some(NORMAL)
        });
    }
    agent.stop();
}

/// Waits until something holds; more time than any step takes on a loaded machine.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !holds() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
