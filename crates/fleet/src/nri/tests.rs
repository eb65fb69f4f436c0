//! The connection with a runtime, which is a thread of the test.

use super::message::{Configure, PLUGIN, Request, Synchronize};
use super::trunk::{Connection, MessageType, Packet, Trunk, encode};
use super::*;
use prost::Message;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use tokio::task::LocalSet;

/// The runtime's end of a connection.
struct Peer {
    stream: StdUnixStream,
    trunk: Trunk,
    calls: u32,
}

impl Peer {
    /// Waits for the next message of the plug-in.
    fn receive(&mut self) -> Packet {
        let mut bytes = [0; 4_096];
        loop {
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the plug-in has gone");
            if let Some(packet) = self.trunk.add(&bytes[..count]).unwrap().pop() {
                return packet;
            }
        }
    }

    /// Calls the plug-in and waits for its answer.
    fn call(&mut self, method: &str, payload: &impl Message) {
        self.calls += 1;
        let stream = self.calls * 2 - 1;
        let call = Request {
            service: PLUGIN.to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
        };
        let (connection, kind) = (Connection::Plugin, MessageType::Request);
        let payload = call.encode_to_vec();
        let mut bytes = Vec::new();
        encode(&Packet { connection, stream, kind, payload }, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
        let answer = self.receive();
        assert_eq!((answer.kind, answer.stream), (MessageType::Response, stream));
    }
}

#[test]
fn a_runtime_is_answered_before_its_reports_are_read_and_its_end_is_one() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("nri.sock");
    assert!(connect(&socket).is_err());
    let listener = UnixListener::bind(&socket).unwrap();
    let (finish, finished) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let stream = listener.accept().unwrap().0;
        let mut peer = Peer { stream, trunk: Trunk::default(), calls: 0 };
        let registration = peer.receive();
        assert_eq!(registration.connection, Connection::Runtime);
        peer.call("Configure", &Configure { runtime_name: "containerd".to_owned() });
        peer.call("Synchronize", &Synchronize::default());
        peer.call("Synchronize", &Synchronize::default());
        // All is answered, and nothing read.
        finish.send(()).unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let mut reports = follow(connect(&socket).unwrap()).unwrap();
        finished.await.unwrap();
        for _ in 0..2 {
            let changes = next(Some(&mut reports)).await.unwrap();
            assert_eq!(changes, [ContainerChange::All(Vec::new())]);
        }
        let end = next(Some(&mut reports)).await;
        assert!(matches!(end, Err(PluginError::Closed)), "{end:?}");
    });
    thread.join().unwrap();
}

#[test]
fn a_runtime_that_accepts_no_connection_holds_nothing_up() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("nri.sock");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let (mut waiting, mut refused) = (Vec::new(), None);
    while refused.is_none() {
        match connect(&path) {
            Ok(stream) => waiting.push(stream),
            Err(why) => refused = Some(why),
        }
    }
    let why = refused.unwrap().to_string();
    assert!(why.contains("accepts none") && !waiting.is_empty(), "{why}");
}

#[test]
fn the_first_report_is_awaited_but_not_for_ever() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (soon, later) = (Duration::from_millis(1), Duration::from_secs(600));
    runtime.block_on(async {
        assert!(first(None, later).await.is_none(), "no runtime is followed");
        let (sender, mut reports) = mpsc::channel(1);
        assert!(first(Some(&mut reports), soon).await.is_none(), "a runtime that says nothing");
        let listing = ContainerChange::All(Vec::new());
        let report = async { sender.send(Ok(vec![listing.clone()])).await.unwrap() };
        let (report, ()) = tokio::join!(first(Some(&mut reports), later), report);
        assert_eq!(report.unwrap().unwrap(), [listing]);
        drop(sender);
        let end = first(Some(&mut reports), later).await;
        assert!(matches!(end, Some(Err(PluginError::Closed))), "{end:?}");
    });
}
