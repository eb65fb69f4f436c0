//! A server over TLS that demands a client's certificate and a token.

/// Certificates are made by `openssl`.
mod needs_openssl {
    use super::super::address::Server;
    use super::super::client::Client;
    use crate::outbound::Access;
    use crate::outbound::certificates::certify;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::Duration;

    fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect()
    }

    /// Starts a server that answers every request with the request.
    fn serve(place: &Path) -> Server {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut clients = RootCertStore::empty();
        clients.add(certificates(&place.join("clients.pem")).remove(0)).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(clients.into(), provider.clone());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(
                certificates(&place.join("servers-leaf.pem")),
                PrivateKeyDer::from_pem_file(place.join("servers-leaf.key")).unwrap(),
            );
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, socket.unwrap());
                let mut bytes = [0; 4096];
                // A handshake that fails is the client's to report.
                let Ok(count) = stream.read(&mut bytes) else { continue };
                stream.write_all(&bytes[..count]).unwrap();
                stream.conn.send_close_notify();
                stream.flush().unwrap();
            }
        });
        Server::parse(&base).unwrap()
    }

    #[test]
    fn both_ends_are_certified_and_the_token_is_read_for_each_query() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| -> PathBuf { place.path().join(name) };
        certify(place.path(), "servers");
        certify(place.path(), "clients");
        let server = serve(place.path());
        std::fs::write(at("token"), "first\n").unwrap();
        let access = Access {
            ca: Some(at("servers.pem")),
            certificate: Some((at("clients-leaf.pem"), at("clients-leaf.key"))),
            token: Some(at("token")),
        };
        let mut client = Client::new(server.clone(), access.clone());
        let mut ask = || String::from_utf8(client.fetch("up").unwrap()).unwrap();
        assert!(ask().contains("Authorization: Bearer first\r\n"));
        std::fs::write(at("token"), "second\n").unwrap();
        assert!(ask().contains("Authorization: Bearer second\r\n"));
        let refused = [
            Access { ca: Some(at("clients.pem")), ..access.clone() },
            Access { certificate: None, ..access.clone() },
            Access { ca: Some(at("nothing")), ..access.clone() },
            Access { token: Some(at("nothing")), ..access },
        ];
        for access in refused {
            let failed = Client::new(server.clone(), access.clone()).fetch("up");
            assert!(failed.is_err(), "{access:?}: {failed:?}");
        }
    }
    #[test]
    fn a_server_that_sends_its_answer_bit_by_bit_gets_no_more_time() {
        let place = tempfile::tempdir().unwrap();
        certify(place.path(), "servers");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        let dribbling = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The head of a record of 16 KiB, then bytes that each come in time.
            let record = [0x16, 3, 3, 0x40, 0].into_iter().chain(std::iter::repeat(2));
            let sent = record.take(2_000).take_while(|byte| {
                std::thread::sleep(Duration::from_millis(20));
                stream.write_all(&[*byte]).is_ok()
            });
            sent.count()
        });
        let access = Access { ca: Some(place.path().join("servers.pem")), ..Access::default() };
        let mut client = Client::new(Server::parse(&base).unwrap(), access);
        let failed = client.fetch("up").unwrap_err();
        assert_eq!(failed.kind(), std::io::ErrorKind::TimedOut, "{failed}");
        assert!(dribbling.join().unwrap() < 2_000, "the client has gone");
    }
}
