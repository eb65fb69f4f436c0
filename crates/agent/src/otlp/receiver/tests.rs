//! Bodies that keep their pace and others; our own exporter at our own receiver, over TLS with a
//! token.

use super::*;
use axum::body::Bytes;
use hyper::body::Frame;
use std::convert::Infallible;
use std::task::{Context, Poll};

/// A body that sends this many bytes, and then nothing.
struct Stalling(usize);

impl HttpBody for Stalling {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match std::mem::take(&mut self.0) {
            0 => Poll::Pending,
            count => Poll::Ready(Some(Ok(Frame::data(vec![0; count].into())))),
        }
    }
}

fn received(body: Body) -> Result<Vec<u8>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let received = runtime.block_on(receive_body(body, Duration::from_millis(1)));
    received.map_err(|refusal| refusal.why)
}

#[test]
fn a_body_that_stalls_is_given_up_and_one_that_goes_on_is_received() {
    let late = received(Body::new(Stalling(1))).unwrap_err();
    assert!(late.contains("too slowly"), "{late}");
    assert_eq!(received(Body::from("whole")).unwrap(), b"whole");
    let long = received(Body::from(vec![0; BODY_MAX + 1])).unwrap_err();
    assert!(long.contains("more than 4 MiB"), "{long}");
    assert_eq!(time_of(PACE), Duration::from_secs(1), "the time grows with what has arrived");
}

/// Certificates are made by `openssl`.
#[cfg(feature = "tls")]
mod needs_openssl {
    use super::super::*;
    use crate::otlp::collector::Collector;
    use crate::outbound::certificates::certify;
    use crate::outbound::{Access, Outbound};
    use std::path::Path;
    use std::sync::mpsc;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    fn identity(place: &Path, name: &str) -> ServerIdentity {
        let read = |end: &str| std::fs::read(place.join(format!("{name}-leaf.{end}"))).unwrap();
        ServerIdentity { certificate: read("pem"), key: read("key") }
    }

    fn protection(place: &Path, name: &str, token: &str) -> Protection {
        let token = Some(TokenDigest::from_token(token));
        Protection { identity: Some(identity(place, name)), token }
    }

    /// Serves in a thread of its own. Each protection, the first one, too, is in force, or refused,
    /// once the returned channel has answered.
    fn serve(first: Protection) -> (String, UnboundedSender<Protection>, mpsc::Receiver<bool>) {
        let (protect, mut protections) = unbounded_channel::<Protection>();
        protect.send(first).unwrap();
        let (done, is_done) = mpsc::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_io().enable_time().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let mut receiver = Receiver::new(listener, Vec::new(), Vec::new());
                while let Some(protection) = protections.recv().await {
                    done.send(receiver.protect(&protection).is_ok()).unwrap();
                }
            });
        });
        (address.to_string(), protect, is_done)
    }

    /// Exports nothing, by this authority and with this token.
    fn post(place: &Path, url: String, ca: &str, token: &str) -> Result<(), String> {
        std::fs::write(place.join("token"), token).unwrap();
        let access = Access {
            ca: Some(place.join(format!("{ca}.pem"))),
            token: Some(place.join("token")),
            ..Access::default()
        };
        let collector = Collector::try_from(url).unwrap();
        let posted = collector.post(&mut Outbound::new(access), b"");
        posted.map_err(|error| error.to_string())
    }

    #[test]
    fn a_receiver_with_a_bad_certificate_at_the_start_serves_once_it_is_corrected() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        ["one", "two"].iter().for_each(|name| certify(place, name));
        let mut wrong = protection(place, "one", "old");
        wrong.identity = Some(ServerIdentity {
            certificate: identity(place, "one").certificate,
            key: identity(place, "two").key,
        });
        let (address, protect, is_done) = serve(wrong);
        assert!(!is_done.recv().unwrap(), "the key is another one's");
        protect.send(protection(place, "one", "secret")).unwrap();
        assert!(is_done.recv().unwrap());
        let post =
            |scheme: &str, token: &str| post(place, format!("{scheme}://{address}"), "one", token);
        assert_eq!(post("https", "secret"), Ok(()));
        assert_eq!(post("https", "old"), Err("status 401".to_owned()));
        assert!(post("http", "secret").is_err(), "not encrypted");
    }

    #[test]
    fn only_services_with_the_token_are_received_and_renewed_files_count_at_once() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        ["one", "two"].iter().for_each(|name| certify(place, name));
        let (address, protect, is_done) = serve(protection(place, "one", "secret"));
        assert!(is_done.recv().unwrap());
        let post = |scheme: &str, ca: &str, token: &str| {
            post(place, format!("{scheme}://{address}"), ca, token)
        };
        assert_eq!(post("https", "one", "secret"), Ok(()));
        assert_eq!(post("https", "one", "guessed"), Err("status 401".to_owned()));
        assert!(post("https", "two", "secret").is_err(), "another authority");
        assert!(post("http", "one", "secret").is_err(), "not encrypted");
        protect.send(protection(place, "two", "next")).unwrap();
        assert!(is_done.recv().unwrap());
        assert!(post("https", "one", "next").is_err());
        assert_eq!(post("https", "two", "next"), Ok(()));
        let mut wrong = protection(place, "one", "next");
        wrong.identity = Some(ServerIdentity { certificate: Vec::new(), key: Vec::new() });
        protect.send(wrong).unwrap();
        assert!(!is_done.recv().unwrap(), "no certificate");
        assert_eq!(post("https", "two", "next"), Ok(()), "the one before stays");
    }
}
