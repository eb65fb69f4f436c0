//! Pods as the agent takes them from a watcher that says anything.

use super::known::{CGROUP_WAIT, POOL_CHANGE_MAX};
use super::*;
use crate::message::tests::order;
use crate::message::{Bound, Service};
use std::path::Path;

/// A node with cgroups, and a link whose program ends at once.
struct Node {
    tree: tempfile::TempDir,
    link: Link,
    now: Instant,
}

/// Returns the setup of an agent whose program has no effect.
fn setup(tree: &Path) -> Setup {
    Setup {
        program: PathBuf::from("/bin/true"),
        begin: Begin::default(),
        templates: vec![3],
        roots: Roots::under(tree),
        cgroup_root: PathBuf::new(),
    }
}

impl Node {
    fn new() -> Self {
        let tree = tempfile::tempdir().unwrap();
        let link = Link::start(setup(tree.path())).unwrap();
        let node = Self { tree, link, now: Instant::now() };
        node.cgroup("", "0-3");
        node
    }

    fn cgroup(&self, path: &str, cores: &str) {
        let place = self.tree.path().join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("cgroup.procs"), "").unwrap();
        std::fs::write(place.join("cpuset.cpus.effective"), cores).unwrap();
    }

    fn say(&mut self, message: FromWatcher) -> Vec<String> {
        self.link.forget_cgroups(self.now);
        self.link.take(message, self.now);
        self.found()
    }

    fn look(&mut self, after: Duration) -> Vec<String> {
        self.now += after;
        self.link.forget_cgroups(self.now);
        self.link.look(self.now);
        self.found()
    }

    fn found(&mut self) -> Vec<String> {
        let finding = |finding: Finding| match finding {
            Finding::Present(it) => {
                let on = it.cores.map(|cores| format!(" on {cores}")).unwrap_or_default();
                format!("{} {} at {}{on}", it.id, it.name, it.cgroup.display())
            }
            Finding::Gone(id) => format!("{id} gone"),
            Finding::Notice(text) => text,
        };
        std::mem::take(&mut self.link.findings).into_iter().map(finding).collect()
    }
}

#[test]
fn a_second_agent_of_a_node_is_refused_wherever_its_state_is() {
    for top in ["kubepods", "kubepods.slice"] {
        let node = Node::new();
        node.cgroup(top, "0-3");
        let first = Link::start(setup(node.tree.path())).unwrap();
        let second = Link::start(setup(node.tree.path()));
        let error = second.unwrap_err().to_string();
        assert!(error.contains("another agent already controls the pods"), "{error}");
        assert!(error.contains(&format!("fs/cgroup/{top};")), "{error}");
        drop(first);
        // A program that another test starts at this moment has a copy of the lock until it begins.
        let is_free = |_| {
            std::thread::sleep(Duration::from_millis(1));
            Link::start(setup(node.tree.path())).is_ok()
        };
        assert!((0..1_000).any(is_free));
        let other_root = PathBuf::from("/other");
        let other = Setup { cgroup_root: other_root, ..setup(node.tree.path()) };
        assert!(Link::start(other).is_ok(), "the pods of another kubelet");
    }
}

#[test]
fn a_pod_is_handed_on_once_its_cgroup_exists() {
    let mut node = Node::new();
    assert!(node.say(FromWatcher::Pod(Box::new(order("1a")))).is_empty());
    node.cgroup("kubepods/burstable/pod1a", "0-3");
    let found = node.look(Duration::ZERO);
    assert_eq!(found, ["1 pod shop/web-1a at /kubepods/burstable/pod1a"]);
    assert!(node.look(CHECK_EVERY).is_empty());
    assert!(node.say(FromWatcher::Pod(Box::new(order("1a")))).is_empty(), "nothing differs");
    assert_eq!(node.say(FromWatcher::Gone("1a".to_owned())), ["1 gone"]);
    assert!(node.say(FromWatcher::Gone("1a".to_owned())).is_empty());
}

#[test]
fn other_objectives_of_a_pod_are_handed_on_without_a_look_at_its_cgroup() {
    let mut node = Node::new();
    node.cgroup("kubepods/burstable/pod1a", "0-3");
    let found = node.say(FromWatcher::Pod(Box::new(order("1a"))));
    std::fs::remove_dir_all(node.tree.path().join("sys/fs/cgroup/kubepods")).unwrap();
    let objectives = vec![Bound::Throughput { floor_per_s: 7.0 }];
    let other =
        || FromWatcher::Pod(Box::new(PodOrder { objectives: objectives.clone(), ..order("1a") }));
    assert_eq!(node.say(other()), found);
    assert!(node.say(other()).is_empty(), "nothing differs");
}

/// A pod whose status has no container that runs.
fn starting(uid: &str) -> FromWatcher {
    FromWatcher::Pod(Box::new(PodOrder { is_starting: true, ..order(uid) }))
}

#[test]
fn a_pod_that_is_starting_is_handed_on_once_its_cgroup_has_a_container() {
    let mut node = Node::new();
    assert!(node.say(starting("1a")).is_empty());
    assert!(node.look(CGROUP_WAIT * 9).is_empty(), "it may wait for its image");
    let path = |node: &Node, container: &str| {
        node.tree.path().join("sys/fs/cgroup/kubepods/burstable/pod1a").join(container)
    };
    let populate = |node: &Node, container: &str| {
        node.cgroup(&format!("kubepods/burstable/pod1a/{container}"), "0-3");
        std::fs::write(path(node, container).join("cgroup.events"), "populated 1\n").unwrap();
    };
    node.cgroup("kubepods/burstable/pod1a", "0-3");
    populate(&node, "sandbox");
    assert!(node.look(Duration::ZERO).is_empty());
    populate(&node, "main");
    let found = node.look(Duration::ZERO);
    assert_eq!(found, ["1 pod shop/web-1a at /kubepods/burstable/pod1a"]);
    std::fs::write(path(&node, "main").join("cgroup.events"), "populated 0\n").unwrap();
    assert_eq!(node.look(CHECK_EVERY), ["1 gone"], "its container has ended");
    populate(&node, "main");
    assert_eq!(node.look(Duration::ZERO), found);
    assert!(node.say(FromWatcher::Pod(Box::new(order("1a")))).is_empty(), "nothing differs");
    // The cgroup may be there before the pod is known.
    node.say(FromWatcher::Gone("1a".to_owned()));
    let found = node.say(starting("1a"));
    assert_eq!(found, ["2 pod shop/web-1a at /kubepods/burstable/pod1a"]);
}

#[test]
fn a_pod_that_has_started_waits_for_its_cgroup_as_long_as_any_other() {
    let mut node = Node::new();
    node.say(starting("1a"));
    assert!(node.look(CGROUP_WAIT * 2).is_empty());
    assert!(node.say(FromWatcher::Pod(Box::new(order("1a")))).is_empty());
    assert!(node.look(CGROUP_WAIT / 2).is_empty());
    assert!(node.look(CGROUP_WAIT)[0].contains("its cgroup does not exist"));
}

#[test]
fn a_pod_without_a_cgroup_is_left_alone_until_there_is_one() {
    let mut node = Node::new();
    assert!(node.say(FromWatcher::Pod(Box::new(order("1a")))).is_empty());
    assert!(node.look(CGROUP_WAIT / 2).is_empty());
    let found = node.look(CGROUP_WAIT);
    assert!(found[0].contains("left alone: its cgroup does not exist"), "{found:?}");
    assert!(found[0].ends_with(" and kubepods/burstable/pod1a"), "{found:?}");
    assert!(node.look(CHECK_EVERY).is_empty(), "reported once");
    node.cgroup("kubepods/burstable/pod1a", "0-3");
    assert!(node.look(CHECK_EVERY)[0].starts_with("1 pod shop/web-1a at "));
    std::fs::remove_dir_all(node.tree.path().join("sys/fs/cgroup/kubepods")).unwrap();
    assert!(node.look(CHECK_EVERY + CGROUP_WAIT).is_empty(), "the API server says that it is gone");
}

#[test]
fn pods_stay_while_the_server_is_away_and_until_a_new_watcher_has_sent_all() {
    let mut node = Node::new();
    for uid in ["1a", "2b"] {
        node.cgroup(&format!("kubepods/burstable/pod{uid}"), "0-3");
        node.say(FromWatcher::Pod(Box::new(order(uid))));
    }
    node.say(FromWatcher::Heard);
    let found = node.say(FromWatcher::Lost("no answer".to_owned()));
    assert_eq!(found, ["no answer; the 2 pods that are known stay"]);
    assert!(node.say(FromWatcher::Lost("no answer".to_owned())).is_empty(), "said once");
    node.now += Duration::from_secs(61);
    assert_eq!(node.say(FromWatcher::Heard), ["the API server answers again, after 61 s"]);
    node.link.lose(&ChannelError::Ended, node.now);
    assert!(node.found()[0].contains("the 2 pods that are known stay"));
    node.link.announced.clear();
    assert!(node.say(FromWatcher::Pod(Box::new(order("2b")))).is_empty());
    assert_eq!(node.say(FromWatcher::Synced), ["1 gone"]);
}

#[test]
fn a_pod_that_is_placed_by_another_program_is_left_alone() {
    let mut node = Node::new();
    let exclusive = PodOrder { may_be_exclusive: true, ..order("1a") };
    let found = node.say(FromWatcher::Pod(Box::new(exclusive)));
    assert!(found[0].contains("left alone: it is Guaranteed"), "{found:?}");
    node.cgroup("kubepods/burstable/pod2b", "0-3");
    node.cgroup("kubepods/burstable/pod2b/c", "0-3");
    assert!(node.say(FromWatcher::Pod(Box::new(order("2b"))))[0].starts_with("2 pod"));
    node.cgroup("kubepods/burstable/pod2b/c", "2-3");
    assert!(node.look(CHECK_EVERY / 2).is_empty(), "looked at now and then");
    assert!(node.look(CHECK_EVERY).is_empty(), "the pool may be changing");
    let found = node.look(POOL_CHANGE_MAX);
    assert_eq!(found[0], "2 gone");
    assert!(found[1].contains("the cores 2-3 of the node's 0-3"), "{found:?}");
    node.cgroup("kubepods/burstable/pod2b/c", "0-3");
    assert!(node.look(CHECK_EVERY)[0].starts_with("2 pod"), "it is free again");
}

#[test]
fn pods_of_the_shared_pool_are_handed_on_with_its_cores() {
    let mut node = Node::new();
    for uid in ["1a", "2b"] {
        node.cgroup(&format!("kubepods/burstable/pod{uid}/c"), "0-3");
        node.cgroup(&format!("kubepods/burstable/pod{uid}"), "0-3");
        node.say(FromWatcher::Pod(Box::new(order(uid))));
    }
    // A pod gets cores of its own; the kubelet takes them from one of the others after the other.
    node.cgroup("kubepods/pod3c", "0-3");
    node.cgroup("kubepods/pod3c/c", "3");
    node.cgroup("kubepods/burstable/pod1a/c", "0-2");
    assert!(node.look(CHECK_EVERY).is_empty(), "the pool is changing");
    node.cgroup("kubepods/burstable/pod2b/c", "0-2");
    let at = |id, uid| format!("{id} pod shop/web-{uid} at /kubepods/burstable/pod{uid}");
    let both = |end: &str| [at(1, "1a"), at(2, "2b")].map(|text| text + end);
    assert_eq!(node.look(CHECK_EVERY), both(" on 0-2"));
    assert!(node.look(CHECK_EVERY).is_empty());
    let own = PodOrder { service: Service::Guaranteed, ..order("3c") };
    let found = node.say(FromWatcher::Pod(Box::new(own)));
    assert!(found[0].contains("left alone: its cpuset has the cores 3 of"), "{found:?}");
    node.say(FromWatcher::Gone("3c".to_owned()));
    std::fs::remove_dir_all(node.tree.path().join("sys/fs/cgroup/kubepods/pod3c")).unwrap();
    for uid in ["1a", "2b"] {
        node.cgroup(&format!("kubepods/burstable/pod{uid}/c"), "0-3");
    }
    assert_eq!(node.look(CHECK_EVERY), both(""), "the pool is the node again");
}

#[test]
fn cores_that_the_runtime_sets_count_where_cgroups_have_no_cpusets() {
    let mut node = Node::new();
    let path = |name: &str| node.tree.path().join("sys").join(name);
    std::fs::remove_file(path("fs/cgroup/cpuset.cpus.effective")).unwrap();
    std::fs::create_dir_all(path("devices/system/cpu")).unwrap();
    std::fs::write(path("devices/system/cpu/online"), "0-3\n").unwrap();
    node.cgroup("kubepods/pod3c", "");
    let on = |uid: &str, cpus: &str| PodOrder { cpus: cpus.to_owned(), ..order(uid) };
    let own = PodOrder { service: Service::Guaranteed, ..on("3c", "3") };
    let found = node.say(FromWatcher::Pod(Box::new(own)));
    assert!(found[0].contains("the cores 3 of the node's 0-3"), "at once: {found:?}");
    for uid in ["1a", "2b"] {
        node.cgroup(&format!("kubepods/burstable/pod{uid}"), "");
        let found = node.say(FromWatcher::Pod(Box::new(on(uid, ""))));
        assert!(found[0].ends_with(uid), "{found:?}");
    }
    assert!(node.say(FromWatcher::Pod(Box::new(on("1a", "0-2")))).is_empty(), "it is alone");
    assert!(node.say(FromWatcher::Pod(Box::new(on("2b", "0-2"))))[0].ends_with("on 0-2"));
    assert!(node.look(CHECK_EVERY)[0].ends_with("pod1a on 0-2"));
    assert!(node.say(FromWatcher::Pod(Box::new(on("2b", ""))))[0].ends_with("pod2b"));
}

#[test]
fn a_watcher_without_a_runtime_is_replaced_once_there_is_a_new_socket() {
    let mut node = Node::new();
    let socket = node.tree.path().join("nri.sock");
    node.link.setup.begin.nri = Some(socket.display().to_string());
    node.link.rejoin_runtime(node.now);
    assert!(node.found().is_empty(), "the watcher has not said yet whether it has a runtime");
    node.say(FromWatcher::Runtime(false));
    node.link.rejoin_runtime(node.now);
    assert!(node.found().is_empty() && node.link.child.is_some(), "there is no socket");
    std::fs::write(&socket, "").unwrap();
    node.link.rejoin_runtime(node.now);
    assert!(node.found()[0].contains("its new socket") && node.link.child.is_none());
    node.link.revive(node.now);
    assert!(node.link.child.is_some());
    node.say(FromWatcher::Runtime(false));
    node.link.rejoin_runtime(node.now);
    assert!(node.found().is_empty(), "that socket was tried");
    node.say(FromWatcher::Runtime(true));
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "").unwrap();
    node.link.rejoin_runtime(node.now);
    assert!(node.found().is_empty(), "a watcher that follows a runtime stays");
}

#[test]
fn a_runtime_that_is_restarted_again_and_again_is_joined_ever_more_rarely() {
    let mut node = Node::new();
    let socket = node.tree.path().join("nri.sock");
    node.link.setup.begin.nri = Some(socket.display().to_string());
    let restart = |node: &mut Node, number: u64| {
        // The former socket stays, so that its number is not that of the new one.
        let _ = std::fs::rename(&socket, socket.with_extension(number.to_string()));
        std::fs::write(&socket, "").unwrap();
        node.say(FromWatcher::Runtime(false));
    };
    for millis in [0, 500, 1_000, 2_000, 4_000] {
        restart(&mut node, millis);
        let due = node.link.spawned + Duration::from_millis(millis);
        if millis > 0 {
            node.link.rejoin_runtime(due - Duration::from_millis(1));
            assert!(node.link.child.is_some(), "{millis}");
        }
        node.link.rejoin_runtime(due);
        assert!(node.link.child.is_none(), "{millis}");
        node.link.revive(due);
    }
    restart(&mut node, 1);
    node.link.rejoin_runtime(node.link.spawned + LONGEST_WAIT);
    assert!(node.link.child.is_none());
    assert_eq!(node.link.wait, FIRST_WAIT, "the last watcher had worked");
}

#[test]
fn a_runtime_that_has_dropped_the_watcher_and_kept_its_socket_is_joined_again_later() {
    let mut node = Node::new();
    let socket = node.tree.path().join("nri.sock");
    std::fs::write(&socket, "").unwrap();
    node.link.setup.begin.nri = Some(socket.display().to_string());
    node.link.socket = node.link.runtime_socket();
    let spawned = node.link.spawned;
    node.say(FromWatcher::Runtime(true));
    node.link.rejoin_runtime(spawned + RUNTIME_RETRY);
    assert!(node.found().is_empty(), "a watcher that follows a runtime stays");
    node.say(FromWatcher::Runtime(false));
    node.link.rejoin_runtime(spawned + RUNTIME_RETRY / 2);
    assert!(node.found().is_empty() && node.link.child.is_some(), "not so soon");
    node.link.rejoin_runtime(spawned + RUNTIME_RETRY);
    let found = node.found();
    assert!(found[0].ends_with("to follow the container runtime again"), "{found:?}");
    assert!(node.link.child.is_none());
    node.link.revive(spawned + RUNTIME_RETRY);
    assert!(node.link.child.is_some() && node.link.follows_runtime.is_none());
}

#[test]
fn what_no_watcher_sends_is_refused() {
    let mut node = Node::new();
    node.cgroup("system.slice", "0-3");
    let outside = PodOrder { uid: "../../system.slice".to_owned(), ..order("1a") };
    let found = node.say(FromWatcher::Pod(Box::new(outside)));
    assert!(found[0].contains("no API server allows"), "{found:?}");
    assert!(node.look(Duration::ZERO).is_empty());
    for number in 0..PODS_MAX + 5 {
        node.say(FromWatcher::Pod(Box::new(order(&format!("{number:x}")))));
    }
    assert_eq!((node.link.pods.len(), node.link.announced.len()), (PODS_MAX, PODS_MAX));
}

#[test]
fn a_watcher_that_ends_again_and_again_is_started_ever_more_rarely() {
    let mut node = Node::new();
    let mut waits = Vec::new();
    for _ in 0..5 {
        node.link.lose(&ChannelError::Ended, node.now);
        waits.push(node.link.due.unwrap().duration_since(node.now).as_millis());
        node.link.child = None;
    }
    assert_eq!(waits, [0, 500, 1_000, 2_000, 4_000]);
    node.say(FromWatcher::Synced);
    node.link.lose(&ChannelError::Ended, node.now);
    let wait = node.link.due.unwrap().duration_since(node.now);
    assert_eq!(wait.as_millis(), 8_000, "a watcher that sends its pods and ends does not work");
    node.now = node.link.spawned + LONGEST_WAIT;
    node.link.lose(&ChannelError::Ended, node.now);
    assert_eq!(node.link.due, Some(node.now), "the last one had worked");
}

#[test]
fn how_long_the_server_is_silent_is_known() {
    let mut node = Node::new();
    let begin = node.now.checked_sub(Duration::from_secs(10)).unwrap();
    node.link.heard = begin;
    node.say(FromWatcher::Lost("no route".to_owned()));
    node.say(FromWatcher::Synced);
    assert!(node.link.silence() >= Nanos::from_secs(10), "it has never answered");
    node.say(FromWatcher::Heard);
    assert_eq!(node.link.heard, node.now);
}
