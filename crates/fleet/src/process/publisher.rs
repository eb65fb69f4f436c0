//! Publishes Events on pods and on `LatencyObjective`s, one after the other.

use super::backoff::Throttle;
use crate::events::EventLimits;
use crate::message::Kind;
use crate::table::PodEvent;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The reporting controller of Events.
const CONTROLLER: &str = "lull.dev/agent";
/// Longest wait for the answer of the API server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Events that were handed to the task that sends them.
const SENDING_MAX: usize = 64;

/// The Events of a node on their way to the API server.
#[derive(Debug)]
pub(super) struct Publisher {
    limits: EventLimits,
    /// The reporting instance: `lull-NODE`.
    instance: String,
    sender: mpsc::Sender<PodEvent>,
    /// Events that the API server did not accept, to be sent later.
    unsent: mpsc::UnboundedReceiver<PodEvent>,
    returned: mpsc::UnboundedSender<PodEvent>,
}

impl Publisher {
    /// Starts the task that sends Events. Must be called in a local set.
    pub(super) fn new(node: &str, client: Client, throttle: Throttle) -> Self {
        let (returned, unsent) = mpsc::unbounded_channel();
        let instance = format!("lull-{node}");
        let sender = start(client, throttle, instance.clone(), returned.clone());
        let limits = EventLimits::new(Instant::now());
        Self { limits, instance, sender, unsent, returned }
    }

    /// Sends further Events with another client.
    pub(super) fn reconnect(&mut self, client: Client, throttle: Throttle) {
        self.sender = start(client, throttle, self.instance.clone(), self.returned.clone());
    }

    /// Adds an Event, which is sent when its turn comes.
    pub(super) fn add(&mut self, event: PodEvent) {
        self.limits.add(event, Instant::now());
    }

    /// Sends the Events that are due, of objects that are known.
    pub(super) fn send(&mut self, is_known: impl Fn(&PodEvent) -> bool) {
        while let Ok(event) = self.unsent.try_recv() {
            self.limits.put_back(event);
        }
        for event in self.limits.due(Instant::now(), is_known) {
            if let Err(unsent) = self.sender.try_send(event) {
                self.limits.put_back(unsent.into_inner());
            }
        }
    }

    /// Reports, once, the Events that began to wait and those that were dropped.
    pub(super) fn report(&mut self) -> Option<String> {
        self.limits.report()
    }
}

/// Starts a task that sends Events and returns those that may be sent again.
fn start(
    client: Client,
    throttle: Throttle,
    instance: String,
    returned: mpsc::UnboundedSender<PodEvent>,
) -> mpsc::Sender<PodEvent> {
    let (sender, mut events) = mpsc::channel::<PodEvent>(SENDING_MAX);
    tokio::task::spawn_local(async move {
        while let Some(event) = events.recv().await {
            tokio::time::sleep(throttle.remaining(Instant::now())).await;
            if is_to_be_sent_again(create(&client, &event, &instance).await) {
                let _ = returned.send(event);
            }
        }
    });
    sender
}

/// Creates an Event; `None` if the API server has not answered in time.
async fn create(client: &Client, event: &PodEvent, instance: &str) -> Option<kube::Result<Event>> {
    let namespace = event.regarding.namespace.as_deref().unwrap_or("default");
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let described = describe(event, instance, Timestamp::now());
    let how = PostParams::default();
    tokio::time::timeout(ANSWER_TIMEOUT, events.create(&how, &described)).await.ok()
}

/// Whether the API server may take an Event later. One that it refuses, or that another node has
/// created, is not sent again.
fn is_to_be_sent_again(created: Option<kube::Result<Event>>) -> bool {
    match created {
        Some(Ok(_)) => false,
        Some(Err(kube::Error::Api(status))) => {
            matches!(status.code, 401 | 429) || status.code >= 500
        }
        Some(Err(_)) | None => true,
    }
}

/// An Event as the API server takes it.
fn describe(event: &PodEvent, instance: &str, now: Timestamp) -> Event {
    let (is_warning, reason, action) = match event.kind {
        Kind::Managed => (false, "LullManaged", "Manage"),
        Kind::Unmanaged => (true, "LullUnmanaged", "LeaveAlone"),
        Kind::SafeState => (true, "LullSafeState", "Protect"),
        Kind::KnobRefused => (true, "LullKnobRefused", "Steer"),
        Kind::ForeignWriter => (true, "LullForeignWriter", "LeaveAlone"),
        Kind::ObjectiveIgnored => (true, "LullObjectiveIgnored", "Ignore"),
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name_of(event, now)),
            namespace: event.regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(event.text.clone()),
        regarding: Some(event.regarding.clone()),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    }
}

/// The name of an Event. All nodes see a wrong `LatencyObjective`: their Events have one name, so
/// that the API server takes the first only.
fn name_of(event: &PodEvent, now: Timestamp) -> String {
    let mut hasher = DefaultHasher::new();
    (&event.regarding.uid, event.kind, &event.text).hash(&mut hasher);
    if event.kind != Kind::ObjectiveIgnored {
        now.as_nanosecond().hash(&mut hasher);
    }
    format!("lull-{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;
    use kube::Config;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc::Receiver;
    use tokio::task::LocalSet;

    fn event(kind: Kind, text: &str) -> PodEvent {
        let regarding = ObjectReference {
            uid: Some("1a".to_owned()),
            namespace: Some("shop".to_owned()),
            ..ObjectReference::default()
        };
        PodEvent { regarding, kind, text: text.to_owned() }
    }

    /// An API server that gives these answers and no others; its address and its requests.
    fn server(answers: &'static [&'static str]) -> (SocketAddr, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = [0; 8192];
                let mut request = String::new();
                while !request.ends_with('}') {
                    let count = stream.read(&mut bytes).unwrap();
                    request.push_str(&String::from_utf8_lossy(&bytes[..count]));
                }
                sender.send(request).unwrap();
                let (code, _) = answer.split_once(' ').unwrap();
                let body = format!("{{\"metadata\":{{}},\"code\":{code}}}");
                let text = format!(
                    "HTTP/1.1 {answer}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        (address, requests)
    }

    #[test]
    fn an_event_that_failed_is_sent_again_and_a_refused_one_is_not() {
        let (address, requests) =
            server(&["500 Internal Server Error", "201 Created", "403 Forbidden", "201 Created"]);
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build().unwrap();
        let texts = LocalSet::new().block_on(&runtime, async {
            let client = Client::try_from(config).unwrap();
            let mut publisher = Publisher::new("node", client, Throttle::default());
            let mut texts = Vec::new();
            publisher.add(event(Kind::SafeState, "first"));
            while texts.len() < 4 {
                publisher.send(|_| true);
                tokio::time::sleep(Duration::from_millis(5)).await;
                texts.extend(requests.try_iter());
                if texts.len() == 2 {
                    publisher.add(event(Kind::KnobRefused, "second"));
                }
                if texts.len() == 3 {
                    publisher.add(event(Kind::ForeignWriter, "third"));
                }
            }
            texts
        });
        for (text, wanted) in texts.iter().zip(["first", "first", "second", "third"]) {
            assert!(text.starts_with("POST /apis/events.k8s.io/v1/namespaces/shop/events"));
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    /// The place of a kind in the table of the next test, which must have all kinds.
    const fn row(kind: Kind) -> usize {
        match kind {
            Kind::Managed => 0,
            Kind::Unmanaged => 1,
            Kind::SafeState => 2,
            Kind::KnobRefused => 3,
            Kind::ForeignWriter => 4,
            Kind::ObjectiveIgnored => 5,
        }
    }

    #[test]
    fn each_kind_has_the_type_and_the_reason_that_the_manual_names() {
        let table = [
            (Kind::Managed, "Normal", "LullManaged", "Manage"),
            (Kind::Unmanaged, "Warning", "LullUnmanaged", "LeaveAlone"),
            (Kind::SafeState, "Warning", "LullSafeState", "Protect"),
            (Kind::KnobRefused, "Warning", "LullKnobRefused", "Steer"),
            (Kind::ForeignWriter, "Warning", "LullForeignWriter", "LeaveAlone"),
            (Kind::ObjectiveIgnored, "Warning", "LullObjectiveIgnored", "Ignore"),
        ];
        let manual = include_str!("../../../../docs/kubernetes.md");
        for (place, (kind, type_, reason, action)) in table.into_iter().enumerate() {
            assert_eq!(row(kind), place, "{reason}");
            let event = describe(&event(kind, "why"), "lull-node", Timestamp::UNIX_EPOCH);
            let texts = [&event.type_, &event.reason, &event.action, &event.note];
            let wanted = [type_, reason, action, "why"].map(Some);
            assert_eq!(texts.map(Option::as_deref), wanted, "{kind:?}");
            assert_eq!(event.regarding.unwrap().uid.as_deref(), Some("1a"), "{reason}");
            assert!(manual.contains(&format!("`{reason}`")), "{reason}");
        }
    }

    #[test]
    fn all_nodes_give_the_event_about_a_wrong_objective_one_name() {
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let wrong = event(Kind::ObjectiveIgnored, "keep one");
        assert_eq!(name_of(&wrong, early), name_of(&wrong, late));
        let of_pod = event(Kind::Unmanaged, "keep one");
        assert_ne!(name_of(&of_pod, early), name_of(&of_pod, late));
        let described = describe(&wrong, "lull-node", early);
        assert_eq!(described.reason.as_deref(), Some("LullObjectiveIgnored"));
        assert_eq!(described.type_.as_deref(), Some("Warning"));
    }
}
