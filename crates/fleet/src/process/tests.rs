//! What reaches the agent, and what does not wait for the API server.

use super::*;
use crate::message::{FROM_MAX, Measured, TemplateOffer};
use crate::pods::tests::pod;
use futures_util::stream;
use kube::core::Status;
use serde_json::json;
use std::net::{SocketAddr, TcpListener};

/// Runs a test in a runtime as the watcher has it.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// A watcher of an API server, with a template for every pod, that knows no `LatencyObjective` yet.
fn watcher(server: SocketAddr, channel: &UnixStream) -> Watcher<'_> {
    let offer = TemplateOffer {
        selector: "tier=web".to_owned(),
        is_critical: false,
        of: Measured::Nothing,
        source: None,
        percent: None,
    };
    let table = Table::new(&Begin { templates: vec![offer], ..Begin::default() }).unwrap();
    let mut config = kube::Config::new(format!("http://{server}").parse().unwrap());
    config.default_retry = false;
    Watcher::new("node".to_owned(), config, table, Out::new(channel)).unwrap()
}

fn applied(uid: &str) -> Change {
    let pod = serde_json::from_value(pod(uid, &json!({}))).unwrap();
    Change::Pod(Box::new(Ok(Event::Apply(pod))))
}

/// The UID of the first pod that the agent receives. Nothing but a sign of life may come before it.
async fn first_pod(agent: &UnixStream) -> String {
    let (mut frames, mut bytes) = (Frames::new(FROM_MAX), [0; 4096]);
    loop {
        agent.readable().await.unwrap();
        let Ok(count) = agent.try_read(&mut bytes) else { continue };
        frames.add(&bytes[..count]);
        while let Some(message) = frames.next_message().unwrap() {
            match message {
                FromWatcher::Pod(order) => return order.uid,
                FromWatcher::Heard => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A server whose connections are made by the kernel, and which gives no answer.
fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn a_pod_reaches_the_agent_together_with_the_sign_of_life() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.table.end_rules();
        assert_eq!(watcher.take(applied("1a")), Next::GoesOn);
        let messages = watcher.messages();
        assert!(matches!(messages[..], [FromWatcher::Heard, FromWatcher::Pod(_)]), "{messages:?}");
    });
}

#[test]
fn a_pod_does_not_wait_for_an_api_server_that_owes_an_answer() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.table.end_rules();
        watcher.begin_probe();
        let changes = stream::iter([applied("1a")]).chain(stream::pending()).boxed();
        let mut frames = Frames::new(TO_MAX);
        tokio::select! {
            next = watcher.follow(changes, &mut frames) => panic!("{next:?}"),
            uid = first_pod(&agent) => assert_eq!(uid, "1a"),
        }
        assert!(watcher.probe.is_some(), "the answer is awaited");
    });
}

#[test]
fn a_pod_waits_for_latency_objectives_that_the_api_server_does_not_refuse() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.take(applied("1a"));
        let failed = |error| Change::Rule(Box::new(Err(watcher::Error::InitialListFailed(error))));
        watcher.take(failed(kube::Error::TlsRequired));
        let messages = watcher.messages();
        assert!(matches!(messages[..], [FromWatcher::Heard]), "{messages:?}");
        let status = Status { code: 404, ..Status::default() };
        watcher.take(failed(kube::Error::Api(Box::new(status))));
        let messages = watcher.messages();
        let [FromWatcher::Notice(why), FromWatcher::Pod(_)] = &messages[..] else {
            panic!("{messages:?}");
        };
        assert!(why.contains("knows no LatencyObjectives"), "{why}");
    });
}

#[test]
fn a_pod_waits_for_latency_objectives_while_the_api_server_throttles() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.take(applied("1a"));
        for code in [429, 429, 503, 401] {
            let status = Box::new(Status { code, ..Status::default() });
            let error = watcher::Error::InitialListFailed(kube::Error::Api(status));
            watcher.take(Change::Rule(Box::new(Err(error))));
        }
        let messages = watcher.messages();
        let [FromWatcher::Heard, FromWatcher::Notice(why)] = &messages[..] else {
            panic!("{messages:?}");
        };
        assert!(why.contains("throttling") && why.contains("new pods wait"), "{why}");
        watcher.take(Change::Rule(Box::new(Ok(Event::Init))));
        watcher.take(Change::Rule(Box::new(Ok(Event::InitDone))));
        let messages = watcher.messages();
        assert!(matches!(messages.last(), Some(FromWatcher::Pod(_))), "{messages:?}");
    });
}

#[test]
fn a_server_that_answers_other_requests_stays_silent_while_it_refuses_the_pods() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        let refused = |code| kube::Error::Api(Box::new(Status { code, ..Status::default() }));
        let unreadable = kube::Error::SerdeError(serde_json::from_str::<bool>("1").unwrap_err());
        for error in [refused(401), refused(403), refused(429), unreadable] {
            let error = watcher::Error::InitialListFailed(error);
            assert_eq!(watcher.take(Change::Pod(Box::new(Err(error)))), Next::GoesOn);
            let messages = watcher.messages();
            assert!(matches!(messages[..], [FromWatcher::Lost(_)]), "{messages:?}");
            assert_eq!(watcher.take_answer(Ok(())), Next::GoesOn);
            watcher.take(Change::Rule(Box::new(Ok(Event::InitDone))));
            assert!(watcher.messages().is_empty());
        }
        watcher.take(applied("1a"));
        let messages = watcher.messages();
        assert!(matches!(messages[..], [FromWatcher::Heard, FromWatcher::Pod(_)]), "{messages:?}");
    });
}

#[test]
fn a_watch_that_begins_is_no_answer_of_the_server() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.take(Change::Pod(Box::new(Ok(Event::Init))));
        watcher.take(Change::Rule(Box::new(Ok(Event::Init))));
        assert!(watcher.messages().is_empty());
        watcher.take(Change::Pod(Box::new(Ok(Event::InitDone))));
        let messages = watcher.messages();
        assert!(matches!(messages[..], [FromWatcher::Heard]), "{messages:?}");
    });
}

#[test]
fn latency_objectives_that_cannot_be_read_are_reported_once_and_hold_up_no_pod() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.take(applied("1a"));
        for _ in 0..2 {
            let wrong = serde_json::from_str::<bool>("1").unwrap_err();
            let wrong = watcher::Error::InitialListFailed(kube::Error::SerdeError(wrong));
            watcher.take(Change::Rule(Box::new(Err(wrong))));
        }
        let messages = watcher.messages();
        let [FromWatcher::Heard, FromWatcher::Notice(why), FromWatcher::Pod(_)] = &messages[..]
        else {
            panic!("{messages:?}");
        };
        assert!(why.contains("cannot read the LatencyObjectives"), "{why}");
    });
}

#[test]
fn a_runtime_that_lists_nothing_holds_up_no_pod_and_is_in_the_journal() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, agent) = UnixStream::pair().unwrap();
        let (runtime, _silent) = StdUnixStream::pair().unwrap();
        runtime.set_nonblocking(true).unwrap();
        let mut watcher = watcher(address, &channel);
        watcher.follow_runtime(Some(Ok(runtime)));
        watcher.await_listing().await.unwrap();
        let (mut frames, mut bytes) = (Frames::new(FROM_MAX), [0; 4096]);
        agent.readable().await.unwrap();
        let count = agent.try_read(&mut bytes).unwrap();
        frames.add(&bytes[..count]);
        let message = frames.next_message().unwrap();
        let Some(FromWatcher::Notice(text)) = message else { panic!("{message:?}") };
        assert!(text.contains("has not listed its containers yet"), "{text}");
        assert!(watcher.reports.is_some(), "it may list them later");
    });
}

#[test]
fn a_refused_token_is_read_again_and_a_refused_certificate_ends_the_watcher() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        let refused = || {
            let status = Box::new(Status { code: 401, ..Status::default() });
            let error = watcher::Error::WatchStartFailed(kube::Error::Api(status));
            Change::Pod(Box::new(Err(error)))
        };
        assert_eq!(watcher.take(refused()), Next::GoesOn, "the token was read just now");
        watcher.renewed = Instant::now().checked_sub(PROBE_WHILE_LOST).unwrap();
        assert_eq!(watcher.take(refused()), Next::Restarts);
        watcher.config.auth_info.client_certificate_data = Some("certificate".to_owned());
        assert_eq!(watcher.take(refused()), Next::Ends);
    });
}

#[test]
fn a_watch_that_the_server_did_not_continue_begins_again_with_a_list() {
    block_on(async {
        let (_server, address) = silent();
        let (channel, _agent) = UnixStream::pair().unwrap();
        let mut watcher = watcher(address, &channel);
        let status = Box::new(Status { code: 429, ..Status::default() });
        let error = watcher::Error::WatchStartFailed(kube::Error::Api(status));
        assert_eq!(watcher.take(Change::Pod(Box::new(Err(error)))), Next::GoesOn);
        assert_eq!(watcher.take_answer(Ok(())), Next::Restarts);
        let messages = watcher.messages();
        assert!(
            matches!(messages[..], [FromWatcher::Lost(_), FromWatcher::Heard, ..]),
            "{messages:?}"
        );
    });
}
