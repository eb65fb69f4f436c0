//! Our own exporter at our own receiver, over TLS with a token.

/// Certificates are made by `openssl`.
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

    /// Serves in a thread of its own. Each protection that is sent is in force, or refused, once
    /// the returned channel has answered.
    fn serve(first: Protection) -> (String, UnboundedSender<Protection>, mpsc::Receiver<bool>) {
        let (protect, mut protections) = unbounded_channel::<Protection>();
        let (done, is_done) = mpsc::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_io().enable_time().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let receiver = Receiver::start(listener, Vec::new(), Vec::new(), &first).unwrap();
                while let Some(protection) = protections.recv().await {
                    done.send(receiver.protect(&protection).is_ok()).unwrap();
                }
            });
        });
        (address.to_string(), protect, is_done)
    }

    #[test]
    fn only_services_with_the_token_are_received_and_renewed_files_count_at_once() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        ["one", "two"].iter().for_each(|name| certify(place, name));
        let (address, protect, is_done) = serve(protection(place, "one", "secret"));
        let post = |scheme: &str, ca: &str, token: &str| {
            std::fs::write(place.join("token"), token).unwrap();
            let access = Access {
                ca: Some(place.join(format!("{ca}.pem"))),
                token: Some(place.join("token")),
                ..Access::default()
            };
            let collector = Collector::try_from(format!("{scheme}://{address}")).unwrap();
            let posted = collector.post(&mut Outbound::new(access), b"");
            posted.map_err(|error| error.to_string())
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
