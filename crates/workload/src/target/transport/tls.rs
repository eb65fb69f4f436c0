//! TLS sessions by `rustls` with ring.
//!
//! All connections of a run share the tickets and session numbers that `rustls` stores, so that a
//! new connection resumes a session where the server has issued one of these.

use super::super::endpoint::Stream;
use super::{TlsConfig, TlsError};
use crate::authorities::{AuthoritiesError, read_authorities};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, RootCertStore,
    SignatureScheme,
};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// The correction of a certificate that is not trusted.
const ADVICE: &str = "give the certificate of its authority by --tls-ca FILE, or accept any by \
                      --tls-insecure";

/// The configuration of the sessions with one server.
#[derive(Debug, Clone)]
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The protocol within TLS that the server must choose (ALPN).
    required: Option<&'static [u8]>,
}

impl TlsClient {
    /// Creates a client of sessions with a host. `offered` is the protocol within TLS, if that is
    /// negotiated.
    pub(crate) fn new(
        config: &TlsConfig,
        host: &str,
        offered: Option<&'static [u8]>,
        is_required: bool,
    ) -> Result<Self, TlsError> {
        let unnamed = |_| TlsError::Name { host: host.to_owned() };
        let name = ServerName::try_from(host.to_owned()).map_err(unnamed)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder =
            builder.with_safe_default_protocol_versions().map_err(|_| TlsError::Absent)?;
        let builder = match config.is_insecure {
            true => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider })),
            false => builder.with_root_certificates(authorities(config)?),
        };
        let mut client = builder.with_no_client_auth();
        client.alpn_protocols = offered.into_iter().map(<[u8]>::to_vec).collect();
        Ok(Self { config: Arc::new(client), name, required: offered.filter(|_| is_required) })
    }

    /// Begins a session behind bytes in the clear.
    pub(super) fn begin(&self, clear: Vec<u8>) -> io::Result<Session> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut connection = connection.map_err(io::Error::other)?;
        // The client itself bounds the bytes under way.
        connection.set_buffer_limit(None);
        let required = self.required;
        let is_taken = false;
        Ok(Session { connection, required, out: clear, written: 0, readable: 0, is_taken })
    }
}

fn authorities(config: &TlsConfig) -> Result<RootCertStore, TlsError> {
    read_authorities(config.ca.as_deref()).map_err(|error| match error {
        AuthoritiesError::Unknown => TlsError::NoAuthorities,
        AuthoritiesError::Unreadable(path, error) => {
            TlsError::Certificates { path, problem: error.to_string() }
        }
        AuthoritiesError::Empty(path) => {
            TlsError::Certificates { path, problem: "it has none".to_owned() }
        }
    })
}

/// One connection's session.
#[derive(Debug)]
pub(super) struct Session {
    connection: ClientConnection,
    required: Option<&'static [u8]>,
    /// Bytes for the socket, and how many of them are written.
    out: Vec<u8>,
    written: usize,
    /// Decrypted bytes that have not been taken.
    readable: usize,
    /// Whether the end of the handshake has been reported.
    is_taken: bool,
}

impl Session {
    /// Encrypts all of these bytes, or keeps them until the handshake is over.
    pub(super) fn encrypt(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.writer().write_all(bytes)?;
        Ok(bytes.len())
    }

    /// Writes the encrypted bytes to the socket.
    pub(super) fn flush(&mut self, socket: &Stream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.out)?;
        }
        while self.written < self.out.len() {
            self.written += socket.send(&self.out[self.written..])?;
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads from the socket once and decrypts. Returns 0 at its end.
    pub(super) fn fill(&mut self, socket: &Stream) -> io::Result<usize> {
        let count = self.connection.read_tls(&mut Raw(socket))?;
        let state = self.connection.process_new_packets().map_err(|error| refused(&error))?;
        self.readable = state.plaintext_bytes_to_read();
        if self.is_open()
            && self.required.is_some_and(|it| self.connection.alpn_protocol() != Some(it))
        {
            return Err(io::Error::other("the server does not speak HTTP/2 under TLS"));
        }
        Ok(count)
    }

    /// Takes decrypted bytes: none at the end of the connection, `None` if there are none yet.
    pub(super) fn take(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(bytes) {
            Ok(count) => {
                self.readable = self.readable.saturating_sub(count);
                Ok(Some(count))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            // Many servers close the socket without a close_notify alert.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Returns once, when the handshake is over, whether it resumed an earlier session.
    pub(super) fn take_handshake(&mut self) -> Option<bool> {
        if self.is_taken || !self.is_open() {
            return None;
        }
        self.is_taken = true;
        Some(self.connection.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    pub(super) const fn has_received(&self) -> bool {
        self.readable > 0
    }

    pub(super) fn has_output(&self) -> bool {
        self.connection.wants_write() || self.written < self.out.len()
    }
}

fn refused(error: &rustls::Error) -> io::Error {
    let text = match error {
        rustls::Error::InvalidCertificate(_) => format!("{error}: {ADVICE}"),
        rustls::Error::InvalidMessage(_) => {
            format!("{error}: does a TLS server listen at this port?")
        }
        _ => error.to_string(),
    };
    io::Error::new(ErrorKind::InvalidData, text)
}

/// The socket as a reader.
struct Raw<'s>(&'s Stream);

impl Read for Raw<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.receive(bytes)
    }
}

/// Accepts any certificate; signatures are checked, so that the server has its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
