//! A runtime that is well-behaved, and others.

use super::super::message::{LinuxContainer, LinuxCpu, LinuxResources};
use super::*;

/// A runtime, with the plug-in that is connected to it.
struct Node {
    plugin: Session,
    /// Of the calls of the runtime.
    stream: u32,
}

impl Node {
    fn new(runtime_name: &str) -> Self {
        let mut node = Self { plugin: Session::new(), stream: 1 };
        let registration = node.sent().remove(0);
        assert_eq!(registration.connection, Connection::Runtime);
        let call = Request::decode(registration.payload.as_slice()).unwrap();
        assert_eq!((call.service.as_str(), call.method.as_str()), (RUNTIME, "RegisterPlugin"));
        let configure = Configure { runtime_name: runtime_name.to_owned() };
        let (_, answer) = node.call("Configure", &configure).unwrap();
        // Subscribed to: PostStartContainer, PostUpdateContainer, StopContainer, RemoveContainer.
        let Configured { events } = Configured::decode(answer.payload.as_slice()).unwrap();
        assert_eq!(events, 0b111_0100_0000);
        node
    }

    /// Returns the packets that the plug-in has sent.
    fn sent(&mut self) -> Vec<Packet> {
        Trunk::default().add(&std::mem::take(&mut self.plugin.out)).unwrap()
    }

    /// Calls the plug-in; what it reports, and its answer.
    fn call(
        &mut self,
        method: &str,
        payload: &impl Message,
    ) -> Result<(Vec<ContainerChange>, Response), SessionError> {
        self.stream += 2;
        let call = Request {
            service: PLUGIN.to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
        };
        let packet = Packet {
            connection: Connection::Plugin,
            stream: self.stream,
            kind: MessageType::Request,
            payload: call.encode_to_vec(),
        };
        let mut bytes = Vec::new();
        encode(&packet, &mut bytes);
        let changes = self.plugin.take(&bytes)?;
        let answers = self.sent();
        let [answer] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((answer.connection, answer.stream), (Connection::Plugin, self.stream));
        Ok((changes, Response::decode(answer.payload.as_slice()).unwrap()))
    }
}

fn sandbox(id: &str, uid: &str) -> PodSandbox {
    PodSandbox { id: id.to_owned(), uid: uid.to_owned() }
}

fn container(digit: &str, sandbox: &str, state: i32, cpus: &str) -> Container {
    let cpu = Some(LinuxCpu { cpus: cpus.to_owned() });
    Container {
        id: digit.repeat(64),
        pod_sandbox_id: sandbox.to_owned(),
        name: format!("c-{digit}"),
        state,
        linux: Some(LinuxContainer { resources: Some(LinuxResources { cpu }) }),
    }
}

/// A container with a name of this many bytes.
fn named(length: usize, container: Container) -> Container {
    Container { name: "n".repeat(length), ..container }
}

fn about(pod: &str, container: Container) -> ContainerEvent {
    ContainerEvent { pod: Some(sandbox("s", pod)), container: Some(container) }
}

fn running(digit: u8, pod: &str, cpus: &str) -> RuntimeContainer {
    RuntimeContainer {
        id: ContainerId { runtime: Runtime::Containerd, number: [digit * 0x11; 32] },
        pod: pod.to_owned(),
        name: format!("c-{digit}"),
        cpus: cpus.to_owned(),
    }
}

#[test]
fn a_listing_comes_in_parts_and_has_the_containers_that_run() {
    let mut node = Node::new("containerd");
    let first = Synchronize {
        pods: vec![sandbox("s1", "a-1"), sandbox("s2", "b-2")],
        containers: vec![container("1", "s1", CONTAINER_RUNNING, "")],
        more: true,
    };
    let (changes, answer) = node.call("Synchronize", &first).unwrap();
    assert_eq!(changes, []);
    assert!(Synchronized::decode(answer.payload.as_slice()).unwrap().more, "it takes parts");
    let last = Synchronize {
        pods: Vec::new(),
        containers: vec![
            container("2", "s2", CONTAINER_RUNNING, "0-1"),
            container("3", "s2", CONTAINER_RUNNING + 1, ""),
            container("4", "unknown", CONTAINER_RUNNING, ""),
            named(NAME_MAX + 1, container("5", "s2", CONTAINER_RUNNING, "")),
        ],
        more: false,
    };
    let (changes, _) = node.call("Synchronize", &last).unwrap();
    let all = vec![running(1, "a-1", ""), running(2, "b-2", "0-1")];
    assert_eq!(changes, [ContainerChange::All(all)]);
}

#[test]
fn containers_start_change_and_end() {
    let mut node = Node::new("containerd");
    let mut report = |method: &str, event: &ContainerEvent| node.call(method, event).unwrap().0;
    let started = about("a-1", container("1", "s", 0, ""));
    let runs = ContainerChange::Runs(running(1, "a-1", ""));
    assert_eq!(report("PostStartContainer", &started), [runs]);
    let placed = about("a-1", container("1", "s", 0, "2-3"));
    let changed = ContainerChange::Changed(running(1, "a-1", "2-3"));
    assert_eq!(report("PostUpdateContainer", &placed), [changed]);
    let ended = [ContainerChange::Ended(running(1, "a-1", "").id)];
    assert_eq!(report("StopContainer", &placed), ended);
    // Of a sandbox that is gone already.
    let alone = ContainerEvent { pod: None, ..placed };
    assert_eq!(report("RemoveContainer", &alone), ended);
    assert_eq!(report("Shutdown", &ContainerEvent::default()), []);
}

#[test]
fn runtimes_before_the_methods_of_each_event_are_understood() {
    let mut node = Node::new("cri-o");
    let change = StateChange {
        event: event::POST_START_CONTAINER,
        pod: Some(sandbox("s", "a-1")),
        container: Some(container("1", "s", 0, "")),
    };
    let (changes, answer) = node.call("StateChange", &change).unwrap();
    let id = ContainerId { runtime: Runtime::CriO, number: [0x11; 32] };
    assert_eq!(changes, [ContainerChange::Runs(RuntimeContainer { id, ..running(1, "a-1", "") })]);
    assert_eq!(answer, Response::default());
}

#[test]
fn what_cannot_be_answered_is_refused_and_nothing_is_reported() {
    let mut node = Node::new("containerd");
    let (changes, answer) = node.call("CreateContainer", &ContainerEvent::default()).unwrap();
    assert_eq!((changes, answer.status.unwrap().code), (Vec::new(), UNIMPLEMENTED));
    let (changes, answer) = node.call("PostStartContainer", &ContainerEvent::default()).unwrap();
    assert_eq!((changes, answer.status), (Vec::new(), None), "no container");
    // A text where a pod belongs.
    let wrong = RegisterPlugin { plugin_name: "\u{1}".to_owned(), plugin_idx: String::new() };
    let (changes, answer) = node.call("PostStartContainer", &wrong).unwrap();
    assert_eq!((changes, answer.status.unwrap().code), (Vec::new(), INVALID_ARGUMENT));
    for (pod, cpus) in [("../../system.slice", ""), ("", ""), ("a-1", "0-3\n"), ("a-1", "all")] {
        let event = about(pod, container("1", "s", CONTAINER_RUNNING, cpus));
        let (changes, answer) = node.call("PostStartContainer", &event).unwrap();
        assert_eq!((changes, answer.status), (Vec::new(), None), "{pod:?} {cpus:?}");
    }
    let longest = about("a-1", named(NAME_MAX, container("1", "s", 0, "")));
    assert_eq!(node.call("PostStartContainer", &longest).unwrap().0.len(), 1);
    let longer = about("a-1", named(NAME_MAX + 1, container("1", "s", 0, "")));
    assert_eq!(node.call("PostStartContainer", &longer).unwrap().0, []);
    let short = Container { id: "12".to_owned(), ..container("1", "s", 0, "") };
    assert_eq!(node.call("PostStartContainer", &about("a-1", short)).unwrap().0, []);
}

#[test]
fn a_runtime_that_cannot_be_followed_ends_the_connection_with_the_reason() {
    let mut plugin = Session::new();
    let refused = Response {
        status: Some(Status { code: 7, message: "no\nplug-ins".to_owned() }),
        payload: Vec::new(),
    };
    let packet = Packet {
        connection: Connection::Runtime,
        stream: REGISTRATION,
        kind: MessageType::Response,
        payload: refused.encode_to_vec(),
    };
    let mut bytes = Vec::new();
    encode(&packet, &mut bytes);
    let why = plugin.take(&bytes).unwrap_err();
    assert_eq!(why.to_string(), "it refuses the plug-in: noplug-ins");
    let mut node = Node::new("containerd");
    let other = Configure { runtime_name: "dockerd".to_owned() };
    let why = node.call("Configure", &other).unwrap_err();
    assert!(why.to_string().contains("`dockerd`"), "{why}");
    let many = vec![container("1", "s", CONTAINER_RUNNING, ""); CONTAINERS_MAX + 1];
    let all = Synchronize { pods: Vec::new(), containers: many, more: false };
    let mut node = Node::new("containerd");
    assert!(matches!(node.call("Synchronize", &all), Err(SessionError::TooMany)));
}

#[test]
fn a_listing_keeps_no_more_than_the_containers_of_a_node_need() {
    let mut node = Node::new("containerd");
    let long = "f".repeat(NAME_MAX + 1);
    let sound = container("1", "s1", CONTAINER_RUNNING, "");
    let part = Synchronize {
        pods: vec![sandbox(&long, "a-1"), sandbox("s1", &long), sandbox("s2", "../..")],
        containers: vec![
            Container { id: long.clone(), ..sound.clone() },
            Container { pod_sandbox_id: long, ..sound },
        ],
        more: true,
    };
    node.call("Synchronize", &part).unwrap();
    assert!(node.plugin.sandboxes.is_empty() && node.plugin.listed.is_empty());
    let empty = PodSandbox::default();
    let many = Synchronize { pods: vec![empty; ENTRIES_MAX + 1], ..Synchronize::default() };
    assert!(matches!(node.call("Synchronize", &many), Err(SessionError::TooMany)));
}

#[test]
fn a_listing_of_an_unnamed_runtime_does_not_end_all_pods() {
    let mut node = Node { plugin: Session::new(), stream: 1 };
    node.sent();
    let listed = node.call("Synchronize", &Synchronize::default());
    assert!(matches!(listed, Err(SessionError::Unnamed)), "{listed:?}");
}

#[test]
fn the_answer_to_a_call_that_is_not_known_is_short() {
    let mut node = Node::new("containerd");
    let (_, answer) = node.call(&"x".repeat(1 << 20), &ContainerEvent::default()).unwrap();
    let status = answer.status.unwrap();
    assert!(status.code == UNIMPLEMENTED && status.message.len() < 200, "{}", status.message.len());
}

#[test]
fn any_bytes_are_a_report_or_an_error() {
    let mut whole = Vec::new();
    let mut node = Node::new("containerd");
    let call = Request {
        service: PLUGIN.to_owned(),
        method: "PostStartContainer".to_owned(),
        payload: about("a-1", container("1", "s", 0, "0")).encode_to_vec(),
    };
    let packet = Packet {
        connection: Connection::Plugin,
        stream: 3,
        kind: MessageType::Request,
        payload: call.encode_to_vec(),
    };
    encode(&packet, &mut whole);
    let (mut taken, mut refused) = (0, 0);
    for at in 0..whole.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            node.plugin = Session { runtime: Some(Runtime::Containerd), ..Session::default() };
            match node.plugin.take(&bytes) {
                Ok(_) => taken += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
}
